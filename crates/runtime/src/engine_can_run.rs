//! Owns the check that a plan fits the engine: what the engine assumes beyond what the plan verifier proves, namely the
//! step parameters, their symbols, the phases and the sizes. Never runs anything, never allocates by a number of the
//! plan.

use glmc_ir::kernel::Kernel;
use glmc_ir::placement::strip;
use glmc_ir::plan::{Mem, Phase, PhaseKind, Plan, param};
use glmc_ir::ty::{Elem, Extent, TensorType};

/// Judges a verified plan.
///
/// # Errors
/// What does not fit, as the end of a sentence that begins with "the plan".
pub(crate) fn engine_can_run(plan: &Plan) -> Result<(), String> {
    ids(plan)?;
    ladder(plan)?;
    plan.phases.iter().try_for_each(|p| phase(plan, p).map_err(|e| format!("has a phase `{}` that {e}", p.name)))
}

/// Token ids are 32-bit, and those that mean something are ids.
fn ids(plan: &Plan) -> Result<(), String> {
    let m = &plan.model;
    if m.vocab == 0 || m.vocab > i32::MAX as u64 {
        return Err(format!("has a vocabulary of {}, expected 1 to {}", m.vocab, i32::MAX));
    }
    for (what, list) in [("stop", &m.stop), ("suppress", &m.suppress)] {
        if let Some(id) = list.iter().find(|id| u64::from(**id) >= m.vocab) {
            return Err(format!("has a {what} id {id} outside its vocabulary of {}", m.vocab));
        }
    }
    Ok(())
}

/// There is a prefill, and a decode bucket for every number of sequences, however many positions they see.
fn ladder(plan: &Plan) -> Result<(), String> {
    let l = &plan.limits;
    let tokens = |kind| plan.phases.iter().filter(move |p| p.kind == kind).map(|p| p.tokens);
    match tokens(PhaseKind::Prefill).min() {
        None => return Err("has no prefill phase: no prompt can be read".into()),
        Some(n) if n < l.chunk => {
            return Err(format!("promises prefill chunks of {} tokens and has a prefill phase for {n}", l.chunk));
        }
        Some(_) => {}
    }
    match tokens(PhaseKind::Decode).max() {
        None => return Err("has no decode phase: nothing can be generated".into()),
        Some(n) if n < l.max_batch => {
            let most = l.max_batch;
            return Err(format!("promises to decode {most} sequences at once and its largest bucket is {n}"));
        }
        Some(_) => {}
    }
    for (kind, what, n) in [(PhaseKind::Prefill, "prefill", l.chunk), (PhaseKind::Decode, "decode", l.max_batch)] {
        if plan.phase_for(kind, n, l.ctx).is_none() {
            return Err(format!("promises a context of {} and has no {what} phase of {n} tokens that sees it", l.ctx));
        }
    }
    Ok(())
}

/// The largest value that the engine gives each symbol of a phase.
fn most(plan: &Plan, p: &Phase, sym: &str) -> Option<u64> {
    let tokens = match p.kind {
        PhaseKind::Decode => p.tokens,
        PhaseKind::Prefill => plan.limits.chunk,
    };
    match sym {
        "T" | "R" => Some(tokens),
        // A phase may be for shorter contexts: the ladder has one for the longest.
        param::VISIBLE => Some(1),
        _ => None,
    }
}

fn phase(plan: &Plan, p: &Phase) -> Result<(), String> {
    for (sym, bound) in &p.syms {
        match most(plan, p, sym.as_str()) {
            None => return Err(format!("has a symbol {sym}, which nothing sets")),
            Some(n) if n > *bound => return Err(format!("bounds {sym} by {bound}, the limits need {n}")),
            Some(_) => {}
        }
    }
    let all = [param::TOKENS, param::POS, param::ROW, param::SEQ, param::LEN, param::TABLE, param::OUT];
    for name in all {
        let id = p.param_named(name).ok_or_else(|| format!("has no step parameter `{name}`"))?;
        let ty = &p.params[id].ty;
        let right = match name {
            param::TABLE => dims(ty, Elem::I32, &[&|e| sequences(p, e), &|e| sym(e, param::VISIBLE)]),
            param::OUT => dims(ty, Elem::I32, &[&|e| per_step(p, e, "R")]),
            _ => dims(ty, Elem::I32, &[&|e| per_step(p, e, "T")]),
        };
        if !right {
            return Err(format!("has a step parameter `{name}` of type {ty}, which the engine does not make"));
        }
    }
    if let Some(other) = p.params.values().find(|x| !all.contains(&x.name.as_str())) {
        return Err(format!("asks for a step parameter `{}`, which the engine does not know", other.name));
    }
    let vocab = plan.model.vocab;
    match p.results.iter().find(|r| r.name == param::LOGITS) {
        Some(r) if strip(&r.ty) != r.ty => {
            return Err(format!("leaves its logits in parts ({}): it must gather them", r.ty));
        }
        Some(r) if dims(&r.ty, Elem::F32, &[&|e| per_step(p, e, "R"), &|e| e.as_const() == Some(vocab)]) => {}
        Some(r) => return Err(format!("gives logits of type {}, the vocabulary has {vocab} ids", r.ty)),
        None => return Err("gives no logits".into()),
    }
    tables(p, vocab)
}

/// Every table that token ids look rows up in has a row for each id.
fn tables(p: &Phase, vocab: u64) -> Result<(), String> {
    let tokens = p.param_named(param::TOKENS).map(Mem::Param);
    for step in p.steps.iter().filter(|s| matches!(s.kernel, Kernel::Gather(_))) {
        let [table, ids] = [step.args.first(), step.args.get(1)];
        let rows = table.and_then(|t| t.ty.dims.first()).and_then(|d| d.extent.as_const());
        if ids.map(|a| a.mem) == tokens && rows.is_none_or(|n| n < vocab) {
            return Err(format!("looks token ids up in fewer rows than the vocabulary's {vocab} (`{}`)", step.name));
        }
    }
    Ok(())
}

/// Whether `ty` has this element and each dim is as its rule wants.
fn dims(ty: &TensorType, elem: Elem, rules: &[&dyn Fn(&Extent) -> bool]) -> bool {
    let fits = ty.dims.len() == rules.len() && ty.dims.iter().zip(rules).all(|(d, rule)| rule(&d.extent));
    fits && ty.elem == elem && !ty.state
}

fn sym(e: &Extent, name: &str) -> bool {
    matches!(e, Extent::Sym(s) if s.as_str() == name)
}

/// A row for each token of a step: the symbol, or in a decode phase the bucket.
fn per_step(p: &Phase, e: &Extent, name: &str) -> bool {
    sym(e, name) || p.kind == PhaseKind::Decode && e.as_const() == Some(p.tokens)
}

/// A row for each sequence of a step.
fn sequences(p: &Phase, e: &Extent) -> bool {
    match p.kind {
        PhaseKind::Decode => e.as_const() == Some(p.tokens),
        PhaseKind::Prefill => e.as_const() == Some(1),
    }
}
