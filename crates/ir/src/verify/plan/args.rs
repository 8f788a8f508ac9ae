//! Owns the rules that hold each argument to its contract: types of outputs, and how an argument sees its memory.

use super::{Findings, Place};
use crate::diag::Diagnostic;
use crate::kernel::Access;
use crate::op::Op;
use crate::ops::Reshape;
use crate::placement::infer_on;
use crate::plan::{Arg, Mem, Phase, Plan, Step};
use crate::ty::{Dim, Extent, TensorType};

pub(super) fn check(plan: &Plan, phase: &Phase, out: &mut Findings) {
    for (i, step) in phase.steps.iter().enumerate() {
        if out.full() {
            return;
        }
        outputs(plan, phase, i, step, out);
        for arg in &step.args {
            view(plan, phase, i, arg, out);
        }
    }
    for r in &phase.results {
        if r.ty.pending.is_some() {
            let d = Diagnostic::new("bad-result", format!("the result is still pending: {}", r.ty));
            out.push(d.at(format!("phase {} result `{}`", phase.name, r.name)).help("merge it in a step"));
        }
        if let Mem::Buf(b) = r.mem
            && let Some(buffer) = phase.buffers.get(b)
            && let Err(why) = sees(plan, &buffer.ty, &r.ty)
        {
            let m = format!("the result is {}, the buffer {b} `{}` {}: {why}", r.ty, buffer.name, buffer.ty);
            out.push(Diagnostic::new("bad-result", m).at(format!("phase {} result `{}`", phase.name, r.name)));
        }
    }
}

/// `arg-type`, or the type rule's own code: the kernel's meaning on the inputs gives the outputs' types.
fn outputs(plan: &Plan, phase: &Phase, index: usize, step: &Step, out: &mut Findings) {
    let place = Place::step(phase, index);
    let of = |access| step.args.iter().filter(move |a| a.access == access);
    let inputs: Vec<&TensorType> = step.args.iter().filter(|a| a.access != Access::Write).map(|a| &a.ty).collect();
    let types = match step.kernel.result_types_on(&inputs, &plan.mesh) {
        Ok(types) => types,
        Err(mut d) => {
            d.at = if d.at.is_empty() { place.to_string() } else { format!("{place}, in {}", d.at) };
            return out.push(d);
        }
    };
    let targets: Vec<&Arg> = of(Access::Update).chain(of(Access::Write)).collect();
    if types.len() != targets.len() {
        let m = format!("the kernel makes {} values for {} arguments", types.len(), targets.len());
        return out.push(Diagnostic::new("arg-type", m).at(place));
    }
    for (arg, ty) in targets.iter().zip(&types) {
        if arg.ty != *ty {
            let m = format!("the kernel makes {ty}, the argument is {}", arg.ty);
            out.push(Diagnostic::new("arg-type", m).at(place.arg(&arg.name)));
        }
    }
}

/// `weight-type` and `arg-view`: the argument's type against the memory's.
fn view(plan: &Plan, phase: &Phase, index: usize, arg: &Arg, out: &mut Findings) {
    let place = Place::step(phase, index).arg(&arg.name);
    let (ty, name) = match arg.mem {
        Mem::Weight(w) => (&plan.weights[w].ty, &plan.weights[w].name),
        Mem::State(s) => (&plan.states[s].ty, &plan.states[s].name),
        Mem::Param(p) => (&phase.params[p].ty, &phase.params[p].name),
        Mem::Buf(b) => (&phase.buffers[b].ty, &phase.buffers[b].name),
    };
    if super::memory::forbidden(arg).is_some() || arg.ty == *ty {
        return;
    }
    if let Mem::Weight(w) = arg.mem {
        let m = format!("the step sees {w} `{name}` as {}, its recipe makes {ty}", arg.ty);
        let d = Diagnostic::new("weight-type", m).at(place);
        return out.push(d.help("a weight has one type, for all its uses: change the recipe, or read another weight"));
    }
    if let Err(why) = sees(plan, ty, &arg.ty) {
        let m = format!("{} `{name}` is {ty}, the step sees {}: {why}", arg.mem, arg.ty);
        out.push(Diagnostic::new("arg-view", m).at(place).help("a view keeps element, size, placement and pieces"));
    }
}

/// Whether memory of type `mem` may be seen as `view`.
fn sees(plan: &Plan, mem: &TensorType, view: &TensorType) -> Result<(), String> {
    if mem == view {
        return Ok(());
    }
    let joined = |t: &TensorType| -> Vec<Extent> {
        let is = |d: &&Dim| matches!(d.extent, Extent::Joined(_));
        t.dims.iter().filter(is).map(|d| d.extent.clone()).collect()
    };
    if mem.elem != view.elem {
        return Err("another element".into());
    }
    if mem.state != view.state {
        return Err("state against a plain value".into());
    }
    if mem.size_monomial() != view.size_monomial() {
        return Err("another size".into());
    }
    if mem.layout != view.layout || mem.pending != view.pending {
        return Err("another layout or pending merge".into());
    }
    let (m, v) = (joined(mem), joined(view));
    if !m.is_empty() && !v.is_empty() && m != v {
        return Err("other pieces".into());
    }
    if mem.is_replicated() && view.is_replicated() {
        return Ok(());
    }
    // A rank holds a part: the view must cut the entries alike, which is what the rule of `reshape` knows.
    let plain = view.dims.iter().map(|d| Dim { split: None, ..d.clone() }).collect();
    match infer_on(&Op::from(Reshape { dims: plain }), &[mem], &plan.mesh) {
        Ok(types) if types.first() == Some(view) => Ok(()),
        _ => Err("another placement".into()),
    }
}
