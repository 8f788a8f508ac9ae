//! What the GPUs of a plan have for each other: slabs that all of them write to, each one's control block, and the
//! words in host memory. Owns the choice of how they reach each other, proved by data for every directed pair.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glmc_ir::launch::{Meets, Reduction};

use super::exec::Kernel;
use super::guard::Guard;
use super::nccl::{Comms, Moved};
use super::place::MeetPlaces;
use super::{Context, CudaError, Mapped, Memory, Stream};

/// Bytes that a pair is tried with, and how long that may take.
const TRIED: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(2);
/// How long NCCL may take to join its devices.
const JOINED: Duration = Duration::from_secs(60);

/// How GPUs reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Kernels write to the memory of other GPUs.
    P2p,
    /// Kernels write to page-locked host memory, where the others read.
    Host,
    /// NCCL moves what is exchanged.
    Nccl,
}

impl Backend {
    /// What options and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::P2p => "p2p",
            Backend::Host => "host",
            Backend::Nccl => "nccl",
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// The memory of other GPUs if every pair reaches each other, else host memory.
    #[default]
    Auto,
    /// This one, or an error.
    Only(Backend),
}

/// The kernel that tries a pair, on each device. Its arguments: where it writes a megabyte, a word that counts what it
/// does not read back, the seed. Word `i` becomes what `pattern` says.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The kernel.
    pub kernel: Kernel,
}

/// Word `i` of what a probe writes.
fn pattern(seed: u32, i: u32) -> u32 {
    let x = (i ^ seed).wrapping_mul(0x9e37_79b1);
    x ^ (x >> 15)
}

#[derive(Debug)]
enum Slab {
    Device(Memory),
    Host(Mapped),
}

/// The memory through which GPUs meet. Kernels that use it have ended before it is dropped.
#[derive(Debug)]
pub struct Links {
    backend: Backend,
    contexts: Vec<Context>,
    slabs: Vec<Slab>,
    controls: Vec<Memory>,
    words: Arc<Mapped>,
    comms: Option<Arc<Comms>>,
    meets: Meets,
    note: Option<String>,
}

/// Whether `from` reaches the memory of `to`: said by the driver, and shown by data.
fn pair(from: &Context, to: &Context, probe: &Probe, seed: u32) -> Result<(), CudaError> {
    let named = |why: String| {
        let cure = "look at nvidia-smi topo -p2p r, turn off the IOMMU or ACS, or use --collectives host";
        CudaError::Links(format!("{from:?} does not reach {to:?}: {why}; {cure}"))
    };
    if !from.reaches(to)? {
        return Err(named("the driver gives no peer access".into()));
    }
    from.reach(to)?;
    let mut target = Memory::new(to, TRIED)?;
    target.fill(0)?;
    let mut own = Memory::new(from, 512)?;
    own.fill(0)?;
    own.upload(256, &seed.to_le_bytes())?;
    let stream = Stream::new(from)?;
    let args = [target.address(0)?, own.address(0)?, own.address(256)?];
    probe.kernel.launch(&stream, &args, false, false)?;
    let guard = Guard { limit: PATIENCE, halt: None, comms: None };
    guard.wait(&stream, "a megabyte written to another GPU").map_err(|e| named(e.to_string()))?;
    let mut bad = [0; 4];
    own.download(0, &mut bad)?;
    let mut got = vec![0; TRIED as usize];
    target.download(0, &mut got)?;
    let words = got.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w));
    let wrong = words.zip(0..).filter(|(w, i)| *w != pattern(seed, *i)).count();
    match (u32::from_le_bytes(bad), wrong) {
        (0, 0) => Ok(()),
        (back, there) => Err(named(format!("{there} words arrive wrong, {back} are read back wrong"))),
    }
}

