//! What a launch may read before the launch before it has ended: operands that an earlier launch made, where the one
//! between lets its successor start only once all before it have ended. So experts' matrices are on their way while the
//! launch before still multiplies.
//!
//! Owns the choice; kernels that can do either carry a constant for it, and the variants differ in that alone.

use glmc_ir::launch::{Call, PhaseLaunches, Place};
use glmc_ir::plan::{Mem, Phase};

use super::beside::Touched;
use crate::request::Generated;
use crate::signature::Role;

/// Lets the next launch start before this one's wait, or behind it.
pub(crate) const EARLY: &str = "static constexpr bool LATE = false;";
pub(crate) const LATE: &str = "static constexpr bool LATE = true;";
/// Reads nothing before its wait but weights, or also what [`Generated::early`] names.
pub(crate) const UNSETTLED: &str = "static constexpr bool SETTLED = false;";
pub(crate) const SETTLED: &str = "static constexpr bool SETTLED = true;";

/// Sets variants.
pub(super) fn settle(phase: &Phase, kernels: &mut Vec<Generated>, of: &mut PhaseLaunches) {
    let mut calls = of.launched().to_vec();
    let mut any = false;
    for i in 1..calls.len() {
        let (before, call) = (calls[i - 1].clone(), calls[i].clone());
        if !settled(phase, kernels, &before, &call) {
            continue;
        }
        let Some(late) = variant(kernels, before.kernel, EARLY, LATE) else { continue };
        let Some(early) = variant(kernels, call.kernel, UNSETTLED, SETTLED) else { continue };
        (calls[i - 1].kernel, calls[i].kernel, any) = (late, early, true);
    }
    if any {
        of.graph = calls;
    }
}

/// Whether all that the call would read early was made before the call before it, which can be late.
fn settled(phase: &Phase, kernels: &[Generated], before: &Call, call: &Call) -> bool {
    let (late, kernel) = (&kernels[before.kernel], &kernels[call.kernel]);
    if kernel.early.is_empty() || !kernel.body.contains(UNSETTLED) || kernel.launches.is_empty() {
        return false;
    }
    let can = late.launches.len() == 1 && (late.body.contains(EARLY) || late.body.contains(LATE));
    let known = kernel.early.iter().all(|name| {
        let Some(at) = kernel.signature.0.iter().position(|f| f.ident == *name) else { return false };
        match call.args.get(at) {
            Some(Place::Mem { mem: Mem::Weight(_) | Mem::Param(_), .. }) => true,
            Some(place @ Place::Mem { .. }) => {
                let mut field = kernel.signature.0[at].clone();
                if let Role::Param { access, .. } = &mut field.role {
                    *access = glmc_ir::kernel::Access::Read;
                }
                let read = Touched::fields(phase, &[field], std::slice::from_ref(place));
                !Touched::of(phase, late, before).bound_to(&read)
            }
            _ => false,
        }
    });
    can && known
}

/// The kernel with `to` in place of `from`; itself where it has `to` already.
fn variant(kernels: &mut Vec<Generated>, at: usize, from: &str, to: &str) -> Option<usize> {
    let kernel = &kernels[at];
    if kernel.body.contains(to) {
        return Some(at);
    }
    let made = renamed(kernel, kernel.body.replace(from, to));
    if let Some(i) = kernels.iter().position(|k| k.name == made.name) {
        return Some(i);
    }
    kernels.push(made);
    Some(kernels.len() - 1)
}

/// The kernel with another body, by a name that says so.
pub(super) fn renamed(kernel: &Generated, body: String) -> Generated {
    let stem = kernel.name.rsplit_once('_').map_or(kernel.name.as_str(), |(stem, _)| stem);
    let name = format!("{stem}_{}", &blake3::hash(body.as_bytes()).to_hex()[..12]);
    let mut made = Generated { body: body.replace(&kernel.name, &name), side: None, ..kernel.clone() };
    made.launches.iter_mut().for_each(|l| l.symbol = l.symbol.replace(&kernel.name, &name));
    made.name = name;
    made
}
