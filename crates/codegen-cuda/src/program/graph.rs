//! What the graphs of decode steps launch in place of a phase's calls.
//!
//! Owns which phases are changed so and in which order; what each change does is its own module's.

use glmc_ir::launch::Launches;
use glmc_ir::plan::{PhaseKind, Plan};

use super::{adds, beside, settle};
use crate::arch::Arch;
use crate::request::Generated;

/// Sets what the graphs of a device launch; kernels that this needs are added.
pub(super) fn set(plan: &Plan, arch: Arch, kernels: &mut Vec<Generated>, launches: &mut Launches) {
    for (phase, of) in plan.phases.iter().zip(&mut launches.phases) {
        // What a library moves comes between numbered calls.
        if phase.kind == PhaseKind::Decode && of.transfers.is_empty() {
            beside::join(phase, arch, kernels, of);
            adds::take(phase, kernels, of);
            settle::settle(phase, kernels, of);
        }
    }
}
