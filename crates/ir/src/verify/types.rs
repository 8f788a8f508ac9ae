//! Owns the rules on types: what a type may say, and that stated types are the inferred ones.

use std::collections::HashSet;

use super::graph::Scope;
use super::structure::defined;
use crate::builder::call_types;
use crate::diag::Diagnostic;
use crate::graph::{InstKind, Module, ValueDef};
use crate::placement::infer_on;
use crate::shard_map;
use crate::text::is_word;
use crate::ty::{Axis, Dim, Elem, Extent, TensorType};

/// `bad-symbol`: a symbol has a name that text can hold and a bound of at least 1.
pub(super) fn symbols(m: &Module, found: &mut Vec<Diagnostic>) {
    for (s, bound) in &m.syms {
        let what = match bound {
            0 => format!("symbol {s} has bound 0"),
            _ if !is_word(s.as_str()) => format!("`{s}` is no word"),
            _ => continue,
        };
        found.push(Diagnostic::new("bad-symbol", what).at(format!("sym {s}")));
    }
}

/// `bad-mesh`: a mesh axis has a name that text can hold and at least one rank.
pub(super) fn mesh(m: &Module, found: &mut Vec<Diagnostic>) {
    for (a, n) in &m.mesh {
        if *n == 0 || !is_word(a.as_str()) {
            found.push(Diagnostic::new("bad-mesh", format!("mesh axis `{a}` of {n} ranks")));
        }
    }
}

/// What a type of module `m` may not say: sound extents, known symbols and axes, each axis once, and what
/// [`shard_map::check`] says of its cuts.
pub(super) fn judge(m: &Module, t: &TensorType) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Elem::Quant(q) = t.elem
        && Elem::from(q) != t.elem
    {
        found.push(Diagnostic::new("bad-elem", format!("{q} is a float type, not a block format")));
    }
    t.dims.iter().for_each(|d| extent(m, d, &mut found));
    axes(m, t, &mut found);
    // An axis without ranks is found already.
    if found.is_empty() && t.dims.iter().filter_map(Dim::axis).all(|a| m.mesh[a] > 0) {
        found.extend(shard_map::check(t, &m.mesh).err());
    }
    found
}

/// `bad-extent`, `unknown-symbol`: of one dim.
fn extent(m: &Module, d: &Dim, found: &mut Vec<Diagnostic>) {
    let mut bad = |what: String| found.push(Diagnostic::new("bad-extent", what));
    match &d.extent {
        Extent::Const(0) => bad("a dim has size 0".into()),
        Extent::Const(_) => {}
        Extent::Sym(s) if m.syms.contains_key(s) => {}
        Extent::Sym(s) => {
            let d = Diagnostic::new("unknown-symbol", format!("the module has no symbol {s}"));
            found.push(d.help(format!("declare it: sym {s} <= BOUND")));
        }
        Extent::Joined(p) => {
            let mut seen = HashSet::new();
            if p.is_empty() || d.extent.as_const().is_none() || p.iter().any(|(_, n)| *n == 0) {
                bad(format!("the pieces of {d} are none, empty or too large"));
            } else if let Some((n, _)) = p.iter().find(|(n, _)| !seen.insert(n) || !is_word(n.as_str())) {
                bad(format!("piece `{n}` of {d} is named twice or by no word"));
            }
        }
    }
}

/// `unknown-axis`, `axis-twice`: axes of splits and of the pending merge.
fn axes(m: &Module, t: &TensorType, found: &mut Vec<Diagnostic>) {
    let mut seen: HashSet<&Axis> = HashSet::new();
    let pending = t.pending.iter().map(|(_, a)| a);
    for a in t.dims.iter().filter_map(Dim::axis).chain(pending) {
        if !m.mesh.contains_key(a) {
            found.push(Diagnostic::new("unknown-axis", format!("the mesh has no axis {a}")));
        } else if !seen.insert(a) {
            found.push(Diagnostic::new("axis-twice", format!("{t} uses axis {a} twice")));
        }
    }
}

/// [`judge`] of every parameter and result.
pub(super) fn values(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    for v in defined(s.f) {
        found.extend(judge(s.m, s.f.ty(v)).into_iter().map(|d| d.at(s.names.place(v))));
    }
}

/// `type-mismatch`, and the codes of the ops' own rules: each result has the type that inference gives.
pub(super) fn inference(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    for i in &s.f.body {
        let inst = &s.f.insts[*i];
        let args: Vec<&TensorType> = inst.args.iter().map(|a| s.f.ty(*a)).collect();
        let inferred = match &inst.kind {
            InstKind::Op(op) => infer_on(op, &args, &s.m.mesh),
            InstKind::Call { func, .. } if s.is_sound(*func) => call_types(s.m, *func, &args),
            InstKind::Call { .. } => continue,
        };
        match inferred {
            Err(d) => found.push(d.at(s.names.inst_place(*i))),
            Ok(types) if types.len() != inst.results.len() => {
                let what = format!("it has {} results, {} are named", types.len(), inst.results.len());
                found.push(Diagnostic::new("type-mismatch", what).at(s.names.inst_place(*i)));
            }
            Ok(types) => {
                for (t, v) in types.iter().zip(&inst.results).filter(|(t, v)| *t != s.f.ty(**v)) {
                    let what = format!("{} is {t}, stated {}", s.names.value(*v), s.f.ty(*v));
                    found.push(Diagnostic::new("type-mismatch", what).at(s.names.place(*v)));
                }
            }
        }
    }
    weight_values(s, found);
}

/// `type-mismatch`: a weight as a value has the weight's type.
fn weight_values(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    let operands = s.f.body.iter().flat_map(|i| &s.f.insts[*i].args).copied();
    let mut seen = HashSet::new();
    for v in operands.chain(s.f.results.iter().map(|(_, v)| *v)).filter(|v| seen.insert(*v)) {
        if let ValueDef::Weight(w) = s.f.values[v].def
            && s.f.ty(v) != &s.m.weights[w].ty
        {
            let what = format!("{} is {}, used as {}", s.names.value(v), s.m.weights[w].ty, s.f.ty(v));
            found.push(Diagnostic::new("type-mismatch", what).at(s.names.func()));
        }
    }
}
