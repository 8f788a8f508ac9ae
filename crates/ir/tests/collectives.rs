//! Collectives: which placements they take, which they give, and what they cost.

use glmc_ir::collective::{Collective, CollectiveKind, Payload};
use glmc_ir::op::Op;
use glmc_ir::ops::{AllGather, AllReduce, AllToAll, ReduceScatter, Shard};
use glmc_ir::placement::{Mesh, infer_on};
use glmc_ir::shard_map::group;
use glmc_ir::text::parse_type;
use glmc_ir::ty::{SymValues, TensorType};

fn ty(text: &str) -> TensorType {
    parse_type(text).expect("a type")
}

fn mesh(axes: &[(&str, u64)]) -> Mesh {
    axes.iter().map(|(a, n)| ((*a).into(), *n)).collect()
}

/// The result's text, or the code.
fn moved(op: impl Into<Op>, arg: &str) -> Result<String, &'static str> {
    let mesh = mesh(&[("tp", 4), ("ep", 2)]);
    infer_on(&op.into(), &[&ty(arg)], &mesh).map(|r| r[0].to_string()).map_err(|d| d.code)
}

#[test]
fn each_collective_changes_its_placement_only() {
    let reduce = || AllReduce { axis: "tp".into() };
    let gather = || AllGather { axis: "tp".into() };
    let scatter = |dim| ReduceScatter { axis: "tp".into(), dim, unit: 1 };
    let shard = |dim, unit| Shard { axis: "tp".into(), dim, unit };
    let turn = |dim| AllToAll { axis: "tp".into(), dim, unit: 1 };
    let ok = |s: &str| Ok(s.to_owned());
    assert_eq!(moved(reduce(), "f32[T, 8/ep] +tp"), ok("f32[T, 8/ep]"));
    assert_eq!(moved(reduce(), "f32[T, 8] max+tp"), ok("f32[T, 8]"));
    assert_eq!(moved(reduce(), "f32[T, 8] softmax+tp"), ok("f32[T, 8]"));
    assert_eq!(moved(reduce(), "i32[T, 8] topk+tp"), ok("i32[T, 8]"));
    assert_eq!(moved(reduce(), "f32[T, 8]"), Err("reduce-not-pending"));
    assert_eq!(moved(reduce(), "f32[T, 8] +ep"), Err("reduce-not-pending"));
    assert_eq!(moved(gather(), "f32[T, 8/tp] +ep"), ok("f32[T, 8] +ep"));
    assert_eq!(moved(gather(), "f32[T, 8/ep]"), Err("gather-not-split"));
    assert_eq!(moved(gather(), "f32[T, 8/tp] softmax+ep"), Err("pending-nonlinear"));
    assert_eq!(moved(scatter(1), "f32[T, 8] +tp"), ok("f32[T, 8/tp]"));
    assert_eq!(moved(scatter(1), "f32[T, 8] max+tp"), Err("reduce-not-pending"));
    assert_eq!(moved(scatter(1), "f32[T, 8/ep] +tp"), Err("split-twice"));
    assert_eq!(moved(scatter(2), "f32[T, 8] +tp"), Err("bad-attribute"));
    // A unit that changes no cut is not kept; one that does is.
    assert_eq!(moved(shard(1, 2), "f32[T, 8]"), ok("f32[T, 8/tp]"));
    assert_eq!(moved(shard(1, 3), "f32[T, 8]"), ok("f32[T, 8/tp:3]"));
    assert_eq!(moved(shard(1, 0), "f32[T, 8]"), Err("bad-attribute"));
    assert_eq!(moved(shard(0, 1), "f32[T, 8/tp]"), Err("split-twice"));
    // Each rank would cut its own summand: the parts would be summed with parts of other entries.
    assert_eq!(moved(shard(0, 1), "f32[T, 8] +tp"), Err("pending-nonlinear"));
    assert_eq!(moved(turn(0), "f32[T, 8/tp]"), ok("f32[T/tp, 8]"));
    assert_eq!(moved(turn(1), "f32[T, 8/tp]"), Err("split-twice"));
    assert_eq!(moved(turn(0), "f32[T/ep, 8/tp]"), Err("split-twice"));
    assert_eq!(moved(gather(), "q8_0[32, 8/tp] rows"), Err("bad-elem"));
    assert_eq!(moved(gather(), "state f32[32/tp, 8]"), Err("bad-state"));
}

#[test]
fn groups_differ_in_one_axis() {
    let mesh = mesh(&[("dp", 2), ("tp", 3), ("ep", 2)]);
    assert_eq!(group(&mesh, &"dp".into(), 7), Some(vec![1, 7]));
    assert_eq!(group(&mesh, &"tp".into(), 7), Some(vec![7, 9, 11]));
    assert_eq!(group(&mesh, &"ep".into(), 7), Some(vec![6, 7]));
    assert_eq!(group(&mesh, &"cp".into(), 7), None);
}

#[test]
fn payloads_are_of_the_largest_rank() {
    let (mesh, syms) = (mesh(&[("tp", 4), ("ep", 2)]), SymValues::default().with("T", 5));
    let cost = |op: Op, arg: &str| -> (Payload, u64) {
        let c: Collective = op.collective().expect("a collective");
        let result = infer_on(&op, &[&ty(arg)], &mesh).expect("it takes this")[0].clone();
        let p = c.payload(&ty(arg), &result, &mesh, &syms).expect("it can be cut");
        (p, p.least_sent(c.kind))
    };
    // 5 x 8 floats over 2 ranks of ep: 20 x 4 bytes, of which a ring of 4 sends 3 quarters twice.
    let (p, sent) = cost(AllReduce { axis: "tp".into() }.into(), "f32[T, 8/ep] +tp");
    assert_eq!((p.ranks, p.before, p.after, sent), (4, 80, 80, 120));
    // The largest part of 6 columns over 4 ranks is 2.
    let (p, sent) = cost(AllGather { axis: "tp".into() }.into(), "f32[T, 6/tp]");
    assert_eq!((p.before, p.after, sent), (40, 120, 90));
    let (p, sent) = cost(ReduceScatter { axis: "tp".into(), dim: 1, unit: 1 }.into(), "f32[T, 8] +tp");
    assert_eq!((p.before, p.after, sent), (160, 40, 120));
    let (p, sent) = cost(Shard { axis: "tp".into(), dim: 1, unit: 1 }.into(), "f32[T, 8]");
    assert_eq!((p.before, p.after, sent), (160, 40, 0));
    // A part of a softmax carries two more numbers a row.
    let (p, _) = cost(AllReduce { axis: "tp".into() }.into(), "bf16[T, 2, 6] softmax+tp");
    assert_eq!((p.before, p.after), (5 * 2 * 8 * 4, 5 * 2 * 6 * 2));
    assert_eq!(
        Op::from(Shard { axis: "tp".into(), dim: 1, unit: 1 }).collective().map(|c| c.kind),
        Some(CollectiveKind::Shard { dim: 1, unit: 1 })
    );
}
