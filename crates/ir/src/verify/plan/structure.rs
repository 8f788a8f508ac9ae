//! Owns the rules that every other rule builds on: versions, mesh, limits, names, sizes of types, ids, arguments by
//! number, name and access. After them every id may be used as an index and no size overflows.

use std::collections::HashSet;

use super::{Findings, Place};
use crate::diag::Diagnostic;
use crate::kernel::Kernel;
use crate::plan::{FORMAT, Mem, Phase, PhaseKind, Plan, Step};
use crate::shard_map::rank_count;
use crate::ty::{Extent, SymValues, TensorType};

/// No tensor has more elements than this, so products of a few sizes fit in 64 bits.
const MOST_ELEMS: u64 = 1 << 48;
/// No type has more dims, or pieces in a dim, than these.
const MOST_DIMS: usize = 8;
const MOST_PIECES: usize = 1024;

pub(super) fn check(plan: &Plan, out: &mut Findings) {
    format(plan, out);
    limits(plan, out);
    tables(plan, out);
    phases(plan, out);
    for phase in &plan.phases {
        symbols(phase, out);
        memories(phase, out);
        for (i, step) in phase.steps.iter().enumerate() {
            if out.full() {
                return;
            }
            ids(plan, phase, i, step, out);
            arguments(phase, i, step, out);
        }
    }
}

/// `plan-format`: the version, and as many ranks as the mesh has places.
fn format(plan: &Plan, out: &mut Findings) {
    if plan.format != FORMAT {
        let m = format!("the plan has format {}, this program reads format {FORMAT}", plan.format);
        out.push(Diagnostic::new("plan-format", m).help("compile the model again with this version"));
    }
    let places = rank_count(&plan.mesh);
    if places != Some(u64::from(plan.target.ranks)) {
        let mesh: Vec<String> = plan.mesh.iter().map(|(a, n)| format!("{a}: {n}")).collect();
        let m = format!("the plan is for {} ranks, its mesh is ({})", plan.target.ranks, mesh.join(", "));
        out.push(Diagnostic::new("plan-format", m).help("the sizes of the mesh axes multiply to the number of ranks"));
    }
}

/// `bad-limits`: limits count tokens, sequences and rows, which travel as 32-bit integers.
fn limits(plan: &Plan, out: &mut Findings) {
    let l = &plan.limits;
    for (name, n) in [("ctx", l.ctx), ("max_batch", l.max_batch), ("cache_rows", l.cache_rows), ("chunk", l.chunk)] {
        if n == 0 || n > i32::MAX as u64 {
            out.push(Diagnostic::new("bad-limits", format!("{name} is {n}, expected 1 to {}", i32::MAX)));
        }
    }
}

/// Types and names of weights and states.
fn tables(plan: &Plan, out: &mut Findings) {
    let none = SymValues::default();
    let mut names = HashSet::new();
    for w in plan.weights.values() {
        unique(&mut names, &w.name, || format!("weight `{}`", w.name), out);
        let at = || format!("weight `{}`", w.name);
        if w.ty.state || w.ty.pending.is_some() {
            let m = format!("{} is {}: a weight is plain stored data", w.name, w.ty);
            out.push(Diagnostic::new("bad-type", m).at(at()));
        }
        sane(&w.ty, &none, at, out);
    }
    let mut names = HashSet::new();
    for s in plan.states.values() {
        unique(&mut names, &s.name, || format!("state `{}`", s.name), out);
        let at = || format!("state `{}`", s.name);
        if !s.ty.state {
            out.push(Diagnostic::new("bad-type", format!("{} is {}, expected `state`", s.name, s.ty)).at(at()));
        }
        sane(&s.ty, &none, at, out);
        let rows = s.ty.shape(&none).and_then(|s| s.first().copied());
        if rows.is_some_and(|r| r < plan.limits.cache_rows) {
            let m = format!("{} has fewer rows than the {} that the limits promise", s.ty, plan.limits.cache_rows);
            out.push(
                Diagnostic::new("state-rows", m).at(at()).help("rows beyond the pool would be written outside it"),
            );
        }
    }
}

fn unique<'a>(seen: &mut HashSet<&'a str>, name: &'a str, at: impl Fn() -> String, out: &mut Findings) {
    if !seen.insert(name) {
        out.push(Diagnostic::new("duplicate-name", format!("the name `{name}` is taken")).at(at()));
    }
}

/// `bad-phase`: a runtime can find each phase by its name, and one by the number of sequences and what they see.
fn phases(plan: &Plan, out: &mut Findings) {
    if plan.phases.is_empty() {
        out.push(Diagnostic::new("bad-phase", "the plan has no phases: there is nothing to run"));
    }
    let (mut names, mut buckets) = (HashSet::new(), HashSet::new());
    for phase in &plan.phases {
        let bad = |m: String| Diagnostic::new("bad-phase", m).at(Place::phase(phase));
        if phase.tokens == 0 {
            out.push(bad("a step of 0 tokens".into()));
        }
        if !names.insert(phase.name.as_str()) {
            out.push(bad(format!("two phases are called `{}`", phase.name)));
        }
        let (tokens, visible) = (phase.tokens, phase.visible());
        if phase.kind == PhaseKind::Decode && !buckets.insert((tokens, visible)) {
            let most = visible.map_or(String::new(), |n| format!(" that see up to {n} positions"));
            out.push(bad(format!("two decode phases are for {tokens} tokens{most}")));
        }
    }
}

