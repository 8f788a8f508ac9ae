//! Placement by dim rules, op by op: splits that a rule allows propagate to the results, others are refused; pending
//! sums pass linear operands only.

use glmc_ir::kernel::{AddRmsNormKernel, GateUpKernel, GroupedDownKernel, Kernel, RopeJoinKernel, SwigluKernel};
use glmc_ir::op::Op;
use glmc_ir::ops::*;
use glmc_ir::placement::{Role, strip};
use glmc_ir::text::parse_type;
use glmc_ir::ty::{Axis, Dim, PendingKind, Split, TensorType};
use proptest::prelude::*;

/// An op with operand types that it takes, in one or more forms: each op of the table is here.
fn samples() -> Vec<(Op, Vec<TensorType>)> {
    let t = |s: &[&str]| s.iter().map(|s| parse_type(s).expect("a type")).collect::<Vec<_>>();
    let route =
        |bias| MoeRoute { gating: Gating::Sigmoid, k: 2, bias, groups: 1, groups_used: 1, norm: true, scale: 1.0 };
    let pieces = parse_type("f32[T, {gate: 8, up: 8}]").expect("a type");
    let dims = |s: &[&str]| s.iter().map(|d| glmc_ir::text::parse_dim(d).expect("a dim")).collect::<Vec<Dim>>();
    let flat = Attention { parts: 1, scale: 1.0, selected: false };
    let latent = Attention { parts: 2, scale: 1.0, selected: true };
    let shared = Matmul { spec: "tk,nk->tn".into(), names: vec!["gate".into(), "up".into()] };
    let fused = |kernel: Kernel, args: Vec<TensorType>| {
        let refs: Vec<&TensorType> = args.iter().collect();
        (Op::from(Fused::of(kernel, &refs)), args)
    };
    let both = vec!["gate".to_owned(), "up".to_owned()];
    let rope_join = RopeJoinKernel { theta: 1e4, from: both.clone(), names: both, rope: "up".into() };
    vec![
        (Add {}.into(), t(&["f32[T, 8]", "f32[T, 8]"])),
        (Add {}.into(), t(&["f32[T, 8]", "f32[1, 8]"])),
        (Append {}.into(), t(&["state f32[32, 8]", "i32[T]", "f32[T, 8]"])),
        (flat.clone().into(), t(&["f32[T, 4, 8]", "f32[2, 16, 4, 8]", "f32[2, 16, 4, 6]", "i32[T]", "i32[T]"])),
        (
            latent.into(),
            t(&[
                "f32[T, 4, 8]",
                "f32[T, 4, 2]",
                "f32[2, 16, 8]",
                "f32[2, 16, 2]",
                "f32[2, 16, 8]",
                "i32[T]",
                "i32[T]",
                "i32[T, 4]",
            ]),
        ),
        (Dequant {}.into(), t(&["q4_K[6, 4, 512] rows"])),
        fused(AddRmsNormKernel { eps: 1e-5 }.into(), t(&["f32[T, 8]", "f32[T, 8]", "q8_0[8] rows"])),
        fused(GateUpKernel { spec: "tk,nk->tn".into() }.into(), t(&["f32[T, 8]", "f32[6, 8]", "f32[6, 8]"])),
        fused(GroupedDownKernel {}.into(), t(&["f32[T, 2, 8]", "f32[6, 4, 8]", "i32[T, 2]", "f32[T, 2]"])),
        fused(SwigluKernel { pieces: vec!["gate".into(), "up".into()] }.into(), vec![pieces.clone()]),
        fused(rope_join.into(), vec![pieces.clone(), t(&["i32[T]"]).remove(0)]),
        (Gather {}.into(), t(&["f32[100, 4, 8]", "i32[T, 2]"])),
        (GroupedMatmul {}.into(), t(&["f32[T, 8]", "f32[6, 4, 8]", "i32[T, 2]"])),
        (GroupedMatmul {}.into(), t(&["f32[T, 2, 8]", "f32[6, 4, 8]", "i32[T, 2]"])),
        (IndexerScores { scale: 1.0 }.into(), t(&["f32[T, 4, 8]", "f32[2, 16, 8]", "f32[T, 4]", "i32[T]", "i32[T]"])),
        (Join { names: vec!["a".into(), "b".into()] }.into(), t(&["f32[T, 4]", "f32[T, 8]"])),
        (LayerNorm { eps: 1e-5 }.into(), t(&["f32[T, 8]", "f32[8]", "f32[8]"])),
        (Matmul::new("tk,nk->tn").into(), t(&["f32[T, 8]", "f32[6, 8]"])),
        (Matmul::new("thk,hnk->thn").into(), t(&["f32[T, 4, 8]", "f32[4, 6, 8]"])),
        (shared.clone().into(), t(&["f32[T, 8]", "f32[6, 8]", "f32[6, 8]"])),
        (shared.into(), t(&["f32[T, 8]", "f32[6, 8]", "f32[{latent: 4, rope: 2}, 8]"])),
        (route(true).into(), t(&["f32[T, 8]", "f32[8]"])),
        (route(false).into(), t(&["f32[T, 8]"])),
        (Mul {}.into(), t(&["f32[T, 2, 8]", "f32[T, 2, 1]"])),
        (Piece::of(&pieces, "up").expect("a piece").into(), vec![pieces]),
        (Relu {}.into(), t(&["f32[T, 8]"])),
        (Reshape { dims: dims(&["T", "4", "6"]) }.into(), t(&["f32[T, 24]"])),
        (RmsNorm { eps: 1e-5 }.into(), t(&["f32[T, 4, 8]", "f32[8]"])),
        (Rope { theta: 1e4 }.into(), t(&["f32[T, 4, 8]", "i32[T]"])),
        (Scale { factor: 2.0 }.into(), t(&["f32[T, 8]"])),
        (Sigmoid {}.into(), t(&["f32[T, 8]"])),
        (Silu {}.into(), t(&["f32[T, 8]"])),
        (TopK { k: 4 }.into(), t(&["f32[T, 16]"])),
        (TopKPart { k: 4 }.into(), t(&["f32[T, 16]"])),
        (
            AttentionPart::from(flat).into(),
            t(&["f32[T, 4, 8]", "f32[2, 16, 8]", "f32[2, 16, 4, 6]", "i32[T]", "i32[T]"]),
        ),
    ]
}

