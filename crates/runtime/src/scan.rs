//! The scan of what steps write (`--check`): the first number that is none, or that nothing wrote, stops the run. Owns
//! what counts as such; devices poison outputs before a step and show them after it.
//!
//! Scanned is every output of every step on every rank, and each row that a step puts into a pool. Left out are rows of
//! padded tokens (row -1) and of logits that nobody wants (`out` -1): nothing that counts reads them. Negative infinity
//! is a number where it says that a position is not visible: in indexer scores, and in parts of a softmax or of a
//! selection that are not merged yet.

use std::fmt;

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::{Arg, Mem, Phase, PhaseKind, Plan, Step};
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::{Extent, PendingKind};

use crate::device::{Output, POISON, Seen};
use crate::engine::Running;
use crate::error::RuntimeError;

/// A step that wrote no number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsound {
    /// Name of the phase.
    pub phase: String,
    /// Index of the step in its phase.
    pub step: usize,
    /// Contract of the step.
    pub kernel: &'static str,
    /// Provenance of the value.
    pub value: String,
    /// Layer of the value, if it belongs to one.
    pub layer: Option<u64>,
    /// The rank.
    pub rank: usize,
    /// Coordinates of the first such element in the rank's part.
    pub at: Vec<usize>,
    /// Shape of the rank's part.
    pub shape: Vec<usize>,
    /// What is there.
    pub what: &'static str,
}

impl fmt::Display for Unsound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer {
            write!(f, "layer {layer}: ")?;
        }
        let Unsound { value, kernel, step, phase, rank, what, at, shape, .. } = self;
        write!(f, "`{value}`, made by {kernel} (step {step} of phase {phase}) on rank {rank}, ")?;
        write!(f, "holds {what} at {at:?} of {shape:?}")
    }
}

/// The layer that a value's name speaks of: the first part between dots that is a number.
pub fn layer_of(name: &str) -> Option<u64> {
    name.split('.').find_map(|part| part.parse().ok())
}

/// What a plan's steps may write.
#[derive(Debug)]
pub(crate) struct Scan {
    /// For each phase and buffer, whether negative infinity is a number there.
    hidden: Vec<Vec<bool>>,
}

impl Scan {
    pub(crate) fn new(plan: &Plan) -> Self {
        Scan { hidden: plan.phases.iter().map(hidden).collect() }
    }

    /// Judges one output.
    ///
    /// # Errors
    /// [`RuntimeError::Unsound`].
    pub(crate) fn judge(&self, plan: &Plan, run: &Running<'_>, seen: &Seen<'_>) -> Result<(), RuntimeError> {
        let phase = &plan.phases[run.phase];
        let Some(step) = phase.steps.get(seen.step) else { return Ok(()) };
        let arg = step.args.iter().filter(|a| a.access == Access::Write).nth(seen.output);
        let hidden = match arg.map(|a| a.mem) {
            Some(Mem::Buf(b)) => self.hidden[run.phase].get(b.as_u32() as usize).copied().unwrap_or(false),
            _ => false,
        };
        let number = |x: &f32| x.is_finite() || hidden && *x == f32::NEG_INFINITY;
        let bad = |i: usize| match seen.data {
            Output::F32(v) => v.get(i).filter(|x| !number(x)).map(|x| name_of(*x)),
            Output::I32(v) => v.get(i).filter(|x| x.cast_unsigned() == POISON).map(|_| UNWRITTEN),
        };
        let all = match seen.data {
            Output::F32(v) => v.len(),
            Output::I32(v) => v.len(),
        };
        let Some(from) = (0..all).find(|i| bad(*i).is_some()) else { return Ok(()) };
        // Seldom: only now is it asked which rows count.
        let live = Live::of(plan, phase, run, arg, seen);
        let found = (from..all).filter(|i| live.counts(*i)).find_map(|i| bad(i).map(|what| (i, what)));
        let Some((at, what)) = found else { return Ok(()) };
        Err(RuntimeError::Unsound(Box::new(Unsound {
            phase: phase.name.clone(),
            step: seen.step,
            kernel: step.kernel.name(),
            value: value_of(phase, step, arg),
            layer: layer_of(&value_of(phase, step, arg)),
            rank: seen.rank,
            at: coordinates(at, seen.shape),
            shape: seen.shape.to_vec(),
            what,
        })))
    }
}

const UNWRITTEN: &str = "an element that was not written";

