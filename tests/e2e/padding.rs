//! Padding of decode buckets: rows without a sequence change no bit of any other row, now or later.

use glmc_runtime::engine::{Engine, SeqId, Want};
use glmc_runtime::load::{load, map_weights};

use super::support::{fixture, glmc};

const VOCAB: usize = 2048;
/// Steps taken after the prompts.
const STEPS: u32 = 4;

/// A plan whose cache has exactly `rows` rows.
fn plan(rows: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan, rows) = (fixture("models/tiny-Q4_K_M.gguf"), dir.path().join("plan"), rows.to_string());
    let args = ["-o", plan.to_str().unwrap(), "--ctx", "64", "--max-batch", "4", "--cache", &rows, "--json"];
    glmc(&[&["compile", model.to_str().unwrap()][..], &args[..]].concat());
    (dir, plan)
}

/// An engine that has the phases of `keep` only, with every output poisoned before it is written.
fn engine(plan: &std::path::Path, keep: &[&str]) -> Engine {
    let mut loaded = load(plan).unwrap();
    if !keep.is_empty() {
        let mut p = loaded.plan;
        p.phases.retain(|x| keep.contains(&x.name.as_str()));
        loaded = map_weights(p, plan).unwrap();
    }
    let mut e = Engine::new(loaded).unwrap();
    e.set_poison(true);
    e
}

fn prompt(seq: usize) -> Vec<u32> {
    (0..5 + seq as u32).map(|i| 20 + 31 * i + 7 * seq as u32).collect()
}

fn start(e: &mut Engine, n: usize) -> Vec<SeqId> {
    let seqs: Vec<SeqId> = (0..n).map(|_| e.start()).collect();
    for (i, s) in seqs.iter().enumerate() {
        e.feed(*s, &prompt(i), Want::Last).unwrap();
    }
    seqs
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|x| x.is_finite()) && logits.iter().any(|x| x.abs() > 0.1));
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The logits of the first `n` sequences over all steps, `all` of them decoded together.
fn decode(e: &mut Engine, seqs: &[SeqId], n: usize, all: usize) -> Vec<Vec<u32>> {
    let step = |k: u32| {
        let next: Vec<(SeqId, u32)> = (0..all).map(|i| (seqs[i], 100 + 13 * k + 5 * i as u32)).collect();
        let rows = e.decode(&next).unwrap();
        assert_eq!(rows.len(), all * VOCAB);
        bits(&rows[..n * VOCAB])
    };
    (0..STEPS).map(step).collect()
}

/// Three sequences in a bucket of four, beside a fourth sequence or beside padding.
#[test]
fn padding_is_as_good_as_another_sequence() {
    let (_dir, plan) = plan(64);
    let mut beside = engine(&plan, &[]);
    let seqs = start(&mut beside, 4);
    let want = decode(&mut beside, &seqs, 3, 4);
    let mut padded = engine(&plan, &[]);
    let seqs = start(&mut padded, 4);
    assert_eq!(decode(&mut padded, &seqs, 3, 3), want);
    // Nothing of it is a false alarm where steps are scanned.
    let mut scanned = engine(&plan, &[]);
    scanned.set_check(true);
    let seqs = start(&mut scanned, 4);
    assert_eq!(decode(&mut scanned, &seqs, 3, 3), want);
}

/// A full cache: a padded row that wrote any pool row would change what a sequence reads there afterwards.
#[test]
fn padding_writes_no_cache_row() {
    let full: usize = (0..3).map(|i| prompt(i).len()).sum::<usize>() + 3 * STEPS as usize + 1;
    let last = |rows: usize, all: usize| {
        let (_dir, plan) = plan(rows);
        let mut e = engine(&plan, &[]);
        let seqs = start(&mut e, all);
        decode(&mut e, &seqs, 3, all);
        let left = e.room(seqs[0]);
        (left, bits(&e.decode(&[(seqs[0], 9)]).unwrap()))
    };
    let (left, padded) = last(full, 3);
    assert_eq!(left, 1, "the cache is full");
    assert_eq!(padded, last(64, 4).1);
}

/// One sequence in its own bucket, or alone in a larger one: the kernels add up in another order, no more.
#[test]
fn a_larger_bucket_gives_the_same_logits() {
    let (_dir, plan) = plan(64);
    let alone = |keep: &[&str]| {
        let mut e = engine(&plan, keep);
        let seqs = start(&mut e, 1);
        decode(&mut e, &seqs, 1, 1).concat()
    };
    let want = alone(&[]);
    for keep in [&["prefill", "decode_2", "decode_4"][..], &["prefill", "decode_4"]] {
        let got = alone(keep);
        let apart = |(a, b): (&u32, &u32)| (f32::from_bits(*a) - f32::from_bits(*b)).abs();
        let most = got.iter().zip(&want).map(apart).fold(0.0, f32::max);
        println!("{keep:?}: difference {most:.1e}");
        assert!(got.len() == want.len() && most <= 1e-4, "{keep:?}: {most}");
    }
}
