//! A plan on several GPUs: a thread, a stream and graphs a device. The thread that runs a step drives the device of
//! rank 0; each other device has a thread of its own. They meet in kernels; the host only starts them and waits.
//!
//! The first failure ends all: it ends every wait in kernels, the others drain, and one message says what happened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glmc_ir::launch::Launches;
use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;

use super::exec::{CudaDevice, CudaOptions, Kernel};
use super::links::{Backend, Links, Probe, Wanted};
use super::{Context, CudaError, WeightSource};
use crate::device::{Device, Observer, Output, Seen};
use crate::died::{die, guarded};
use crate::error::RuntimeError;
use crate::load::Weights;

/// How long a thread looks for the next step before it sleeps.
const SPIN: Duration = Duration::from_micros(300);
/// What a device may take beyond the limit before it is taken for lost.
const SLACK: Duration = Duration::from_secs(5);

/// One GPU of a plan.
pub struct Member {
    /// The device.
    pub context: Context,
    /// What it launches.
    pub launches: Launches,
    /// The kernels that `launches` number, loaded there.
    pub kernels: Vec<Kernel>,
    /// The kernel that tries its way to the others.
    pub probe: Probe,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ranks {:?} on {:?}", self.launches.ranks, self.context)
    }
}

/// What a device's thread is asked for.
enum Job {
    Run {
        index: usize,
        syms: SymValues,
        params: Vec<Vec<i32>>,
        show: bool,
    },
    Poison(bool),
    /// The thread dies in the next run.
    Die,
}

/// What a device's thread saw of an output, until the thread that runs the step shows it.
#[derive(Debug)]
struct Kept {
    rank: usize,
    step: usize,
    output: usize,
    shape: Vec<usize>,
    words: Words,
}

#[derive(Debug)]
enum Words {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Kept {
    fn of(s: Seen<'_>) -> Kept {
        let words = match s.data {
            Output::F32(v) => Words::F32(v.to_vec()),
            Output::I32(v) => Words::I32(v.to_vec()),
        };
        Kept { rank: s.rank, step: s.step, output: s.output, shape: s.shape.to_vec(), words }
    }

    fn show(&self, see: &mut Observer<'_>) -> Result<(), RuntimeError> {
        let data = match &self.words {
            Words::F32(v) => Output::F32(v),
            Words::I32(v) => Output::I32(v),
        };
        see(Seen { rank: self.rank, step: self.step, output: self.output, shape: &self.shape, data })
    }
}

/// How a step of a device ended, with what it showed.
type Ended = Result<Vec<Kept>, RuntimeError>;

/// A device with its thread.
#[derive(Debug)]
struct Worker {
    to: Option<Sender<Job>>,
    from: Receiver<Ended>,
    thread: Option<JoinHandle<()>>,
}

/// All ranks of a plan on several GPUs.
#[derive(Debug)]
pub struct CudaGroup {
    // Dropped in this order: what kernels use last.
    workers: Vec<Worker>,
    first: CudaDevice,
    links: Arc<Links>,
    limit: Duration,
    /// Ranks and the name of each device.
    names: Vec<(Vec<usize>, String)>,
    /// For each phase the steps in which devices meet.
    meetings: Vec<Vec<usize>>,
    /// Meetings before the step that runs.
    met: u64,
    /// Whether the thread that runs the step dies in the next one.
    dies: bool,
    /// What ended the group.
    ended: Option<String>,
    bytes: Vec<u64>,
    starts: Vec<usize>,
}

/// The loop of a device's thread.
fn serve(mut device: CudaDevice, plan: &Plan, jobs: &Receiver<Job>, done: &Sender<Ended>) {
    let mut dies = false;
    loop {
        let start = Instant::now();
        let job = loop {
            match jobs.try_recv() {
                Ok(job) => break job,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if start.elapsed() < SPIN => std::hint::spin_loop(),
                Err(TryRecvError::Empty) => match jobs.recv() {
                    Ok(job) => break job,
                    Err(_) => return,
                },
            }
        };
        match job {
            Job::Poison(on) => device.set_poison(on),
            Job::Die => dies = true,
            Job::Run { index, syms, params, show } => {
                let run = || {
                    if dies {
                        die();
                    }
                    let mut kept = Vec::new();
                    let mut see = |s: Seen<'_>| {
                        kept.push(Kept::of(s));
                        Ok(())
                    };
                    let see: Option<Observer<'_>> = if show { Some(&mut see) } else { None };
                    device.run(plan, index, &[], &syms, &params, see).map(|()| kept)
                };
                let ended = guarded(run);
                if ended.is_err() {
                    device.guard.halt();
                }
                if done.send(ended).is_err() {
                    return;
                }
            }
        }
    }
}

