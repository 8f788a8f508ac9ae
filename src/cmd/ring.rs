//! All-reduces alone, over the GPUs of this machine: each replay with operands made there and results compared there, and
//! how long they take. What a self-test and `devices --measure` share.

use std::time::{Duration, Instant};

use glmc_codegen_cuda::nvrtc::wheels;
use glmc_codegen_cuda::program::links::{AllReduce, all_reduce, probe};
use glmc_codegen_cuda::{Generated, Role};
use glmc_ir::kernel::Access;
use glmc_ir::launch::Meets;
use glmc_runtime::device::cuda::{Backend, CudaError, Event, Graph, Kernel, Links, Memory, Probe, Stream, Wanted};

use super::gpu::Gpu;
use crate::error::CliError;

/// Collectives of a graph: those of a decoded token of the large model.
pub(crate) const MEETINGS: usize = 156;
/// Replays that are started before the host waits.
const BATCH: u64 = 50;
/// Longest time that a batch may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long GPUs wait for one that stays away.
const ABSENT: Duration = Duration::from_secs(1);
/// Replays that are timed.
const TIMED: u64 = 5;

/// What one GPU does.
struct Seat {
    stream: Stream,
    /// The all-reduce, what makes its operands and what compares its results, each with its arguments.
    kernels: [(Kernel, Vec<u64>); 3],
    /// Its place, and the words that the library sums from one address to another, where it does.
    me: usize,
    library: Option<[u64; 3]>,
    dependent: bool,
    state: Memory,
    events: [Event; 2],
    // Addressed by the kernels.
    _values: Memory,
}

impl Seat {
    fn capture(&self, parts: &[usize], links: Option<&Links>) -> Result<Graph, CudaError> {
        let mut graph = self.stream.capture(|stream| {
            let mut first = true;
            for _ in 0..MEETINGS {
                for p in parts {
                    let (kernel, args) = &self.kernels[*p];
                    if let (0, Some([from, to, words]), Some(links)) = (*p, self.library, links) {
                        links.library_sum(self.me, stream, from, to, words)?;
                        first = true;
                        continue;
                    }
                    let dependent = self.dependent && !first;
                    kernel.launch(stream, args, dependent, self.dependent)?;
                    first = false;
                }
            }
            Ok(())
        })?;
        self.stream.prepare(&mut graph)?;
        Ok(graph)
    }
}

/// GPUs that meet in all-reduces of one size.
pub(crate) struct Ring {
    // Dropped before the memory that its kernels use.
    seats: Vec<Seat>,
    links: Option<Links>,
    /// Longest time that the host waits.
    limit: Duration,
}

impl Ring {
    /// Rank `r` on GPU `map[r]`, values of `words` floats; those up to `small` bytes go whole to every GPU.
    pub(crate) fn new(gpus: &[&Gpu], map: &[usize], words: u64, small: u64, wanted: Wanted) -> Result<Ring, CliError> {
        let told = |e: String| CliError::internal(format!("all-reduces: {e}"));
        let AllReduce { kernels, make, check, slot } = all_reduce(words, map, small).map_err(told)?;
        let (probe, devices) = (probe(), kernels.len());
        let gpus = &gpus[..devices.min(gpus.len())];
        let (mut loaded, mut probes) = (Vec::new(), Vec::new());
        for (me, gpu) in gpus.iter().enumerate() {
            let on = gpu.load([&kernels[me], &make[me], &check[me], &probe], 1, true)?;
            probes.push(Probe { kernel: on.kernel(&probe)? });
            loaded.push(on);
        }
        let links = if devices > 1 {
            let contexts: Vec<_> = gpus.iter().map(|g| g.context.clone()).collect();
            let meets = Meets { devices, me: 0, slot };
            Some(Links::open(&contexts, &meets, wanted, &probes, LIMIT, &wheels())?)
        } else {
            None
        };
        let mut seats = Vec::new();
        for (me, (gpu, on)) in gpus.iter().zip(&loaded).enumerate() {
            let ranks = map.iter().filter(|d| **d == me).count() as u64;
            let (bytes, context) = ((4 * words).next_multiple_of(256), &gpu.context);
            let mut values = Memory::new(context, 2 * ranks * bytes)?;
            // No result is right that was not written: NaN is equal to nothing.
            values.fill(u32::MAX)?;
            let mut state = Memory::new(context, 256)?;
            state.fill(0)?;
            let addresses = links.as_ref().map(|l| l.addresses(me)).transpose()?;
            let args = |k: &Generated| {
                let (mut x, mut y) = (0..ranks, ranks..2 * ranks);
                let makes = std::ptr::eq(k, &raw const make[me]);
                let mut one = |role: &Role| match role {
                    Role::Param { access: Access::Update, .. } => state.address(0),
                    Role::Param { access, .. } => {
                        // What makes operands writes them; what compares reads results.
                        let operand = makes || *access == Access::Read && !std::ptr::eq(k, &raw const check[me]);
                        let i = if operand { x.next() } else { y.next() };
                        values.address(i.unwrap_or(0) * bytes)
                    }
                    Role::Slab { device } => Ok(addresses.as_ref().map_or(0, |a| a.0[*device])),
                    Role::Control => Ok(addresses.as_ref().map_or(0, |a| a.1)),
                    Role::Halt => Ok(addresses.as_ref().map_or(0, |a| a.2)),
                    Role::Symbols | Role::Scratch { .. } => {
                        Err(CudaError::Program("an all-reduce of other sizes".into()))
                    }
                };
                k.signature.0.iter().map(|f| one(&f.role)).collect::<Result<Vec<u64>, _>>()
            };
            let nccl = links.as_ref().is_some_and(|l| l.backend() == Backend::Nccl);
            if nccl && ranks > 1 {
                return Err(CliError::internal("NCCL alone joins GPUs, not ranks of one"));
            }
            let library = if nccl { Some([values.address(0)?, values.address(bytes)?, words]) } else { None };
            let of = |k: &Generated| Ok::<_, CudaError>((on.kernel(k)?, args(k)?));
            seats.push(Seat {
                stream: Stream::new(context)?,
                kernels: [of(&kernels[me])?, of(&make[me])?, of(&check[me])?],
                me,
                library,
                dependent: gpu.arch.has_bulk_copy(),
                state,
                events: [Event::new(context)?, Event::new(context)?],
                _values: values,
            });
        }
        Ok(Ring { seats, links, limit: LIMIT })
    }

