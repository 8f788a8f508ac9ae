//! Owns the cost of a plan's phases, rank by rank: what each launch moves on a rank, from its contract and placements.

use glmc_ir::diag::Diagnostic;
use glmc_ir::kernel::Access;
use glmc_ir::placement::{Mesh, local_type, strip};
use glmc_ir::plan::{Arg, Mem, Phase, PhaseKind, Plan, Recipe, Step, param};
use glmc_ir::ty::{Axis, SymValues, TensorType};
use indexmap::IndexMap;
use serde::Serialize;

use super::{Bytes, Classes, CollectiveCost, Exchange, Spread, Unit};
use crate::target::Target;

/// What one step of a phase costs on one rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PhaseCost {
    /// The phase.
    pub phase: String,
    /// Tokens of the step.
    pub tokens: u64,
    /// Visible positions that were assumed.
    pub context: u64,
    /// The whole step in seconds.
    pub step_s: f64,
    /// The same by class.
    pub classes_s: Classes,
    /// Bytes moved.
    pub bytes: Bytes,
    /// Floating-point operations.
    pub flops: u64,
    /// Launches, those of collectives too.
    pub launches: u64,
    /// Collectives in which something travels.
    pub collectives: u64,
    /// Seconds that launches beside collectives hide of them; the step is without them.
    pub hidden_s: f64,
    /// Collectives that launches run beside.
    pub overlapped: u64,
    /// Weights and caches alone at the target's bandwidth, in seconds: no step is faster.
    pub limit_s: f64,
}

impl PhaseCost {
    /// Adds a collective of the step.
    pub fn add_collective(&mut self, target: &Target, cost: &CollectiveCost) {
        self.classes_s.add_collective(target, cost);
        self.step_s = self.classes_s.total();
        self.launches += 1;
        self.collectives += 1;
    }

    /// A collective of the step travels for `seconds` while launches run beside it.
    pub fn hide(&mut self, seconds: f64) {
        self.classes_s.collectives -= seconds;
        self.step_s = self.classes_s.total();
        self.hidden_s += seconds;
        self.overlapped += 1;
    }

    /// How near the step is to the byte limit, at most 1.
    pub fn share(&self) -> f64 {
        if self.step_s > 0.0 { self.limit_s / self.step_s } else { 1.0 }
    }

    /// Tokens a second.
    pub fn tokens_per_s(&self) -> f64 {
        if self.step_s > 0.0 { self.tokens as f64 / self.step_s } else { 0.0 }
    }
}

/// Bytes that one decoded token costs, over all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TokenBytes {
    /// Weights that the token needs, each counted once however many ranks or launches read it.
    pub weights_once: u64,
    /// Weights read, by every launch of every rank.
    pub weights_read: u64,
    /// Cache rows read and written, by every launch of every rank.
    pub cache: u64,
}

/// One argument of a launch: what is moved of the global value.
pub(super) struct Moved<'a> {
    pub(super) mem: Mem,
    pub(super) ty: &'a TensorType,
    pub(super) bytes: u64,
    /// Of split experts: how the choices fall on the ranks.
    pub(super) spread: Option<Spread>,
}

/// What a launch moves and computes, on all ranks together as if no value were held twice.
pub(super) struct Launch<'a> {
    pub(super) moved: Vec<Moved<'a>>,
    pub(super) flops: u64,
    pub(super) unit: Unit,
    pub(super) spread: Option<Spread>,
}

impl Launch<'_> {
    /// Of the rank with the most.
    pub(super) fn flops_of_a_rank(&self, mesh: &Mesh) -> u64 {
        match self.spread {
            Some(s) => s.flops(self.flops),
            None => self.flops / ways(mesh, self.moved.iter().flat_map(|m| axes(m.ty))),
        }
    }
}

