//! The back end for ranks of one process: each posts a copy of its part, waits for those of its group, and makes its
//! own result of them. The only code that sees the numbers of two ranks.

use std::ops::Range;
use std::sync::Arc;

use glmc_ir::collective::CollectiveKind;
use glmc_ir::diag::Diagnostic;
use glmc_ir::placement::{Mesh, local_type};
use glmc_ir::shard_map::{Shard, group};
use glmc_ir::ty::{SymValues, TensorType};

use super::cut::{paste, take};
use super::meeting::Meeting;
use super::merge::merge;
use super::{Exchange, MeetError};

/// The place of one rank at a meeting.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) meeting: &'a Meeting,
    pub(crate) mesh: &'a Mesh,
    pub(crate) syms: &'a SymValues,
    pub(crate) rank: usize,
}

impl Seat<'_> {
    /// Begins the exchange `e`, which is step `step`: hands over `own`, the rank's part of the operand. Waits for nobody.
    ///
    /// # Errors
    /// A mesh without the axis.
    pub(crate) fn begin(&self, e: &Exchange, step: usize, own: &[u32]) -> Result<(), MeetError> {
        if !matches!(e.kind(), CollectiveKind::Shard { .. }) {
            self.meeting.post(self.rank, step, own.into(), self.members(e)?.len());
        }
        Ok(())
    }

    /// Ends the exchange `e` that the rank has begun: `out` becomes its part of the result.
    ///
    /// # Errors
    /// A member that does not come, a rank that failed, or parts that do not fit the types.
    pub(crate) fn end(&self, e: &Exchange, step: usize, own: &[u32], out: &mut [u32]) -> Result<(), MeetError> {
        let shape = self.shape(&e.arg)?;
        if let CollectiveKind::Shard { dim, .. } = e.kind() {
            return take(own, &shape, dim, self.along(&e.result, self.rank, dim)?.as_slice(), out);
        }
        let members = self.members(e)?;
        let parts = self.meeting.parts(step, &members)?;
        match e.kind() {
            CollectiveKind::AllReduce => self.merged(e, &parts, out),
            CollectiveKind::ReduceScatter { dim, .. } => {
                let mut whole = vec![0; shape.iter().product()];
                self.merged(e, &parts, &mut whole)?;
                take(&whole, &shape, dim, &self.along(&e.result, self.rank, dim)?, out)
            }
            CollectiveKind::AllGather => self.joined(e, &members, &parts, out).map(|_| ()),
            CollectiveKind::AllToAll { dim, .. } => {
                let mut whole = Vec::new();
                let shape = self.joined_into(e, &members, &parts, &mut whole)?;
                take(&whole, &shape, dim, &self.along(&e.result, self.rank, dim)?, out)
            }
            CollectiveKind::Shard { .. } => Ok(()),
        }
    }

    fn merged(&self, e: &Exchange, parts: &[Arc<[u32]>], out: &mut [u32]) -> Result<(), MeetError> {
        let (kind, _) = e.arg.pending.as_ref().ok_or_else(|| MeetError::Shape(format!("{} is not pending", e.arg)))?;
        // The value has the operand's shape; what a part carries besides is the merge's business.
        let value = TensorType { pending: None, ..e.arg.clone() };
        let width = self.shape(&value)?.last().copied().unwrap_or(1);
        merge(*kind, e.arg.elem, width, parts, out)
    }

    fn joined_into(
        &self,
        e: &Exchange,
        members: &[usize],
        parts: &[Arc<[u32]>],
        out: &mut Vec<u32>,
    ) -> Result<Vec<usize>, MeetError> {
        out.resize(self.joined_shape(e)?.0.iter().product(), 0);
        self.joined(e, members, parts, out)
    }

    /// The parts side by side along the dim that is split; the shape they make.
    fn joined(
        &self,
        e: &Exchange,
        members: &[usize],
        parts: &[Arc<[u32]>],
        out: &mut [u32],
    ) -> Result<Vec<usize>, MeetError> {
        let (shape, d) = self.joined_shape(e)?;
        for (member, part) in members.iter().zip(parts) {
            paste(part, &self.along(&e.arg, *member, d)?, &shape, d, out)?;
        }
        Ok(shape)
    }

    /// The shape of this rank's operand with the dim that its group splits whole, and that dim.
    fn joined_shape(&self, e: &Exchange) -> Result<(Vec<usize>, usize), MeetError> {
        let axis = &e.collective.axis;
        let d = e.arg.dims.iter().position(|d| d.axis() == Some(axis));
        let d = d.ok_or_else(|| MeetError::Shape(format!("{} is not split over {axis}", e.arg)))?;
        let mut whole = e.arg.clone();
        whole.dims[d].split = None;
        Ok((self.shape(&whole)?, d))
    }

    /// The ranks of this rank's group, in order.
    fn members(&self, e: &Exchange) -> Result<Vec<usize>, MeetError> {
        let axis = &e.collective.axis;
        let ranks = group(self.mesh, axis, self.rank as u64);
        let ranks = ranks.ok_or_else(|| MeetError::Shape(format!("the mesh has no axis {axis}")))?;
        Ok(ranks.into_iter().map(|r| r as usize).collect())
    }

    /// The ranges of dim `d` that `rank` holds of a `ty`.
    fn along(&self, ty: &TensorType, rank: usize, d: usize) -> Result<Vec<Range<u64>>, MeetError> {
        let shard = Shard::of(ty, self.mesh, rank as u64, self.syms).map_err(told)?;
        shard.ranges.get(d).cloned().ok_or_else(|| MeetError::Shape(format!("{ty} has no dim {d}")))
    }

    fn shape(&self, ty: &TensorType) -> Result<Vec<usize>, MeetError> {
        let local = local_type(ty, self.mesh, self.rank as u64, self.syms).map_err(told)?;
        let shape = local.shape(self.syms).ok_or_else(|| MeetError::Shape(format!("the size of {ty} is unknown")))?;
        Ok(shape.into_iter().map(|n| n as usize).collect())
    }
}

fn told(d: Diagnostic) -> MeetError {
    MeetError::Shape(d.message)
}
