//! Owns the writing to stdout and stderr. A stream that is closed or full is an error to handle, never a panic. Once the
//! reader of stdout has gone, nothing more is printed there; commands go on with the rest of their work.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the reader of stdout has gone.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Whether the reader of stdout has gone.
pub(crate) fn unread() -> bool {
    UNREAD.load(Ordering::SeqCst)
}

/// Prints text on stdout at once, while there is a reader.
///
/// # Errors
/// The stream is full or fails.
pub(crate) fn try_print(text: &str) -> io::Result<()> {
    if unread() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
            UNREAD.store(true, Ordering::SeqCst);
            Ok(())
        }
        done => done,
    }
}

/// Prints a line on stderr. There is nowhere left to report a stderr that cannot be written.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Text in which nothing acts on a terminal: control characters, and those that break lines or turn the direction of
/// the text, are escaped.
pub(crate) fn escaped(text: &str) -> String {
    let acts = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Where log lines go: stderr, with what acts on a terminal escaped. The logger gives one line at a time.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(&escaped(String::from_utf8_lossy(line).trim_end_matches('\n')));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        assert_eq!(escaped("a\x1b[31m\r\nb\u{9b}1m\u{202e}\u{2028}"), "a\\u{1b}[31m\\r\\nb\\u{9b}1m\\u{202e}\\u{2028}");
        assert_eq!(escaped("größe 模型 \u{fffd}"), "größe 模型 \u{fffd}");
    }
}
