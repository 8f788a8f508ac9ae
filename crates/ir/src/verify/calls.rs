//! Owns the rules on calls and entries.

use std::collections::HashSet;

use super::graph::Scope;
use crate::diag::Diagnostic;
use crate::entities::FuncId;
use crate::graph::{Function, InstKind, Module};
use crate::ty::Elem;

/// `call-cycle`, `call-order`, `bad-entry`: functions call earlier functions that are no entries.
pub(super) fn order(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    for i in &s.f.body {
        let InstKind::Call { func, .. } = s.f.insts[*i].kind else { continue };
        let Some(callee) = s.m.funcs.get(func) else { continue };
        let (code, what) = if !s.ordered && reaches(s.m, func, s.id) {
            ("call-cycle", format!("@{} leads back to @{}", callee.name, s.f.name))
        } else if func > s.id {
            ("call-order", format!("@{} stands after its call", callee.name))
        } else if callee.entry {
            ("bad-entry", format!("@{} is an entry: only a runtime calls it", callee.name))
        } else {
            continue;
        };
        found.push(Diagnostic::new(code, what).at(s.names.inst_place(*i)));
    }
}

/// Whether every call leads to an earlier function.
pub(super) fn all_ordered(m: &Module) -> bool {
    m.funcs.iter().all(|(id, f)| callees(f).all(|c| c < id))
}

/// Whether calls lead from `from` to `to`.
fn reaches(m: &Module, from: FuncId, to: FuncId) -> bool {
    let mut seen: HashSet<FuncId> = HashSet::new();
    let mut open = vec![from];
    while let Some(f) = open.pop() {
        if f == to {
            return true;
        }
        if seen.insert(f)
            && let Some(f) = m.funcs.get(f)
        {
            open.extend(callees(f));
        }
    }
    false
}

fn callees(f: &Function) -> impl Iterator<Item = FuncId> {
    f.body.iter().filter_map(|i| f.insts.get(*i)).filter_map(|i| match i.kind {
        InstKind::Call { func, .. } => Some(func),
        InstKind::Op(_) => None,
    })
}

/// `bad-entry`: a runtime writes plain numbers as step parameters and hands over state, never stored blocks; it merges
/// nothing, so no parameter or result is pending.
pub(super) fn entry_params(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    for p in s.f.params.iter().filter(|_| s.f.entry) {
        let t = s.f.ty(*p);
        if matches!(t.elem, Elem::Quant(_)) {
            let what = format!("an entry takes plain step parameters and state, found {t}");
            found.push(Diagnostic::new("bad-entry", what).at(s.names.place(*p)));
        }
        if t.pending.is_some() {
            let d = Diagnostic::new("bad-entry", format!("a runtime writes whole values or their parts, found {t}"));
            found.push(d.at(s.names.place(*p)));
        }
    }
    for (name, v) in s.f.results.iter().filter(|(_, v)| s.f.entry && s.f.ty(*v).pending.is_some()) {
        let d = Diagnostic::new("bad-entry", format!("result `{name}` is still pending: {}", s.f.ty(*v)));
        found.push(d.at(s.names.return_place()).help("all_reduce it: a runtime merges nothing"));
    }
}
