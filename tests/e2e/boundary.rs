//! Decoding and reading on across the number of positions that the indexer selects: below it phases without scores run,
//! above it those with, and nobody sees where one takes over.

use std::path::{Path, PathBuf};

use glmc_ir::plan::{Phase, PhaseKind};
use glmc_ir::ty::SymValues;
use glmc_runtime::device::cpu::CpuDevice;
use glmc_runtime::device::{Device, Seen};
use glmc_runtime::engine::{Engine, Running, SeqId, Want};

use super::indexer_types::with_types;
use super::models::models;
use super::support::{compile, engine, fixture, glmc, long_engine, prompts, scratch};

/// What the shipped models' indexers select.
const TOP_K: usize = 64;
/// Largest difference of a logit.
const TOLERANCE: f32 = 1e-4;

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

fn text(n: usize) -> Vec<u32> {
    prompts().into_iter().find(|(name, _)| name == "text400").unwrap().1[..n].to_vec()
}

fn scores(p: &Phase) -> usize {
    p.steps.iter().filter(|s| s.kernel.name().starts_with("topk")).count()
}

/// Decodes a token of each sequence; the logits, and the number of steps of the phase that ran.
fn decode(e: &mut Engine, next: &[(SeqId, u32)]) -> (Vec<f32>, usize) {
    let mut last = 0;
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        last = last.max(s.step);
        Ok(())
    };
    let logits = e.decode_observed(next, Some(&mut see)).unwrap();
    (logits, last + 1)
}

/// The number of steps of a decode phase up to its last that writes a buffer.
fn steps(p: &Phase) -> usize {
    let writes = |s: &glmc_ir::plan::Step| s.args.iter().any(|a| a.access == glmc_ir::kernel::Access::Write);
    p.steps.iter().rposition(writes).unwrap() + 1
}

/// Both engines through `plan`, from below to above what is selected; the largest difference.
fn across(plan: &Path) -> f32 {
    let (mut both, mut long) = (engine(plan), long_engine(plan));
    let phase = |e: &Engine, name: &str| e.plan().phase(name).unwrap().clone();
    let [short, any] = ["decode_1.short", "decode_1"].map(|n| phase(&both, n));
    assert_eq!((short.visible(), any.visible()), (Some(TOP_K as u64), Some(1024)));
    assert!(scores(&short) == 0 && scores(&any) > 0 && steps(&short) < steps(&any));
    let mut worst = 0.0f32;
    // Single steps; the first sees `from + 1` positions.
    let (ids, from) = (text(TOP_K + 6), TOP_K - 6);
    let [a, b] = [&mut both, &mut long].map(|e| {
        let seq = e.start();
        e.feed(seq, &ids[..from], Want::Last).unwrap();
        seq
    });
    for (i, t) in ids.iter().enumerate().skip(from) {
        let (got, ran) = decode(&mut both, &[(a, *t)]);
        let (want, _) = decode(&mut long, &[(b, *t)]);
        let visible = i + 1;
        assert_eq!(ran, steps(if visible <= TOP_K { &short } else { &any }), "{visible} visible");
        worst = worst.max(difference(&got, &want));
    }
    both.end(a);
    long.end(b);
    // Chunks that end before, at and after it.
    for chunk in [16, 13, 63, 64, 65] {
        let ids = text(TOP_K + 20);
        both.set_chunk(chunk);
        let [got, want] = [&mut both, &mut long].map(|e| {
            let seq = e.start();
            let logits = e.feed(seq, &ids, Want::All).unwrap();
            e.end(seq);
            logits
        });
        worst = worst.max(difference(&got, &want));
    }
    worst
}

#[test]
fn short_and_long_phases_give_the_same_numbers_at_the_boundary() {
    for m in models() {
        let worst = across(m.plan());
        println!("{}: off by {worst:.1e}", m.golden);
        assert!(worst <= TOLERANCE, "{}: {worst}", m.golden);
    }
}

#[test]
fn layers_that_share_a_selection_need_none_either() {
    let dir = tempfile::tempdir().unwrap();
    for types in [[true, false, true], [true, false, false], [true, true, false]] {
        let plan = compile(&with_types(dir.path(), types));
        let worst = across(&plan);
        println!("{types:?}: off by {worst:.1e}");
        assert!(worst <= TOLERANCE, "{types:?}: {worst}");
    }
}

fn on_ranks(model: &Path, target: &str, name: &str) -> PathBuf {
    let plan = scratch().join(name);
    let args = ["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", target, "--ctx", "1024"];
    glmc(&args);
    plan
}

