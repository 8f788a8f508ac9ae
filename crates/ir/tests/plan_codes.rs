//! Each code of the plan verifier has a plan that triggers it and only it.

mod common;

use std::collections::BTreeSet;

use common::{beside, fused, tiny, ty};
use glmc_ir::entities::{BufId, ParamId, StateId, WeightId};
use glmc_ir::graph::Span;
use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Buffer, Mem, Overlap, Plan, Recipe, Slice, State};
use glmc_ir::verify::plan::{CODES, verify_plan};

fn w(i: u32) -> WeightId {
    WeightId::from_u32(i)
}

/// A buffer of its own bytes, shaped like buffer `like` of phase 0.
fn buffer(p: &mut Plan, name: &str, like: u32) -> BufId {
    let phase = &mut p.phases[0];
    let like = phase.buffers[BufId::from_u32(like)].clone();
    let offset = phase.arena_bytes.next_multiple_of(256);
    phase.arena_bytes = offset + like.bytes;
    phase.buffers.push(Buffer { name: name.into(), offset, ..like })
}

/// Runs step `step` of phase 0 a second time, its output bound to `to`.
fn again(p: &mut Plan, step: usize, to: Mem) {
    let phase = &mut p.phases[0];
    let mut copy = phase.steps[step].clone();
    copy.args.last_mut().unwrap().mem = to;
    phase.steps.insert(step + 1, copy);
    phase.segments[0].count += 1;
    phase.segments[1].first += 1;
}

fn move_weight(p: &mut Plan, from: u32, span: Span) {
    let r: &mut Recipe = &mut p.weights[w(from)];
    r.span = span;
    r.slices =
        vec![vec![Slice { part: span.part, offset: span.offset, bytes: span.bytes, count: 1, stride: span.bytes }]];
}

