//! Owns turning tokenizer metadata into a `tokenizer.json` (byte-level BPE, the form the `tokenizers` crate loads) and
//! the special ids around it.
//!
//! It never tokenises, and never mends a vocabulary: what does not fit together is refused by name.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::error::{Class, InputError, Result, show};
use crate::set::GgufSet;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// No vocabulary is larger; bounds what a hostile file can make us hold.
const MAX_TOKENS: usize = 1 << 19;
const MAX_MERGES: usize = 1 << 20;

/// How text is cut before BPE: contractions, words with one leading sign, digits in threes, signs, line ends, blanks.
const GLM4_SPLIT: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pre-tokenizers: name, regex, whether a whole piece that is a token is taken at once.
const PRE_TOKENIZERS: &[(&str, &str, bool)] =
    &[("glm4", GLM4_SPLIT, true), ("glm5", GLM4_SPLIT, true), ("chatglm-bpe", GLM4_SPLIT, false)];

/// Texts of control tokens that end a turn even when no key says so.
const STOP_TEXTS: [&str; 3] = ["<|endoftext|>", "<|user|>", "<|observation|>"];

/// A tokenizer, ready to be written beside a plan.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The text of a `tokenizer.json`.
    pub json: String,
    /// What the text cannot hold.
    pub info: TokenizerInfo,
}

/// Special ids and switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenizerInfo {
    /// Tokens in the vocabulary, unused ones included; ids are below it.
    pub vocab_size: u32,
    /// Name of the pre-tokenizer in the file.
    pub pre: String,
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message (a tool call).
    pub eom: Option<u32>,
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
    /// Ids that end generation, ascending; not empty.
    pub stop: Vec<u32>,
    /// Whether `bos` is put before raw text. Chat templates write it themselves.
    pub add_bos: bool,
    /// Whether `eos` is put after raw text.
    pub add_eos: bool,
    /// Ids that must not be generated, ascending: placeholders of unused ids and those the file lists.
    pub suppress: Vec<u32>,
}

/// Token types, by their id in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Special,
    UserDefined,
    Unused,
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
    ids: HashMap<&'a str, u32>,
}

/// Reads the tokenizer of a file.
///
/// # Errors
/// Class `unsupported`: another tokenizer model or pre-tokenizer. Class `model` or `format`: the lists do not fit
/// together (lengths, unknown tokens in merges, ids out of range, doubled tokens, text that is not UTF-8).
pub fn load(set: &GgufSet) -> Result<Tokenizer> {
    let (pre, regex, whole_words) = pre_tokenizer(set)?;
    let vocabulary = vocabulary(set)?;
    let info = info(set, &vocabulary, pre)?;
    let (merges, merged) = merges(set, &vocabulary)?;
    let mut json = write_vocabulary(&vocabulary, regex, whole_words, merged);
    json.push_str(&merges);
    json.push_str("}}");
    Ok(Tokenizer { json, info })
}

fn pre_tokenizer(set: &GgufSet) -> Result<(&'static str, &'static str, bool)> {
    let model = set.get_str(MODEL)?.ok_or_else(|| set.key_missing(MODEL))?;
    if model != "gpt2" {
        let what = format!("is '{}'; only 'gpt2' (byte-level BPE) is supported", show(model));
        return Err(set.key_unsupported("tokenizer-model", MODEL, what));
    }
    let pre = set.get_str(PRE)?.ok_or_else(|| set.key_missing(PRE))?;
    PRE_TOKENIZERS.iter().find(|row| row.0 == pre).copied().ok_or_else(|| {
        let known: Vec<&str> = PRE_TOKENIZERS.iter().map(|row| row.0).collect();
        let what = format!("is '{}'; supported: {}", show(pre), known.join(", "));
        set.key_unsupported("pre-tokenizer", PRE, what)
    })
}

fn utf8<'a>(set: &GgufSet, key: &str, what: &str, index: usize, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let text = show(&String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
        let message = format!("key {key}: {what} {index} ('{text}') is not UTF-8");
        InputError::new(Class::Format, "bad-utf8", set.path(), message).about(key)
    })
}

fn vocabulary(set: &GgufSet) -> Result<Vocabulary<'_>> {
    let strings = set.get_strings(TOKENS)?.ok_or_else(|| set.key_missing(TOKENS))?;
    if strings.len() == 0 || strings.len() > MAX_TOKENS {
        let what = format!("has {} entries, and must have 1 to {MAX_TOKENS}", strings.len());
        return Err(set.key_error("array-length", TOKENS, what));
    }
    let mut tokens = Vec::with_capacity(strings.len());
    for (id, bytes) in strings.enumerate() {
        tokens.push(utf8(set, TOKENS, "token", id, bytes)?);
    }
    let kinds = kinds(set, tokens.len())?;
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, (&token, &kind)) in tokens.iter().zip(&kinds).enumerate() {
        // Placeholders of unused ids may repeat; they are never produced.
        if kind == Kind::Unused {
            continue;
        }
        if let Some(other) = ids.insert(token, id as u32) {
            let what = format!("has '{}' twice, as ids {other} and {id}", show(token));
            return Err(set.key_error("duplicate-token", TOKENS, what));
        }
        if token.is_empty() && kind != Kind::Text {
            return Err(set.key_error("empty-token", TOKENS, format!("has an empty special token, id {id}")));
        }
    }
    let missing = (0..=255u8).find(|&b| !ids.contains_key(byte_symbol(b).encode_utf8(&mut [0; 4]) as &str));
    if let Some(byte) = missing {
        let what = format!("has no token for byte 0x{byte:02X}; a byte-level vocabulary has one for each");
        return Err(set.key_error("byte-missing", TOKENS, what));
    }
    Ok(Vocabulary { tokens, kinds, ids })
}

