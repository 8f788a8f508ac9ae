//! Weights to the device: stored bytes through page-locked slots, or blocks that are made there; repacked there.

use std::borrow::Cow;

use glmc_ir::entities::WeightId;
use glmc_ir::launch::Launches;
use glmc_ir::plan::{Plan, Recipe};
use glmc_ir::quant::QuantType;
use glmc_ir::quant::made::words;
use glmc_ir::quant::synth::Fill;

use super::exec::Kernel;
use super::place::Places;
use super::{CudaError, Memory, Ring, Stream};
use crate::load::Weights;
use crate::made;

/// Slots of the ring and bytes of each.
const SLOTS: usize = 4;
const SLOT_BYTES: usize = 8 << 20;

/// Where the weights of the plan's ranks come from.
#[derive(Clone, Copy, Debug)]
pub enum WeightSource<'a> {
    /// Their stored bytes, a rank an entry.
    Stored(&'a [Weights]),
    /// The stored bytes of this rank alone.
    Alone(usize, &'a Weights),
    /// Nowhere: they are made on the device, or on the host where a rank holds parts of blocks.
    Made {
        /// A plan's weight an entry.
        fills: &'a [Fill],
        /// For each type the kernel that makes blocks of it, its second argument, from words, its first.
        kernels: &'a [(QuantType, Kernel)],
    },
}

/// How a weight's bytes get to the device.
enum Way<'a> {
    Bytes(Cow<'a, [u8]>),
    Words { words: Vec<u64>, bytes: u64, make: &'a Kernel },
}

impl<'a> WeightSource<'a> {
    /// Whether it has the weights of a rank.
    pub(super) fn has(&self, plan: &Plan, rank: usize) -> bool {
        match self {
            WeightSource::Stored(weights) => rank < weights.len(),
            WeightSource::Alone(own, _) => rank == *own,
            WeightSource::Made { .. } => rank < plan.target.ranks as usize,
        }
    }

    fn way(&self, plan: &Plan, recipe: &Recipe, rank: usize, i: usize) -> Result<Way<'a>, CudaError> {
        let missing = |what: &str| CudaError::Program(format!("weight `{}`: there is no {what}", recipe.name));
        match self {
            WeightSource::Stored(weights) => {
                let of = weights.get(rank).ok_or_else(|| missing("such rank"))?;
                Ok(Way::Bytes(Cow::Borrowed(of.bytes(WeightId::from_u32(i as u32)))))
            }
            WeightSource::Alone(_, of) => Ok(Way::Bytes(Cow::Borrowed(of.bytes(WeightId::from_u32(i as u32))))),
            WeightSource::Made { fills, kernels } => {
                let fill = fills.get(i).ok_or_else(|| missing("fill"))?;
                let told = |e: crate::RuntimeError| CudaError::Program(e.to_string());
                let Some(q) = recipe.ty.elem.storage().filter(|q| *q == q.in_file()) else {
                    return Ok(Way::Bytes(Cow::Owned(made::stored(plan, recipe, rank, fill).map_err(told)?)));
                };
                let kernel = kernels.iter().find(|(of, _)| *of == q).ok_or_else(|| missing("kernel that makes it"))?;
                let runs = made::runs(recipe, rank).map_err(told)?;
                let bytes = runs.iter().map(|r| r.piece * r.count).sum::<u64>() * q.block_bytes() as u64;
                Ok(Way::Words { words: words(q, fill, &runs), bytes, make: &kernel.1 })
            }
        }
    }
}

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
    source: &WeightSource<'_>,
    places: &mut Places,
    progress: &dyn Fn(u64, u64),
) -> Result<(), CudaError> {
    let context = stream.context();
    let mut ring = Ring::new(context, SLOTS, SLOT_BYTES)?;
    let mut staged = Memory::new(context, staging(launches))?;
    // What kernels that make blocks read; a copy waits for the kernel before it.
    let mut told = Memory::new(context, SLOT_BYTES as u64)?;
    let all: u64 = launches.weights.iter().flatten().map(|f| f.stored).sum();
    let mut done = 0;
    for (rank, forms) in launches.weights.iter().enumerate() {
        // The rank of the plan; this device may hold some only.
        let of = *launches.ranks.get(rank).ok_or_else(|| CudaError::Program(format!("no rank {rank}")))?;
        for ((i, form), recipe) in forms.iter().enumerate().zip(plan.weights.values()) {
            let at = places.weight_offset(rank, i)?;
            let to = places.weights.get_mut(rank).ok_or_else(|| CudaError::Program(format!("no rank {rank}")))?;
            let kernel = form.repack.map(|k| kernels.get(k).ok_or(k)).transpose();
            let kernel = kernel.map_err(|k| CudaError::Program(format!("there is no kernel {k}")))?;
            let (memory, start) = if kernel.is_some() { (&mut staged, 0) } else { (&mut *to, at) };
            match source.way(plan, recipe, of, i)? {
                Way::Bytes(bytes) => {
                    if bytes.len() as u64 != form.stored {
                        let (have, want) = (bytes.len(), form.stored);
                        let name = &recipe.name;
                        return Err(CudaError::Program(format!("weight `{name}` has {have} bytes, not {want}")));
                    }
                    for (n, piece) in bytes.chunks(SLOT_BYTES).enumerate() {
                        let from = start + (n * SLOT_BYTES) as u64;
                        ring.send(stream, memory, from, piece.len(), |slot| slot.copy_from_slice(piece))?;
                        progress(done + from - start + piece.len() as u64, all);
                    }
                }
                Way::Words { words, bytes, make } => {
                    if bytes != form.stored {
                        let (want, name) = (form.stored, &recipe.name);
                        return Err(CudaError::Program(format!("weight `{name}` has {bytes} bytes, not {want}")));
                    }
                    let words: &[u8] = bytemuck::cast_slice(&words);
                    ring.send(stream, &mut told, 0, words.len(), |slot| slot.copy_from_slice(words))?;
                    let args = [told.address(0)?, memory.range(start, form.stored)?];
                    make.launch(stream, &args, false, false)?;
                }
            }
            done += form.stored;
            if let Some(k) = kernel {
                let args = [staged.address(0)?, to.range(at, form.bytes)?];
                k.launch(stream, &args, false, false)?;
            }
            progress(done, all);
        }
    }
    stream.wait("the weights to be on the device")
}