    /// How the GPUs reach each other; `local` where there is one.
    pub(crate) fn way(&self) -> &'static str {
        self.links.as_ref().map_or("local", |l| l.backend().name())
    }

    /// What each GPU does at the same time; the first failure ends all.
    fn together(&self, work: impl Fn(&Seat) -> Result<f64, CudaError> + Sync) -> Result<f64, CudaError> {
        let ends: Vec<Result<f64, CudaError>> = std::thread::scope(|scope| {
            let start = |seat| {
                let work = &work;
                scope.spawn(move || {
                    let end = work(seat);
                    if let (Err(_), Some(links)) = (&end, &self.links) {
                        links.halt();
                    }
                    end
                })
            };
            let threads: Vec<_> = self.seats.iter().map(start).collect();
            let lost = |_| Err(CudaError::Program("a thread panicked".into()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(lost)).collect()
        });
        let waits = self.links.as_ref().map(Links::waits).unwrap_or_default();
        if let Some((d, peer, at)) = waits.first() {
            return Err(CudaError::Meeting(format!("GPU {d} waited for GPU {peer} in all-reduce {at}")));
        }
        ends.into_iter().try_fold(0.0f64, |most, e| e.map(|s| most.max(s)))
    }

    fn wait(&self, seat: &Seat, what: &str) -> Result<(), CudaError> {
        match &self.links {
            Some(links) => links.wait(&seat.stream, self.limit, what),
            None => seat.stream.wait(what),
        }
    }

    /// Replays a graph of all-reduces with fresh operands each time, one GPU late now and then; how many words were not
    /// the exact sum.
    pub(crate) fn stress(&self, replays: u64) -> Result<u64, CudaError> {
        let run = |seat: &Seat| {
            let mut graph = seat.capture(&[1, 0, 2], self.links.as_ref())?;
            let mut left = replays;
            while left > 0 {
                let n = left.min(BATCH);
                (0..n).try_for_each(|_| seat.stream.replay(&mut graph))?;
                self.wait(seat, "replays of all-reduces")?;
                left -= n;
            }
            Ok(0.0)
        };
        self.together(run)?;
        let mut wrong = 0;
        for seat in &self.seats {
            let mut words = [0u8; 16];
            seat.state.download(0, &mut words)?;
            let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| words[at + i]));
            if u64::from(number(0)) != (replays * MEETINGS as u64) & 0xffff_ffff {
                return Err(CudaError::Program(format!(
                    "{} all-reduces of {} were compared",
                    number(0),
                    replays * MEETINGS as u64
                )));
            }
            wrong += u64::from(number(8));
        }
        Ok(wrong)
    }

    /// All GPUs but the last start a graph: what is then said, within a few seconds. Nothing runs afterwards.
    ///
    /// # Errors
    /// What is said is not that the others waited for it.
    pub(crate) fn without_last(mut self) -> Result<String, String> {
        self.limit = ABSENT;
        let last = self.seats.len() - 1;
        let start = Instant::now();
        let run = |seat: &Seat| {
            if seat.me < last {
                let mut graph = seat.capture(&[1, 0, 2], self.links.as_ref())?;
                seat.stream.replay(&mut graph)?;
                self.wait(seat, "all-reduces without a GPU")?;
            }
            Ok(0.0)
        };
        let said = match self.together(run) {
            Ok(_) => return Err("all-reduces ended without one of their GPUs".into()),
            Err(e) => e.to_string(),
        };
        let in_time = start.elapsed() < ABSENT * 5;
        let named = format!("waited for GPU {last} in all-reduce 0");
        if in_time && said.contains(&named) { Ok(said) } else { Err(said) }
    }

    /// Seconds of one all-reduce in a graph of them.
    pub(crate) fn time(&self) -> Result<f64, CudaError> {
        let run = |seat: &Seat| {
            let mut graph = seat.capture(&[0], self.links.as_ref())?;
            let mut all = Vec::new();
            for _ in 0..=TIMED {
                let [from, to] = &seat.events;
                seat.stream.record(from)?;
                seat.stream.replay(&mut graph)?;
                seat.stream.record(to)?;
                self.wait(seat, "timed all-reduces")?;
                all.push(from.seconds_to(to)? / MEETINGS as f64);
            }
            // The first brings code to the GPU.
            all.remove(0);
            all.sort_by(f64::total_cmp);
            Ok(all[all.len() / 2])
        };
        self.together(run)
    }
}

/// The ways that may be asked for.
pub(crate) const WAYS: [Backend; 3] = [Backend::P2p, Backend::Host, Backend::Nccl];