/// The printable stand-in of a byte in byte-level BPE.
fn byte_symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn kinds(set: &GgufSet, tokens: usize) -> Result<Vec<Kind>> {
    let types = set.get_ints(TYPES)?.ok_or_else(|| set.key_missing(TYPES))?;
    if types.len() != tokens {
        let what = format!("has {} entries, but {TOKENS} has {tokens}", types.len());
        return Err(set.key_error("array-length", TYPES, what));
    }
    let kind = |(id, t): (usize, i128)| match t {
        // Byte tokens are an idea of other tokenizers; here they are text like any other.
        0 | 1 | 6 => Ok(Kind::Text),
        2 | 3 => Ok(Kind::Special),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        other => Err(set.key_error("token-type", TYPES, format!("gives token {id} the unknown type {other}"))),
    };
    types.enumerate().map(kind).collect()
}

/// `,"merges":[...]`, each merge checked on the way, and the largest id that they use or make.
fn merges(set: &GgufSet, vocabulary: &Vocabulary<'_>) -> Result<(String, u32)> {
    let strings = set.get_strings(MERGES)?.ok_or_else(|| set.key_missing(MERGES))?;
    if strings.len() > MAX_MERGES {
        let what = format!("has {} entries; at most {MAX_MERGES} are read", strings.len());
        return Err(set.key_error("array-length", MERGES, what));
    }
    let (mut out, mut largest) = (String::from(r#","merges":["#), 0);
    let mut joined = String::new();
    for (rank, bytes) in strings.enumerate() {
        let (left, right) = split_merge(set, vocabulary, rank, bytes, &mut joined)?;
        let ids = [left, right, &joined].into_iter().filter_map(|token| vocabulary.ids.get(token));
        largest = ids.copied().fold(largest, u32::max);
        comma(&mut out, rank);
        out.push('[');
        push_str(&mut out, left);
        out.push(',');
        push_str(&mut out, right);
        out.push(']');
    }
    out.push(']');
    Ok((out, largest))
}

/// The two tokens of a merge; both, and what they make (left in `joined`), are in the vocabulary.
fn split_merge<'a>(
    set: &GgufSet,
    vocabulary: &Vocabulary<'_>,
    rank: usize,
    bytes: &'a [u8],
    joined: &mut String,
) -> Result<(&'a str, &'a str)> {
    let merge = utf8(set, MERGES, "merge", rank, bytes)?;
    let refuse = |code, what: &str| set.key_error(code, MERGES, format!(": merge {rank} ('{}') {what}", show(merge)));
    // The space that separates is the first one after the first byte: a token may begin with one.
    let space = merge.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1);
    let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])) else {
        return Err(refuse("merge-without-space", "has no space between its two tokens"));
    };
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    match [left, right, joined].into_iter().find(|token| !vocabulary.ids.contains_key(*token)) {
        None => Ok((left, right)),
        Some(token) => {
            let what = format!("needs the token '{}', which is not in the vocabulary", show(token));
            Err(refuse("merge-unknown", &what))
        }
    }
}

fn info(set: &GgufSet, vocabulary: &Vocabulary<'_>, pre: &str) -> Result<TokenizerInfo> {
    let size = vocabulary.tokens.len() as u32; // at most MAX_TOKENS
    let id = |name: &str| -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match set.get_u64(&key)? {
            Some(id) if id >= u64::from(size) => {
                Err(set.key_error("token-id-range", &key, format!("is {id}, but there are {size} tokens")))
            }
            other => Ok(other.map(|id| id as u32)),
        }
    };
    let (eos, eot, eom) = (id("eos")?, id("eot")?, id("eom")?);
    let flag = |name: &str| Ok(set.get_bool(&format!("tokenizer.ggml.{name}"))?.unwrap_or(false));
    Ok(TokenizerInfo {
        vocab_size: size,
        pre: pre.to_owned(),
        bos: id("bos")?,
        eos,
        eot,
        eom,
        unknown: id("unknown")?,
        padding: id("padding")?,
        stop: stop_set(set, vocabulary, [eos, eot, eom])?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        suppress: suppressed(set, vocabulary)?,
    })
}

fn stop_set(set: &GgufSet, vocabulary: &Vocabulary<'_>, keys: [Option<u32>; 3]) -> Result<Vec<u32>> {
    let by_text = STOP_TEXTS.iter().filter_map(|text| {
        let id = *vocabulary.ids.get(text)?;
        (vocabulary.kinds[id as usize] == Kind::Special).then_some(id)
    });
    let mut stop: Vec<u32> = keys.into_iter().flatten().chain(by_text).collect();
    stop.sort_unstable();
    stop.dedup();
    if stop.is_empty() {
        return Err(set.key_missing("tokenizer.ggml.eos_token_id"));
    }
    Ok(stop)
}

