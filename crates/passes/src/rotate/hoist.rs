//! Owns the way up: a function that begins with the norm of an operand takes the normed operand instead, and its
//! callers norm. Only of functions of which some call follows another call, so that the norm can go on into that one's
//! callee.

use std::collections::BTreeMap;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst};
use glmc_ir::graph::{Function, InstKind, Module};
use glmc_ir::interp::global::join_path;

use super::copy::Copy;
use super::norm::{Found, at_hand, called, find, uses};
use crate::pass::PassCx;

/// The norm with which a function begins.
struct Head {
    found: Found,
    /// The normed parameter.
    x: usize,
    /// The parameters that are its weights.
    weights: Vec<usize>,
}

/// `m` with such norms in the callers; none if there is none.
pub(super) fn hoist(m: &Module, cx: &mut PassCx) -> Result<Option<Module>, Diagnostic> {
    let mut heads: BTreeMap<FuncId, Head> = m.funcs.iter().filter_map(|(id, f)| Some((id, head(f)?))).collect();
    heads.retain(|id, h| m.funcs.values().any(|f| follows(m, f, *id, h)) && cx.choose());
    if heads.is_empty() {
        return Ok(None);
    }
    let mut out = Module { funcs: Default::default(), ..m.clone() };
    for (id, f) in m.funcs.iter() {
        let f = rebuilt(m, &out, f, heads.get(&id), &heads)?;
        out.funcs.push(f);
    }
    Ok(Some(out))
}

/// The first norm of a plain parameter by weights that are parameters and nothing else; the parameter has other
/// readers, as a residual stream has.
fn head(f: &Function) -> Option<Head> {
    let param = |v| f.params.iter().position(|p| *p == v);
    let of = |inst: &Inst| {
        let found = find(f, *inst)?;
        let x = param(found.x)?;
        let weights = found.weights.iter().map(|w| param(*w)).collect::<Option<Vec<_>>>()?;
        let decoded = found.decodes.iter().map(|d| f.insts[*d].results[0]);
        let alone = found.weights.iter().copied().chain(decoded).all(|v| uses(f, v) == 1);
        (alone && uses(f, found.x) > 1).then_some(Head { found, x, weights })
    };
    if f.entry { None } else { f.body.iter().find_map(of) }
}

/// Whether `f` calls `callee` on what another call makes, with the norm's weights there before that call.
fn follows(m: &Module, f: &Function, callee: FuncId, h: &Head) -> bool {
    f.body.iter().map(|i| &f.insts[*i]).any(|data| {
        matches!(data.kind, InstKind::Call { func, .. } if func == callee)
            && called(m, f, data.args[h.x]).is_some()
            && h.weights.iter().all(|w| at_hand(f, data.args[*w]))
    })
}

/// `f` without its own norm, if it loses one, and with those of the functions it calls.
fn rebuilt(
    m: &Module,
    out: &Module,
    f: &Function,
    own: Option<&Head>,
    heads: &BTreeMap<FuncId, Head>,
) -> Result<Function, Diagnostic> {
    let mut c = Copy::new(out, f, &f.name);
    for (i, p) in f.params.iter().enumerate() {
        match own {
            Some(h) if h.weights.contains(&i) => {}
            Some(h) if h.x == i => {
                c.param(*p);
                let normed = f.insts[h.found.inst].results[0];
                let name = f.values[normed].name.as_deref().unwrap_or("normed");
                let v = c.b.param(name, f.ty(normed).clone());
                c.map.insert(normed, v);
            }
            _ => c.param(*p),
        }
    }
    let gone = |i: &Inst| own.is_some_and(|h| h.found.inst == *i || h.found.decodes.contains(i));
    for inst in f.body.iter().filter(|i| !gone(i)) {
        match &f.insts[*inst].kind {
            InstKind::Call { func, label } if heads.contains_key(func) => {
                let (h, args) = (&heads[func], c.args(*inst)?);
                let weights: Vec<_> = h.weights.iter().map(|w| args[*w]).collect();
                let normed = h.found.norm.build(&mut c.b, args[h.x], &weights)?;
                let callee = &m.funcs[*func];
                if let Some(name) = &callee.values[callee.insts[h.found.inst].results[0]].name {
                    c.b.name(normed, &join_path(label, name));
                }
                let mut new = Vec::with_capacity(args.len());
                for (i, a) in args.iter().enumerate().filter(|(i, _)| !h.weights.contains(i)) {
                    new.push(*a);
                    new.extend((i == h.x).then_some(normed));
                }
                c.call(*inst, *func, &new)?;
            }
            _ => c.inst(*inst)?,
        }
    }
    c.finish(Vec::new())
}