/// The operands with every dim of label `label` split over `axis`.
fn split(op: &Op, args: &[TensorType], label: usize, axis: &str) -> Vec<TensorType> {
    let refs: Vec<&TensorType> = args.iter().collect();
    let global: Vec<TensorType> = args.iter().map(strip).collect();
    let results = op.infer(&global.iter().collect::<Vec<_>>()).expect("a sample is well-typed");
    let rule = op.dim_rule(&refs, &results);
    let mut out = args.to_vec();
    for (t, labels) in out.iter_mut().zip(&rule.args) {
        for (d, _) in t.dims.iter_mut().zip(labels).filter(|(_, l)| **l == label) {
            d.split = Some(Split::from(axis));
        }
    }
    out
}

fn infer(op: &Op, args: &[TensorType]) -> Result<Vec<TensorType>, &'static str> {
    op.infer(&args.iter().collect::<Vec<_>>()).map_err(|d| d.code)
}

#[test]
fn every_op_has_a_sample() {
    // Collectives change placements: see tests/collectives.rs.
    let moves = |name: &str| ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard"].contains(&name);
    for name in Op::NAMES.iter().filter(|n| !moves(n)) {
        assert!(samples().iter().any(|(op, _)| op.name() == *name), "no sample of `{name}`");
    }
}

#[test]
fn every_label_behaves_as_its_role_says() {
    let (mut maps, mut reduces, mut wholes) = (0, 0, 0);
    for (op, args) in samples() {
        let plain = infer(&op, &args).expect("a sample is well-typed");
        let rule = op.dim_rule(&args.iter().collect::<Vec<_>>(), &plain);
        for (label, role) in rule.roles.iter().enumerate() {
            let parts = split(&op, &args, label, "tp");
            if parts == args {
                continue; // the label is of results only
            }
            let got = infer(&op, &parts);
            let at = format!("`{}` label {label} {role:?}: {got:?}", op.name());
            match role {
                Role::Whole => {
                    wholes += 1;
                    assert_eq!(got, Err("split-whole-dim"), "{at}");
                }
                Role::Map => {
                    maps += 1;
                    let got = got.unwrap_or_else(|e| panic!("{e}: {at}"));
                    for ((g, p), labels) in got.iter().zip(&plain).zip(&rule.results) {
                        assert_eq!(strip(g), *p, "a split changes no global shape: {at}");
                        assert_eq!(g.pending, None, "{at}");
                        for (d, l) in g.dims.iter().zip(labels) {
                            assert_eq!(d.split.is_some(), *l == label, "{at}");
                        }
                    }
                }
                Role::Reduce(kind) => {
                    reduces += 1;
                    for (g, p) in got.unwrap_or_else(|e| panic!("{e}: {at}")).iter().zip(&plain) {
                        assert_eq!(strip(g), *p, "{at}");
                        assert_eq!(g.pending, Some((*kind, Axis::from("tp"))), "{at}");
                        assert!(g.dims.iter().all(|d| d.split.is_none()), "{at}");
                    }
                }
            }
        }
    }
    assert!(maps >= 40 && reduces >= 8 && wholes >= 15, "{maps} {reduces} {wholes}");
}

