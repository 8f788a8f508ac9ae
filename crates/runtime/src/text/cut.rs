//! Where a long text may be cut so that its parts give the ids of the whole.
//!
//! Owns what is known of the one way in which GLM tokenizers split text into words. It never encodes anything, and a
//! tokenizer that splits in another way is not cut for.

use serde_json::{Value, json};

/// How text is split: contractions, words with one leading sign, digits in threes, signs, line ends, blanks.
const SPLIT: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pairs of neighbouring bytes.
#[derive(Clone, Debug)]
struct Pairs(Vec<u64>);

impl Pairs {
    fn index(a: u8, b: u8) -> (usize, u64) {
        let at = usize::from(a) << 8 | usize::from(b);
        (at / 64, 1 << (at % 64))
    }

    fn add(&mut self, text: &[u8]) {
        for pair in text.windows(2) {
            let (word, bit) = Self::index(pair[0], pair[1]);
            self.0[word] |= bit;
        }
    }

    fn holds(&self, a: u8, b: u8) -> bool {
        let (word, bit) = Self::index(a, b);
        self.0[word] & bit != 0
    }
}

/// The places of one tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    /// A tokenizer that splits as [`SPLIT`] does; any other is never cut for.
    known: bool,
    /// Inside tokens that are looked for before text is split.
    whole: Pairs,
}

impl Cuts {
    /// The places of a tokenizer that looks for its added tokens that are not special, then splits.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Cuts {
        let split = json!({"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false});
        let found = serde_json::to_value(tokenizer.get_pre_tokenizer()).unwrap_or(Value::Null);
        let bytes = &found["pretokenizers"][1];
        let known = tokenizer.get_normalizer().is_none()
            && tokenizer.get_post_processor().is_none()
            && found["type"] == "Sequence"
            && found["pretokenizers"].as_array().is_some_and(|steps| steps.len() == 2)
            && found["pretokenizers"][0] == split
            && (&bytes["type"], &bytes["add_prefix_space"], &bytes["use_regex"])
                == (&"ByteLevel".into(), &false.into(), &false.into());
        let mut whole = Pairs(vec![0; (1 << 16) / 64]);
        tokenizer.get_added_tokens_decoder().values().for_each(|token| whole.add(token.content.as_bytes()));
        Cuts { known, whole }
    }

    /// Whether the pieces of the text end between the bytes `at - 1` and `at`, whatever stands around them. They do
    /// where a letter or digit ends a word or number: no alternative of [`SPLIT`] goes on from one to what is none of
    /// its kind, and none looks behind it or ahead of it.
    fn may(&self, text: &str, at: usize) -> bool {
        if !text.is_char_boundary(at) {
            return false;
        }
        let (Some(before), Some(after)) = (text[..at].chars().next_back(), text[at..].chars().next()) else {
            return false;
        };
        let ends = match before {
            '0'..='9' => after.is_ascii() && !after.is_ascii_digit(),
            c if letter(c) => {
                (after.is_ascii() && !after.is_ascii_alphabetic())
                    || matches!(after, '、' | '。' | '，' | '！' | '？' | '：' | '；')
            }
            _ => false,
        };
        ends && !self.whole.holds(text.as_bytes()[at - 1], text.as_bytes()[at])
    }

    /// A text in blocks of about `size` bytes, longer where there is no place to cut.
    pub(super) fn blocks<'a>(&'a self, text: &'a str, size: usize) -> Blocks<'a> {
        Blocks { cuts: self, rest: text, size: size.max(1) }
    }
}

/// Some of the characters of the class `\p{L}`.
fn letter(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ɏ' | 'Α'..='Ρ' | 'Σ'..='ϡ' | 'Ѐ'..='ҁ' | 'Ҋ'..='ԯ'
        | 'א'..='ת' | 'ؠ'..='ي' | 'अ'..='ह' | 'ก'..='ะ' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '一'..='鿿' | '가'..='힣')
}

/// See [`Cuts::blocks`].
pub(super) struct Blocks<'a> {
    cuts: &'a Cuts,
    rest: &'a str,
    size: usize,
}

impl<'a> Iterator for Blocks<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let all = self.rest.len();
        let end = if self.cuts.known && all > self.size {
            let back = (1..=self.size).rev();
            back.chain(self.size + 1..all).find(|&at| self.cuts.may(self.rest, at)).unwrap_or(all)
        } else {
            all
        };
        let (block, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(block)
    }
}
