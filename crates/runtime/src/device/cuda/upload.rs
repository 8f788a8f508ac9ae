//! Weights to the device: stored bytes through page-locked slots, repacked there.

use glmc_ir::entities::WeightId;
use glmc_ir::launch::Launches;
use glmc_ir::plan::Plan;

use super::exec::Kernel;
use super::place::Places;
use super::{CudaError, Memory, Ring, Stream};
use crate::load::Weights;

/// Slots of the ring and bytes of each.
const SLOTS: usize = 4;
const SLOT_BYTES: usize = 8 << 20;

/// Bytes of the largest stored weight that is repacked.
pub(super) fn staging(launches: &Launches) -> u64 {
    let all = launches.weights.iter().flatten().filter(|f| f.repack.is_some());
    all.map(|f| f.stored).max().unwrap_or(0)
}

/// Brings all weights to their places; `progress` gets the bytes that are on their way and all bytes.
pub(super) fn upload(
    stream: &Stream,
    plan: &Plan,
    launches: &Launches,
    kernels: &[Kernel],
    weights: &[Weights],
    places: &mut Places,
    progress: &dyn Fn(u64, u64),
) -> Result<(), CudaError> {
    let context = stream.context();
    let mut ring = Ring::new(context, SLOTS, SLOT_BYTES)?;
    let mut staged = Memory::new(context, staging(launches))?;
    let all: u64 = launches.weights.iter().flatten().map(|f| f.stored).sum();
    let mut done = 0;
    for (rank, forms) in launches.weights.iter().enumerate() {
        let of = &weights[launches.ranks[rank]];
        for (i, form) in forms.iter().enumerate() {
            let name = || plan.weights.values().nth(i).map_or(String::new(), |r| r.name.clone());
            let bytes = of.bytes(WeightId::from_u32(i as u32));
            if bytes.len() as u64 != form.stored {
                let (have, want) = (bytes.len(), form.stored);
                return Err(CudaError::Program(format!("weight `{}` has {have} bytes, not {want}", name())));
            }
            let at = places.weight_offset(rank, i)?;
            let to = places.weights.get_mut(rank).ok_or_else(|| CudaError::Program(format!("no rank {rank}")))?;
            let kernel = form.repack.map(|k| kernels.get(k).ok_or(k)).transpose();
            let kernel = kernel.map_err(|k| CudaError::Program(format!("there is no kernel {k}")))?;
            for (n, piece) in bytes.chunks(SLOT_BYTES).enumerate() {
                let from = (n * SLOT_BYTES) as u64;
                let (memory, start) = if kernel.is_some() { (&mut staged, from) } else { (&mut *to, at + from) };
                ring.send(stream, memory, start, piece.len(), |slot| slot.copy_from_slice(piece))?;
                done += piece.len() as u64;
                progress(done, all);
            }
            if let Some(k) = kernel {
                let args = [staged.address(0)?, to.range(at, form.bytes)?];
                k.launch(stream, &args, false, false)?;
            }
        }
    }
    stream.wait("the upload of the weights")
}
