//! A vocabulary of full size loads fast, and no file makes the reader hold much more than its own size.
//!
//! One test alone in its binary: the peak it reads is the process's.

#![cfg(target_os = "linux")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{folder, load, open_fixture};
use glmc_frontend_gguf::write::{GgufWriter, MetaValue, TensorData};
use glmc_ir::quant::QuantType;

const TOKENS: usize = 154_880;
const SPECIAL: usize = 8;

/// 256 byte symbols, then pairs of an earlier token and a byte, then the fixture's control tokens.
fn vocabulary() -> (Vec<String>, Vec<String>) {
    let set = open_fixture("gguf-bad/ok-one-layer.gguf");
    let old: Vec<String> = set
        .get_strings("tokenizer.ggml.tokens")
        .expect("strings")
        .expect("there")
        .map(|b| String::from_utf8(b.to_vec()).expect("UTF-8"))
        .collect();
    let (mut tokens, mut merges) = (old[..256].to_vec(), Vec::new());
    let room = TOKENS - SPECIAL;
    let mut next = 0;
    while tokens.len() < room {
        // Every word of n letters meets every letter: no word comes twice.
        let (left, right) = (tokens[next / 256].clone(), &old[next % 256]);
        merges.push(format!("{left} {right}"));
        tokens.push(left + right);
        next += 1;
    }
    tokens.extend_from_slice(&old[old.len() - SPECIAL..]);
    (tokens, merges)
}

fn full_vocabulary(dir: &Path) -> PathBuf {
    let set = open_fixture("gguf-bad/ok-base.gguf");
    let (tokens, merges) = vocabulary();
    let mut kinds = vec![1i32; TOKENS - SPECIAL];
    kinds.extend([3; SPECIAL]);
    let mut w = GgufWriter::from_set(&set).expect("a copy");
    w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.merges", merges).set("tokenizer.ggml.token_type", kinds);
    w.set("tokenizer.ggml.eos_token_id", 154_872u32).set("glm-dsa.vocab_size", TOKENS as u32);
    w.set("tokenizer.ggml.padding_token_id", 154_872u32).set("tokenizer.ggml.eot_token_id", 154_876u32);
    w.retain_tensors(|n| n != "token_embd.weight" && n != "output.weight");
    for name in ["token_embd.weight", "output.weight"] {
        w.tensor(name, QuantType::Q4_0, &[TOKENS as u64, 32], TensorData::Zeros).expect("tensor");
    }
    let path = dir.join("full.gguf");
    w.write(&path).expect("write");
    path
}

fn many_keys(dir: &Path) -> PathBuf {
    let mut w = GgufWriter::new();
    for i in 0..65_000u32 {
        w.set(format!("{i:x}"), MetaValue::U8(0));
    }
    let path = dir.join("keys.gguf");
    w.write(&path).expect("write");
    path
}

/// As many tensor infos as are read, each of an empty tensor.
fn many_tensors(dir: &Path) -> PathBuf {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    let count = 1u64 << 17;
    bytes.extend(count.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    for i in 0..count {
        bytes.extend(6u64.to_le_bytes());
        bytes.extend(format!("{i:06x}").as_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(QuantType::F32.ggml_id().to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
    }
    bytes.extend([0; 64]);
    let path = dir.join("tensors.gguf");
    std::fs::write(&path, bytes).expect("write");
    path
}

/// A field of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find_map(|l| l.strip_prefix(field)).unwrap_or_else(|| panic!("no {field}"));
    let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

#[test]
fn time_and_memory_stay_small() {
    let dir = folder();
    let paths = [many_keys(dir.path()), many_tensors(dir.path()), full_vocabulary(dir.path())];
    for (path, loads) in paths.iter().zip([false, false, true]) {
        // Sets the peak back to what is resident now.
        std::fs::write("/proc/self/clear_refs", "5").expect("procfs");
        let (before, start) = (status("VmRSS"), Instant::now());
        let result = load(path);
        // Well under a second on an idle machine; the rest is for busy ones.
        assert!(start.elapsed() < Duration::from_secs(10), "{}: {:?}", path.display(), start.elapsed());
        let grown = status("VmHWM").saturating_sub(before);
        let size = path.metadata().expect("size").len();
        assert!(grown <= size + (64 << 20), "{}: {grown} bytes more for a file of {size}", path.display());
        assert_eq!(result.is_ok(), loads, "{:?}", result.err());
    }
    let model = load(&paths[2]).expect("loads");
    let tokenizer: tokenizers::Tokenizer = model.tokenizer.json.parse().expect("the tokenizer loads");
    assert_eq!(tokenizer.get_vocab_size(true), TOKENS);
    let text = "hello <|user|> world";
    let ids = tokenizer.encode(text, false).expect("encodes").get_ids().to_vec();
    assert_eq!(tokenizer.decode(&ids, false).expect("decodes"), text);
}