fn name_of(x: f32) -> &'static str {
    match x {
        x if x.to_bits() == POISON => UNWRITTEN,
        x if x.is_nan() => "NaN",
        _ => "infinity",
    }
}

/// Provenance of what a step wrote.
fn value_of(phase: &Phase, step: &Step, arg: Option<&Arg>) -> String {
    match arg.map(|a| a.mem) {
        Some(Mem::Buf(b)) => phase.buffers.get(b).map_or(step.name.clone(), |b| b.name.clone()),
        _ => step.name.clone(),
    }
}

fn coordinates(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|n| {
            let i = flat % n.max(&1);
            flat /= n.max(&1);
            i
        })
        .collect();
    at.reverse();
    at
}

/// For each buffer of a phase, whether it may say by negative infinity that a position is not visible.
fn hidden(phase: &Phase) -> Vec<bool> {
    let mut out = vec![false; phase.buffers.len()];
    for step in &phase.steps {
        let scores = matches!(step.kernel, Kernel::Indexer(_) | Kernel::PagedIndexer(_));
        // A collective carries what it is given.
        let carried = step.kernel.collective().is_some()
            && step.args.iter().any(|a| a.access == Access::Read && marked(&out, a.mem));
        for a in step.args.iter().filter(|a| a.access == Access::Write) {
            let parts = matches!(a.ty.pending, Some((PendingKind::Softmax | PendingKind::TopK | PendingKind::Max, _)));
            if let (Mem::Buf(b), true) = (a.mem, scores || carried && !merges(step) || parts)
                && let Some(o) = out.get_mut(b.as_u32() as usize)
            {
                *o = true;
            }
        }
    }
    out
}

/// Whether a collective ends a softmax or a selection: its result holds numbers again.
fn merges(step: &Step) -> bool {
    let ends = |a: &Arg| matches!(a.ty.pending, Some((PendingKind::Softmax | PendingKind::TopK, _)));
    let pending = |access| step.args.iter().any(|a| a.access == access && ends(a));
    pending(Access::Read) && !pending(Access::Write)
}

fn marked(out: &[bool], mem: Mem) -> bool {
    matches!(mem, Mem::Buf(b) if out.get(b.as_u32() as usize).copied().unwrap_or(false))
}

/// Which rows of an output count.
struct Live {
    /// For each row whether it does, and how many elements of a row follow each other; none: all count.
    rows: Option<(Vec<bool>, usize)>,
}

impl Live {
    fn of(plan: &Plan, phase: &Phase, run: &Running<'_>, arg: Option<&Arg>, seen: &Seen<'_>) -> Live {
        let all = Live { rows: None };
        let Some(arg) = arg else { return all };
        // The dim of tokens, or of rows of logits.
        let sym = |s: &str| arg.ty.dims.iter().position(|d| matches!(&d.extent, Extent::Sym(x) if *x == s.into()));
        let bucket = |n: u64| arg.ty.dims.iter().position(|d| d.extent == Extent::Const(n));
        let found = match phase.kind {
            PhaseKind::Prefill => sym("T").map(|d| (d, run.tokens)).or(sym("R").map(|d| (d, run.rows))),
            PhaseKind::Decode => bucket(phase.tokens).map(|d| (d, run.tokens)),
        };
        let (Some((dim, live)), Ok(shard)) = (found, Shard::of(&arg.ty, &plan.mesh, seen.rank as u64, run.syms)) else {
            return all;
        };
        let rows = shard.ranges[dim].iter().flat_map(|r| r.clone()).map(|i| i < live as u64).collect();
        Live { rows: Some((rows, seen.shape.iter().skip(dim + 1).product::<usize>().max(1))) }
    }

    fn counts(&self, flat: usize) -> bool {
        match &self.rows {
            Some((rows, inner)) => rows.get(flat / inner % rows.len().max(1)).copied().unwrap_or(true),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_layer() {
        assert_eq!(
            (layer_of("blk.12.ffn_out"), layer_of("_blk.3.unused0"), layer_of("logits")),
            (Some(12), Some(3), None)
        );
    }

    #[test]
    fn what_is_no_number_has_a_name() {
        assert!(f32::from_bits(POISON).is_nan() && POISON.cast_signed() > 0);
        assert_eq!([f32::NAN, f32::INFINITY, f32::from_bits(POISON)].map(name_of), ["NaN", "infinity", UNWRITTEN]);
        assert_eq!(coordinates(11, &[2, 3, 4]), [0, 2, 3]);
    }
}
