//! Owns progress: a spinner on a terminal, plain lines otherwise, always on stderr, nothing with `--json`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::say;

/// How often a long stage says so where it cannot rewrite a line.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// A stage that is under way.
pub(crate) struct Stage {
    bar: Option<ProgressBar>,
    plain: bool,
    name: &'static str,
    start: Instant,
    said: Instant,
}

impl Stage {
    /// Begins a stage; `quiet` shows nothing.
    pub(crate) fn begin(name: &'static str, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!quiet && terminal).then(|| {
            let bar = ProgressBar::new_spinner().with_message(name);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let plain = !quiet && !terminal;
        if plain {
            say(&format!("{name} ..."));
        }
        let start = Instant::now();
        Stage { bar, plain, name, start, said: start }
    }

    /// Says how much of it is done: on a terminal beside the name, else a line every ten seconds.
    pub(crate) fn done(&mut self, done: u64, all: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} {done} of {all}", self.name));
        }
        if self.plain && self.said.elapsed() > PLAIN_EVERY {
            self.said = Instant::now();
            say(&format!("{} {done} of {all}", self.name));
        }
    }

    /// Ends it.
    pub(crate) fn end(self) {
        let time = self.start.elapsed().as_secs_f64();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.plain && time > 0.5 {
            say(&format!("{} done in {time:.1} s", self.name));
        }
    }
}