impl CudaGroup {
    /// Brings a plan to its devices. The first member has rank 0; `folders` are where NCCL may be; `progress` gets
    /// the bytes of a device's weights that are on their way and all of them.
    ///
    /// # Errors
    /// Devices that do not reach each other; as [`CudaDevice::new`] of any.
    pub fn new(
        members: Vec<Member>,
        plan: &Plan,
        weights: &[Weights],
        options: CudaOptions,
        (wanted, folders): (Wanted, &[PathBuf]),
        progress: &dyn Fn(u64, u64),
    ) -> Result<CudaGroup, RuntimeError> {
        let failed = |source| RuntimeError::Cuda { step: "load".into(), source };
        let bad = |why: &str| failed(CudaError::Program(why.into()));
        let meets = members.first().and_then(|m| m.launches.meets.clone());
        let meets = meets.ok_or_else(|| bad("its devices do not meet"))?;
        if members.len() != meets.devices || members[0].launches.ranks.first() != Some(&0) {
            return Err(bad("it is for other devices"));
        }
        let contexts: Vec<Context> = members.iter().map(|m| m.context.clone()).collect();
        let probes: Vec<Probe> = members.iter().map(|m| m.probe.clone()).collect();
        // Kernels give up later than the host, which knows more.
        let links = Links::open(&contexts, &meets, wanted, &probes, options.limit + SLACK, folders);
        let links = links.map_err(failed)?;
        let links = Arc::new(links);
        let names = members.iter().map(|m| (m.launches.ranks.clone(), format!("{:?}", m.context))).collect();
        let meetings = members[0].launches.phases.iter().map(|p| p.meetings.clone()).collect();
        let shared = Arc::new(plan.clone());
        let (mut devices, mut bytes) = (Vec::new(), Vec::new());
        for (me, Member { context, launches, kernels, .. }) in members.into_iter().enumerate() {
            let places = Some(links.places(me).map_err(failed)?);
            let d = CudaDevice::member(
                &context,
                plan,
                WeightSource::Stored(weights),
                launches,
                kernels,
                options,
                places,
                progress,
            )?;
            bytes.push(d.bytes() + links.bytes());
            devices.push(d);
        }
        if links.backend() == Backend::Nccl {
            // The library joins its devices where they first exchange something, so none may wait for another.
            std::thread::scope(|scope| {
                let start = |d| scope.spawn(move || guarded(|| CudaDevice::capture_all(d, plan)));
                let threads: Vec<_> = devices.iter_mut().map(start).collect();
                let lost = |_| Err(RuntimeError::Died("it panicked".into()));
                threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(lost))
            })?;
        }
        let mut devices = devices.into_iter();
        let first = devices.next().ok_or_else(|| bad("it has no device"))?;
        let starts = (0..plan.phases.len()).map(|i| first.starts(i)).collect();
        let mut workers = Vec::new();
        for (i, device) in devices.enumerate() {
            let ((to, jobs), (done, from)) = (channel(), channel());
            let plan = shared.clone();
            let run = move || serve(device, &plan, &jobs, &done);
            let thread = std::thread::Builder::new().name(format!("gpu-{}", i + 1)).spawn(run);
            let thread = thread.map_err(|e| RuntimeError::Threads(format!("a GPU's thread cannot be started: {e}")))?;
            workers.push(Worker { to: Some(to), from, thread: Some(thread) });
        }
        let (limit, met, ended) = (options.limit, 0, None);
        let dies = false;
        Ok(CudaGroup { workers, first, links, limit, names, meetings, met, dies, ended, bytes, starts })
    }

    /// How the devices reach each other.
    pub fn backend(&self) -> Backend {
        self.links.backend()
    }

    /// Why they do not reach each other in the first way that was tried.
    pub fn note(&self) -> Option<&str> {
        self.links.note()
    }

    /// Bytes of each device's memory that the plan takes.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Launches of a step of phase `index` on the first device.
    pub fn starts(&self, index: usize) -> usize {
        self.starts.get(index).copied().unwrap_or(0)
    }

    /// The answers of the other devices.
    fn others(&mut self) -> Vec<Ended> {
        let patience = self.limit + 2 * SLACK;
        let lost = |e| {
            let why = if e == RecvTimeoutError::Timeout { "it does not answer" } else { "it has ended" };
            Err(RuntimeError::Died(why.into()))
        };
        let answers = self.workers.iter().map(|w| w.from.recv_timeout(patience).unwrap_or_else(lost));
        answers.enumerate().map(|(i, ended)| ended.map_err(|e| self.named(i + 1, e))).collect()
    }

    /// A thread that died is named by its ranks and its GPU.
    fn named(&self, device: usize, e: RuntimeError) -> RuntimeError {
        let (RuntimeError::Died(said), Some((ranks, name))) = (&e, self.names.get(device)) else { return e };
        let source = Box::new(RuntimeError::Died(format!("{said} ({} on {name})", rank_list(ranks))));
        RuntimeError::Rank { rank: ranks.first().copied().unwrap_or(0), source }
    }

    /// One message of all that devices say.
    fn verdict(&self, phase: &Phase, index: usize, ends: Vec<RuntimeError>) -> RuntimeError {
        let stopped = |e: &RuntimeError| matches!(of_cuda(e), Some(CudaError::Stopped));
        let late = |e: &RuntimeError| matches!(of_cuda(e), Some(CudaError::Late { .. }));
        let waits = self.links.waits();
        // What failed by itself is the cause; a device that is late may only have waited.
        let mut ends = ends;
        if let Some(i) = ends.iter().position(|e| !stopped(e) && !late(e)) {
            return ends.swap_remove(i);
        }
        let meetings = &self.meetings[index];
        let list = |d: usize| match self.names.get(d) {
            Some((ranks, device)) => format!("{} on {device}", rank_list(ranks)),
            None => format!("device {d}"),
        };
        let step = |at: u64| at.checked_sub(self.met).and_then(|i| meetings.get(i as usize));
        let told = waits.iter().map(|(d, peer, at)| {
            let what = step(*at).and_then(|s| phase.steps.get(*s));
            let what = what.map_or("a collective".into(), |s| format!("`{}` ({})", s.name, s.kernel.name()));
            format!("{} waited for {} in {what}", list(*d), list(*peer))
        });
        let told: Vec<String> = told.collect();
        if told.is_empty() {
            return match ends.iter().position(late) {
                Some(i) => ends.swap_remove(i),
                None => ends.swap_remove(0),
            };
        }
        let message = format!("the devices did not meet within {} s: {}", self.limit.as_secs_f64(), told.join("; "));
        RuntimeError::Cuda { step: phase.name.clone(), source: CudaError::Meeting(message) }
    }
}

