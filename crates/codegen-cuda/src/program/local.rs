//! What a rank holds, with symbols that are not yet known: the types that its kernels are made for.

use glmc_ir::launch::SymbolPart;
use glmc_ir::placement::{Mesh, local_type};
use glmc_ir::shard_map::coordinate;
use glmc_ir::ty::{Dim, Extent, Split, Sym, SymValues, TensorType};

/// The symbols of a rank: those of the phase, then parts of them as they are met.
#[derive(Clone, Debug)]
pub(super) struct Symbols {
    pub(super) bounds: SymValues,
    pub(super) parts: Vec<SymbolPart>,
}

impl Symbols {
    pub(super) fn of(bounds: &SymValues) -> Self {
        let parts = (0..bounds.0.len()).map(|symbol| SymbolPart { symbol, part: None }).collect();
        Symbols { bounds: bounds.clone(), parts }
    }

    /// The symbol that stands for a rank's part of `of`.
    fn part(&mut self, of: &Sym, split: &Split, at: u64, size: u64) -> Option<Sym> {
        let symbol = self.bounds.0.get_index_of(of)?;
        let unit = split.unit.max(1);
        // The same name on every rank, so that ranks of one shape have one kernel.
        let name = format!("{of}_{}_{unit}", split.axis);
        let name = Sym::from(name.as_str());
        if self.bounds.get(&name).is_none() {
            let p = SymbolPart { symbol, part: Some((unit, at, size)) };
            let most = self.bounds.get(of)?;
            // A smaller whole may give a larger part: its last unit may be full.
            let units = most.div_ceil(unit).div_ceil(size.max(1));
            self.bounds.0.insert(name.clone(), units.saturating_mul(unit).min(most));
            self.parts.push(p);
        }
        Some(name)
    }

    /// The type of the rank's part of `ty`, its symbols kept.
    pub(super) fn local(&mut self, ty: &TensorType, mesh: &Mesh, rank: u64) -> Result<TensorType, String> {
        if mesh.is_empty() {
            return Ok(ty.clone());
        }
        let mut t = local_type(ty, mesh, rank, &self.bounds).map_err(|d| d.message)?;
        for (own, global) in t.dims.iter_mut().zip(&ty.dims) {
            let Extent::Sym(s) = &global.extent else { continue };
            let name = match &global.split {
                None => Some(s.clone()),
                Some(split) => coordinate(mesh, &split.axis, rank).and_then(|(at, size)| self.part(s, split, at, size)),
            };
            let name = name.ok_or_else(|| format!("{ty} has a symbol or an axis that nothing declares"))?;
            *own = Dim { extent: Extent::Sym(name), split: None };
        }
        Ok(t)
    }
}