#[test]
fn eight_ranks_cross_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let shared = with_types(dir.path(), [true, false, true]);
    for (model, name) in [(fixture("models/tiny-Q4_K_M.gguf"), "across-q4"), (shared, "across-shared")] {
        let worst = across(&on_ranks(&model, "8x-cpu", name));
        println!("{name}: off by {worst:.1e}");
        assert!(worst <= TOLERANCE, "{name}: {worst}");
    }
}

/// One sequence beyond it takes all of a step along.
#[test]
fn a_batch_runs_by_its_longest_sequence() {
    let m = &models()[0];
    let (mut both, mut long) = (engine(m.plan()), long_engine(m.plan()));
    let ids = text(TOP_K + 4);
    let start = |e: &mut Engine| {
        [20, TOP_K - 2].map(|n| {
            let seq = e.start();
            e.feed(seq, &ids[..n], Want::Last).unwrap();
            seq
        })
    };
    let (a, b) = (start(&mut both), start(&mut long));
    let [short, any] = ["decode_2.short", "decode_2"].map(|n| both.plan().phase(n).unwrap().clone());
    for i in 0..5 {
        let next = |s: [SeqId; 2]| [(s[0], ids[20 + i]), (s[1], ids[(TOP_K - 2 + i) % ids.len()])];
        let (got, ran) = decode(&mut both, &next(a));
        let (want, _) = decode(&mut long, &next(b));
        assert_eq!(ran, steps(if i < 2 { &short } else { &any }), "step {i}");
        let d = difference(&got, &want);
        assert!(d <= TOLERANCE, "step {i}: {d}");
    }
}

/// A context that fits in the selection: one phase a step, no scores, and no pool of keys that nobody reads.
#[test]
fn a_plan_of_a_short_context_has_no_indexer() {
    let m = &models()[0];
    let mut want = Vec::new();
    for (ctx, long) in [("64", false), ("65", true)] {
        let plan = scratch().join(format!("short-{ctx}"));
        let args = ["compile", m.path.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--ctx", ctx, "--json"];
        let said: serde_json::Value = serde_json::from_str(&glmc(&args)).unwrap();
        let index = said["memory_per_rank"][0]["cache_kinds"].get("index").is_some();
        let mut e = engine(&plan);
        let p = e.plan();
        assert_eq!((p.phases.len(), index), if long { (8, true) } else { (4, false) }, "{ctx}");
        assert_eq!(p.phases.iter().any(|p| scores(p) > 0), long);
        assert_eq!(p.weights.values().any(|w| w.name.contains("indexer")), long);
        let seq = e.start();
        let logits = e.feed(seq, &text(60), Want::All).unwrap();
        want.push(logits);
    }
    let d = difference(&want[0], &want[1]);
    assert!(d <= TOLERANCE, "{d}");
}

/// The device takes no step beyond the bound, whoever asks.
#[test]
fn a_short_phase_never_runs_a_longer_step() {
    let m = &models()[0];
    let loaded = glmc_runtime::load::load(m.plan()).unwrap();
    let plan = &loaded.plan;
    let index = plan.phases.iter().position(|p| p.name == "decode_1.short").unwrap();
    let phase = &plan.phases[index];
    let mut device = CpuDevice::new(plan).unwrap();
    let mut run = |visible: usize| {
        let syms = SymValues::default().with("S", visible as u64);
        let of = |p: &glmc_ir::plan::Param| match p.name.as_str() {
            "table" => (0..visible as i32).collect(),
            "len" => vec![visible as i32],
            "pos" | "row" => vec![visible as i32 - 1],
            _ => vec![0],
        };
        let params: Vec<Vec<i32>> = phase.params.values().map(of).collect();
        device.run(plan, index, &loaded.weights, &syms, &params, None)
    };
    run(1).unwrap();
    let e = run(TOP_K + 1).unwrap_err().to_string();
    assert!(e.contains("a symbol") && e.contains("at most its bound"), "{e}");
    // No choice of a phase gives one that is bounded below what a step sees.
    for kind in [PhaseKind::Decode, PhaseKind::Prefill] {
        for (visible, most) in [(1, 64), (64, 64), (65, 1024), (1024, 1024)] {
            let found = plan.phase_for(kind, 1, visible).map(|i| plan.phases[i].visible());
            assert_eq!(found, Some(Some(most)), "{kind:?} of {visible}");
        }
        assert_eq!(plan.phase_for(kind, 1, 1025), None);
    }
}
