//! Each launch held to what its contract means, on what it read on each rank. Owns the rows of pools that ranks hold, as
//! steps put them there; compares nothing with a model.

use std::collections::{BTreeMap, HashMap};

use glmc_ir::entities::BufId;
use glmc_ir::interp::Arith;
use glmc_ir::interp::launch::{Launch, cut};
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::placement::{local_type, strip};
use glmc_ir::plan::{Arg, Mem, Phase, Plan, Step};
use glmc_ir::shard_map::Shard;
use glmc_ir::tensor::Tensor;
use glmc_ir::ty::{PendingKind, SymValues};
use glmc_runtime::load::Loaded;

use super::choices::{follow_route, follow_top};
use super::metric::{Off, rms};
use super::record::Recorded;

/// Entries of the weights of a launch up to which its meaning is worth its time.
const MOST: u64 = 1 << 28;
/// Scores of one launch that differ by less than this share of their RMS make a thin choice.
const THIN: f64 = 1e-5;

/// A rank's rows of a pool, by their place in its part.
type Rows = BTreeMap<u64, Vec<f64>>;

#[derive(Default)]
pub(super) struct Launches {
    /// By number of the pool and rank.
    pools: HashMap<(usize, usize), Rows>,
}

/// Where a launch is worked out.
pub(super) struct At<'a> {
    pub(super) plan: &'a Plan,
    pub(super) phase: &'a Phase,
    pub(super) weights: &'a Loaded,
    pub(super) recorded: &'a Recorded,
    /// Which step and output writes a buffer.
    pub(super) made: &'a HashMap<BufId, (usize, usize)>,
}

impl At<'_> {
    fn ranks(&self) -> usize {
        self.plan.target.ranks as usize
    }

    fn syms(&self) -> &SymValues {
        &self.recorded.syms
    }

    /// For each token the place of its row in a rank's part of a pool, if it is there.
    pub(super) fn own_rows(&self, step: &Step, rank: usize) -> Option<Vec<Option<u64>>> {
        let (Some(Mem::State(s)), Some(Mem::Param(p))) =
            (step.args.first().map(|a| a.mem), step.args.get(1).map(|a| a.mem))
        else {
            return None;
        };
        let rows = self.recorded.params.get(p.as_u32() as usize)?;
        let ty = &self.plan.states.get(s)?.ty;
        let shard = Shard::of(ty, &self.plan.mesh, rank as u64, self.syms()).ok()?;
        Some(rows.iter().map(|row| shard.place(0, u64::try_from(*row).ok()?)).collect())
    }
}

impl Launches {
    /// Keeps the rows that a step put into a pool.
    pub(super) fn keep(&mut self, at: &At<'_>, i: usize, step: &Step) {
        let Some(Mem::State(s)) = step.args.first().map(|a| a.mem) else { return };
        for rank in 0..at.ranks() {
            let Some(own) = at.own_rows(step, rank) else { continue };
            let (part, tokens): (_, Vec<Option<u64>>) = match (&step.kernel, step.args.get(2).map(|a| a.mem)) {
                (Kernel::AppendRow(_), _) => {
                    (at.recorded.parts.get(&(i, 0)), own.into_iter().flatten().map(Some).collect())
                }
                (Kernel::Append(_), Some(Mem::Buf(b))) => (at.made.get(&b).and_then(|p| at.recorded.parts.get(p)), own),
                _ => return,
            };
            let Some(Some(t)) = part.and_then(|p| p.get(rank)) else { continue };
            let Ok(v) = t.floats() else { continue };
            let width = v.len().checked_div(tokens.len()).unwrap_or(0).max(1);
            let rows = self.pools.entry((s.as_u32() as usize, rank)).or_default();
            for (to, row) in tokens.iter().zip(v.chunks_exact(width)) {
                if let Some(to) = to {
                    rows.insert(*to, row.to_vec());
                }
            }
        }
    }

    /// How far each output of a step is off on each rank; rows that go into a pool are output 0.
    ///
    /// # Errors
    /// Why a launch cannot be held to its meaning, for people.
    pub(super) fn judge(&self, at: &At<'_>, i: usize, step: &Step) -> Result<Vec<Vec<Off>>, String> {
        let size = |a: &Arg| match a.mem {
            Mem::Weight(w) => at.plan.weights[w].ty.elems(at.syms()).unwrap_or(u64::MAX),
            _ => 0,
        };
        if step.args.iter().map(size).fold(0, u64::saturating_add) > MOST {
            return Err("too large to be interpreted".into());
        }
        let told = |e: glmc_ir::tensor::EvalError| e.to_string();
        let launch = Launch::new(step, &at.plan.mesh, at.syms(), Arith::Real).map_err(told)?;
        let mut wants: Vec<Vec<Tensor>> = Vec::new();
        if launch.meets() {
            let [x, _] = step.args.as_slice() else { return Err("no operand".into()) };
            let parts = (0..at.ranks()).map(|r| self.read(at, x, r)).collect::<Result<Vec<_>, _>>()?;
            wants = launch.together(&parts).map_err(told)?.into_iter().map(|t| vec![t]).collect();
        } else {
            let mut first: Option<Vec<Tensor>> = None;
            for rank in 0..at.ranks() {
                let own = Launch::inputs(step).map(|a| self.read(at, a, rank)).collect::<Result<Vec<_>, _>>()?;
                // Ranks that hold all of what they read mostly hold the same.
                let whole = step.args.iter().all(|a| strip(&a.ty) == a.ty);
                let same = whole && first.as_ref().is_some_and(|f| *f == own);
                let want =
                    if same { wants[0].clone() } else { launch.on_rank(rank as u64, own.clone()).map_err(told)? };
                wants.push(want);
                first.get_or_insert(own);
            }
        }
        self.compare(at, i, step, wants)
    }

