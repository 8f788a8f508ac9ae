//! Owns the cut of a tensor into the parts of ranks: from a type with its placement, a mesh and a rank to element ranges
//! and from those to bytes of the file. The only code that slices by rank. Never reads bytes, never chooses a split.
//!
//! - The rank is a mixed-radix number over the mesh axes, the first axis slowest.
//! - A dim that is not split is whole on each rank. A split dim falls into consecutive parts in rank order: equal ones
//!   where the axis divides it, else parts that differ by one *granule*, earlier ranks larger. A joined dim is cut
//!   piece by piece: a rank holds its part of each piece.
//! - The granule is one element; along the last dim of a quantised type in layout `rows` it is the block, since a
//!   file's block cannot be cut.
//! - A rank's bytes are its elements in row-major order, which is the order of its slices.

use std::ops::Range;

use indexmap::IndexMap;

use crate::diag::Diagnostic;
use crate::graph::Span;
use crate::plan::Slice;
use crate::ty::{Axis, Dim, Elem, Extent, SymValues, TensorType};

/// The codes of this module, each with what it means.
pub const CODES: &[(&str, &str)] = &[
    (
        "shard-axis",
        "a dim is split over an axis that the mesh lacks, two dims are split over one axis, or there is no such rank",
    ),
    ("shard-type", "the type has no part a rank: its size is unknown, overflows, or is no whole number of blocks"),
    ("shard-empty", "a split leaves a rank, or a piece on a rank, without elements"),
    ("shard-cuts-block", "a split would have to cut a quantised block, which only a repacked layout can"),
];

/// The part of a tensor that one rank holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// For each dim the global element ranges the rank holds, in order; several only for a split joined dim.
    pub ranges: Vec<Vec<Range<u64>>>,
    extents: Vec<u64>,
    elem: Elem,
}

/// Number of ranks of a mesh; `None` on overflow or an axis of size 0.
pub fn rank_count(mesh: &IndexMap<Axis, u64>) -> Option<u64> {
    mesh.values().try_fold(1u64, |n, size| n.checked_mul(*size).filter(|n| *n > 0))
}

/// The slices of every rank for a weight of type `ty` whose whole tensor lies at `span`.
///
/// # Errors
/// See [`CODES`].
pub fn recipe_slices(ty: &TensorType, mesh: &IndexMap<Axis, u64>, span: Span) -> Result<Vec<Vec<Slice>>, Diagnostic> {
    let ranks = rank_count(mesh).ok_or_else(|| Diagnostic::new("shard-axis", "the mesh has no ranks"))?;
    let one = |rank| Ok(Shard::of(ty, mesh, rank, &SymValues::default())?.slices(span)?.collect());
    (0..ranks).map(one).collect()
}

/// The most bytes that a rank holds of a tensor of type `ty` at the symbol values `syms`: what a buffer needs.
///
/// # Errors
/// See [`CODES`].
pub fn largest_bytes(ty: &TensorType, mesh: &IndexMap<Axis, u64>, syms: &SymValues) -> Result<u64, Diagnostic> {
    // Earlier ranks get the larger parts along every axis.
    Shard::of(ty, mesh, 0, syms).map(|s| s.bytes())
}

impl Shard {
    /// The part of `rank`. The whole tensor's bytes fit in 64 bits if this succeeds.
    ///
    /// # Errors
    /// See [`CODES`].
    pub fn of(ty: &TensorType, mesh: &IndexMap<Axis, u64>, rank: u64, syms: &SymValues) -> Result<Self, Diagnostic> {
        let extents = ty.shape(syms).ok_or_else(|| type_error(ty, "its size is unknown"))?;
        ty.bytes(syms).ok_or_else(|| type_error(ty, "its bytes overflow or are no whole number of blocks"))?;
        if rank_count(mesh).is_none_or(|n| rank >= n) {
            return Err(Diagnostic::new("shard-axis", format!("the mesh has no rank {rank}")));
        }
        let mut used: Vec<&Axis> = Vec::new();
        let mut ranges = Vec::with_capacity(extents.len());
        for (i, (dim, n)) in ty.dims.iter().zip(&extents).enumerate() {
            let Some(axis) = &dim.split else {
                ranges.push(std::iter::once(0..*n).collect());
                continue;
            };
            if used.contains(&axis) {
                return Err(Diagnostic::new("shard-axis", format!("{ty} is split twice over {axis}"))
                    .help("split the second dim over another axis: a rank would hold a diagonal block only"));
            }
            used.push(axis);
            let (at, size) = coordinate(mesh, axis, rank)
                .ok_or_else(|| Diagnostic::new("shard-axis", format!("{ty}: the mesh has no axis {axis}")))?;
            let granule = if i + 1 == extents.len() { ty.elem.block().0 } else { 1 };
            let cut = Cut { ty, dim, size, granule };
            ranges.push(cut.ranges(*n, at)?);
        }
        Ok(Shard { ranges, extents, elem: ty.elem })
    }

