//! Owns the time of collectives, alpha and beta, aware of sockets. A form is a list of stages with a rendezvous after
//! each; a stage takes `latency + max(bytes out of a rank / link, bytes across sockets / socket link)`.

use glmc_ir::collective::CollectiveKind;
use glmc_ir::diag::Diagnostic;
use glmc_ir::kernel::Access;
use glmc_ir::placement::Mesh;
use glmc_ir::plan::Step;
use glmc_ir::shard_map::group;
use glmc_ir::ty::{Axis, SymValues, TensorType};

use crate::target::{Sockets, Target};

/// How a collective is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Everyone sends everything to everyone: one rendezvous.
    OneShot,
    /// Each rank owns a part, reduces it and sends it round: two.
    TwoShot,
    /// One-shot within each socket, and a partner in the other socket.
    Islands,
    /// Owners within each socket exchange with their partners: three rendezvous, fewest bytes across.
    Owners,
}

/// What a collective costs in its cheapest form.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CollectiveCost {
    /// The form.
    pub form: Form,
    /// Seconds without the launch.
    pub seconds: f64,
    /// Memory of a rank that peers write into, at most: two slots of what it receives (which is what it sends) and of
    /// its own part, for each stage, and the flags.
    pub slot_bytes: u64,
}

/// A collective that a plan asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// What is done.
    pub kind: CollectiveKind,
    /// The mesh axis whose ranks take part.
    pub axis: Axis,
    /// Its size, as [`collective`] counts it.
    pub bytes: u64,
}

impl Exchange {
    /// What `step` exchanges with its symbols at these values; `None` if nothing travels.
    ///
    /// # Errors
    /// See [`glmc_ir::shard_map::CODES`].
    pub fn of(step: &Step, mesh: &Mesh, syms: &SymValues) -> Result<Option<Exchange>, Diagnostic> {
        let Some(c) = step.kernel.collective() else { return Ok(None) };
        let ty = |access| step.args.iter().find(|a| a.access == access).map(|a| &a.ty);
        let (Some(arg), Some(result)) = (ty(Access::Read), ty(Access::Write)) else { return Ok(None) };
        Exchange::between(&c, arg, result, mesh, syms)
    }

    /// What a collective exchanges that makes `result` of `arg`; `None` if nothing travels.
    ///
    /// # Errors
    /// See [`glmc_ir::shard_map::CODES`].
    pub fn between(
        c: &glmc_ir::collective::Collective,
        arg: &TensorType,
        result: &TensorType,
        mesh: &Mesh,
        syms: &SymValues,
    ) -> Result<Option<Exchange>, Diagnostic> {
        let p = c.payload(arg, result, mesh, syms)?;
        let bytes = match c.kind {
            CollectiveKind::Shard { .. } => return Ok(None),
            CollectiveKind::AllGather => p.after,
            _ => p.before,
        };
        Ok(Some(Exchange { kind: c.kind, axis: c.axis.clone(), bytes }))
    }

    /// What it costs the slowest rank of `mesh`; `None` if nothing joins the ranks.
    pub fn cost(&self, target: &Target, mesh: &Mesh) -> Option<CollectiveCost> {
        let all: u64 = mesh.values().product();
        let mut slowest: Option<CollectiveCost> = None;
        for rank in 0..all {
            let ranks: Vec<u32> = group(mesh, &self.axis, rank)?.into_iter().map(|r| r as u32).collect();
            // Each group once, for its first rank.
            if ranks.first().is_none_or(|r| u64::from(*r) != rank) {
                continue;
            }
            let cost = collective(target, &ranks, self.kind, self.bytes)?;
            if slowest.is_none_or(|s| cost.seconds > s.seconds) {
                slowest = Some(cost);
            }
        }
        slowest
    }
}

/// Slots in rotation, so that a rank ahead never writes what another still reads.
const SLOTS: u64 = 2;
/// Flags of one peer in one slot: a line of 128 bytes for each of at most 32 blocks.
const FLAG_BYTES: u64 = 128 * 32;

/// Bytes between two rendezvous.
struct Stage {
    /// Out of each rank.
    out: f64,
    /// From one socket to the other, all ranks together.
    across: f64,
    /// Whether each rank sends across to every rank there.
    scattered: bool,
}

