//! Random bytes and random edits of a good file: an answer every time, never a panic.

mod common;

use std::sync::OnceLock;

use common::{fixture, folder, load};
use proptest::prelude::*;

fn good() -> &'static [u8] {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD.get_or_init(|| std::fs::read(fixture("gguf-bad/ok-one-layer.gguf")).expect("fixture"))
}

/// Where the header ends: edits behind it meet weights, which nothing here reads.
const HEADER: usize = 7424;

fn answers(bytes: &[u8]) {
    let dir = folder();
    let path = dir.path().join("fuzzed.gguf");
    std::fs::write(&path, bytes).expect("write");
    if let Err(e) = load(&path) {
        assert_eq!(e.line().lines().count(), 1);
        assert!(e.line().len() < 2000, "a message of {} bytes", e.line().len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), head in any::<bool>()) {
        if head && bytes.len() >= 24 {
            bytes[..8].copy_from_slice(b"GGUF\x03\0\0\0");
            bytes[9..16].fill(0);
            bytes[17..24].fill(0);
        }
        answers(&bytes);
    }

    #[test]
    fn edited_bytes(edits in proptest::collection::vec((0..HEADER, any::<u8>()), 1..6)) {
        let mut bytes = good().to_vec();
        for (at, value) in edits {
            bytes[at] = value;
        }
        answers(&bytes);
    }

    #[test]
    fn edited_words(at in 0..HEADER - 8, value in prop_oneof![
        Just(u64::MAX), Just(0), Just(1 << 63), Just(u64::MAX / 4 + 1), Just((1 << 32) - 1), any::<u64>(),
    ]) {
        let mut bytes = good().to_vec();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        answers(&bytes);
    }

    #[test]
    fn cut_and_spliced(from in 0..HEADER, len in 0usize..200, to in 0..HEADER, cut in proptest::option::of(0..HEADER)) {
        let mut bytes = good().to_vec();
        let piece = bytes[from..(from + len).min(HEADER)].to_vec();
        bytes.splice(to..to, piece);
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        answers(&bytes);
    }
}
