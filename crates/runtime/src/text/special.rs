//! Control tokens inside text: where they are, and how text is kept from containing them.
//!
//! Owns the search and the guarding. It never encodes anything.

/// The control tokens of a vocabulary.
#[derive(Clone, Debug, Default)]
pub(super) struct Specials {
    /// Text and id, longest text first.
    tokens: Vec<(String, u32)>,
}

/// A stretch of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Ordinary text, not empty.
    Text(&'a str),
    /// A control token.
    Special(u32),
}

impl Specials {
    pub(super) fn new(mut tokens: Vec<(String, u32)>) -> Specials {
        tokens.retain(|t| !t.0.is_empty());
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        Specials { tokens }
    }

    /// The control tokens that start at the beginning of `text`, the longest.
    fn at(&self, text: &str) -> Option<&(String, u32)> {
        self.tokens.iter().find(|t| text.starts_with(&t.0))
    }

    /// Whether a byte starts a control token.
    fn firsts(&self) -> [bool; 256] {
        let mut firsts = [false; 256];
        self.tokens.iter().for_each(|t| firsts[usize::from(t.0.as_bytes()[0])] = true);
        firsts
    }

    /// Cuts text at its control tokens: leftmost first, the longest at each place.
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let firsts = self.firsts();
        let mut pieces = Vec::new();
        let (mut from, mut at) = (0, 0);
        let bytes = text.as_bytes();
        while at < bytes.len() {
            // A token's first byte starts a character, so `at` is a character's border whenever it matches.
            match firsts[usize::from(bytes[at])].then(|| self.at(&text[at..])).flatten() {
                Some((token, id)) => {
                    if from < at {
                        pieces.push(Piece::Text(&text[from..at]));
                    }
                    pieces.push(Piece::Special(*id));
                    at += token.len();
                    from = at;
                }
                None => at += 1,
            }
        }
        if from < bytes.len() {
            pieces.push(Piece::Text(&text[from..]));
        }
        pieces
    }

    /// `text` with `guard` after the first character of every control token, and of every beginning of one that the
    /// text's end cuts off: then neither the text nor a concatenation that starts with it holds a control token.
    /// Tokens whose text `keep` accepts stay whole.
    pub(super) fn guard(&self, text: &str, guard: char, keep: impl Fn(&str) -> bool) -> String {
        let firsts = self.firsts();
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            out.push(c);
            let rest = &text[at..];
            let risky = |t: &(String, u32)| (rest.starts_with(&t.0) || t.0.starts_with(rest)) && !keep(&t.0);
            if firsts[usize::from(text.as_bytes()[at])] && self.tokens.iter().any(risky) {
                out.push(guard);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, Specials};

    fn specials() -> Specials {
        Specials::new(vec![("<|a|>".into(), 1), ("<|a|>b".into(), 2), ("é!".into(), 3), (String::new(), 4)])
    }

    #[test]
    fn splits_leftmost_longest() {
        let s = specials();
        let want = [Piece::Text("x<"), Piece::Special(2), Piece::Special(1), Piece::Text("è"), Piece::Special(3)];
        assert_eq!(s.split("x<<|a|>b<|a|>èé!"), want);
        assert_eq!(s.split(""), []);
        assert_eq!(s.split("<|a|"), [Piece::Text("<|a|")]);
    }

    #[test]
    fn guarded_text_joins_to_no_token() {
        let s = specials();
        let guard = |t: &str| s.guard(t, '\u{100000}', |_| false);
        for whole in ["<|a|>", "<|a|>b", "é!", "<<|a|>", "<|a<|a|>|>"] {
            for (cut, _) in whole.char_indices() {
                let joined = guard(&whole[..cut]) + &guard(&whole[cut..]);
                assert!(s.split(&joined).iter().all(|p| matches!(p, Piece::Text(_))), "{joined:?}");
                assert_eq!(joined.replace('\u{100000}', ""), whole);
            }
        }
        assert_eq!(s.guard("<|a|>", '\u{100000}', |t| t.starts_with("<|a|>")), "<|a|>");
        assert_eq!(guard("plain"), "plain");
    }
}