pub(super) fn launch<'a>(
    step: &'a Step,
    mesh: &Mesh,
    syms: &SymValues,
    target: &Target,
) -> Result<Launch<'a>, Diagnostic> {
    let inputs: Vec<_> = step.args.iter().filter(|a| a.access != Access::Write).collect();
    let global: Vec<TensorType> = inputs.iter().map(|a| strip(&a.ty)).collect();
    let types: Vec<&TensorType> = global.iter().collect();
    let reads = step.kernel.input_reads(&types, syms)?;
    let work = step.kernel.work(&types, syms)?;
    let placed: Vec<&TensorType> = inputs.iter().map(|a| &a.ty).collect();
    let spread = Spread::of(&step.kernel, &placed, mesh, syms);
    // Of what is whole on a rank it may read a part all the same: rows of a pool by its part of a table.
    let local = placed.iter().map(|t| local_type(t, mesh, 0, syms)).collect::<Result<Vec<_>, _>>();
    let local = local.ok().filter(|_| spread.is_none() && !mesh.is_empty());
    let own = local.and_then(|l| step.kernel.input_reads(&l.iter().collect::<Vec<_>>(), syms).ok());
    let of = |(i, (a, bytes)): (usize, (&&'a Arg, u64))| Moved {
        mem: a.mem,
        ty: &a.ty,
        bytes: match own.as_ref().and_then(|o| o.get(i)) {
            Some(own) if axes(&a.ty).next().is_none() => bytes.min(*own),
            _ => bytes,
        },
        spread: spread.filter(|_| Spread::cuts(&step.kernel, i, &a.ty)),
    };
    let mut moved: Vec<Moved<'_>> = inputs.iter().zip(reads).enumerate().map(of).collect();
    let mut updated = work.write;
    for a in step.args.iter().filter(|a| a.access == Access::Write) {
        let bytes = a.ty.bytes(syms).unwrap_or(0);
        updated = updated.saturating_sub(bytes);
        moved.push(Moved { mem: a.mem, ty: &a.ty, bytes, spread: None });
    }
    // What is written beyond the outputs is written into state.
    if let Some(a) = step.args.iter().find(|a| a.access == Access::Update) {
        moved.push(Moved { mem: a.mem, ty: &a.ty, bytes: updated, spread: None });
    }
    Ok(Launch { moved, flops: work.flops, unit: Unit::of(&step.kernel, &types, target), spread })
}

/// The axes that cut a value.
pub(super) fn axes(ty: &TensorType) -> impl Iterator<Item = &Axis> {
    ty.dims.iter().filter_map(|d| d.split.as_ref().map(|s| &s.axis))
}

pub(super) fn ways<'a>(mesh: &IndexMap<Axis, u64>, axes: impl Iterator<Item = &'a Axis>) -> u64 {
    let mut distinct: Vec<&Axis> = axes.collect();
    distinct.sort();
    distinct.dedup();
    distinct.into_iter().map(|a| mesh.get(a).copied().unwrap_or(1)).product::<u64>().max(1)
}

/// Bytes that the most loaded rank holds of a value of `bytes`.
pub fn local_bytes(ty: &TensorType, bytes: u64, mesh: &IndexMap<Axis, u64>) -> u64 {
    bytes.div_ceil(ways(mesh, axes(ty)))
}

