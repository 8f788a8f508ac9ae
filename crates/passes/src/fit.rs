//! Owns the memory of a plan on its target, rank by rank and part by part, and what would fit instead. Reads no file.

use std::fmt;

use glmc_ir::diag::Diagnostic;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Limits, Phase, PhaseKind, Plan, param};
use glmc_ir::ty::{Extent, Sym, SymValues, TensorType};
use indexmap::IndexMap;
use serde::Serialize;

use crate::cost::Exchange;
use crate::schedule;
use crate::target::Target;

#[cfg(test)]
mod tests;

/// What one rank needs, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Need {
    /// Weights, padding and copies of replicated ones included.
    pub weights: u64,
    /// Cache pools by kind: the last part of their names, such as `kv` and `index`.
    pub caches: IndexMap<String, u64>,
    /// The arena of the phase with the largest.
    pub arena: u64,
    /// Slots that peers write partial results into.
    pub collectives: u64,
    /// The driver's context.
    pub context: u64,
    /// Captured graphs.
    pub graphs: u64,
    /// Left to whatever else uses the device.
    pub reserve: u64,
}

impl Need {
    /// All cache pools.
    pub fn cache_bytes(&self) -> u64 {
        self.caches.values().copied().fold(0, u64::saturating_add)
    }

    /// Each part with its name.
    pub fn parts(&self) -> Vec<(String, u64)> {
        let mut parts = vec![("weights".to_owned(), self.weights)];
        parts.extend(self.caches.iter().map(|(kind, n)| (format!("{kind} cache"), *n)));
        parts.extend([
            ("arena".to_owned(), self.arena),
            ("collective buffers".to_owned(), self.collectives),
            ("context".to_owned(), self.context),
            ("graphs".to_owned(), self.graphs),
            ("reserve".to_owned(), self.reserve),
        ]);
        parts
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.parts().into_iter().map(|p| p.1).fold(0, u64::saturating_add)
    }

    /// What the plan itself asks for: without context, graphs and reserve.
    pub fn plan_bytes(&self) -> u64 {
        [self.weights, self.cache_bytes(), self.arena, self.collectives].into_iter().fold(0, u64::saturating_add)
    }
}

/// A plan that is too large for its target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooLarge {
    /// The rank that needs most.
    pub rank: usize,
    /// What it needs.
    pub need: Need,
    /// What it has.
    pub memory: u64,
    /// The limits that were asked for.
    pub limits: Limits,
    /// The longest context that fits at the same batch.
    pub largest_ctx: Option<u64>,
    /// The largest batch, of those that phases are made for, that fits at the same context.
    pub largest_batch: Option<u64>,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, has) = (self.need.total(), self.memory);
        write!(f, "rank {} needs {need} bytes of memory and the target has {has}: ", self.rank)?;
        let parts: Vec<String> = self.need.parts().iter().map(|(name, n)| format!("{name} {n}")).collect();
        write!(f, "{}; ", parts.join(", "))?;
        match self.largest_ctx {
            Some(n) => write!(f, "the largest context that fits is {n}")?,
            None => f.write_str("no context fits")?,
        }
        match self.largest_batch {
            Some(n) => write!(f, ", the largest batch at context {} is {n}", self.limits.ctx),
            None => write!(f, ", no batch fits at context {}", self.limits.ctx),
        }
    }
}

/// A plan on a target: what the sizes are taken from.
#[derive(Clone, Copy, Debug)]
pub struct Fit<'a> {
    /// The plan. Its files are not looked at.
    pub plan: &'a Plan,
    /// The machine.
    pub target: &'a Target,
}

