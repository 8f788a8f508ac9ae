//! Where a plan lies in a device's memory: what each piece needs, whether it fits, and its address.

use std::sync::Arc;

use glmc_ir::launch::{Launches, Place};
use glmc_ir::plan::{Mem, Phase, Plan};

use super::nccl::Comms;
use super::{Context, CudaError, Mapped, Memory};

/// Every piece starts at a multiple of this.
const ALIGN: u64 = 256;

/// Where the values of a step lie in the block that is copied before it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct StepLayout {
    /// For each rank, the offset of its symbols.
    pub(super) symbols: Vec<u64>,
    /// For each rank and step parameter, its offset.
    pub(super) params: Vec<Vec<u64>>,
    /// Bytes by the bounds.
    pub(super) bytes: u64,
}

impl StepLayout {
    /// Symbols first, then parameters, the smallest first: what is used of the block ends early where the last and
    /// largest is short.
    pub(super) fn of(symbols: &[usize], params: &[Vec<u64>]) -> StepLayout {
        let mut at = 0u64;
        let mut take = |bytes: u64| {
            let here = at;
            at += bytes.next_multiple_of(ALIGN);
            here
        };
        let symbols = symbols.iter().map(|n| take(4 * *n as u64)).collect();
        let mut places: Vec<Vec<u64>> = params.iter().map(|p| vec![0; p.len()]).collect();
        let mut order: Vec<(u64, usize, usize)> =
            params.iter().enumerate().flat_map(|(r, p)| p.iter().enumerate().map(move |(i, n)| (*n, r, i))).collect();
        order.sort_unstable();
        for (bytes, r, i) in order {
            places[r][i] = take(bytes);
        }
        StepLayout { symbols, params: places, bytes: at }
    }
}

/// All memory of a plan on one device.
#[derive(Debug)]
pub(super) struct Places {
    /// By rank.
    pub(super) weights: Vec<Memory>,
    weight_at: Vec<Vec<u64>>,
    pub(super) states: Vec<Memory>,
    pub(super) state_at: Vec<Vec<u64>>,
    pub(super) arenas: Vec<Memory>,
    pub(super) scratch: Memory,
    /// The block of step values.
    pub(super) steps: Memory,
    /// How the device meets others.
    pub(super) meets: Option<MeetPlaces>,
}

/// Addresses through which a device meets others; whoever made the memory keeps it as long as the device.
#[derive(Clone, Debug)]
pub(super) struct MeetPlaces {
    /// The device's place among them.
    pub(super) me: usize,
    /// Where the first slot starts in a slab.
    pub(super) first_slot: u64,
    /// The slab of each device.
    pub(super) slabs: Vec<u64>,
    /// The device's own control block.
    pub(super) control: u64,
    /// Where it sees the words in host memory.
    pub(super) halt: u64,
    /// Those words.
    pub(super) words: Arc<Mapped>,
    /// What moves values in place of kernels.
    pub(super) comms: Option<Arc<Comms>>,
}

/// Offsets of pieces one after the other, and where the last ends.
fn offsets(pieces: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
    let (mut out, mut at) = (Vec::new(), 0u64);
    for bytes in pieces {
        out.push(at);
        at = at.saturating_add(bytes.next_multiple_of(ALIGN));
    }
    (out, at)
}

fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |a, n| a.saturating_add(*n))
}

