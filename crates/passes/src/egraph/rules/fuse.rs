//! Kernel contracts: each pattern only proposes a contract and its operands. The launch is taken where the e-graph
//! holds the contract's meaning on them, and is then equal by the contract's own definition.

use egg::Id;
use glmc_ir::kernel::{
    AddRmsNormKernel, GateUpKernel, GroupedDownKernel, GroupedGateUpKernel, IndexRowKernel, Kernel, LatentRowKernel,
    RopeJoinKernel, SwigluKernel,
};
use glmc_ir::op::Op;

use super::{Rule, What};
use crate::egraph::analysis::{Graph, ops, stored};
use crate::egraph::saturate::meaning;

/// The contract on these operands; on what is stored behind them where it decodes that itself.
fn on(g: &Graph, kernel: impl Into<Kernel>, args: &[Id]) -> Option<(Kernel, Vec<Id>)> {
    let kernel = kernel.into();
    let behind: Vec<Id> = args.iter().map(|a| stored(g, *a).unwrap_or(*a)).collect();
    let args = if meaning(g, &kernel, &behind).is_some() { behind } else { args.to_vec() };
    Some((kernel, args))
}

/// The name of the piece of `x` that a class is.
fn piece_of(g: &Graph, id: Id, x: Id) -> Option<String> {
    ops(g, id).find_map(|(o, args)| match o {
        Op::Piece(p) if g.find(args[0]) == g.find(x) => Some(p.name.clone()),
        _ => None,
    })
}

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "fuse-swiglu",
        why: "the activation stays in registers",
        what: What::Contract {
            left: "(mul (silu ?gate) ?up)",
            make: |g, m| on(g, SwigluKernel { pieces: vec![] }, &[m.var("gate"), m.var("up")]),
        },
    },
    Rule {
        name: "fuse-swiglu-pieces",
        why: "both halves are read where the shared product left them",
        what: What::Contract {
            left: "(mul (silu (piece@g ?x)) (piece@u ?x))",
            make: |g, m| {
                let (Op::Piece(gate), Op::Piece(up)) = (m.op("g"), m.op("u")) else { return None };
                on(g, SwigluKernel { pieces: vec![gate.name.clone(), up.name.clone()] }, &[m.var("x")])
            },
        },
    },
    Rule {
        name: "fuse-gate-up",
        why: "neither projection is written to memory",
        what: What::Contract {
            left: "(mul (silu (matmul@m ?x ?gate)) (matmul ?x ?up))",
            make: |g, m| {
                let Op::Matmul(p) = m.op("m") else { return None };
                on(g, GateUpKernel { spec: p.spec.clone() }, &[m.var("x"), m.var("gate"), m.var("up")])
            },
        },
    },
    Rule {
        name: "fuse-grouped-gate-up",
        why: "neither projection of the experts is written to memory",
        what: What::Contract {
            left: "(mul (silu (grouped_matmul ?x ?gate ?ids)) (grouped_matmul ?x ?up ?ids))",
            make: |g, m| on(g, GroupedGateUpKernel {}, &["x", "gate", "up", "ids"].map(|v| m.var(v))),
        },
    },
    Rule {
        name: "fuse-grouped-down",
        why: "routing weights apply where the experts' products are made",
        what: What::Contract {
            left: "(matmul ?weights (grouped_matmul ?x ?w ?ids))",
            make: |g, m| on(g, GroupedDownKernel {}, &["x", "w", "ids", "weights"].map(|v| m.var(v))),
        },
    },
    Rule {
        name: "fuse-add-norm",
        why: "the residual sum is normed while it is at hand",
        what: What::Contract {
            left: "(rms_norm@n (add ?x ?y) ?w)",
            make: |g, m| {
                let Op::RmsNorm(n) = m.op("n") else { return None };
                on(g, AddRmsNormKernel { eps: n.eps }, &["x", "y", "w"].map(|v| m.var(v)))
            },
        },
    },
    Rule {
        name: "fuse-rope-join",
        why: "the row is rotated into the form in which the cache keeps it",
        what: What::Contract {
            left: "(join@j ?before* (rope@r (piece@p ?x) ?pos) ?after*)",
            make: |g, m| {
                let (Op::Join(j), Op::Rope(r), Op::Piece(p)) = (m.op("j"), m.op("r"), m.op("p")) else { return None };
                let named = |id: &Id| piece_of(g, *id, m.var("x"));
                let before = m.seq("before").iter().map(named).collect::<Option<Vec<_>>>()?;
                let after = m.seq("after").iter().map(named).collect::<Option<Vec<_>>>()?;
                let rope = j.names.get(before.len())?.clone();
                let from = [before, vec![p.name.clone()], after].concat();
                let kernel = RopeJoinKernel { theta: r.theta, from, names: j.names.clone(), rope };
                on(g, kernel, &["x", "pos"].map(|v| m.var(v)))
            },
        },
    },
    Rule {
        name: "fuse-index-row",
        why: "joining, norm and rotation of a cached index key in one launch",
        what: What::Contract {
            left: "(join@j ?before* (rope@r (piece (layer_norm@l (join@k (piece@f ?z) ?rest*) ?w ?b)) ?pos) ?after*)",
            make: |g, m| {
                let (Op::Join(j), Op::Rope(r), Op::LayerNorm(l)) = (m.op("j"), m.op("r"), m.op("l")) else {
                    return None;
                };
                let (Op::Join(k), Op::Piece(f)) = (m.op("k"), m.op("f")) else { return None };
                let rest = m.seq("rest").iter().map(|id| piece_of(g, *id, m.var("z"))).collect::<Option<Vec<_>>>()?;
                let from = [vec![f.name.clone()], rest].concat();
                let rope = j.names.get(m.seq("before").len())?.clone();
                let kernel = IndexRowKernel { eps: l.eps, theta: r.theta, from, names: k.names.clone(), rope };
                on(g, kernel, &["z", "w", "b", "pos"].map(|v| m.var(v)))
            },
        },
    },
    Rule {
        name: "fuse-latent-row",
        why: "norm, rotation and joining of a cached row in one launch",
        what: What::Contract {
            left: "(join@j (rms_norm@n (piece@c ?z) ?w) (rope@r (piece@p ?z) ?pos))",
            make: |g, m| {
                let (Op::RmsNorm(n), Op::Rope(r)) = (m.op("n"), m.op("r")) else { return None };
                let (Op::Join(j), Op::Piece(c), Op::Piece(p)) = (m.op("j"), m.op("c"), m.op("p")) else { return None };
                let (from, rope) = (vec![c.name.clone(), p.name.clone()], j.names.get(1)?.clone());
                let kernel = LatentRowKernel { eps: n.eps, theta: r.theta, from, names: j.names.clone(), rope };
                on(g, kernel, &["z", "w", "pos"].map(|v| m.var(v)))
            },
        },
    },
];