/// What a device said, also where its error names a rank.
fn of_cuda(e: &RuntimeError) -> Option<&CudaError> {
    match e {
        RuntimeError::Cuda { source, .. } => Some(source),
        RuntimeError::Rank { source, .. } => of_cuda(source),
        _ => None,
    }
}

/// `rank 3`, `ranks 0 to 3`, `ranks 0, 2`.
fn rank_list(ranks: &[usize]) -> String {
    match ranks {
        [one] => format!("rank {one}"),
        [first, .., last] if last - first + 1 == ranks.len() => format!("ranks {first} to {last}"),
        _ => format!("ranks {}", ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl Device for CudaGroup {
    fn set_poison(&mut self, on: bool) {
        self.first.set_poison(on);
        self.workers.iter().filter_map(|w| w.to.as_ref()).for_each(|to| {
            // A thread that has ended says so at the next step.
            let _ = to.send(Job::Poison(on));
        });
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        mut see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let phase = &plan.phases[index];
        if let Some(why) = &self.ended {
            let source = CudaError::Meeting(format!("an earlier step ended the devices: {why}"));
            return Err(RuntimeError::Cuda { step: phase.name.clone(), source });
        }
        for w in &self.workers {
            let job = Job::Run { index, syms: syms.clone(), params: params.to_vec(), show: see.is_some() };
            if w.to.as_ref().is_none_or(|to| to.send(job).is_err()) {
                self.links.halt();
            }
        }
        let own = see.as_mut().map(|s| &mut **s as Observer<'_>);
        let dies = self.dies;
        let first = guarded(|| {
            if dies {
                die();
            }
            self.first.run(plan, index, weights, syms, params, own)
        });
        let first = first.map_err(|e| self.named(0, e));
        if first.is_err() {
            self.links.halt();
        }
        let (mut ends, mut shown): (Vec<RuntimeError>, Vec<Kept>) = (first.err().into_iter().collect(), Vec::new());
        for ended in self.others() {
            match ended {
                Ok(kept) => shown.extend(kept),
                Err(e) => ends.push(e),
            }
        }
        if ends.is_empty() {
            if let Some(see) = &mut see {
                shown.iter().try_for_each(|k| k.show(see))?;
            }
            self.met += self.meetings[index].len() as u64;
            return Ok(());
        }
        let e = self.verdict(phase, index, ends);
        self.ended = Some(e.to_string());
        Err(e)
    }

    fn kill(&mut self, rank: usize, _: usize) -> Result<(), RuntimeError> {
        let none = || RuntimeError::Request(format!("there is no rank {rank}"));
        match self.names.iter().position(|(ranks, _)| ranks.contains(&rank)).ok_or_else(none)? {
            0 => self.dies = true,
            d => {
                let to = self.workers.get(d - 1).and_then(|w| w.to.as_ref()).ok_or_else(none)?;
                to.send(Job::Die).map_err(|_| none())?;
            }
        }
        Ok(())
    }

    fn result(&self, plan: &Plan, phase: &Phase, name: &str, syms: &SymValues) -> Result<&[f32], RuntimeError> {
        self.first.result(plan, phase, name, syms)
    }
}

impl Drop for CudaGroup {
    fn drop(&mut self) {
        for w in &mut self.workers {
            w.to = None;
            if w.thread.take().is_some_and(|t| t.join().is_err()) {
                tracing::warn!("a GPU's thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CudaError, RuntimeError, of_cuda, rank_list};

    #[test]
    fn who_was_stopped_is_seen_behind_its_rank() {
        let stopped = RuntimeError::Cuda { step: "s".into(), source: CudaError::Stopped };
        let of_rank = RuntimeError::Rank { rank: 1, source: Box::new(stopped) };
        assert_eq!(of_cuda(&of_rank), Some(&CudaError::Stopped));
        let died = RuntimeError::Rank { rank: 1, source: Box::new(RuntimeError::Died("it".into())) };
        assert_eq!(of_cuda(&died), None);
    }

    #[test]
    fn ranks_are_listed_briefly() {
        assert_eq!(rank_list(&[3]), "rank 3");
        assert_eq!(rank_list(&[4, 5, 6]), "ranks 4 to 6");
        assert_eq!(rank_list(&[0, 2]), "ranks 0, 2");
    }
}