/// Has NCCL move zeros once, so that it makes its connections before a graph is captured.
fn join(comms: &Arc<Comms>, contexts: &[Context], slabs: &[Slab], meets: &Meets) -> Result<(), CudaError> {
    let streams = contexts.iter().map(Stream::new).collect::<Result<Vec<_>, _>>()?;
    let slab = |d: usize| match &slabs[d] {
        Slab::Device(m) => m.address(meets.first_slot()),
        Slab::Host(_) => Err(CudaError::Links("slabs that NCCL does not use".into())),
    };
    let all = 0..contexts.len();
    for words in [1, meets.slot / 4] {
        comms.grouped(|| {
            let one = |d: usize| comms.all_reduce(d, &streams[d], [slab(d)?; 2], words, Reduction::SumI32);
            all.clone().try_for_each(one)
        })?;
        comms.grouped(|| {
            all.clone().try_for_each(|d| {
                let peers = all.clone().filter(|p| *p != d);
                let ends = peers.flat_map(|peer| [(true, 0), (false, meets.slot)].map(|(send, at)| (send, at, peer)));
                let part = |(send, at, peer)| Ok(Moved { send, at: slab(d)? + at, words, peer });
                let parts = ends.map(part).collect::<Result<Vec<_>, CudaError>>()?;
                comms.parts(d, &streams[d], &parts)
            })
        })?;
    }
    let guard = Guard { limit: JOINED, halt: None, comms: Some(comms.clone()) };
    streams.iter().try_for_each(|s| guard.wait(s, "the first exchange by NCCL"))
}

impl Links {
    /// Memory for the devices of `meets`, reached as `wanted` says; `probes` are those of each device, `limit` bounds
    /// the waits of kernels, `folders` are where NCCL may be.
    ///
    /// # Errors
    /// Pairs that do not reach each other where nothing else is allowed; what the driver says.
    pub fn open(
        contexts: &[Context],
        meets: &Meets,
        wanted: Wanted,
        probes: &[Probe],
        limit: Duration,
        folders: &[PathBuf],
    ) -> Result<Links, CudaError> {
        let first = contexts.first().ok_or_else(|| CudaError::Links("no device".into()))?;
        let (mut backend, mut note) = (Backend::P2p, None);
        let mut comms = None;
        if let Wanted::Only(Backend::Nccl) = wanted {
            let numbers: Vec<usize> = contexts.iter().map(|c| c.info().index).collect();
            // The library may not allow itself access while a graph is captured. Where there is none it goes other
            // ways.
            for (i, j) in Self::pairs(contexts) {
                if contexts[i].reaches(&contexts[j])? {
                    contexts[i].reach(&contexts[j])?;
                }
            }
            comms = Some(Comms::open(&super::nccl(folders)?.path, &numbers)?);
            backend = Backend::Nccl;
        } else if wanted == Wanted::Only(Backend::Host) {
            backend = Backend::Host;
        } else {
            let reached = Self::pairs(contexts).try_for_each(|(i, j)| {
                let seed = 0x5eed_0000 | (i << 8 | j) as u32;
                pair(&contexts[i], &contexts[j], &probes[i], seed)
            });
            match (reached, wanted) {
                (Ok(()), _) => {}
                (Err(CudaError::Links(why)), Wanted::Auto) => {
                    (backend, note) = (Backend::Host, Some(format!("{why}; going through host memory")));
                }
                (Err(e), _) => return Err(e),
            }
        }
        let slab = |c: &Context| match backend {
            Backend::P2p | Backend::Nccl => {
                let mut m = Memory::new(c, meets.slab())?;
                m.fill(0)?;
                Ok(Slab::Device(m))
            }
            Backend::Host => Mapped::new(c, meets.slab()).map(Slab::Host),
        };
        let slabs = contexts.iter().map(slab).collect::<Result<Vec<_>, CudaError>>()?;
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let control = |c: &Context| {
            let words = meets.control(nanos);
            let mut m = Memory::new(c, 8 * words.len() as u64)?;
            m.upload(0, bytemuck::cast_slice(&words))?;
            Ok(m)
        };
        let controls = contexts.iter().map(control).collect::<Result<Vec<_>, CudaError>>()?;
        let words = Arc::new(Mapped::new(first, meets.halt())?);
        if let Some(c) = &comms {
            join(c, contexts, &slabs, meets)?;
        }
        Ok(Links { backend, contexts: contexts.to_vec(), slabs, controls, words, comms, meets: meets.clone(), note })
    }

