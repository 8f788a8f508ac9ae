//! Owns what a plan takes of the host's memory when all its ranks run in one process: known from the plan alone, before
//! anything is mapped, gathered or allocated.

use glmc_ir::placement::local_type;
use glmc_ir::plan::{Plan, Recipe, Slice, State};
use glmc_ir::ty::SymValues;

use crate::load::is_mapped;

/// Bytes, of all ranks together. Weights that stay in their mapped files count nothing; what the CPU decodes of others
/// on the way is not counted either.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostNeed {
    /// Weights that are gathered from several pieces.
    pub gathered: u64,
    /// Cache pools of CPU ranks.
    pub caches: u64,
    /// Arenas of CPU ranks.
    pub arenas: u64,
}

impl HostNeed {
    /// That of a verified plan. What has no size in 64 bits counts as the largest number.
    pub fn of(plan: &Plan) -> Self {
        let ranks = u64::from(plan.target.ranks);
        let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0, u64::saturating_add);
        let gathered = plan.weights.values().flat_map(|w| w.slices.iter().map(move |s| gathered_bytes(w, s)));
        let arena = plan.phases.iter().map(|p| p.arena_bytes).max().unwrap_or(0);
        let pools = (0..ranks).flat_map(|r| plan.states.values().map(move |s| pool_bytes(plan, s, r)));
        HostNeed { gathered: sum(&mut { gathered }), caches: sum(&mut { pools }), arenas: arena.saturating_mul(ranks) }
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.gathered.saturating_add(self.caches).saturating_add(self.arenas)
    }
}

/// What a rank keeps of a weight beside its file. A form that keeps sub-blocks apart has more bytes than the file's.
fn gathered_bytes(w: &Recipe, slices: &[Slice]) -> u64 {
    if is_mapped(w, slices) {
        return 0;
    }
    let bytes = slices.iter().map(|s| s.bytes.saturating_mul(s.count)).fold(0, u64::saturating_add);
    let ((elems, kept), (of, stored)) = (w.ty.elem.block(), w.ty.elem.in_file().block());
    let now = u128::from(bytes) * u128::from(kept * of) / u128::from((stored * elems).max(1));
    u64::try_from(now).unwrap_or(u64::MAX)
}

/// A rank's part of a pool, which the CPU keeps in f32.
fn pool_bytes(plan: &Plan, s: &State, rank: u64) -> u64 {
    let none = SymValues::default();
    let local = if plan.mesh.is_empty() { Ok(s.ty.clone()) } else { local_type(&s.ty, &plan.mesh, rank, &none) };
    local.ok().and_then(|t| t.elems(&none)).map_or(u64::MAX, |n| n.saturating_mul(size_of::<f32>() as u64))
}