impl Fit<'_> {
    /// What each rank needs.
    ///
    /// # Errors
    /// `too-large`: a size overflows 64 bits.
    pub fn needs(&self) -> Result<Vec<Need>, Diagnostic> {
        self.needs_at(&self.plan.limits)
    }

    /// What each rank needs, or the refusal of a plan that is larger than its target's memory. A target that states no
    /// memory takes any plan.
    ///
    /// # Errors
    /// `too-large`: a size overflows 64 bits.
    pub fn check(&self) -> Result<Result<Vec<Need>, Box<TooLarge>>, Diagnostic> {
        let needs = self.needs()?;
        let Some(memory) = self.target.device.memory_bytes else { return Ok(Ok(needs)) };
        let most = needs.iter().enumerate().max_by_key(|(i, n)| (n.total(), std::cmp::Reverse(*i)));
        let Some((rank, need)) = most.filter(|(_, n)| n.total() > memory) else { return Ok(Ok(needs)) };
        Ok(Err(Box::new(TooLarge {
            rank,
            need: need.clone(),
            memory,
            limits: self.plan.limits.clone(),
            largest_ctx: self.largest_ctx(memory)?,
            largest_batch: self.largest_batch(memory)?,
        })))
    }

    fn fits(&self, limits: &Limits, memory: u64) -> Result<bool, Diagnostic> {
        Ok(self.needs_at(limits)?.iter().all(|n| n.total() <= memory))
    }

    /// The longest context below the plan's that fits, by bisection.
    fn largest_ctx(&self, memory: u64) -> Result<Option<u64>, Diagnostic> {
        // `low` fits, 0 standing for none; `high` does not.
        let (mut low, mut high) = (0, self.plan.limits.ctx);
        while high - low > 1 {
            let ctx = low + (high - low) / 2;
            if self.fits(&self.at_ctx(ctx), memory)? { low = ctx } else { high = ctx }
        }
        Ok((low > 0).then_some(low))
    }

    /// The limits with another context: the pools follow it unless they were sized apart.
    fn at_ctx(&self, ctx: u64) -> Limits {
        let l = &self.plan.limits;
        let cache_rows = if l.cache_rows == l.ctx { ctx } else { l.cache_rows };
        Limits { ctx, cache_rows, chunk: l.chunk.min(ctx), ..l.clone() }
    }

    fn largest_batch(&self, memory: u64) -> Result<Option<u64>, Diagnostic> {
        let limits = &self.plan.limits;
        let buckets = self.plan.phases.iter().filter(|p| p.kind == PhaseKind::Decode).map(|p| p.tokens);
        let mut largest = None;
        for max_batch in buckets.filter(|t| *t < limits.max_batch) {
            if self.fits(&Limits { max_batch, ..limits.clone() }, memory)? {
                largest = largest.max(Some(max_batch));
            }
        }
        Ok(largest)
    }

    /// What the plan would need if it had been made for these limits.
    fn needs_at(&self, limits: &Limits) -> Result<Vec<Need>, Diagnostic> {
        let plan = self.plan;
        let kept = |p: &&Phase| p.kind != PhaseKind::Decode || p.tokens <= limits.max_batch;
        let phases: Vec<&Phase> = plan.phases.iter().filter(kept).filter(|p| !self.replaced(p, limits)).collect();
        let mut arena = 0;
        for phase in &phases {
            arena = arena.max(self.arena_bytes(phase, limits)?);
        }
        let mut slots = 0;
        for phase in &phases {
            slots = slots.max(self.slot_bytes(phase, limits)?);
        }
        let d = &self.target.device;
        let need = |rank| {
            Ok(Need {
                weights: plan.weight_bytes(rank),
                caches: self.cache_bytes(rank, limits)?,
                arena,
                collectives: slots,
                context: d.context_bytes,
                graphs: d.graph_bytes.saturating_add(d.graph_bytes_per_phase.saturating_mul(phases.len() as u64)),
                reserve: d.reserve_bytes,
            })
        };
        (0..plan.target.ranks as usize).map(need).collect()
    }

    /// What a rank keeps of the pools, by kind.
    fn cache_bytes(&self, rank: usize, limits: &Limits) -> Result<IndexMap<String, u64>, Diagnostic> {
        let mut caches: IndexMap<String, u64> = IndexMap::new();
        let none = SymValues::default();
        for state in self.plan.states.values() {
            let kind = state.name.rsplit('.').next().unwrap_or_default();
            let ty = with_rows(&state.ty, limits.cache_rows);
            let too_large = || Diagnostic::new("too-large", format!("pool `{}` has no size in 64 bits", state.name));
            let own =
                if self.plan.mesh.is_empty() { ty } else { local_type(&ty, &self.plan.mesh, rank as u64, &none)? };
            let bytes = own.bytes(&none).ok_or_else(too_large)?;
            let sum = caches.entry(kind.to_owned()).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Ok(caches)
    }

    /// The slots of the largest exchange of `phase`: all share them, one after the other.
    fn slot_bytes(&self, phase: &Phase, limits: &Limits) -> Result<u64, Diagnostic> {
        let mut syms = phase.bounds();
        if !self.same_steps(limits) {
            syms.0.iter_mut().for_each(|(sym, bound)| *bound = self.bound_at(sym, *bound, limits));
        }
        let mut most = 0;
        for step in &phase.steps {
            let exchange = Exchange::of(step, &self.plan.mesh, &syms)?;
            let cost = exchange.and_then(|e| e.cost(self.target, &self.plan.mesh));
            most = most.max(cost.map_or(0, |c| c.slot_bytes));
        }
        Ok(most)
    }

    /// Whether the symbols of phases have the plan's own bounds at these limits.
    fn same_steps(&self, limits: &Limits) -> bool {
        let own = &self.plan.limits;
        (limits.ctx, limits.chunk) == (own.ctx, own.chunk)
    }

    /// Whether a phase for shorter contexts does all that `phase` is for at these limits, so that it would not be made.
    fn replaced(&self, phase: &Phase, limits: &Limits) -> bool {
        let does = |p: &Phase| {
            let tighter = p.visible().is_some_and(|n| n >= limits.ctx && phase.visible().is_some_and(|own| n < own));
            (p.kind, p.tokens) == (phase.kind, phase.tokens) && tighter
        };
        self.plan.phases.iter().any(does)
    }

    /// What bounds a phase's symbol at other limits, where `bound` does now: visible positions of a phase for any context
    /// follow the limits, those of a phase for short ones stay; every other symbol counts the tokens of a prefill step.
    fn bound_at(&self, sym: &Sym, bound: u64, limits: &Limits) -> u64 {
        match sym.as_str() {
            param::VISIBLE if bound < self.plan.limits.ctx => bound.min(limits.ctx),
            param::VISIBLE => limits.ctx,
            _ => limits.chunk,
        }
    }

    /// The arena of `phase` with its symbols bounded by `limits`.
    fn arena_bytes(&self, phase: &Phase, limits: &Limits) -> Result<u64, Diagnostic> {
        if self.same_steps(limits) {
            return Ok(phase.arena_bytes);
        }
        let mut phase = phase.clone();
        for (sym, bound) in &mut phase.syms {
            *bound = self.bound_at(sym, *bound, limits);
        }
        schedule::place(&mut phase, &self.plan.mesh)?;
        Ok(phase.arena_bytes)
    }
}

/// A pool with another number of rows.
fn with_rows(ty: &TensorType, rows: u64) -> TensorType {
    let mut ty = ty.clone();
    if let Some(d) = ty.dims.first_mut() {
        d.extent = Extent::Const(rows);
    }
    ty
}
