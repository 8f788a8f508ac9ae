//! Owns the memory of a plan on its target, rank by rank and part by part, and the search for what would fit instead. Reads no file.

use std::fmt;

use glmc_ir::diag::Diagnostic;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;
use indexmap::IndexMap;
use serde::Serialize;

use crate::cost::Exchange;
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
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, has) = (self.need.total(), self.memory);
        write!(f, "rank {} needs {need} bytes of memory and the target has {has}: ", self.rank)?;
        let parts: Vec<String> = self.need.parts().iter().map(|(name, n)| format!("{name} {n}")).collect();
        f.write_str(&parts.join(", "))
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
        let phases = &self.plan.phases;
        let arena = phases.iter().map(|p| p.arena_bytes).max().unwrap_or(0);
        let mut slots = 0;
        for phase in phases {
            slots = slots.max(self.slot_bytes(phase)?);
        }
        let d = &self.target.device;
        let need = |rank| {
            Ok(Need {
                weights: self.plan.weight_bytes(rank),
                caches: self.cache_bytes(rank)?,
                arena,
                collectives: slots,
                context: d.context_bytes,
                graphs: d.graph_bytes.saturating_add(d.graph_bytes_per_phase.saturating_mul(phases.len() as u64)),
                reserve: d.reserve_bytes,
            })
        };
        (0..self.plan.target.ranks as usize).map(need).collect()
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
        Ok(Err(Box::new(TooLarge { rank, need: need.clone(), memory })))
    }

    /// What a rank keeps of the pools, by kind.
    fn cache_bytes(&self, rank: usize) -> Result<IndexMap<String, u64>, Diagnostic> {
        let mut caches: IndexMap<String, u64> = IndexMap::new();
        let none = SymValues::default();
        for state in self.plan.states.values() {
            let kind = state.name.rsplit('.').next().unwrap_or_default();
            let too_large = || Diagnostic::new("too-large", format!("pool `{}` has no size in 64 bits", state.name));
            let own = match self.plan.mesh.is_empty() {
                true => state.ty.clone(),
                false => local_type(&state.ty, &self.plan.mesh, rank as u64, &none)?,
            };
            let bytes = own.bytes(&none).ok_or_else(too_large)?;
            let sum = caches.entry(kind.to_owned()).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Ok(caches)
    }

    /// The slots of the largest exchange of `phase`: all share them, one after the other.
    fn slot_bytes(&self, phase: &Phase) -> Result<u64, Diagnostic> {
        let syms = phase.bounds();
        let mut most = 0;
        for step in &phase.steps {
            let exchange = Exchange::of(step, &self.plan.mesh, &syms)?;
            let cost = exchange.and_then(|e| e.cost(self.target, &self.plan.mesh));
            most = most.max(cost.map_or(0, |c| c.slot_bytes));
        }
        Ok(most)
    }
}

/// The largest size below `asked` that fits, none if not even 1 does; the next larger one does not fit. `over` is by how
/// many bytes the asked size is too large, and `probe` gives the same of another (0 or less: it fits).
///
/// Needs are nearly straight in a size but for its `bends` (rising), so a size at a bend is probed first, and then most probes are where the line between the last two would cross; every other
/// one halves what is left, so that any need is found in a logarithm of steps.
///
/// # Errors
/// Those of `probe`.
pub fn largest<E>(
    asked: u64,
    over: i128,
    bends: &[u64],
    mut probe: impl FnMut(u64) -> Result<i128, E>,
) -> Result<Option<u64>, E> {
    if asked <= 1 {
        return Ok(None);
    }
    let (mut low, mut high) = ((1, probe(1)?), (asked, over));
    if low.1 > 0 {
        return Ok(None);
    }
    for at in bends.iter().copied() {
        if at > low.0 && at < high.0 {
            let over = probe(at)?;
            if over > 0 { high = (at, over) } else { low = (at, over) }
        }
    }
    let mut halve = false;
    while high.0 - low.0 > 1 {
        let left = u128::from(high.0 - low.0);
        let at = if halve {
            left / 2
        } else {
            left.saturating_mul(low.1.unsigned_abs()) / high.1.saturating_sub(low.1).unsigned_abs()
        };
        let at = low.0 + u64::try_from(at).unwrap_or(0).clamp(1, high.0 - low.0 - 1);
        let over = probe(at)?;
        halve = !halve && u128::from(if over > 0 { at - low.0 } else { high.0 - at }) > left / 2;
        if over > 0 { high = (at, over) } else { low = (at, over) }
    }
    Ok(Some(low.0))
}
