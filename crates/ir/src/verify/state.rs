//! Owns the rules on linear state: each state value is consumed exactly once (by an op that changes it, a call, or
//! the return) and never read afterwards. So a cache cannot be stale, and every pool that comes in goes out.

use std::collections::HashMap;

use super::graph::Scope;
use super::structure::defined;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::graph::{Function, InstData, InstKind, Module};

/// For each function and result, the parameter whose state it is.
pub(super) type Origins = Vec<Vec<Option<usize>>>;

/// `state-reused`, `stale-state`, `state-dropped`.
pub(super) fn linear(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    // Who consumed a state value, for the message.
    let mut gone: HashMap<Value, String> = HashMap::new();
    let is_state = |v: Value| s.f.ty(v).state;
    for i in &s.f.body {
        let inst = &s.f.insts[*i];
        let place = s.names.inst_place(*i);
        for (k, a) in inst.args.iter().enumerate().filter(|(_, a)| is_state(**a)) {
            let consumed = consumes(inst, k);
            if let Some(by) = gone.get(a) {
                let (code, verb) = if consumed { ("state-reused", "consumed") } else { ("stale-state", "read") };
                let what = format!("{} is {verb} here, {by} consumed it", s.names.value(*a));
                found.push(Diagnostic::new(code, what).at(place.clone()).help("use the state that it returned"));
            } else if consumed {
                gone.insert(*a, verb(inst));
            }
        }
    }
    for (name, v) in s.f.results.iter().filter(|(_, v)| is_state(*v)) {
        if let Some(by) = gone.insert(*v, format!("result `{name}`")) {
            let what = format!("{} is returned as `{name}`, {by} consumed it", s.names.value(*v));
            found.push(Diagnostic::new("state-reused", what).at(s.names.return_place()));
        }
    }
    for v in defined(s.f).filter(|v| is_state(*v) && !gone.contains_key(v)) {
        let what = format!("state {} is neither consumed nor returned", s.names.value(v));
        found.push(Diagnostic::new("state-dropped", what).at(s.names.place(v)).help("return it"));
    }
}

/// Whether an instruction consumes its state operand `k`; what it does not consume it reads.
fn consumes(inst: &InstData, k: usize) -> bool {
    match &inst.kind {
        InstKind::Op(op) => op.consumes().is_some_and(|(a, _)| a == k),
        InstKind::Call { .. } => true,
    }
}

fn verb(inst: &InstData) -> String {
    match &inst.kind {
        InstKind::Op(op) => format!("`{}`", op.name()),
        InstKind::Call { label, .. } => format!("the call as {label:?}"),
    }
}

/// Follows state through ops and calls; functions that are not sound, or called before they stand, give `None`.
pub(super) fn result_origins(m: &Module, sound: &[bool]) -> Origins {
    let mut out: Origins = Vec::with_capacity(m.funcs.len());
    for (f, ok) in m.funcs.values().zip(sound) {
        let origins = if *ok { function_origins(f, &out) } else { Vec::new() };
        out.push(origins);
    }
    out
}

fn function_origins(f: &Function, before: &Origins) -> Vec<Option<usize>> {
    let mut of: HashMap<Value, usize> = f.params.iter().enumerate().map(|(i, p)| (*p, i)).collect();
    for i in &f.body {
        let inst = &f.insts[*i];
        for (k, r) in inst.results.iter().enumerate() {
            let operand = match &inst.kind {
                InstKind::Op(op) => op.consumes().filter(|(_, to)| *to == k).map(|(from, _)| from),
                InstKind::Call { func, .. } => {
                    before.get(func.as_u32() as usize).and_then(|c| c.get(k).copied()).flatten()
                }
            };
            let origin = operand.and_then(|o| inst.args.get(o)).and_then(|a| of.get(a)).copied();
            if let Some(o) = origin {
                of.insert(*r, o);
            }
        }
    }
    f.results.iter().map(|(_, v)| of.get(v).copied()).collect()
}

/// `bad-entry`: an entry returns each state under the name of the parameter it came in by.
pub(super) fn entry_results(s: &Scope<'_>, origins: &Origins, found: &mut Vec<Diagnostic>) {
    if !s.f.entry {
        return;
    }
    let of = origins.get(s.id.as_u32() as usize);
    for (k, (name, v)) in s.f.results.iter().enumerate().filter(|(_, (_, v))| s.f.ty(*v).state) {
        let param = of.and_then(|o| o.get(k).copied()).flatten().and_then(|i| s.f.params.get(i));
        let came_by = param.and_then(|p| s.f.values[*p].name.as_deref());
        if came_by != Some(name) {
            let what = format!(
                "state {} comes from %{}, it is returned as `{name}`",
                s.names.value(*v),
                came_by.unwrap_or("?")
            );
            found.push(Diagnostic::new("bad-entry", what).at(s.names.return_place()));
        }
    }
}
