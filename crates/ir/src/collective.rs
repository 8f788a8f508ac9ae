//! Owns what a collective is: which ranks take part, what each does with its part, how many bytes travel. Never moves
//! them: `interp::ranks` and devices do.
//!
//! A collective changes where a value lives, never the value: each is the identity for `interp::global`.

use crate::diag::Diagnostic;
use crate::placement::{Mesh, local_type};
use crate::ty::{Axis, Split, SymValues, TensorType};

/// How a collective changes the placement of its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectiveKind {
    /// Pending to whole on each rank.
    AllReduce,
    /// Split to whole on each rank.
    AllGather,
    /// A pending sum to a split of `dim`.
    ReduceScatter {
        /// The dim that becomes split.
        dim: usize,
        /// See [`Split::unit`].
        unit: u64,
    },
    /// A split of another dim to a split of `dim`.
    AllToAll {
        /// The dim that becomes split.
        dim: usize,
        /// See [`Split::unit`].
        unit: u64,
    },
    /// Whole on each rank to a split of `dim`; nothing travels.
    Shard {
        /// The dim that becomes split.
        dim: usize,
        /// See [`Split::unit`].
        unit: u64,
    },
}

/// A collective over the ranks that differ in one mesh axis only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// The axis whose ranks take part.
    pub axis: Axis,
}

impl Collective {
    /// The placement of the result: `t` with the operand's placement changed.
    ///
    /// # Errors
    /// `reduce-not-pending`, `gather-not-split`, `split-twice`, `pending-nonlinear`; see the verifier's codes.
    pub fn place(&self, op: &str, arg: &TensorType) -> Result<TensorType, Diagnostic> {
        let mut t = arg.clone();
        if let CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. } = self.kind {
            let scatter = self.kind != CollectiveKind::AllReduce;
            match &arg.pending {
                Some((kind, a)) if kind.is_sum() && *a == self.axis => t.pending = None,
                Some((_, a)) if *a == self.axis && !scatter => t.pending = None,
                _ => {
                    let what = if scatter { "a sum pending" } else { "a value pending" };
                    let m = format!("`{op}` needs {what} over {}, found {arg}", self.axis);
                    return Err(Diagnostic::new("reduce-not-pending", m).help("merge each pending value once"));
                }
            }
        } else if let Some((kind, a)) = arg.pending.as_ref().filter(|(k, a)| !k.is_sum() || *a == self.axis) {
            // Parts of a sum are cut and joined like the sum; the parts of other merges have another form.
            let m = format!("`{op}` of {arg}, which is pending ({kind:?}) over {a}");
            return Err(Diagnostic::new("pending-nonlinear", m).help("all_reduce it first"));
        }
        if let CollectiveKind::AllGather | CollectiveKind::AllToAll { .. } = self.kind {
            let from = t.dims.iter_mut().find(|d| d.axis() == Some(&self.axis)).ok_or_else(|| {
                Diagnostic::new("gather-not-split", format!("`{op}` needs a dim split over {}, found {arg}", self.axis))
            })?;
            from.split = None;
        }
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => Ok(t),
            CollectiveKind::ReduceScatter { dim, unit }
            | CollectiveKind::AllToAll { dim, unit }
            | CollectiveKind::Shard { dim, unit } => self.split(op, arg, t, dim, unit),
        }
    }

    fn split(
        &self,
        op: &str,
        arg: &TensorType,
        mut t: TensorType,
        dim: usize,
        unit: u64,
    ) -> Result<TensorType, Diagnostic> {
        let split = Split { axis: self.axis.clone(), unit };
        let elsewhere = t.dims.iter().any(|d| d.axis() == Some(&self.axis));
        match t.dims.get_mut(dim) {
            None => return Err(Diagnostic::new("bad-attribute", format!("`{op}` of dim {dim} of {arg}"))),
            Some(_) if unit == 0 => return Err(Diagnostic::new("bad-attribute", format!("`{op}` in units of 0"))),
            // An all_to_all may not keep its dim either: it would move nothing, or another unit under the same name.
            Some(d) if elsewhere || d.split.is_some() || arg.dims[dim].split.is_some() => {
                let m = format!("`{op}` splits dim {dim} of {arg} over {split}");
                return Err(
                    Diagnostic::new("split-twice", m).help("a dim is split over one axis, an axis splits one dim")
                );
            }
            Some(d) => d.split = Some(split),
        }
        Ok(t)
    }

    /// Bytes that the largest rank of `mesh` holds of the operand before and of the result after.
    ///
    /// # Errors
    /// See [`crate::shard_map::CODES`].
    pub fn payload(
        &self,
        arg: &TensorType,
        result: &TensorType,
        mesh: &Mesh,
        syms: &SymValues,
    ) -> Result<Payload, Diagnostic> {
        let bytes = |t: &TensorType| Ok(local_type(t, mesh, 0, syms)?.bytes(syms).unwrap_or(u64::MAX));
        let ranks = mesh.get(&self.axis).copied().unwrap_or(1).max(1);
        Ok(Payload { ranks, before: bytes(arg)?, after: bytes(result)? })
    }
}

/// What a cost model needs of a collective, next to its kind and axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Ranks that take part.
    pub ranks: u64,
    /// Bytes of the largest rank's part before.
    pub before: u64,
    /// Bytes of the largest rank's part after.
    pub after: u64,
}

impl Payload {
    /// Bytes that a rank must at least send: no algorithm moves less. A ring or a direct exchange moves just these.
    pub fn least_sent(&self, kind: CollectiveKind) -> u64 {
        let others = |bytes: u64| (u128::from(bytes) * u128::from(self.ranks - 1) / u128::from(self.ranks)) as u64;
        match kind {
            CollectiveKind::Shard { .. } => 0,
            CollectiveKind::AllReduce => others(self.before).saturating_mul(2),
            CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => others(self.before),
            CollectiveKind::AllGather => others(self.after),
        }
    }
}