/// `unknown-symbol`: the bounds that size memory.
fn symbols(phase: &Phase, out: &mut Findings) {
    for (s, bound) in &phase.syms {
        if *bound == 0 || *bound > MOST_ELEMS {
            let m = format!("symbol {s} has bound {bound}, expected 1 to {MOST_ELEMS}");
            out.push(Diagnostic::new("unknown-symbol", m).at(Place::phase(phase)));
        }
    }
}

/// Types and names of parameters, buffers and results.
fn memories(phase: &Phase, out: &mut Findings) {
    let syms = phase.bounds();
    let mut names = HashSet::new();
    let at = |what: &str, name: &str| format!("phase {} {what} `{name}`", phase.name);
    for p in phase.params.values() {
        unique(&mut names, &p.name, || at("param", &p.name), out);
    }
    let params = phase.params.values().map(|p| ("param", &p.name, &p.ty));
    let buffers = phase.buffers.values().map(|b| ("buffer", &b.name, &b.ty));
    let results = phase.results.iter().map(|r| ("result", &r.name, &r.ty));
    for (what, name, ty) in params.chain(buffers).chain(results) {
        if ty.state {
            let m = format!("{ty}: only a pool of the plan may be state");
            out.push(Diagnostic::new("bad-type", m).at(at(what, name)));
        }
        sane(ty, &syms, || at(what, name), out);
        if out.full() {
            return;
        }
    }
}

/// `unknown-symbol` and `bad-type`: a type whose size is known, positive, and small enough to reckon with.
fn sane(ty: &TensorType, syms: &SymValues, at: impl Fn() -> String, out: &mut Findings) {
    let bad = |why: String| Diagnostic::new("bad-type", why).at(at());
    if ty.dims.len() > MOST_DIMS {
        return out.push(bad(format!("a type of {} dims, at most {MOST_DIMS} are allowed", ty.dims.len())));
    }
    for dim in &ty.dims {
        match &dim.extent {
            Extent::Sym(s) if syms.get(s).is_none() => {
                let m = format!("{ty} uses the symbol {s}, which is not declared here");
                return out.push(Diagnostic::new("unknown-symbol", m).at(at()));
            }
            Extent::Joined(p) if p.is_empty() || p.len() > MOST_PIECES || p.iter().any(|(_, n)| *n == 0) => {
                return out.push(bad(format!("a joined dim of {} pieces, some of them empty", p.len())));
            }
            Extent::Joined(p) if p.iter().map(|(name, _)| name).collect::<HashSet<_>>().len() < p.len() => {
                return out.push(bad(format!("{ty} has two pieces of one name")));
            }
            Extent::Const(0) => return out.push(bad(format!("{ty} has no elements"))),
            _ => {}
        }
    }
    if ty.elems(syms).is_none_or(|n| n > MOST_ELEMS) {
        return out.push(bad(format!("{ty} has more than {MOST_ELEMS} elements")));
    }
    if ty.bytes(syms).is_none() {
        out.push(bad(format!("{ty}: the last dim is no whole number of blocks of {}", ty.elem.block().0)));
    }
}

/// Whether a memory is one of the plan's.
fn exists(plan: &Plan, phase: &Phase, mem: Mem) -> bool {
    match mem {
        Mem::Weight(w) => plan.weights.get(w).is_some(),
        Mem::State(s) => plan.states.get(s).is_some(),
        Mem::Param(p) => phase.params.get(p).is_some(),
        Mem::Buf(b) => phase.buffers.get(b).is_some(),
    }
}

/// `plan-bad-id` of arguments and results, and the types of arguments.
fn ids(plan: &Plan, phase: &Phase, index: usize, step: &Step, out: &mut Findings) {
    let syms = phase.bounds();
    for a in &step.args {
        let place = Place::step(phase, index).arg(&a.name);
        if !exists(plan, phase, a.mem) {
            let m = format!("there is no {}", a.mem);
            out.push(Diagnostic::new("plan-bad-id", m).at(place).help("ids count from 0 in the table they belong to"));
        }
        sane(&a.ty, &syms, || place.to_string(), out);
    }
}

/// `kernel-attribute` and `arg-mismatch`: the arguments are the contract's parameters.
fn arguments(phase: &Phase, index: usize, step: &Step, out: &mut Findings) {
    let place = Place::step(phase, index);
    // The contract lists as many parameters as this attribute says: judge it before asking for them.
    if let Kernel::Attention(a) = &step.kernel
        && (a.0.parts == 0 || a.0.parts > step.args.len())
    {
        let m = format!("{} query parts with {} arguments", a.0.parts, step.args.len());
        return out.push(Diagnostic::new("kernel-attribute", m).at(place));
    }
    let params = step.kernel.params();
    let bad = |m: String| Diagnostic::new("arg-mismatch", m);
    if params.len() != step.args.len() {
        let names: Vec<&str> = params.iter().map(|p| p.name.as_str()).collect();
        let m = format!("{} arguments, expected {}: {}", step.args.len(), params.len(), names.join(", "));
        return out.push(bad(m).at(place));
    }
    for (p, a) in params.iter().zip(&step.args) {
        if p.name != a.name {
            let m = format!("the argument is called `{}`, the kernel's parameter here `{}`", a.name, p.name);
            out.push(bad(m).at(place.arg(&a.name)).help("arguments stand in the kernel's parameter order"));
        } else if p.access != a.access {
            let m = format!("the argument is bound for {:?}, the kernel means {:?}", a.access, p.access);
            out.push(bad(m).at(place.arg(&a.name)));
        }
    }
}
