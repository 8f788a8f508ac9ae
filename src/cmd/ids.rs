//! Owns the JSON lists of token ids that `perplexity -f` takes, and the rule that tells them from text.

use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

/// Whether bytes are meant as a list: what stands behind the opening brackets is a number or the end, or the whole is
/// JSON. Anything else that begins with `[`, such as `[gMASK]`, is text.
fn is_list(bytes: &[u8]) -> bool {
    let mut rest = bytes.trim_ascii_start();
    if !rest.starts_with(b"[") {
        return false;
    }
    while let Some(inner) = rest.strip_prefix(b"[") {
        rest = inner.trim_ascii_start();
    }
    let number = matches!(rest, [] | [b']' | b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..]);
    number || serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// The ids of a list, each below `vocab`; `None` where the bytes are text.
///
/// # Errors
/// A list of anything else: which entry, or where the list breaks.
pub(crate) fn parse(bytes: &[u8], vocab: u64) -> Result<Option<Vec<u32>>, String> {
    if !is_list(bytes) {
        return Ok(None);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let ids = json.deserialize_seq(Ids(vocab)).and_then(|ids| json.end().map(|()| ids));
    ids.map(Some).map_err(|e| e.to_string())
}

/// Ids below a vocabulary's size.
struct Ids(u64);

impl<'de> Visitor<'de> for Ids {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u32>, A::Error> {
        let mut ids = Vec::new();
        while let Some(v) = seq.next_element::<Value>()? {
            let wrong = |why: &str| {
                let shown: String = v.to_string().chars().take(40).collect();
                A::Error::custom(format!("entry {} (counted from 0) is {shown}, {why}", ids.len()))
            };
            let id = v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| wrong("no token id"))?;
            if u64::from(id) >= self.0 {
                return Err(wrong(&format!("outside the vocabulary of {}", self.0)));
            }
            ids.push(id);
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lists_are_told_from_text() {
        for text in ["", "1 2", "[gMASK]<sop>", "[[Category:x]]", "[ See below", "[\"Hello\" she said", "[-]", "x[1]"] {
            assert_eq!(parse(text.as_bytes(), 10), Ok(None), "{text}");
        }
        for (list, ids) in [("[]", &[] as &[u32]), (" [1, 2 ,3]\n", &[1, 2, 3][..]), ("[9]", &[9][..])] {
            assert_eq!(parse(list.as_bytes(), 10), Ok(Some(ids.to_vec())), "{list}");
        }
        for (list, why) in [
            ("[1,-1]", "entry 1 (counted from 0) is -1, no token id"),
            ("[1,2.0]", "entry 1 (counted from 0) is 2.0, no token id"),
            ("[[1],2]", "entry 0 (counted from 0) is [1], no token id"),
            ("[null]", "entry 0 (counted from 0) is null"),
            ("[1,null]", "entry 1 (counted from 0) is null"),
            ("[\"a\"]", "entry 0 (counted from 0) is \"a\""),
            ("[4294967296]", "no token id"),
            ("[1,10]", "entry 1 (counted from 0) is 10, outside the vocabulary of 10"),
            ("[1,2", "EOF"),
            ("[", "EOF"),
            ("[1,]", "column"),
            ("[1] See there", "trailing characters"),
        ] {
            let e = parse(list.as_bytes(), 10).unwrap_err();
            assert!(e.contains(why), "{list}: {e}");
        }
    }
}
