//! The byte-level BPE tokenizer of a plan.
//!
//! Owns encoding with control tokens recognised or not, and the bytes of each token. Nothing is ever put in front of
//! or after the text.

use super::TextError;
use super::cut::Cuts;
use super::special::{Piece, Specials};
use super::stream::StreamDecoder;
use tokenizers::DecoderWrapper;

/// Longest text, in bytes, that the tokenizer is given at once, where there is a place to cut: it takes hundreds of
/// bytes for each.
const BLOCK: usize = 16 << 10;
/// Longest text without a place to cut.
const MAX_UNBROKEN: usize = 256 << 10;

/// A tokenizer in Hugging Face's JSON form.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Control tokens switched off: their text is text.
    pub(super) inner: tokenizers::Tokenizer,
    specials: Specials,
    /// What each id prints; nothing for control tokens.
    bytes: Vec<Vec<u8>>,
    longest: usize,
    cuts: Cuts,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if it cannot be read, [`TextError::Unsupported`] if it is not byte-level or a control
    /// token has matching rules beyond its text.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, TextError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        if !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TextError::Unsupported("a decoder other than ByteLevel".into()));
        }
        inner.set_encode_special_tokens(true);
        let bytes = token_bytes(&inner);
        let mut control = Vec::new();
        for (id, token) in inner.get_added_tokens_decoder() {
            if token.special {
                if token.single_word || token.lstrip || token.rstrip {
                    let name = format!("the control token {:?} with matching rules", token.content);
                    return Err(TextError::Unsupported(name));
                }
                control.push((token.content, id));
            }
        }
        let control_bytes = control.iter().map(|(token, _)| token.len());
        let longest = bytes.iter().map(Vec::len).chain(control_bytes).max().unwrap_or(1).max(1);
        let cuts = Cuts::of(&inner);
        Ok(Tokenizer { inner, specials: Specials::new(control), bytes, longest, cuts })
    }

    /// The ids of a text. With `specials`, the text of a control token becomes that token; without, it is only text.
    ///
    /// # Errors
    /// As [`Self::encode_at_most`], of any number.
    pub fn encode(&self, text: &str, specials: bool) -> Result<Vec<u32>, TextError> {
        self.encode_at_most(text, specials, usize::MAX)
    }

    /// As [`Self::encode`], in time and memory that grow with `most` and not with the text.
    ///
    /// # Errors
    /// [`TextError::Long`] if there are more ids, [`TextError::Unbroken`] if a stretch that cannot be cut is too long,
    /// [`TextError::Encode`] if the tokenizer fails.
    pub fn encode_at_most(&self, text: &str, specials: bool, most: usize) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        if !specials {
            self.encode_plain(text, most, &mut ids)?;
            return Ok(ids);
        }
        self.encode_split(text, most, |t, ids| self.encode_plain(t, most, ids))
    }

    /// As [`Self::encode_at_most`] with specials, where `guard` inside a control token's text makes it text; it is
    /// dropped.
    pub(super) fn encode_guarded(&self, text: &str, guard: char, most: usize) -> Result<Vec<u32>, TextError> {
        self.encode_split(text, most, |t, ids| self.encode_plain(&t.replace(guard, ""), most, ids))
    }

    fn encode_split(
        &self,
        text: &str,
        most: usize,
        plain: impl Fn(&str, &mut Vec<u32>) -> Result<(), TextError>,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for piece in self.specials.split(text) {
            match piece {
                Piece::Special(_) if ids.len() >= most => return Err(TextError::Long(most)),
                Piece::Special(id) => ids.push(id),
                Piece::Text(text) => plain(text, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// Appends the ids of text without control tokens, as long as there are no more than `most`.
    fn encode_plain(&self, text: &str, most: usize, ids: &mut Vec<u32>) -> Result<(), TextError> {
        for block in self.cuts.blocks(text, BLOCK) {
            // Fewer ids than this many do not make so many bytes.
            if block.len().div_ceil(self.longest) > most - ids.len() {
                return Err(TextError::Long(most));
            }
            if block.len() > MAX_UNBROKEN {
                return Err(TextError::Unbroken(MAX_UNBROKEN));
            }
            let encoding = self.inner.encode_fast(block, false).map_err(|e| TextError::Encode(e.to_string()))?;
            if encoding.get_ids().len() > most - ids.len() {
                return Err(TextError::Long(most));
            }
            ids.extend(encoding.get_ids());
        }
        Ok(())
    }

    /// Bytes of the longest token: `n` ids are the ids of at most `n` times as many bytes.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// The text of some ids. Control tokens and unknown ids print nothing; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that an id prints: none for control tokens and unknown ids.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// A decoder for ids that come one at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether text is kept from holding control tokens by a guard character; see [`Specials::guard`].
    pub(super) fn guard(&self, text: &str, guard: char, keep: impl Fn(&str) -> bool) -> String {
        self.specials.guard(text, guard, keep)
    }
}

fn token_bytes(inner: &tokenizers::Tokenizer) -> Vec<Vec<u8>> {
    let added = inner.get_added_tokens_decoder();
    let mut vocab: Vec<(String, u32)> = inner.get_vocab(true).into_iter().collect();
    vocab.sort_unstable_by_key(|t| t.1);
    let mut bytes = vec![Vec::new(); vocab.last().map_or(0, |t| t.1 as usize + 1)];
    for (token, id) in vocab {
        bytes[id as usize] = match added.get(&id) {
            Some(added) if added.special => Vec::new(),
            Some(_) => token.into_bytes(),
            // A character outside the alphabet stands for itself.
            None => {
                token.chars().flat_map(|c| byte_of(c).map_or_else(|| c.to_string().into_bytes(), |b| vec![b])).collect()
            }
        };
    }
    bytes
}

/// The byte that a character of the byte-level alphabet stands for. Printable Latin-1 is itself; the other 68 bytes,
/// in increasing order, are U+0100 and up.
fn byte_of(c: char) -> Option<u8> {
    let plain = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        v @ 0..=0xff => u8::try_from(v).ok().filter(|&b| plain(b)),
        v => (0..=0xff_u8).filter(|&b| !plain(b)).nth(v as usize - 0x100),
    }
}

#[cfg(test)]
mod tests {
    use super::byte_of;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        let mut sorted = bytes.clone();
        sorted.sort_unstable();
        assert!(bytes.len() == 256 && sorted == (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            (byte_of('Ġ'), byte_of('Ċ'), byte_of('A'), byte_of('\u{ad}')),
            (Some(0x20), Some(0x0a), Some(65), None)
        );
    }
}