    /// All directed pairs.
    fn pairs(contexts: &[Context]) -> impl Iterator<Item = (usize, usize)> + use<> {
        let n = contexts.len();
        (0..n * n).map(move |k| (k / n, k % n)).filter(|(i, j)| i != j)
    }

    /// How the devices reach each other.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Why it is not the first choice.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Bytes on a device.
    pub fn bytes(&self) -> u64 {
        if self.backend == Backend::Host { 0 } else { self.meets.slab() }
    }

    /// The word that ends every wait, and what devices waited for: see [`Links::waits`].
    pub fn halt(&self) {
        self.words.set(0, 1);
        if let Some(c) = &self.comms {
            c.abort();
        }
    }

    /// Reduces floats of every device to every device by NCCL, in the order of a stream of device `me`.
    ///
    /// # Errors
    /// [`CudaError::Links`] without NCCL; what it says.
    pub fn library_sum(&self, me: usize, stream: &Stream, from: u64, to: u64, words: u64) -> Result<(), CudaError> {
        let c = self.comms.as_ref().ok_or_else(|| CudaError::Links("NCCL is not asked for".into()))?;
        c.all_reduce(me, stream, [from, to], words, Reduction::SumF32)
    }

    /// What each device gave up waiting for: itself, the device that did not come, and how many meetings it had ended.
    pub fn waits(&self) -> Vec<(usize, usize, u64)> {
        let of = |d: usize| (d, self.words.word(2 + 2 * d), self.words.word(3 + 2 * d));
        let all = (0..self.contexts.len()).map(of).filter(|(_, peer, _)| *peer != 0);
        all.map(|(d, peer, at)| (d, peer as usize - 1, at)).collect()
    }

    /// Addresses for kernels of device `me`: the slabs, its control block, the words.
    ///
    /// # Errors
    /// What the driver says.
    pub fn addresses(&self, me: usize) -> Result<(Vec<u64>, u64, u64), CudaError> {
        let slab = |s: &Slab| match s {
            Slab::Device(m) => m.address(0),
            Slab::Host(m) => m.address(&self.contexts[me]),
        };
        let slabs = self.slabs.iter().map(slab).collect::<Result<Vec<_>, _>>()?;
        Ok((slabs, self.controls[me].address(0)?, self.words.address(&self.contexts[me])?))
    }

    pub(super) fn places(&self, me: usize) -> Result<MeetPlaces, CudaError> {
        let (slabs, control, halt) = self.addresses(me)?;
        let first_slot = self.meets.first_slot();
        let (words, comms) = (self.words.clone(), self.comms.clone());
        Ok(MeetPlaces { me, slabs, first_slot, control, halt, words, comms })
    }

    /// What bounds the host's waits.
    pub(super) fn guard(&self, limit: Duration) -> Guard {
        Guard { limit, halt: Some(self.words.clone()), comms: self.comms.clone() }
    }

    /// Waits until the work of a device's stream is done, at most so long; then ends every wait of kernels.
    ///
    /// # Errors
    /// [`CudaError::Late`], [`CudaError::Stopped`], [`CudaError::Call`].
    pub fn wait(&self, stream: &Stream, limit: Duration, what: &str) -> Result<(), CudaError> {
        self.guard(limit).wait(stream, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_tells_words_apart() {
        let words: std::collections::BTreeSet<u32> = (0..10_000).map(|i| pattern(7, i)).collect();
        assert_eq!(words.len(), 10_000);
        assert_ne!(pattern(7, 3), pattern(8, 3));
    }
}
