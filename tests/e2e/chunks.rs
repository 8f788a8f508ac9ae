//! One prompt in chunks of any size, step by step, or beside other sequences: the same logits.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::ops::Gating;
use glmc_ir::plan::{Mem, Phase, PhaseKind};
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, Want};

use super::models::{bf16, models, with_floats};
use super::support::{compile, engine, long_engine, prompts};
use super::thin::{Row, Stage, explain};

const TOLERANCE: f32 = 1e-4;

/// How a prompt is fed.
#[derive(Clone, Copy, Debug)]
enum Feed {
    /// By the prefill phase, this many tokens at once.
    Chunks(u64),
    /// By the decode phase.
    SingleSteps,
}

const FEEDS: [Feed; 5] = [Feed::Chunks(1), Feed::Chunks(7), Feed::Chunks(64), Feed::Chunks(65), Feed::SingleSteps];

/// Choices by name, and the scores that each is made from.
const CHOICES: [(&str, &str); 2] = [("top_k", "indexer_score"), ("ffn_moe_topk", "ffn_moe_logits")];

/// Feeds a prompt; last logits and every choice on the way.
fn feed(e: &mut Engine, ids: &[u32], how: Feed) -> (Vec<f32>, Vec<Stage>) {
    let kind = if matches!(how, Feed::SingleSteps) { PhaseKind::Decode } else { PhaseKind::Prefill };
    let phase = e.plan().phases.iter().filter(|p| p.kind == kind).min_by_key(|p| p.tokens).unwrap();
    let wanted =
        |n: &String| CHOICES.iter().any(|(a, b)| n.ends_with(&format!(".{a}")) || n.ends_with(&format!(".{b}")));
    let names: Vec<Vec<Option<String>>> =
        (0..phase.steps.len()).map(|s| outputs(phase, s).into_iter().map(|n| n.filter(wanted)).collect()).collect();
    let mut rows: BTreeMap<String, Vec<Vec<f32>>> = BTreeMap::new();
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        let Some(Some(name)) = names[s.step].get(s.output) else { return Ok(()) };
        let values: Vec<f32> = match s.data {
            Output::F32(v) => v.to_vec(),
            Output::I32(v) => v.iter().map(|i| *i as f32).collect(),
        };
        rows.entry(name.clone()).or_default().extend(values.chunks_exact(s.shape[1]).map(<[f32]>::to_vec));
        Ok(())
    };
    let seq = e.start();
    let logits = match how {
        Feed::Chunks(n) => {
            e.set_chunk(n);
            e.feed_observed(seq, ids, Want::Last, Some(&mut see)).unwrap()
        }
        Feed::SingleSteps => {
            ids.iter().fold(Vec::new(), |_, t| e.decode_observed(&[(seq, *t)], Some(&mut see)).unwrap())
        }
    };
    e.end(seq);
    let stages = stages(e, rows);
    assert!(stages.iter().all(|s| s.rows.len() == ids.len()));
    (logits, stages)
}

/// The names of the buffers that a step writes.
fn outputs(phase: &Phase, step: usize) -> Vec<Option<String>> {
    let outs = phase.steps[step].args.iter().filter(|a| a.access == Access::Write);
    outs.map(|a| if let Mem::Buf(b) = a.mem { Some(phase.buffers[b].name.clone()) } else { None }).collect()
}

/// The observed rows as stages, in the order of computation.
fn stages(e: &Engine, mut rows: BTreeMap<String, Vec<Vec<f32>>>) -> Vec<Stage> {
    let mut stages = Vec::new();
    for layer in 0..e.plan().model.layers as usize {
        for (choice, score) in CHOICES {
            let name = format!("blk.{layer}.{choice}");
            let Some(chosen) = rows.remove(&name) else { continue };
            let mut scores = rows.remove(&format!("blk.{layer}.{score}")).unwrap();
            if choice == "ffn_moe_topk" {
                gates(e, &name, &mut scores);
            }
            let row = |(scores, ids): (Vec<f32>, Vec<f32>)| {
                let mut chosen: Vec<usize> = ids.iter().filter(|i| **i >= 0.0).map(|i| *i as usize).collect();
                chosen.sort_unstable();
                Row { scores, chosen }
            };
            assert_eq!(scores.len(), chosen.len());
            stages.push(Stage { name, layer, rows: scores.into_iter().zip(chosen).map(row).collect() });
        }
    }
    assert!(rows.is_empty() && !stages.is_empty());
    stages
}

/// Turns router logits into what the plan's router compares: gates plus bias.
fn gates(e: &Engine, choice: &str, logits: &mut [Vec<f32>]) {
    let phase = e.plan().phases.iter().find(|p| p.kind == PhaseKind::Prefill).unwrap();
    let step = (0..phase.steps.len()).find(|s| outputs(phase, *s).iter().flatten().any(|n| n == choice)).unwrap();
    let Kernel::Route(route) = &phase.steps[step].kernel else { panic!("{choice} is not made by a router") };
    assert_eq!((route.0.gating, route.0.groups, route.0.bias), (Gating::Sigmoid, 1, true));
    let bias = phase.steps[step].args.iter().find(|a| a.name == "bias").unwrap();
    let Mem::Weight(bias) = bias.mem else { panic!("the bias of {choice} is no weight") };
    let bias = e.loaded().weights[0].floats(bias);
    for row in logits {
        assert_eq!(row.len(), bias.len());
        for (x, b) in row.iter_mut().zip(bias) {
            *x = (1.0 / (1.0 + (-f64::from(*x)).exp())) as f32 + b;
        }
    }
}