    /// The rank's shape.
    pub fn shape(&self) -> Vec<u64> {
        self.ranges.iter().map(|r| r.iter().map(|r| r.end - r.start).sum()).collect()
    }

    /// The rank's bytes.
    pub fn bytes(&self) -> u64 {
        let (elems, bytes) = self.elem.block();
        self.shape().iter().product::<u64>() / elems * bytes
    }

    /// The rank's bytes as slices of the file, in order, given where the whole tensor lies. Lazy: nothing is allocated
    /// by the number of slices.
    ///
    /// # Errors
    /// `shard-type`: `span` is not as long as the tensor, or ends beyond 64 bits.
    pub fn slices(&self, span: Span) -> Result<Slices, Diagnostic> {
        let (elems, bytes) = self.elem.block();
        let whole = self.extents.iter().product::<u64>() / elems * bytes;
        if whole != span.bytes || span.offset.checked_add(whole).is_none() {
            let m = format!("the tensor has {whole} bytes, its span {} at {}", span.bytes, span.offset);
            return Err(Diagnostic::new("shard-type", m));
        }
        Ok(Slices::new(self, span))
    }

    /// Extents and ranges in blocks, neighbouring ranges merged.
    fn in_blocks(&self) -> (Vec<u64>, Vec<Vec<Range<u64>>>) {
        let last = self.extents.len().saturating_sub(1);
        let unit = |i| if i == last { self.elem.block().0 } else { 1 };
        let extents = self.extents.iter().enumerate().map(|(i, n)| n / unit(i)).collect();
        let scaled = |(i, ranges): (usize, &Vec<Range<u64>>)| {
            let mut out: Vec<Range<u64>> = Vec::new();
            for r in ranges {
                let r = r.start / unit(i)..r.end / unit(i);
                match out.last_mut() {
                    Some(l) if l.end == r.start => l.end = r.end,
                    _ => out.push(r),
                }
            }
            out
        };
        (extents, self.ranges.iter().enumerate().map(scaled).collect())
    }
}

fn type_error(ty: &TensorType, why: &str) -> Diagnostic {
    Diagnostic::new("shard-type", format!("{ty}: {why}"))
}

/// `(place, size)` of `rank` along `axis`.
fn coordinate(mesh: &IndexMap<Axis, u64>, axis: &Axis, rank: u64) -> Option<(u64, u64)> {
    let mut rest = rank;
    for (name, size) in mesh.iter().rev() {
        if name == axis {
            return Some((rest % size, *size));
        }
        rest /= size;
    }
    None
}

/// The cut of one dim.
struct Cut<'a> {
    ty: &'a TensorType,
    dim: &'a Dim,
    size: u64,
    granule: u64,
}

impl Cut<'_> {
    fn ranges(&self, n: u64, at: u64) -> Result<Vec<Range<u64>>, Diagnostic> {
        let Extent::Joined(pieces) = &self.dim.extent else { return Ok(vec![self.part(n, at)?]) };
        let mut start = 0;
        let mut out = Vec::with_capacity(pieces.len());
        for (_, n) in pieces {
            let r = self.part(*n, at)?;
            out.push(start + r.start..start + r.end);
            start += n;
        }
        Ok(out)
    }

    fn part(&self, n: u64, at: u64) -> Result<Range<u64>, Diagnostic> {
        let (units, size) = (n / self.granule, self.size);
        if !n.is_multiple_of(self.granule) || units < size {
            return Err(self.refusal(n));
        }
        let (each, more) = (units / size, units % size);
        let start = at * each + at.min(more);
        let end = start + each + u64::from(at < more);
        Ok(start * self.granule..end * self.granule)
    }

    fn refusal(&self, n: u64) -> Diagnostic {
        let Cut { ty, dim, size, granule } = self;
        let axis = dim.split.as_ref().map_or("", Axis::as_str);
        if n < *size {
            return Diagnostic::new(
                "shard-empty",
                format!("{ty}: {n} elements do not go round {size} ranks of {axis}"),
            )
            .help("replicate this dim, split another one, or use fewer ranks");
        }
        let sub = ty.elem.storage().map_or(1, |q| q.sub_block() as u64);
        let repacked = if sub < *granule {
            format!("; a repacked layout could cut at its sub-blocks of {sub}, layout `rows` cannot")
        } else {
            String::new()
        };
        Diagnostic::new(
            "shard-cuts-block",
            format!("{ty}: {n} columns are no {size} parts of whole {} blocks of {granule}{repacked}", ty.elem),
        )
        .help(format!(
            "use at most {} ranks on {axis}, split another dim, or replicate this weight",
            (n / granule).max(1)
        ))
    }
}