    fn compare(
        &self,
        at: &At<'_>,
        i: usize,
        step: &Step,
        mut wants: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Off>>, String> {
        if let Kernel::Append(_) = step.kernel {
            // What it appends was judged where it was made; that it was put there shows where it is read.
            return Ok(Vec::new());
        }
        if let Kernel::AppendRow(_) = step.kernel {
            for (rank, want) in wants.iter_mut().enumerate() {
                let own = at.own_rows(step, rank).ok_or("no rows")?;
                let pool = want.first().ok_or("no pool")?;
                let (v, width) = (pool.floats().map_err(|e| e.to_string())?, pool.shape.get(1).copied().unwrap_or(1));
                let own: Vec<u64> = own.into_iter().flatten().collect();
                let rows = own.iter().flat_map(|r| v.iter().skip(*r as usize * width).take(width).copied()).collect();
                *want = vec![Tensor::f(vec![own.len(), width], rows)];
            }
        } else {
            self.follow(at, i, step, &mut wants)?;
        }
        let outputs = wants.first().map_or(0, Vec::len);
        let mut offs = Vec::new();
        for k in 0..outputs {
            let have = at.recorded.all((i, k)).ok_or("it was not shown on every rank")?;
            let unit = rms(wants.iter().filter_map(|w| w.get(k)));
            offs.push(have.iter().zip(&wants).map(|(h, w)| Off::between(h, &w[k], unit)).collect());
        }
        Ok(offs)
    }

    /// Lets the meaning choose as the device did where both are right.
    fn follow(&self, at: &At<'_>, i: usize, step: &Step, wants: &mut [Vec<Tensor>]) -> Result<(), String> {
        let told = |e: glmc_ir::tensor::EvalError| e.to_string();
        let pending = step.args.iter().any(|a| matches!(a.ty.pending, Some((PendingKind::TopK, _))));
        for (rank, want) in wants.iter_mut().enumerate() {
            let device = at.recorded.parts.get(&(i, 0)).and_then(|p| p.get(rank)).and_then(Option::as_ref);
            let (Some(device), Some(a)) = (device, step.args.first()) else { continue };
            match &step.kernel {
                Kernel::TopK(_) if !pending => {
                    follow_top(&self.read(at, a, rank)?, device, want, THIN).map_err(told)?
                }
                Kernel::Route(r) => {
                    let bias = step.args.iter().skip(1).find(|b| b.access == Access::Read);
                    let bias = bias.map(|b| self.read(at, b, rank)).transpose()?;
                    let logits = self.read(at, a, rank)?;
                    follow_route(&r.0, &logits, bias.as_ref(), device, want, THIN).map_err(told)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a rank read as an argument.
    fn read(&self, at: &At<'_>, a: &Arg, rank: usize) -> Result<Tensor, String> {
        let local = local_type(&a.ty, &at.plan.mesh, rank as u64, at.syms()).map_err(|d| d.message)?;
        let shape = local.shape(at.syms()).ok_or("a size is unknown")?;
        let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
        let seen = |t: &Tensor| -> Result<Tensor, String> {
            if t.len() != shape.iter().product::<usize>() {
                return Err(format!("{:?} is read as {shape:?}", t.shape));
            }
            Ok(Tensor { shape: shape.clone(), data: t.data.clone() })
        };
        match a.mem {
            Mem::Weight(w) => {
                let weights = at.weights.weights.get(rank).ok_or("no such rank")?;
                Tensor::from_bytes(local.elem, shape, weights.bytes(w)).map_err(|e| e.to_string())
            }
            Mem::State(s) => {
                let width = shape.iter().skip(1).product::<usize>();
                let mut all = vec![f64::NAN; shape.iter().product()];
                for (row, v) in self.pools.get(&(s.as_u32() as usize, rank)).into_iter().flatten() {
                    let to = all.get_mut(*row as usize * width..(*row as usize + 1) * width);
                    to.ok_or("a row outside its pool")?.copy_from_slice(v);
                }
                Ok(Tensor::f(shape, all))
            }
            Mem::Param(p) => {
                let ty = &at.phase.params.get(p).ok_or("no such parameter")?.ty;
                let whole = ty.shape(at.syms()).ok_or("a size is unknown")?.into_iter().map(|n| n as usize).collect();
                let whole = at.recorded.param(p.as_u32() as usize, whole).ok_or("a parameter of another size")?;
                let parts = cut(&whole, ty, &at.plan.mesh, at.syms()).map_err(|e| e.to_string())?;
                seen(parts.get(rank).ok_or("no such rank")?)
            }
            Mem::Buf(b) => {
                let part = at.made.get(&b).and_then(|p| at.recorded.parts.get(p)).and_then(|p| p.get(rank));
                seen(part.and_then(Option::as_ref).ok_or("what it reads was not shown")?)
            }
        }
    }
}