type Case = (&'static str, fn(&mut Plan));

const CASES: &[Case] = &[
    ("plan-format", |p| p.format = 7),
    ("plan-format", |p| p.target.ranks = 2),
    ("bad-limits", |p| p.limits.max_batch = 0),
    ("bad-type", |p| p.phases[0].params[ParamId::from_u32(0)].ty = ty("i32[0]")),
    ("bad-type", |p| p.phases[0].params[ParamId::from_u32(0)].ty = ty("i32[4294967296, 4294967296, 4294967296]")),
    ("unknown-symbol", |p| {
        p.phases[0].syms.shift_remove(&glmc_ir::ty::Sym::from("S"));
    }),
    ("duplicate-name", |p| p.weights[w(1)].name = "token_embd".into()),
    ("bad-phase", |p| p.phases[1].tokens = 0),
    ("bad-phase", |p| p.phases[1].name = "prefill".into()),
    ("bad-phase", |p| p.phases.clear()),
    ("bad-phase", |p| {
        let mut twin = p.phases[1].clone();
        twin.name = "twin".into();
        p.phases.push(twin);
    }),
    ("plan-bad-id", |p| p.phases[0].steps[1].args[0].mem = Mem::Buf(BufId::from_u32(99))),
    ("kernel-attribute", |p| match &mut p.phases[0].steps[6].kernel {
        Kernel::Attention(a) => a.0.parts = usize::MAX,
        k => panic!("step 6 is {k:?}"),
    }),
    ("arg-mismatch", |p| p.phases[0].steps[1].args[0].name = "y".into()),
    ("arg-mismatch", |p| {
        p.phases[0].steps[1].args.pop();
    }),
    ("arg-type", |p| p.phases[0].steps[1].args[2].ty = ty("f32[T, 2, 16]")),
    ("arg-view", |p| {
        let n = &mut p.phases[0].buffers[BufId::from_u32(1)];
        n.ty = ty("f16[T, 32]");
        n.bytes /= 2;
    }),
    ("arg-view", |p| p.phases[0].params[ParamId::from_u32(4)].ty = ty("i32[2, S]")),
    ("weight-type", |p| p.weights[w(1)].ty = ty("i32[32]")),
    ("read-before-write", |p| p.phases[0].steps.swap(1, 2)),
    ("write-twice", |p| again(p, 1, Mem::Buf(BufId::from_u32(1)))),
    ("never-written", |p| {
        buffer(p, "nothing", 1);
    }),
    ("output-unread", |p| {
        let b = buffer(p, "lost", 1);
        again(p, 1, Mem::Buf(b));
    }),
    ("write-constant", |p| again(p, 1, Mem::Weight(w(0)))),
    ("write-constant", |p| again(p, 1, Mem::Param(ParamId::from_u32(0)))),
    ("stale-state", |p| {
        let keys = BufId::from_u32(3);
        p.phases[0].buffers[keys].offset = p.phases[0].arena_bytes.next_multiple_of(256);
        p.phases[0].arena_bytes = p.phases[0].buffers[keys].offset + p.phases[0].buffers[keys].bytes;
        p.phases[0].steps.swap(3, 4);
    }),
    ("stale-state", |p| again_append(p)),
    ("state-never-written", |p| {
        let s = p.states.push(State { name: "other".into(), ty: ty("state f32[8, 16]") });
        let b = buffer(p, "_unused", 3);
        again(p, 4, Mem::Buf(b));
        p.phases[0].steps[5].args[0].mem = Mem::State(s);
    }),
    ("state-unread", |p| {
        p.states.push(State { name: "other".into(), ty: ty("state f32[8, 16]") });
    }),
    ("state-rows", |p| p.limits.cache_rows = 9),
    ("buffer-align", |p| {
        p.phases[0].buffers[BufId::from_u32(0)].offset += 4;
        p.phases[0].arena_bytes += 4;
    }),
    ("buffer-size", |p| p.phases[0].buffers[BufId::from_u32(0)].bytes -= 4),
    ("buffer-bounds", |p| p.phases[0].arena_bytes -= 4),
    ("arena-size", |p| p.phases[0].arena_bytes += 1 << 20),
    ("live-overlap", |p| {
        p.phases[0].buffers[BufId::from_u32(1)].offset = p.phases[0].buffers[BufId::from_u32(0)].offset
    }),
    ("bad-result", |p| {
        let r = p.phases[0].results[0].clone();
        p.phases[0].results.push(r);
    }),
    ("bad-result", |p| {
        let b = buffer(p, "other", 14);
        let mut r = p.phases[0].results[0].clone();
        (r.name, r.mem) = ("other".into(), Mem::Buf(b));
        p.phases[0].results.push(r);
    }),
    ("bad-segment", |p| p.phases[0].segments[0].count -= 1),
    ("bad-segment", |p| p.phases[0].segments[1].count = usize::MAX),
    ("bad-overlap", |p| p.phases[0].overlaps.push(Overlap { step: 0, done: 2 })),
    ("weight-size", |p| p.weights[w(1)].span.bytes -= 4),
    ("weight-bounds", |p| p.files[1].bytes = 64),
    ("weight-bounds", |p| p.weights[w(1)].span.part = 2),
    ("weight-slices", |p| p.weights[w(1)].slices[0][0].offset += 4),
    ("weight-slices", |p| p.weights[w(1)].slices[0].clear()),
    ("weight-cut", |p| p.weights[w(2)].slices[0][0].offset += 16),
    ("weight-twice", |p| move_weight(p, 5, p.weights[w(1)].span)),
    ("weight-overlap", |p| {
        let span = p.weights[w(4)].span;
        move_weight(p, 1, Span { offset: span.offset + 4, bytes: 128, ..span });
    }),
    ("weight-unused", |p| {
        let mut r = p.weights[w(1)].clone();
        r.name = "extra".into();
        let extra = p.weights.push(r);
        let span = Span { part: 1, offset: p.files[1].bytes, bytes: 128 };
        p.files[1].bytes += 128;
        move_weight(p, extra.as_u32(), span);
    }),
];

fn again_append(p: &mut Plan) {
    let copy = p.phases[0].steps[3].clone();
    p.phases[0].steps.insert(4, copy);
    p.phases[0].segments[0].count += 1;
    p.phases[0].segments[1].first += 1;
}

#[test]
fn the_plans_are_valid() {
    for (name, plan) in [("tiny", tiny()), ("fused", fused()), ("beside", beside())] {
        if let Err(d) = verify_plan(&plan) {
            panic!("{name}:\n{d}");
        }
    }
    let json = serde_json::to_string(&tiny()).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), tiny());
}

#[test]
fn shards_of_two_ranks_in_the_wrong_order() {
    let mut plan = fused();
    plan.weights[w(1)].slices.swap(0, 1);
    let found = verify_plan(&plan).unwrap_err();
    assert!(found.0.iter().all(|d| d.code == "weight-order"), "{found}");
    assert!(found.0[0].message.ends_with("these are the slices of rank 1"), "{found}");
}