impl Places {
    /// Memory for the ranks of `plan`, all zero but the weights.
    ///
    /// # Errors
    /// [`CudaError::Memory`] before anything is taken; what the driver says.
    pub(super) fn new(
        context: &Context,
        plan: &Plan,
        launches: &Launches,
        steps: u64,
        staging: u64,
    ) -> Result<Places, CudaError> {
        let (weight_at, weight_bytes): (Vec<_>, Vec<_>) =
            launches.weights.iter().map(|w| offsets(w.iter().map(|f| f.bytes))).unzip();
        let (state_at, state_bytes): (Vec<_>, Vec<_>) =
            launches.states.iter().map(|s| offsets(s.iter().copied())).unzip();
        let ranks = weight_at.len();
        let needs = vec![
            ("weights", sum(&weight_bytes)),
            ("caches", sum(&state_bytes)),
            ("arenas", launches.arena.saturating_mul(ranks as u64)),
            ("scratch", launches.scratch),
            ("step values", steps),
            ("staging of weights", staging),
        ];
        let (free, total) = context.memory()?;
        if sum(&needs.iter().map(|(_, n)| *n).collect::<Vec<_>>()) > free {
            return Err(CudaError::Memory { device: format!("{context:?}"), free, total, needs });
        }
        if state_at.len() != ranks || weight_at.iter().any(|w| w.len() != plan.weights.len()) {
            return Err(CudaError::Program("it has other ranks or weights".into()));
        }
        let new = |n| Memory::new(context, n).map_err(|e| e.counted(format!("{context:?}"), free, total, &needs));
        let all = |sizes: &[u64]| sizes.iter().map(|n| new(*n)).collect::<Result<Vec<_>, _>>();
        let mut places = Places {
            weights: all(&weight_bytes)?,
            weight_at,
            states: all(&state_bytes)?,
            state_at,
            arenas: all(&vec![launches.arena; ranks])?,
            scratch: new(launches.scratch)?,
            steps: new(steps)?,
            meets: None,
        };
        places.states.iter_mut().try_for_each(|m| m.fill(0))?;
        places.arenas.iter_mut().try_for_each(|m| m.fill(0))?;
        places.scratch.fill(0)?;
        places.steps.fill(0)?;
        Ok(places)
    }

    /// The offset of a weight in its rank's block.
    pub(super) fn weight_offset(&self, rank: usize, w: usize) -> Result<u64, CudaError> {
        let at = self.weight_at.get(rank).and_then(|r| r.get(w)).copied();
        at.ok_or_else(|| CudaError::Program(format!("there is no weight {w} of rank {rank}")))
    }

    /// The address of what an argument names in a phase.
    pub(super) fn address(&self, phase: &Phase, layout: &StepLayout, place: Place) -> Result<u64, CudaError> {
        let missing = || CudaError::Program(format!("there is no {place:?}"));
        match place {
            Place::Scratch(at) => self.scratch.address(at),
            Place::Slab { device } => {
                self.meets.as_ref().and_then(|m| m.slabs.get(device)).copied().ok_or_else(missing)
            }
            Place::Control => self.meets.as_ref().map(|m| m.control).ok_or_else(missing),
            Place::Halt => self.meets.as_ref().map(|m| m.halt).ok_or_else(missing),
            Place::Symbols { rank } => self.steps.address(*layout.symbols.get(rank).ok_or_else(missing)?),
            Place::Mem { rank, mem: Mem::Param(p) } => {
                let at = layout.params.get(rank).and_then(|r| r.get(p.as_u32() as usize));
                self.steps.address(*at.ok_or_else(missing)?)
            }
            Place::Mem { rank, mem: Mem::Weight(w) } => {
                let at = self.weight_offset(rank, w.as_u32() as usize)?;
                self.weights.get(rank).ok_or_else(missing)?.address(at)
            }
            Place::Mem { rank, mem: Mem::State(s) } => {
                let at = self.state_at.get(rank).and_then(|r| r.get(s.as_u32() as usize)).ok_or_else(missing)?;
                self.states.get(rank).ok_or_else(missing)?.address(*at)
            }
            Place::Mem { rank, mem: Mem::Buf(b) } => {
                let buffer = phase.buffers.get(b).ok_or_else(missing)?;
                self.arenas.get(rank).ok_or_else(missing)?.range(buffer.offset, buffer.bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_step_value_is_last() {
        let l = StepLayout::of(&[3, 1], &[vec![4000, 8], vec![4000, 300]]);
        assert_eq!(l.symbols, [0, 256]);
        assert_eq!(l.params, [vec![1280, 512], vec![5376, 768]]);
        assert_eq!(l.bytes, 9472);
    }
}
