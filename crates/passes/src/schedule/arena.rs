//! Owns lifetimes and offsets: buffers that are never live together may share bytes. Greedy by size: the largest buffer
//! first, each at the lowest offset that no buffer it lives with covers. Never lets an output share with an input of
//! its own launch.

use std::collections::HashMap;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::BufId;
use glmc_ir::kernel::Access;
use glmc_ir::placement::Mesh;
use glmc_ir::plan::{ALIGN, Mem, Phase, PhaseKind};
use glmc_ir::shard_map::largest_bytes;

/// Steps after its last use in which a decode phase leaves a buffer's bytes alone, so that launches near each other that
/// need nothing of each other share no memory and may run together. Such phases are small.
const REST: usize = 8;

/// First and last step at which a buffer holds its value.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
}

/// Sets size (that of the largest rank's part) and offset of each buffer and the size of the arena.
///
/// # Errors
/// `too-large`: a buffer or the arena overflows 64 bits.
pub(crate) fn place(phase: &mut Phase, mesh: &Mesh) -> Result<(), Diagnostic> {
    let bounds = phase.bounds();
    for b in phase.buffers.values_mut() {
        let too_large = || Diagnostic::new("too-large", format!("buffer `{}` {} has no size in 64 bits", b.name, b.ty));
        let bytes = largest_bytes(&b.ty, mesh, &bounds);
        b.bytes = bytes.ok().filter(|n| *n < 1 << 60).ok_or_else(too_large)?;
    }
    let lives = lifetimes(phase);
    let mut order: Vec<BufId> = phase.buffers.keys().collect();
    order.sort_by_key(|b| (std::cmp::Reverse(phase.buffers[*b].bytes), *b));
    // Buffers placed so far, by offset.
    let mut placed: Vec<(u64, u64, Life)> = Vec::new();
    let mut peak = 0u64;
    for id in order {
        let Some(life) = lives.get(&id).copied() else { continue };
        let size = phase.buffers[id].bytes.max(1).next_multiple_of(ALIGN);
        let mut at = 0u64;
        for (offset, end, other) in &placed {
            let together = life.first <= other.last && other.first <= life.last;
            if together && *offset < at + size && at < *end {
                at = *end;
            }
        }
        let end =
            at.checked_add(size).ok_or_else(|| Diagnostic::new("too-large", "the arena has no size in 64 bits"))?;
        phase.buffers[id].offset = at;
        let slot = placed.partition_point(|(o, ..)| *o <= at);
        placed.insert(slot, (at, end, life));
        peak = peak.max(end);
    }
    phase.arena_bytes = peak;
    Ok(())
}

fn lifetimes(phase: &Phase) -> HashMap<BufId, Life> {
    let mut lives: HashMap<BufId, Life> = HashMap::new();
    for (i, step) in phase.steps.iter().enumerate() {
        for arg in &step.args {
            if let Mem::Buf(b) = arg.mem {
                let life = lives.entry(b).or_insert(Life { first: i, last: i });
                life.last = i;
                debug_assert!(arg.access != Access::Write || life.first == i, "a buffer is written before it is read");
            }
        }
    }
    // The operand of a collective that steps run beside stays until it is done.
    for o in &phase.overlaps {
        for arg in phase.steps.get(o.step).into_iter().flat_map(|s| &s.args).filter(|a| a.access == Access::Read) {
            if let Mem::Buf(b) = arg.mem
                && let Some(l) = lives.get_mut(&b)
            {
                l.last = l.last.max(o.done.saturating_sub(1));
            }
        }
    }
    if phase.kind == PhaseKind::Decode {
        lives.values_mut().for_each(|l| l.last += REST);
    }
    for r in &phase.results {
        if let Mem::Buf(b) = r.mem
            && let Some(l) = lives.get_mut(&b)
        {
            l.last = phase.steps.len();
        }
    }
    lives
}