#[test]
fn a_dim_split_on_one_operand_only_is_refused() {
    let mut tried = 0;
    for (op, args) in samples() {
        let plain = infer(&op, &args).expect("a sample is well-typed");
        let rule = op.dim_rule(&args.iter().collect::<Vec<_>>(), &plain);
        for label in 0..rule.roles.len() {
            let holders = rule.args.iter().filter(|l| l.contains(&label)).count();
            if holders < 2 {
                continue;
            }
            let parts = split(&op, &args, label, "tp");
            let other = split(&op, &args, label, "dp");
            for i in (0..args.len()).filter(|i| rule.args[*i].contains(&label)) {
                tried += 1;
                let mut one_whole = parts.clone();
                one_whole[i] = args[i].clone();
                assert_eq!(infer(&op, &one_whole), Err("split-mismatch"), "`{}` operand {i} whole", op.name());
                let mut two_axes = parts.clone();
                two_axes[i] = other[i].clone();
                assert_eq!(infer(&op, &two_axes), Err("split-mismatch"), "`{}` operand {i} over dp", op.name());
            }
        }
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn pending_sums_pass_linear_operands_only() {
    let tp = |kind| Some((kind, Axis::from("tp")));
    let mut passed = 0;
    for (op, args) in samples() {
        for i in 0..args.len() {
            let mut pending = args.clone();
            pending[i].pending = tp(PendingKind::Sum);
            let got = infer(&op, &pending);
            // A result that holds a pending and a finished part counts the finished one once a rank.
            let mixes = match &op {
                Op::Add(_) | Op::Join(_) => true,
                Op::Matmul(m) => i > 0 && !m.names.is_empty(),
                _ => false,
            };
            if op.linear_at(i, &args.iter().collect::<Vec<_>>()) && !mixes {
                passed += 1;
                let got = got.unwrap_or_else(|e| panic!("`{}` operand {i}: {e}", op.name()));
                assert!(got.iter().all(|t| t.pending == tp(PendingKind::Sum)), "`{}` operand {i}", op.name());
            } else {
                assert_eq!(got, Err("pending-nonlinear"), "`{}` operand {i}", op.name());
            }
            for kind in [PendingKind::Max, PendingKind::Softmax, PendingKind::TopK] {
                pending[i].pending = tp(kind);
                assert_eq!(infer(&op, &pending), Err("pending-nonlinear"), "`{}` operand {i} {kind:?}", op.name());
            }
        }
        let mut all = args.clone();
        all.iter_mut().for_each(|t| t.pending = tp(PendingKind::Sum));
        let sums_pass = matches!(op.name(), "add" | "join") || (args.len() == 1 && op.linear_at(0, &[&args[0]]));
        match infer(&op, &all) {
            Ok(r) => assert!(sums_pass && r.iter().all(|t| t.pending == tp(PendingKind::Sum)), "`{}`", op.name()),
            Err(code) => assert!(!sums_pass && code == "pending-nonlinear", "`{}`: {code}", op.name()),
        }
    }
    assert!(passed >= 17, "{passed}");
}

#[test]
fn two_merges_are_not_pending_at_once() {
    let types = |s: &[&str]| s.iter().map(|s| parse_type(s).expect("a type")).collect::<Vec<_>>();
    let args = types(&["f32[T, 8/tp] +dp", "f32[6, 8/tp]"]);
    assert_eq!(infer(&Matmul::new("tk,nk->tn").into(), &args), Err("split-mismatch"));
    // Not over one axis either: rank r would take its part of the sum to its own experts only.
    let args = types(&["f32[T, 8] +tp", "f32[6/tp, 4, 8]", "i32[T, 2]"]);
    assert_eq!(infer(&GroupedMatmul {}.into(), &args), Err("split-mismatch"));
}

#[test]
fn what_lies_on_one_rank_stays_there_under_what_keeps_zeros_and_is_a_sum_elsewhere() {
    let ty = |s: &str| parse_type(s).expect("a type");
    let one = |op: Op, args: &[&str]| -> Result<String, &'static str> {
        let args: Vec<_> = args.iter().map(|s| ty(s)).collect();
        infer(&op, &args).map(|r| r[0].to_string())
    };
    let (own, whole) = ("f32[T, 2, 8] own+tp", "f32[T, 2, 8]");
    for op in [Op::from(Silu {}), Relu {}.into(), Scale { factor: 2.0 }.into()] {
        assert_eq!(one(op, &[own]).as_deref(), Ok(own));
    }
    for args in [[own, whole], [whole, own], [own, own]] {
        assert_eq!(one(Mul {}.into(), &args).as_deref(), Ok(own));
    }
    assert_eq!(one(Sigmoid {}.into(), &[own]), Err("pending-nonlinear"));
    assert_eq!(one(Mul {}.into(), &[own, "f32[T, 2, 8] +tp"]), Err("pending-nonlinear"));
    assert_eq!(one(Mul {}.into(), &[own, "f32[T, 2, 8] own+dp"]), Err("split-mismatch"));
    assert_eq!(one(Add {}.into(), &[own, whole]), Err("pending-nonlinear"));
    assert_eq!(one(Add {}.into(), &[own, own]).as_deref(), Ok("f32[T, 2, 8] +tp"));
    assert_eq!(one(Add {}.into(), &[own, "f32[T, 2, 8] +tp"]).as_deref(), Ok("f32[T, 2, 8] +tp"));
    let (experts, ids) = ("f32[6/tp, 4, 8]", "i32[T, 2]");
    let grouped = |x, w| one(GroupedMatmul {}.into(), &[x, w, ids]);
    assert_eq!(grouped(own, experts).as_deref(), Ok("f32[T, 2, 4] own+tp"));
    assert_eq!(grouped(own, "f32[6, 4, 8]").as_deref(), Ok("f32[T, 2, 4] +tp"));
    assert_eq!(grouped(own, "f32[6/dp, 4, 8]"), Err("split-mismatch"));
    assert_eq!(grouped(own, "f32[6, 4/dp, 8]").as_deref(), Ok("f32[T, 2, 4/dp] +tp"));
    assert_eq!(one(Matmul::new("tjn,tj->tn").into(), &[own, "f32[T, 2]"]).as_deref(), Ok("f32[T, 8] +tp"));
    assert_eq!(one(AllReduce { axis: "tp".into() }.into(), &[own]).as_deref(), Ok(whole));
    let scatter = ReduceScatter { axis: "tp".into(), dim: 0, unit: 1 };
    assert_eq!(one(scatter.into(), &[own]).as_deref(), Ok("f32[T/tp, 2, 8]"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any set of labels, each over an axis of its own: allowed iff no label must be whole and at most one is reduced.
    #[test]
    fn random_splits_propagate(which in 0usize..64, chosen in any::<u32>()) {
        let all = samples();
        let (op, args) = &all[which % all.len()];
        let plain = infer(op, args).expect("a sample is well-typed");
        let rule = op.dim_rule(&args.iter().collect::<Vec<_>>(), &plain);
        let mut parts = args.clone();
        let mut labels = Vec::new();
        for label in (0..rule.roles.len()).filter(|l| chosen >> l & 1 == 1) {
            let next = split(op, &parts, label, &format!("a{label}"));
            if next != parts {
                labels.push(label);
            }
            parts = next;
        }
        let whole = labels.iter().any(|l| rule.roles[*l] == Role::Whole);
        let reduced: Vec<&usize> = labels.iter().filter(|l| matches!(rule.roles[**l], Role::Reduce(_))).collect();
        match infer(op, &parts) {
            Err(code) => prop_assert!(
                (whole && code == "split-whole-dim") || (reduced.len() > 1 && code == "split-mismatch"),
                "{}: {} of {:?}", op.name(), code, parts
            ),
            Ok(results) => {
                prop_assert!(!whole && reduced.len() <= 1, "{} of {:?}", op.name(), parts);
                for ((r, p), dims) in results.iter().zip(&plain).zip(&rule.results) {
                    prop_assert_eq!(&strip(r), p);
                    prop_assert_eq!(r.pending.is_some(), reduced.len() == 1);
                    for (d, l) in r.dims.iter().zip(dims) {
                        let axis = labels.contains(l).then(|| Split::from(format!("a{l}").as_str()));
                        prop_assert_eq!(&d.split, &axis);
                    }
                }
            }
        }
    }
}
