//! Owns the rule on buffers of which each entry lies on one rank (`own`): those that meet have the same owners.

use std::collections::HashMap;

use super::{Findings, Place};
use crate::entities::BufId;
use crate::kernel::Access;
use crate::placement::{Owner, owner_of_step};
use crate::plan::{Mem, Phase, Plan};
use crate::ty::{PendingKind, TensorType};

/// `owner-mismatch`: a step puts entries of different owners together. Positions are the same where they are the same
/// memory, seen alike.
pub(super) fn check(plan: &Plan, phase: &Phase, out: &mut Findings) {
    let is_owned = |t: &TensorType| matches!(t.pending, Some((PendingKind::Owned, _)));
    if phase.buffers.values().all(|b| !is_owned(&b.ty)) {
        return;
    }
    let mut owners: HashMap<BufId, Owner<(Mem, TensorType)>> = HashMap::new();
    for (i, step) in phase.steps.iter().enumerate() {
        let of = |m: Mem| if let Mem::Buf(b) = m { owners.get(&b).cloned() } else { None };
        let inputs = step.args.iter().filter(|a| a.access != Access::Write);
        let inputs: Vec<_> = inputs.map(|a| (&a.ty, (a.mem, a.ty.clone()), of(a.mem))).collect();
        match owner_of_step(&step.kernel, &inputs, &plan.mesh) {
            Err(d) => out.push(d.at(Place::step(phase, i))),
            Ok(owner) => {
                for a in step.args.iter().filter(|a| a.access == Access::Write && is_owned(&a.ty)) {
                    if let (Mem::Buf(b), Some(o)) = (a.mem, &owner) {
                        owners.insert(b, o.clone());
                    }
                }
            }
        }
    }
}
