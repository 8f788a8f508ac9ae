//! Owns the rules on definitions, uses and names.

use std::collections::HashSet;

use super::graph::Scope;
use crate::diag::Diagnostic;
use crate::entities::{Inst, Value};
use crate::graph::{Function, InstKind, Module, ValueDef};
use crate::text::Names;

/// `bad-def`: every id leads somewhere, and every value is where its definition says. False if not: the other rules
/// then leave the function alone.
pub(super) fn definitions(m: &Module, f: &Function, found: &mut Vec<Diagnostic>) -> bool {
    let names = Names::new(m, f);
    let before = found.len();
    let mut bad = |place: String, what: String| found.push(Diagnostic::new("bad-def", what).at(place));
    let mut weights = HashSet::new();
    for (i, p) in f.params.iter().enumerate() {
        match f.values.get(*p) {
            Some(d) if d.def == ValueDef::Param(i as u32) => {}
            Some(_) => bad(names.place(*p), format!("parameter {i} is a value that is defined elsewhere")),
            None => bad(names.func(), format!("parameter {i} is a value that is not there")),
        }
    }
    let mut seen: HashSet<Inst> = HashSet::new();
    for i in &f.body {
        let Some(inst) = f.insts.get(*i) else {
            bad(names.func(), format!("instruction {} is not there", i.as_u32()));
            continue;
        };
        if !seen.insert(*i) {
            bad(names.inst_place(*i), "the instruction stands in the body twice".into());
        }
        for (k, r) in inst.results.iter().enumerate() {
            match f.values.get(*r) {
                Some(d) if d.def == ValueDef::Result(*i, k as u32) => {}
                Some(_) => bad(names.place(*r), format!("{} is defined a second time", names.value(*r))),
                None => bad(names.inst_place(*i), format!("result {k} is a value that is not there")),
            }
        }
        if let InstKind::Call { func, .. } = &inst.kind
            && m.funcs.get(*func).is_none()
        {
            bad(names.inst_place(*i), format!("the callee, function {}, is not there", func.as_u32()));
        }
        for a in &inst.args {
            if let Err(what) = operand(m, f, *a, &mut weights) {
                bad(names.inst_place(*i), what);
            }
        }
    }
    for (name, v) in &f.results {
        if let Err(what) = operand(m, f, *v, &mut weights) {
            bad(names.return_place(), format!("result `{name}`: {what}"));
        }
    }
    found.len() == before
}

/// A use must lead to a value; one that is a weight must be the only value of that weight here, without a name.
fn operand(m: &Module, f: &Function, v: Value, weights: &mut HashSet<(u32, Option<Value>)>) -> Result<(), String> {
    let Some(data) = f.values.get(v) else { return Err(format!("value {} is not there", v.as_u32())) };
    let ValueDef::Weight(w) = data.def else { return Ok(()) };
    if m.weights.get(w).is_none() {
        return Err(format!("weight {} is not there", w.as_u32()));
    }
    if data.name.is_some() {
        return Err("a weight has a name of its own as a value".into());
    }
    let first = weights.insert((w.as_u32(), None));
    if first {
        weights.insert((w.as_u32(), Some(v)));
    } else if !weights.contains(&(w.as_u32(), Some(v))) {
        return Err("one weight is two values".into());
    }
    Ok(())
}

/// `duplicate-name`: functions.
pub(super) fn function_names(m: &Module, found: &mut Vec<Diagnostic>) {
    let mut seen = HashSet::new();
    for f in m.funcs.values().filter(|f| !seen.insert(f.name.as_str())) {
        let d = Diagnostic::new("duplicate-name", format!("two functions are called @{}", f.name));
        found.push(d.at(Names::new(m, f).func()));
    }
}

/// `duplicate-name`: values and results of a function.
pub(super) fn value_names(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    let mut seen = HashSet::new();
    for v in defined(s.f) {
        if let Some(n) = &s.f.values[v].name
            && !seen.insert(n.as_str())
        {
            found.push(Diagnostic::new("duplicate-name", format!("two values are called %{n}")).at(s.names.place(v)));
        }
    }
    let mut seen = HashSet::new();
    for (n, _) in s.f.results.iter().filter(|(n, _)| !seen.insert(n.as_str())) {
        let d = Diagnostic::new("duplicate-name", format!("two results are called `{n}`"));
        found.push(d.at(s.names.return_place()));
    }
}

/// `use-before-def`: operands and results stand after their definition.
pub(super) fn use_before_def(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    let mut known: HashSet<Value> = s.f.params.iter().copied().collect();
    let is_weight = |v: Value| matches!(s.f.values[v].def, ValueDef::Weight(_));
    let mut judge = |v: Value, known: &HashSet<Value>, place: String| {
        if !is_weight(v) && !known.contains(&v) {
            let what = format!("{} has no definition before this line", s.names.value(v));
            found.push(Diagnostic::new("use-before-def", what).at(place));
        }
    };
    for i in &s.f.body {
        let inst = &s.f.insts[*i];
        inst.args.iter().for_each(|a| judge(*a, &known, s.names.inst_place(*i)));
        known.extend(&inst.results);
    }
    s.f.results.iter().for_each(|(_, v)| judge(*v, &known, s.names.return_place()));
}

/// `unused-result`: an output that goes nowhere is a bug of whoever made it, unless its name starts with `_`.
pub(super) fn unused_results(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    let operands = s.f.body.iter().flat_map(|i| &s.f.insts[*i].args).copied();
    let used: HashSet<Value> = operands.chain(s.f.results.iter().map(|(_, v)| *v)).collect();
    for v in s.f.body.iter().flat_map(|i| &s.f.insts[*i].results) {
        let data = &s.f.values[*v];
        let discarded = data.name.as_ref().is_some_and(|n| n.starts_with('_'));
        // State that goes nowhere has its own rule.
        if !used.contains(v) && !discarded && !data.ty.state {
            let what = format!("{} is written, and nothing reads or returns it", s.names.value(*v));
            let help = "connect it, return it, or drop what makes it (a name that starts with `_` discards one result)";
            found.push(Diagnostic::new("unused-result", what).at(s.names.place(*v)).help(help));
        }
    }
}

/// Parameters and results of instructions in text order.
pub(super) fn defined(f: &Function) -> impl Iterator<Item = Value> {
    f.params.iter().chain(f.body.iter().flat_map(|i| &f.insts[*i].results)).copied()
}