/// The recorded scores are those that were compared: the chosen are the largest of them.
fn check_scores(what: &str, stages: &[Stage]) {
    for s in stages {
        for (token, row) in s.rows.iter().enumerate() {
            let mut order: Vec<usize> = (0..row.scores.len()).filter(|i| row.scores[*i] > f32::NEG_INFINITY).collect();
            order.sort_by(|i, j| row.scores[*j].partial_cmp(&row.scores[*i]).unwrap().then(i.cmp(j)));
            order.truncate(row.chosen.len());
            order.sort_unstable();
            assert_eq!(order, row.chosen, "{what}: {} of token {token} is not the best by its scores", s.name);
        }
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

#[test]
fn chunks_of_any_size_and_single_steps_agree() {
    for m in models() {
        // Phases that show every choice; those for short contexts have none of keys to show.
        let mut e = long_engine(m.plan());
        assert!(e.plan().limits.chunk >= 512);
        let (mut compared, mut parted, mut worst, mut beyond) = (0, 0, 0.0f32, 0);
        for (name, ids) in prompts() {
            let whole = feed(&mut e, &ids, Feed::Chunks(512));
            check_scores(&format!("{} {name}", m.golden), &whole.1);
            // Beyond the indexer's top-k, keys are left out.
            let last = whole.1[0].rows.last().unwrap();
            beyond += usize::from(last.chosen.len() < ids.len());
            for how in FEEDS {
                let other = feed(&mut e, &ids, how);
                let d = difference(&whole.0, &other.0);
                compared += 1;
                if d <= TOLERANCE {
                    worst = worst.max(d);
                    continue;
                }
                let what = format!("{} {name}: {how:?} against one chunk, logits differ by {d:.1e}", m.golden);
                let p = explain(&whole.1, &other.1).unwrap_or_else(|why| panic!("{what}: {why}"));
                println!("{what}: parted at {} of token {}, margin {:.1e}", p.name, p.token, p.margin);
                parted += 1;
            }
        }
        println!(
            "{}: {compared} comparisons of 12 prompts ({beyond} beyond top-k), {parted} parted at a thin choice, \
             largest other difference {worst:.1e}",
            m.golden
        );
        assert_eq!((compared, beyond), (12 * FEEDS.len(), 3));
        assert!(parted * 20 <= compared, "{}: {parted} of {compared} parted: choices are not that thin", m.golden);
    }
}

/// Two runs that really part, since the router's biases differ: by next to nothing where a choice was made thin, which
/// is named; and by much, which is refused.
#[test]
fn only_a_thin_choice_excuses_a_parting() {
    let dir = tempfile::tempdir().unwrap();
    let ids = prompts().into_iter().find(|(n, _)| n == "text65").unwrap().1;
    let run = |model: &Path| feed(&mut long_engine(&compile(model)), &ids, Feed::Chunks(512));
    let plain = run(&bf16());
    let router = plain.1.iter().find(|s| s.name == "blk.1.ffn_moe_topk").unwrap();
    let last = router.rows.last().unwrap();
    let score = |i: &usize| last.scores[*i];
    let chosen = *last.chosen.iter().min_by(|i, j| score(i).total_cmp(&score(j))).unwrap();
    let others = (0..last.scores.len()).filter(|i| !last.chosen.contains(i));
    let next = others.max_by(|i, j| score(i).total_cmp(&score(j))).unwrap();
    let margin = score(&chosen) - score(&next);
    assert!(margin > 1e-4);
    let with =
        |name: &str, add: f32| run(&with_floats(dir.path(), name, "blk.1.exp_probs_b.bias", |bias| bias[next] += add));
    let (below, above) = (with("below", margin - 1e-6), with("above", margin + 1e-6));
    let d = difference(&below.0, &above.0);
    assert!(d > TOLERANCE, "{d}");
    let p = explain(&below.1, &above.1).unwrap();
    println!("logits differ by {d:.1e}: parted at {} of token {}, margin {:.1e}", p.name, p.token, p.margin);
    assert_eq!((p.name.as_str(), p.token), ("blk.1.ffn_moe_topk", ids.len() - 1));
    for (a, b) in [(&plain, &above), (&above, &plain)] {
        let error = explain(&a.1, &b.1).unwrap_err();
        assert!(error.starts_with("blk.1.ffn_moe_topk of token ") && error.contains("its margin is"), "{error}");
    }
}

#[test]
fn sequences_side_by_side_do_not_meet() {
    for m in models() {
        let mut e = engine(m.plan());
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
