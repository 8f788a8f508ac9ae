//! Constants, views, joins and pieces: algebra that is never a matter of cost, here because other rules make room for it.

use egg::Id;
use glmc_ir::op::Op;
use glmc_ir::ops::{Attention, IndexerScores, Scale};

use super::{Rule, What};
use crate::egraph::analysis::{Graph, ops, ty};

fn factor(op: &Op) -> Option<f64> {
    if let Op::Scale(s) = op { Some(s.factor) } else { None }
}

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "scale-of-scale",
        why: "constants fold",
        what: What::Rewrite {
            left: "(scale@a (scale@b ?x))",
            right: "(scale@c ?x)",
            binds: &["@c"],
            when: |_, m| {
                let factor = factor(m.op("a"))? * factor(m.op("b"))?;
                // A product that over- or underflows is not the same in f32 at any rate.
                let normal = factor.abs() < 1e30 && factor.abs() > 1e-30;
                normal.then(|| m.bind_op("c", Scale { factor }))
            },
        },
    },
    Rule {
        name: "scale-by-one",
        why: "constants fold",
        what: What::Rewrite {
            left: "(scale@a ?x)",
            right: "?x",
            binds: &[],
            when: |_, m| (factor(m.op("a"))? == 1.0).then_some(()),
        },
    },
    Rule {
        name: "scale-into-indexer",
        why: "a positive factor of the weights passes the relu: w (f relu(s d)) = w relu(f s d)",
        what: What::Rewrite {
            left: "(indexer_scores@i ?q ?k (scale@f ?w) ?rest*)",
            right: "(indexer_scores@j ?q ?k ?w ?rest*)",
            binds: &["@j"],
            when: |_, m| {
                let Op::IndexerScores(i) = m.op("i") else { return None };
                let scale = positive(i.scale, factor(m.op("f"))?)?;
                m.bind_op("j", IndexerScores { scale });
                Some(())
            },
        },
    },
    Rule {
        name: "scale-into-attention",
        why: "a positive factor of the only query part is part of the scale",
        what: What::Rewrite {
            left: "(attention@a (scale@f ?q) ?k ?v ?rest*)",
            right: "(attention@b ?q ?k ?v ?rest*)",
            binds: &["@b"],
            when: |_, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                let b = Attention { scale: positive(a.scale, factor(m.op("f"))?)?, ..a.clone() };
                (a.parts == 1).then(|| m.bind_op("b", b))
            },
        },
    },
    Rule {
        name: "reshape-of-reshape",
        why: "views of views",
        what: What::Rewrite {
            left: "(reshape@a (reshape ?x))",
            right: "(reshape@a ?x)",
            binds: &[],
            when: |_, _| Some(()),
        },
    },
    Rule {
        name: "reshape-to-itself",
        why: "views of views",
        what: What::Rewrite {
            left: "(reshape@a ?x)",
            right: "?x",
            binds: &[],
            when: |g, m| match m.op("a") {
                Op::Reshape(r) if ty(g, m.var("x"))?.dims == r.dims => Some(()),
                _ => None,
            },
        },
    },
    Rule {
        name: "piece-of-join",
        why: "what was joined is there",
        what: What::Rewrite {
            left: "(piece@p (join@j ?parts*))",
            right: "?x",
            binds: &["?x"],
            when: |_, m| {
                let (Op::Piece(p), Op::Join(j)) = (m.op("p"), m.op("j")) else { return None };
                let at = j.names.iter().position(|n| *n == p.name)?;
                let x = *m.seq("parts").get(at)?;
                m.bind("x", x);
                Some(())
            },
        },
    },
    Rule {
        name: "join-of-pieces",
        why: "all pieces of a value side by side are the value",
        what: What::Rewrite {
            left: "(join@j ?parts*)",
            right: "?x",
            binds: &["?x"],
            when: |g, m| {
                let Op::Join(j) = m.op("j") else { return None };
                let source = whole(g, &j.names, m.seq("parts"))?;
                m.bind("x", source);
                Some(())
            },
        },
    },
];

/// The product of two factors, if it is a scale.
fn positive(a: f64, b: f64) -> Option<f64> {
    let f = a * b;
    (b > 0.0 && f > 1e-30 && f < 1e30).then_some(f)
}

/// The value whose pieces are exactly `parts`, in order and under these names.
fn whole(g: &Graph, names: &[String], parts: &[Id]) -> Option<Id> {
    let candidates = ops(g, *parts.first()?).filter_map(|(o, args)| match o {
        Op::Piece(p) if p.of.iter().map(|(n, _)| n.as_str()).eq(names.iter().map(String::as_str)) => Some(args[0]),
        _ => None,
    });
    let is = |source: Id, part: Id, name: &str| {
        ops(g, part).any(|(o, args)| matches!(o, Op::Piece(p) if p.name == name) && g.find(args[0]) == g.find(source))
    };
    candidates.into_iter().find(|s| names.iter().zip(parts).all(|(n, p)| is(*s, *p, n)))
}