#[test]
fn what_runs_beside_a_collective_needs_none_of_it() {
    let with = |edit: &dyn Fn(&mut Plan)| {
        let mut plan = beside();
        edit(&mut plan);
        let found = verify_plan(&plan).map_or_else(|e| e.0, |()| Vec::new());
        found.iter().map(|d| d.code).collect::<BTreeSet<_>>()
    };
    let overlap = |step, done| move |p: &mut Plan| p.phases[0].overlaps = vec![Overlap { step, done }];
    assert_eq!(with(&|_| ()), BTreeSet::new());
    assert_eq!(with(&overlap(3, 6)), BTreeSet::from(["overlap-read"]));
    // No collective, nothing beside it, past its segment, no such step, twice.
    for (step, done) in [(2, 5), (3, 4), (3, 7), (6, 9), (usize::MAX, usize::MAX), (3, usize::MAX)] {
        assert!(with(&overlap(step, done)).contains("bad-overlap"), "{step} {done}");
    }
    let twice = |p: &mut Plan| p.phases[0].overlaps.push(Overlap { step: 3, done: 5 });
    assert_eq!(with(&twice), BTreeSet::from(["bad-overlap"]));
    // The bytes of the operand are written while it is still read; without the overlap they may be.
    let alias = |p: &mut Plan| {
        let operand = p.phases[0].steps[2].args[1].mem;
        let Mem::Buf(s) = p.phases[0].steps[4].args[1].mem else { panic!("{operand:?}") };
        let Mem::Buf(operand) = operand else { panic!("{operand:?}") };
        p.phases[0].buffers[s].offset = p.phases[0].buffers[operand].offset;
    };
    assert_eq!(with(&alias), BTreeSet::from(["live-overlap"]));
    let in_order = |p: &mut Plan| {
        alias(p);
        p.phases[0].overlaps.clear();
    };
    assert_eq!(with(&in_order), BTreeSet::new());
}

#[test]
fn each_code_is_triggered_alone() {
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for (code, edit) in CASES {
        let mut plan = tiny();
        edit(&mut plan);
        let found = verify_plan(&plan).expect_err(code);
        let codes: BTreeSet<&str> = found.0.iter().map(|d| d.code).collect();
        assert_eq!(codes, BTreeSet::from([*code]), "{found}");
        seen.insert(*code);
        text += &format!("{}\n\n", found.0[0]);
    }
    let listed: BTreeSet<&str> = CODES.iter().map(|(c, _)| *c).collect();
    assert_eq!(listed.len(), CODES.len());
    // Shards that change places, and what runs beside a collective, need two ranks; the tests beside this one have them.
    seen.extend(["weight-order", "overlap-read"]);
    assert_eq!(seen, listed, "each code of the table has a case");
    insta::assert_snapshot!(text);
}

#[test]
fn a_types_own_code_passes_through() {
    let mut plan = tiny();
    plan.phases[0].steps[1].args[1].mem = Mem::Weight(w(0));
    plan.phases[0].steps[1].args[1].ty = ty("f32[16, 32]");
    let found = verify_plan(&plan).unwrap_err();
    assert!(found.0.iter().any(|d| d.code == "bad-rank" && d.at.contains("step 1")), "{found}");
}

#[test]
fn many_findings_are_cut_short() {
    let mut plan = tiny();
    for s in &mut plan.phases[0].steps {
        for a in &mut s.args {
            a.mem = Mem::State(StateId::from_u32(77));
        }
    }
    for _ in 0..7 {
        let p = plan.phases[0].clone();
        plan.phases.push(p);
    }
    assert_eq!(verify_plan(&plan).unwrap_err().0.len(), 64);
}

#[test]
fn a_long_plan_is_judged_in_time() {
    let mut plan = tiny();
    let phase = &mut plan.phases[0];
    // x -> norm -> norm -> .. : two buffers of their own, alternating, with the lives of one link each.
    let (norm, at) = (phase.steps[1].clone(), phase.arena_bytes.next_multiple_of(256));
    let like = phase.buffers[BufId::from_u32(1)].clone();
    let mut from = norm.args[0].mem;
    for i in 0..5000u64 {
        let offset = at + (i % 2) * 256;
        let b = phase.buffers.push(Buffer { name: format!("_link {i}"), offset, ..like.clone() });
        let mut step = norm.clone();
        step.args[0].mem = from;
        step.args[2].mem = Mem::Buf(b);
        phase.steps.insert(2 + i as usize, step);
        from = Mem::Buf(b);
    }
    phase.arena_bytes = at + 512;
    phase.segments = vec![glmc_ir::plan::Segment { first: 0, count: phase.steps.len() }];
    for i in 1..4 {
        let mut copy = plan.phases[0].clone();
        copy.name = format!("prefill_{i}");
        plan.phases.push(copy);
    }
    let start = std::time::Instant::now();
    verify_plan(&plan).unwrap();
    let taken = start.elapsed();
    assert!(taken.as_millis() < 1000, "{taken:?} for 20000 steps");
}