/// The part of `bytes` of a weight that `rank` reads, in proportion to what its recipe gives it.
fn weight_bytes(plan: &Plan, w: &Recipe, rank: usize, bytes: u64) -> u64 {
    let whole = w.ty.bytes(&SymValues::default()).unwrap_or(w.span.bytes);
    let share = u128::from(bytes) * u128::from(w.held(&plan.mesh, rank)) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

pub(super) fn on_rank(plan: &Plan, m: &Moved<'_>, rank: usize) -> Bytes {
    match (m.mem, m.spread) {
        // On the rank that most choices fall on, which is none in particular.
        (Mem::Weight(_), Some(s)) => Bytes { weights: s.bytes(m.bytes), ..Bytes::default() },
        (Mem::Weight(w), None) => {
            Bytes { weights: weight_bytes(plan, &plan.weights[w], rank, m.bytes), ..Bytes::default() }
        }
        (Mem::State(_), _) => Bytes { caches: local_bytes(m.ty, m.bytes, &plan.mesh), ..Bytes::default() },
        (Mem::Param(_) | Mem::Buf(_), _) => Bytes { other: local_bytes(m.ty, m.bytes, &plan.mesh), ..Bytes::default() },
    }
}

/// The symbols of `phase` at a nominal context: as many visible positions, everything else at its bound.
pub(super) fn nominal(phase: &Phase, tune_ctx: u64) -> (SymValues, u64) {
    let mut syms = phase.bounds();
    let context = phase.visible().map_or(tune_ctx, |bound| bound.min(tune_ctx.max(1)));
    if phase.visible().is_some() {
        syms = syms.with(param::VISIBLE, context);
    }
    (syms, context)
}

/// The cost of one step of `phase` on each rank, with `tune_ctx` visible positions or the plan's bound.
///
/// # Errors
/// A launch whose contract refuses its arguments; the verifier finds it first. `no-link`: a collective of ranks that
/// nothing joins.
pub fn phase_costs(plan: &Plan, phase: &Phase, target: &Target, tune_ctx: u64) -> Result<Vec<PhaseCost>, Diagnostic> {
    let (syms, context) = nominal(phase, tune_ctx);
    let (mut launches, mut exchanges) = (Vec::new(), Vec::new());
    for step in &phase.steps {
        match Exchange::of(step, &plan.mesh, &syms)? {
            Some(e) => {
                let none = || Diagnostic::new("no-link", format!("nothing joins the ranks of `{}`", step.name));
                exchanges.push(e.cost(target, &plan.mesh).ok_or_else(none)?);
            }
            None => launches.push(launch(step, &plan.mesh, &syms, target)?),
        }
    }
    let saved = super::overlap::saved(phase, &plan.mesh, &syms, target)?;
    let cost = |rank: usize| {
        let (mut classes, mut bytes, mut flops) = (Classes::default(), Bytes::default(), 0u64);
        for l in &launches {
            let mut moved = Bytes::default();
            l.moved.iter().for_each(|m| moved += on_rank(plan, m, rank));
            let own = l.flops_of_a_rank(&plan.mesh);
            classes.add_launch(target, moved, own, l.unit);
            bytes += moved;
            flops = flops.saturating_add(own);
        }
        let limit_s = (bytes.weights as f64 + bytes.caches as f64) / target.device.read_bytes_per_s;
        let mut cost = PhaseCost {
            phase: phase.name.clone(),
            tokens: phase.tokens,
            context,
            step_s: classes.total(),
            classes_s: classes,
            bytes,
            flops,
            launches: launches.len() as u64,
            collectives: 0,
            hidden_s: 0.0,
            overlapped: 0,
            limit_s,
        };
        exchanges.iter().for_each(|e| cost.add_collective(target, e));
        saved.iter().for_each(|s| cost.hide(*s));
        cost
    };
    Ok((0..plan.target.ranks as usize).map(cost).collect())
}

/// The phase that decodes a token which sees `tune_ctx` positions, or as many as the plan's context has.
pub fn smallest_decode(plan: &Plan, tune_ctx: u64) -> Option<&Phase> {
    let index = plan.phase_for(PhaseKind::Decode, 1, tune_ctx.min(plan.limits.ctx));
    index.map(|i| &plan.phases[i])
}

/// The cost of decoding in the smallest bucket, on the slowest rank; `None` for a plan that does not decode.
///
/// # Errors
/// See [`phase_costs`].
pub fn decode(plan: &Plan, target: &Target, tune_ctx: u64) -> Result<Option<PhaseCost>, Diagnostic> {
    let Some(phase) = smallest_decode(plan, tune_ctx) else { return Ok(None) };
    let costs = phase_costs(plan, phase, target, tune_ctx)?;
    Ok(costs.into_iter().max_by(|a, b| a.step_s.total_cmp(&b.step_s)))
}

/// See [`TokenBytes`]; with `tune_ctx` visible positions or the plan's bound.
///
/// # Errors
/// See [`phase_costs`].
pub fn bytes_per_token(plan: &Plan, target: &Target, tune_ctx: u64) -> Result<TokenBytes, Diagnostic> {
    let mut sum = TokenBytes { weights_once: 0, weights_read: 0, cache: 0 };
    let Some(phase) = smallest_decode(plan, tune_ctx) else { return Ok(sum) };
    let (syms, _) = nominal(phase, tune_ctx);
    let mut once = vec![0u64; plan.weights.len()];
    for step in phase.steps.iter().filter(|s| s.kernel.collective().is_none()) {
        for m in &launch(step, &plan.mesh, &syms, target)?.moved {
            if let Mem::Weight(w) = m.mem {
                let seen = &mut once[w.as_u32() as usize];
                *seen = m.bytes.max(*seen).min(plan.weights[w].span.bytes);
            }
            for rank in 0..plan.target.ranks as usize {
                let bytes = on_rank(plan, m, rank);
                sum.weights_read = sum.weights_read.saturating_add(bytes.weights);
                sum.cache = sum.cache.saturating_add(bytes.caches);
            }
        }
    }
    let tokens = phase.tokens.max(1);
    sum.weights_once = once.into_iter().fold(0, u64::saturating_add) / tokens;
    sum.weights_read /= tokens;
    sum.cache /= tokens;
    Ok(sum)
}