fn suppressed(set: &GgufSet, vocabulary: &Vocabulary<'_>) -> Result<Vec<u32>> {
    const KEY: &str = "tokenizer.ggml.suppress_tokens";
    let size = vocabulary.tokens.len();
    let unused = vocabulary.kinds.iter().enumerate().filter(|k| *k.1 == Kind::Unused).map(|k| k.0 as u32);
    let mut out: Vec<u32> = unused.collect();
    for id in set.get_ints(KEY)?.into_iter().flatten() {
        match u32::try_from(id) {
            Ok(id) if (id as usize) < size => out.push(id),
            _ => return Err(set.key_error("token-id-range", KEY, format!("holds {id}, but there are {size} tokens"))),
        }
    }
    out.sort_unstable();
    out.dedup();
    if out.len() == size {
        return Err(set.key_error("nothing-to-generate", KEY, "leaves no token that may be generated"));
    }
    Ok(out)
}

/// How many of the first ids form the BPE vocabulary. Special tokens stay out of it where they follow all text tokens
/// without a hole and no merge makes one, as in every released file: then no run of merges can make one out of user
/// text. Else all ids go in, since the loader numbers added tokens by counting. `merged` is the largest id of a merge.
fn bpe_size(kinds: &[Kind], merged: u32) -> usize {
    let added = |k: &Kind| matches!(k, Kind::Special | Kind::UserDefined);
    let Some(first) = kinds.iter().position(added) else { return kinds.len() };
    let run = kinds[first..].iter().take_while(|k| added(k)).count();
    let rest_unused = kinds[first + run..].iter().all(|k| *k == Kind::Unused);
    let no_hole = kinds[..first].iter().all(|k| *k == Kind::Text);
    if rest_unused && no_hole && (merged as usize) < first { first } else { kinds.len() }
}

/// The document up to the end of the vocabulary.
fn write_vocabulary(vocabulary: &Vocabulary<'_>, regex: &str, whole_words: bool, merged: u32) -> String {
    let in_bpe = bpe_size(&vocabulary.kinds, merged);
    let mut out = String::new();
    out.push_str(r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":["#);
    let added = vocabulary.kinds.iter().zip(&vocabulary.tokens).enumerate();
    let added = added.filter(|(_, (kind, _))| matches!(kind, Kind::Special | Kind::UserDefined));
    for (n, (id, (kind, token))) in added.enumerate() {
        comma(&mut out, n);
        let entry = json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": *kind == Kind::Special,
        });
        push(&mut out, &entry);
    }
    out.push_str(r#"],"normalizer":null,"pre_tokenizer":"#);
    push(&mut out, &pre_tokenizer_json(regex));
    out.push_str(r#","post_processor":null,"decoder":"#);
    push(&mut out, &json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}));
    out.push_str(r#","model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":"#);
    out.push_str(if whole_words { "true" } else { "false" });
    out.push_str(r#","vocab":{"#);
    let words = vocabulary.tokens.iter().zip(&vocabulary.kinds).take(in_bpe).enumerate();
    for (n, (id, (token, _))) in words.filter(|(_, (_, kind))| **kind != Kind::Unused).enumerate() {
        comma(&mut out, n);
        push_str(&mut out, token);
        out.push(':');
        out.push_str(&id.to_string());
    }
    out.push('}');
    out
}

fn pre_tokenizer_json(regex: &str) -> Json {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

fn comma(out: &mut String, n: usize) {
    if n > 0 {
        out.push(',');
    }
}

fn push(out: &mut String, value: &Json) {
    out.push_str(&value.to_string());
}

/// A JSON string: quotes, backslashes and control characters escaped.
fn push_str(out: &mut String, text: &str) {
    if text.bytes().any(|b| b < 0x20 || b == b'"' || b == b'\\') {
        push(out, &Json::from(text));
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_symbols_are_a_bijection() {
        let mut all: Vec<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(all[0x20], 'Ġ');
        assert_eq!(all[0x0A], 'Ċ');
        assert_eq!(all[0xAD], '\u{143}');
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn special_tokens_leave_the_vocabulary_only_as_a_tail() {
        use Kind::{Special, Text, Unused, UserDefined};
        assert_eq!(bpe_size(&[Text, Text], 1), 2);
        assert_eq!(bpe_size(&[Text, Text, Special, UserDefined], 1), 2);
        assert_eq!(bpe_size(&[Text, Text, Special, Unused, Unused], 1), 2);
        assert_eq!(bpe_size(&[Text, Text, Special, UserDefined], 3), 4, "a merge makes one");
        assert_eq!(bpe_size(&[Text, Special, Text], 1), 3);
        assert_eq!(bpe_size(&[Text, Special, Unused, Special], 1), 4);
        assert_eq!(bpe_size(&[Unused, Text, Special], 1), 3);
    }
}
