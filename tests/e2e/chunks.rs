//! One prompt in chunks of any size, step by step, or beside other sequences: the same logits.

use std::collections::BTreeMap;

use glmc_runtime::device::cpu::Output;
use glmc_runtime::engine::{Engine, Want};

use super::support::{compile, engine, models, prompts};

const TOLERANCE: f32 = 1e-4;
const CHUNKS: [u64; 5] = [1, 7, 64, 65, 512];

/// The chosen keys and experts of each token and layer, by value name.
type Choices = BTreeMap<String, Vec<Vec<i32>>>;

/// Feeds `ids` in chunks; last logits and every choice on the way.
fn feed(e: &mut Engine, ids: &[u32], chunk: u64) -> (Vec<f32>, Choices) {
    let phase = e.plan().phases.iter().find(|p| p.name == "prefill").unwrap().clone();
    let names: Vec<Vec<String>> = phase
        .steps
        .iter()
        .map(|s| {
            let outs = s.args.iter().filter(|a| a.access == glmc_ir::kernel::Access::Write);
            outs.map(
                |a| if let glmc_ir::plan::Mem::Buf(b) = a.mem { phase.buffers[b].name.clone() } else { String::new() },
            )
            .collect()
        })
        .collect();
    let mut choices = Choices::new();
    let mut see = |step: usize, k: usize, shape: &[usize], data: Output<'_>| {
        if let Output::I32(v) = data {
            let rows = v.chunks_exact(shape[1]).map(|r| {
                let mut r: Vec<i32> = r.iter().copied().filter(|i| *i >= 0).collect();
                r.sort_unstable();
                r
            });
            choices.entry(names[step][k].clone()).or_default().extend(rows);
        }
    };
    e.set_chunk(chunk);
    let seq = e.start();
    let logits = e.feed_observed(seq, ids, Want::Last, Some(&mut see)).unwrap();
    e.end(seq);
    (logits, choices)
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// Equal within the tolerance, unless a choice parted on the way: then it is named and counted.
fn agree(what: &str, a: &(Vec<f32>, Choices), b: &(Vec<f32>, Choices), parted: &mut usize) {
    let d = difference(&a.0, &b.0);
    if d <= TOLERANCE {
        return;
    }
    let split = a.1.iter().find_map(|(name, rows)| {
        let at = rows.iter().zip(&b.1[name]).position(|(x, y)| x != y)?;
        Some(format!("{name} of token {at}"))
    });
    let split = split.unwrap_or_else(|| panic!("{what}: logits differ by {d} and no choice parted"));
    println!("{what}: parted at {split}, logits differ by {d}");
    *parted += 1;
}

#[test]
fn chunks_of_any_size_agree() {
    let (mut compared, mut parted) = (0, 0);
    for m in models() {
        let mut e = engine(&compile(&m.path));
        for (name, ids) in
            prompts().iter().filter(|(n, _)| ["count", "text63", "text65", "text400"].contains(&n.as_str()))
        {
            let whole = feed(&mut e, ids, 512);
            for chunk in CHUNKS {
                agree(
                    &format!("{} {name} in chunks of {chunk}", m.golden),
                    &whole,
                    &feed(&mut e, ids, chunk),
                    &mut parted,
                );
                compared += 1;
            }
        }
    }
    println!("{compared} comparisons, {parted} parted at a thin choice");
    assert!(parted * 20 <= compared, "{parted} of {compared} parted: choices are not that thin");
}

#[test]
fn single_steps_agree_with_a_prefill() {
    for m in models() {
        let mut e = engine(&compile(&m.path));
        for (name, ids) in prompts().iter().filter(|(n, _)| ["count", "text65", "text400"].contains(&n.as_str())) {
            let seq = e.start();
            let whole = e.feed(seq, ids, Want::Last).unwrap();
            e.end(seq);
            let seq = e.start();
            let mut last = Vec::new();
            for t in ids {
                last = e.decode(&[(seq, *t)]).unwrap();
            }
            e.end(seq);
            let d = difference(&whole, &last);
            println!("{} {name}: {} single steps, difference {d:.1e}", m.golden, ids.len());
            assert!(d <= TOLERANCE, "{} {name}: {d}", m.golden);
        }
    }
}

#[test]
fn sequences_side_by_side_do_not_meet() {
    for m in models() {
        let plan = compile(&m.path);
        let mut e = engine(&plan);
        let all = prompts();
        let texts: Vec<&Vec<u32>> =
            ["count", "text65", "add", "text63"].iter().map(|n| &all.iter().find(|(p, _)| p == n).unwrap().1).collect();
        let steps = 6;
        // Each alone.
        let mut alone = Vec::new();
        for ids in &texts {
            let seq = e.start();
            let mut rows = vec![e.feed(seq, ids, Want::Last).unwrap()];
            for i in 0..steps {
                rows.push(e.decode(&[(seq, 20 + i)]).unwrap());
            }
            e.end(seq);
            alone.push(rows);
        }
        // Together, on pool rows that earlier sequences left scattered.
        for n in [2, 3, 4] {
            let junk: Vec<_> = (0..3).map(|_| e.start()).collect();
            for (k, j) in junk.iter().enumerate() {
                e.feed(*j, &texts[1][..7 + k], Want::Last).unwrap();
            }
            e.end(junk[1]);
            let seqs: Vec<_> = (0..n).map(|_| e.start()).collect();
            for (i, seq) in seqs.iter().enumerate() {
                let first = e.feed(*seq, texts[i], Want::Last).unwrap();
                assert!(difference(&first, &alone[i][0]) <= TOLERANCE);
            }
            e.end(junk[0]);
            for step in 0..steps {
                let batch: Vec<_> = seqs.iter().map(|s| (*s, 20 + step)).collect();
                let rows = e.decode(&batch).unwrap();
                for (i, row) in rows.chunks_exact(2048).enumerate() {
                    let d = difference(row, &alone[i][step as usize + 1]);
                    assert!(d <= TOLERANCE, "{} {n} sequences, step {step}, sequence {i}: {d}", m.golden);
                }
            }
            seqs.iter().chain([&junk[2]]).for_each(|s| e.end(*s));
        }
    }
}