/// The slices of one rank in order, runs at equal distances taken together.
#[derive(Clone, Debug)]
pub struct Slices {
    base: Slice,
    /// Dims walked index by index: ranges and the bytes of a step.
    outer: Vec<(Vec<Range<u64>>, u64)>,
    /// Position in each outer dim: range and index; `None` when done.
    at: Option<Vec<(usize, u64)>>,
    /// What lies at each outer position: offset, bytes, count.
    inner: Vec<(u64, u64, u64)>,
    next_inner: usize,
    pending: Option<Slice>,
}

impl Slices {
    fn new(shard: &Shard, span: Span) -> Self {
        let (extents, ranges) = shard.in_blocks();
        let block = shard.elem.block().1;
        let whole = |i: usize| ranges[i].len() == 1 && ranges[i][0] == (0..extents[i]);
        let base = Slice { part: span.part, offset: span.offset, bytes: 0, count: 1, stride: 0 };
        let empty = ranges.iter().any(|r| r.iter().all(|r| r.is_empty()));
        let mut out = Slices { base, outer: Vec::new(), at: None, inner: Vec::new(), next_inner: 0, pending: None };
        if empty {
            return out;
        }
        let mut strides = vec![block; extents.len()];
        for i in (1..extents.len()).rev() {
            strides[i - 1] = strides[i] * extents[i];
        }
        // The innermost dim that is cut: everything inside it is contiguous.
        let Some(cut) = (0..extents.len()).rev().find(|i| !whole(*i)) else {
            out.inner = vec![(0, span.bytes, 1)];
            out.at = Some(Vec::new());
            return out;
        };
        let runs = |r: &Range<u64>| (r.start * strides[cut], (r.end - r.start) * strides[cut]);
        let mut walked = cut;
        out.base.stride = strides[cut] * extents[cut];
        if let [only] = ranges[cut].as_slice() {
            // Whole dims around it, and one more that may be cut, repeat its run at one distance.
            let (offset, bytes) = runs(only);
            let mut count = 1;
            while walked > 0 && whole(walked - 1) {
                walked -= 1;
                count *= extents[walked];
            }
            if walked > 0 {
                walked -= 1;
                let item = |r: &Range<u64>| (offset + r.start * strides[walked], bytes, (r.end - r.start) * count);
                out.inner = ranges[walked].iter().map(item).collect();
            } else {
                out.inner = vec![(offset, bytes, count)];
            }
        } else {
            out.inner = ranges[cut].iter().map(|r| (runs(r).0, runs(r).1, 1)).collect();
        }
        out.outer = (0..walked).map(|i| (ranges[i].clone(), strides[i])).collect();
        out.at = Some(out.outer.iter().map(|(r, _)| (0, r[0].start)).collect());
        out
    }

    fn raw(&mut self) -> Option<Slice> {
        let at = self.at.as_mut()?;
        let (offset, bytes, count) = self.inner[self.next_inner];
        let outer: u64 = at.iter().zip(&self.outer).map(|((_, i), (_, stride))| i * stride).sum();
        let stride = if count == 1 { bytes } else { self.base.stride };
        let slice = Slice { offset: self.base.offset + outer + offset, bytes, count, stride, ..self.base };
        self.next_inner += 1;
        if self.next_inner == self.inner.len() {
            self.next_inner = 0;
            if !advance(at, &self.outer) {
                self.at = None;
            }
        }
        Some(slice)
    }
}

/// Moves to the next outer position; `false` at the end.
fn advance(at: &mut [(usize, u64)], outer: &[(Vec<Range<u64>>, u64)]) -> bool {
    for ((range, i), (ranges, _)) in at.iter_mut().zip(outer).rev() {
        if *i + 1 < ranges[*range].end {
            *i += 1;
            return true;
        }
        if *range + 1 < ranges.len() {
            *range += 1;
            *i = ranges[*range].start;
            return true;
        }
        (*range, *i) = (0, ranges[0].start);
    }
    false
}

/// `a` and `b` as one slice, if they are runs at one distance.
fn joined(a: &Slice, b: &Slice) -> Option<Slice> {
    if a.count == 1 && b.count == 1 && b.offset == a.offset + a.bytes {
        let bytes = a.bytes + b.bytes;
        return Some(Slice { bytes, stride: bytes, ..*a });
    }
    let stride = if a.count > 1 { a.stride } else { b.offset.checked_sub(a.offset)? };
    let follows = b.offset == a.offset + a.count * stride && (b.count == 1 || b.stride == stride);
    (a.bytes == b.bytes && stride > 0 && follows).then(|| Slice { count: a.count + b.count, stride, ..*a })
}

impl Iterator for Slices {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        let mut current = match self.pending.take() {
            Some(s) => s,
            None => self.raw()?,
        };
        while let Some(next) = self.raw() {
            match joined(&current, &next) {
                Some(both) => current = both,
                None => {
                    self.pending = Some(next);
                    break;
                }
            }
        }
        Some(current)
    }
}
