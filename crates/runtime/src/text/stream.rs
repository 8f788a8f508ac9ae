//! Text from ids that come one at a time.
//!
//! Owns the bytes of a character that is not complete yet, three at most. What it has printed never changes.

use super::Tokenizer;

/// Turns ids into text as they come, only whole characters at a time.
///
/// All its outputs joined, [`Self::finish`] included, equal [`Tokenizer::decode`] of all ids.
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        StreamDecoder { tokenizer, pending: Vec::new() }
    }

    /// The text that an id completes; control tokens complete nothing. Bytes that can never become a character are
    /// printed as U+FFFD; the beginning of a character waits.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id));
        let done = self.pending.len() - unfinished(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..done]).into_owned();
        self.pending.drain(..done);
        text
    }

    /// Ends the text: what was still waiting becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Length of the incomplete character at the end of some bytes.
fn unfinished(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return 0,
            Err(e) => match e.error_len() {
                None => return rest.len() - e.valid_up_to(),
                Some(bad) => rest = &rest[e.valid_up_to() + bad..],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unfinished;

    #[test]
    fn only_a_beginning_at_the_end_is_unfinished() {
        assert_eq!(unfinished(b"abc"), 0);
        assert_eq!(unfinished("é".as_bytes()), 0);
        assert_eq!(unfinished(b"a\xc3"), 1);
        assert_eq!(unfinished(b"\xf0\x9f\x98"), 3);
        assert_eq!(unfinished(b"\x80\xffx"), 0);
        assert_eq!(unfinished(b"\xff\xe6\x97"), 2);
        assert_eq!(unfinished(b"\xc3a"), 0);
    }
}