/// The cost of `kind` over `ranks` of `target` on `bytes`: what each rank holds before an `AllReduce`, `ReduceScatter`
/// or `AllToAll`, and after an `AllGather`. `None` if nothing joins the ranks. One rank alone pays nothing, and a
/// `Shard` sends nothing.
pub fn collective(target: &Target, ranks: &[u32], kind: CollectiveKind, bytes: u64) -> Option<CollectiveCost> {
    if ranks.len() <= 1 || matches!(kind, CollectiveKind::Shard { .. }) {
        return Some(CollectiveCost { form: Form::OneShot, seconds: 0.0, slot_bytes: 0 });
    }
    let link = target.link.as_ref()?;
    // Without peer access each byte goes into the host's memory and out again, and so does each flag.
    let hops = if link.p2p { 1.0 } else { 2.0 };
    let seconds = |stage: &Stage| {
        let mut latency = link.latency_s * hops;
        let mut time = stage.out * hops / link.bytes_per_s;
        if let Some(s) = target.sockets.as_ref().filter(|_| stage.across > 0.0) {
            latency += s.latency_s;
            time = time.max(stage.across / if stage.scattered { s.scattered_bytes_per_s } else { s.bytes_per_s });
        }
        latency + time
    };
    let n = ranks.len() as f64;
    let halves = target.sockets.as_ref().map_or((n, 0.0), |s| halves(s, ranks));
    let cost = |(form, stages): (Form, Vec<Stage>)| {
        let held = stages.iter().map(|s| s.out.ceil() as u64).fold(0, u64::saturating_add);
        let held = held.saturating_add(bytes.saturating_mul(stages.len() as u64));
        let flags = FLAG_BYTES * ranks.len() as u64;
        CollectiveCost {
            form,
            seconds: stages.iter().map(seconds).sum(),
            slot_bytes: SLOTS.saturating_mul(held.saturating_add(flags)),
        }
    };
    let costs = forms(kind, n, halves, bytes as f64).into_iter().map(cost);
    costs.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// How many of `ranks` are on each socket.
fn halves(s: &Sockets, ranks: &[u32]) -> (f64, f64) {
    let first = ranks.iter().filter(|r| s.ranks[0].contains(r)).count();
    (first as f64, (ranks.len() - first) as f64)
}

/// Every form of `kind`; of equal cost the first counts.
fn forms(kind: CollectiveKind, n: f64, (a, b): (f64, f64), bytes: f64) -> Vec<(Form, Vec<Stage>)> {
    let flat = |out: f64, across: f64| Stage { out, across: a * b * across, scattered: true };
    let inner = |out: f64| Stage { out, across: 0.0, scattered: false };
    let pairs = |out: f64, across: f64| Stage { out, across, scattered: false };
    let part = bytes / n;
    let mut forms = match kind {
        CollectiveKind::AllReduce => vec![
            (Form::OneShot, vec![flat((n - 1.0) * bytes, bytes)]),
            (Form::TwoShot, vec![flat((n - 1.0) * part, part), flat((n - 1.0) * part, part)]),
        ],
        _ => vec![(Form::OneShot, vec![flat((n - 1.0) * part, part)])],
    };
    // Partners exist where both sockets have as many ranks.
    if a == b && b > 0.0 {
        let (s, owned) = (a, bytes / a);
        match kind {
            CollectiveKind::AllReduce => forms.extend([
                (Form::Islands, vec![inner((s - 1.0) * bytes), pairs(bytes, s * bytes)]),
                (Form::Owners, vec![inner((s - 1.0) * owned), pairs(owned, bytes), inner((s - 1.0) * owned)]),
            ]),
            // Exchange parts with the partner, then both parts within the socket; a reduce-scatter is the reverse.
            CollectiveKind::AllGather => {
                forms.push((Form::Islands, vec![pairs(part, s * part), inner((s - 1.0) * 2.0 * part)]));
            }
            CollectiveKind::ReduceScatter { .. } => {
                forms.push((Form::Islands, vec![inner((s - 1.0) * 2.0 * part), pairs(part, s * part)]));
            }
            CollectiveKind::AllToAll { .. } | CollectiveKind::Shard { .. } => {}
        }
    }
    forms
}
