//! Owns the cut of a tensor into the parts of ranks: from a type with its placement, a mesh and a rank to element ranges
//! and from those to bytes of the file. The only code that slices by rank. Never reads bytes, never chooses a split.
//!
//! - The rank is a mixed-radix number over the mesh axes, the first axis slowest.
//! - A dim that is not split is whole on each rank. A split dim falls into consecutive parts in rank order, of whole
//!   *units* (a number of entries, stated by the split), earlier ranks getting one unit more where the axis does not
//!   divide them; with fewer units than ranks the last ranks hold nothing. A last unit may be cut short by the end of
//!   the dim. A joined dim is cut piece by piece: a rank holds its part of each piece.
//! - A cut must fall on a *granule* ([`granule`]): one element, or along the last dim of a quantised type what its
//!   layout lets apart. What cannot be cut is refused, never rounded.
//! - A rank's bytes are its elements in row-major order, which is the order of its slices.
//! - Of a type that keeps sub-blocks apart ([`crate::quant::QuantType::apart`]) the slices are the file's blocks that hold
//!   the rank's elements, and [`Shard::stored`] takes its sub-blocks out of them: neighbours read one block both.

use std::ops::Range;

use indexmap::IndexMap;

use crate::diag::Diagnostic;
use crate::graph::Span;
use crate::plan::Slice;
use crate::ty::{Axis, Elem, Extent, Layout, Split, SymValues, TensorType};

pub use slices::Slices;

mod slices;

/// The codes of this module, each with what it means.
pub const CODES: &[(&str, &str)] = &[
    (
        "shard-axis",
        "a dim is split over an axis that the mesh lacks, two dims are split over one axis, or there is no such rank",
    ),
    ("shard-type", "the type has no part a rank: its size is unknown, overflows, or is no whole number of blocks"),
    ("shard-cuts-block", "a split would have to cut a quantised block, which only a repacked layout can"),
    ("split-unit", "a split states a unit of 0, or one that changes no cut"),
];

/// The part of a tensor that one rank holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// For each dim the global element ranges the rank holds, in order; several only for a split joined dim.
    pub ranges: Vec<Vec<Range<u64>>>,
    extents: Vec<u64>,
    elem: Elem,
}

impl Shard {
    /// Where global index `at` of dim `dim` lies in the rank's part, if the rank holds it.
    pub fn place(&self, dim: usize, at: u64) -> Option<u64> {
        let mut before = 0;
        for r in self.ranges.get(dim)? {
            if r.contains(&at) {
                return Some(before + at - r.start);
            }
            before += r.end - r.start;
        }
        None
    }
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

/// The most bytes that a rank holds of a tensor of type `ty` at the symbol values `syms`, with what a pending merge
/// needs: what a buffer needs.
///
/// # Errors
/// See [`CODES`].
pub fn largest_bytes(ty: &TensorType, mesh: &IndexMap<Axis, u64>, syms: &SymValues) -> Result<u64, Diagnostic> {
    // Earlier ranks get the larger parts along every axis.
    let local = crate::placement::local_type(ty, mesh, 0, syms)?;
    local.bytes(syms).ok_or_else(|| type_error(ty, "its bytes overflow"))
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
            let Some(Split { axis, unit }) = &dim.split else {
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
            check_dim(ty, i, *n, size)?;
            ranges.push(parts(&dim.extent, *n, *unit, at, size));
        }
        Ok(Shard { ranges, extents, elem: ty.elem })
    }

    /// The part that a machine without any check would take: no rule is asked, an axis that is not there splits nothing,
    /// a cut inside a block falls on the block's start. For interpreters of code that the verifier has not seen.
    pub(crate) fn unchecked(ty: &TensorType, mesh: &IndexMap<Axis, u64>, rank: u64, syms: &SymValues) -> Option<Self> {
        let extents = ty.shape(syms)?;
        let part = |(i, (dim, n)): (usize, (&crate::ty::Dim, &u64))| {
            let at = dim.split.as_ref().and_then(|s| Some((s.unit.max(1), coordinate(mesh, &s.axis, rank)?)));
            let Some((unit, (at, size))) = at else { return std::iter::once(0..*n).collect() };
            let granule = granule(ty, i);
            let whole = |x: u64| x / granule * granule;
            parts(&dim.extent, *n, unit, at, size).into_iter().map(|r| whole(r.start)..whole(r.end)).collect()
        };
        let ranges = ty.dims.iter().zip(&extents).enumerate().map(part).collect();
        Some(Shard { ranges, extents, elem: ty.elem })
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
        let (elems, bytes) = self.elem.in_file().block();
        let whole = self.extents.iter().product::<u64>() / elems * bytes;
        if whole != span.bytes || span.offset.checked_add(whole).is_none() {
            let m = format!("the tensor has {whole} bytes, its span {} at {}", span.bytes, span.offset);
            return Err(Diagnostic::new("shard-type", m));
        }
        Ok(Slices::new(self, span))
    }

    /// What the rank holds, from the bytes of its slices: the same, or the sub-blocks that are its own. Fewer bytes give
    /// as much as they have.
    pub fn stored(&self, bytes: Vec<u8>) -> Vec<u8> {
        let (Elem::Quant(held), Elem::Quant(q)) = (self.elem, self.elem.in_file()) else { return bytes };
        let (Some((own, outer)), (_, blocks)) = (self.ranges.split_last(), self.in_blocks()) else { return bytes };
        let Some(read) = blocks.last().filter(|_| held != q) else { return bytes };
        let (run, block) = (held.block_elems() as u64, q.block_elems() as u64);
        let row = read.iter().map(|r| r.end - r.start).sum::<u64>() as usize * q.block_bytes();
        // The sub-blocks of a row: where the block lies in what was read of the row, and which ones.
        let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
        for r in own.iter().filter(|r| !r.is_empty()) {
            for b in r.start / block..r.end.div_ceil(block) {
                let before: u64 = read.iter().map(|r| b.clamp(r.start, r.end) - r.start).sum();
                let (from, to) = (r.start.max(b * block) - b * block, r.end.min((b + 1) * block) - b * block);
                parts.push((before as usize * q.block_bytes(), (from / run) as usize..(to / run) as usize));
            }
        }
        let rows = outer.iter().map(|r| r.iter().map(|r| r.end - r.start).sum::<u64>()).product::<u64>() as usize;
        let mut out = Vec::with_capacity(self.bytes() as usize);
        for row in bytes.chunks_exact(row.max(1)).take(rows) {
            parts.iter().for_each(|(at, runs)| q.sub_blocks(&row[*at..at + q.block_bytes()], runs.clone(), &mut out));
        }
        out
    }

    /// Extents and ranges in blocks of the file, empty ranges left out, neighbouring ones merged.
    fn in_blocks(&self) -> (Vec<u64>, Vec<Vec<Range<u64>>>) {
        let last = self.extents.len().saturating_sub(1);
        let unit = |i| if i == last { self.elem.in_file().block().0 } else { 1 };
        let extents = self.extents.iter().enumerate().map(|(i, n)| n / unit(i)).collect();
        let scaled = |(i, ranges): (usize, &Vec<Range<u64>>)| {
            let mut out: Vec<Range<u64>> = Vec::new();
            for r in ranges.iter().filter(|r| !r.is_empty()) {
                let r = r.start / unit(i)..r.end.div_ceil(unit(i));
                match out.last_mut() {
                    Some(l) if l.end >= r.start => l.end = l.end.max(r.end),
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
pub fn coordinate(mesh: &IndexMap<Axis, u64>, axis: &Axis, rank: u64) -> Option<(u64, u64)> {
    let mut rest = rank;
    for (name, size) in mesh.iter().rev() {
        if name == axis {
            return Some((rest % size, *size));
        }
        rest /= size;
    }
    None
}

/// The ranks that differ from `rank` along `axis` only, in their order along it; `None` without such an axis or rank.
pub fn group(mesh: &IndexMap<Axis, u64>, axis: &Axis, rank: u64) -> Option<Vec<u64>> {
    let (at, size) = coordinate(mesh, axis, rank)?;
    let stride: u64 = mesh.iter().skip_while(|(a, _)| *a != axis).skip(1).map(|(_, n)| *n).product();
    Some((0..size).map(|i| rank - at * stride + i * stride).collect())
}

/// The entries that place `at` of `size` holds of `n` entries cut in units of `unit`.
pub fn part(n: u64, unit: u64, at: u64, size: u64) -> Range<u64> {
    let units = n.div_ceil(unit);
    let (each, more) = (units / size, units % size);
    let start = at * each + at.min(more);
    let end = start + each + u64::from(at < more);
    (start.saturating_mul(unit).min(n))..(end.saturating_mul(unit).min(n))
}

/// The ranges of place `at` of `size` in a dim of `n` entries cut in units of `unit`.
fn parts(extent: &Extent, n: u64, unit: u64, at: u64, size: u64) -> Vec<Range<u64>> {
    let part = |n: u64| part(n, unit, at, size);
    let Extent::Joined(pieces) = extent else { return vec![part(n)] };
    let mut start = 0;
    let mut out = Vec::with_capacity(pieces.len());
    for (_, n) in pieces {
        let r = part(*n);
        out.push(start + r.start..start + r.end);
        start += n;
    }
    out
}

/// The entries of dim `i` of `ty` that stay together whatever the split says: one home for what a layout lets apart.
/// The file's types keep their blocks, in which sub-blocks share bytes; forms that keep sub-blocks apart have those as
/// their blocks.
pub fn granule(ty: &TensorType, i: usize) -> u64 {
    match ty.layout {
        Layout::Rows if i + 1 == ty.rank() => ty.elem.block().0,
        Layout::Rows => 1,
    }
}

/// The sizes that are cut one by one: the pieces of a joined dim, or the dim; none for a symbol.
fn cut_sizes(extent: &Extent) -> Vec<u64> {
    match extent {
        Extent::Const(n) => vec![*n],
        Extent::Sym(_) => Vec::new(),
        Extent::Joined(p) => p.iter().map(|(_, n)| *n).collect(),
    }
}

/// Whether `size` ranks hold equal parts of `n`, each of whole units.
fn even(n: u64, unit: u64, size: u64) -> bool {
    unit.checked_mul(size).is_some_and(|u| u > 0 && n.is_multiple_of(u))
}

/// The same type with no unit that changes no cut on `mesh`: types that place alike are equal.
pub fn canonical(ty: &TensorType, mesh: &IndexMap<Axis, u64>) -> TensorType {
    let mut ty = ty.clone();
    for d in &mut ty.dims {
        let Some(s) = &mut d.split else { continue };
        let sizes = cut_sizes(&d.extent);
        let all_even = |size| !sizes.is_empty() && sizes.iter().all(|n| even(*n, s.unit, size));
        if mesh.get(&s.axis).copied().is_some_and(all_even) {
            s.unit = 1;
        }
    }
    ty
}

/// Whether every rank's part of `ty` can be had; symbols are taken as they come.
///
/// # Errors
/// `shard-cuts-block`, `split-unit`.
pub fn check(ty: &TensorType, mesh: &IndexMap<Axis, u64>) -> Result<(), Diagnostic> {
    for (i, d) in ty.dims.iter().enumerate() {
        let Some(s) = &d.split else { continue };
        let size = mesh.get(&s.axis).copied().filter(|n| *n > 0);
        let size =
            size.ok_or_else(|| Diagnostic::new("shard-axis", format!("{ty}: the mesh has no axis {}", s.axis)))?;
        check_dim(ty, i, d.extent.as_const().unwrap_or(0), size)?;
    }
    if canonical(ty, mesh) != *ty {
        let m = format!("{ty} states a unit that changes no cut; it is {}", canonical(ty, mesh));
        return Err(Diagnostic::new("split-unit", m));
    }
    Ok(())
}

/// The rules on the split of dim `i`, of `n` entries, over `size` ranks.
fn check_dim(ty: &TensorType, i: usize, n: u64, size: u64) -> Result<(), Diagnostic> {
    let dim = &ty.dims[i];
    let Some(Split { axis, unit }) = &dim.split else { return Ok(()) };
    if *unit == 0 {
        return Err(Diagnostic::new("split-unit", format!("{ty} is split in units of 0")));
    }
    let granule = granule(ty, i);
    let sizes = if let Extent::Sym(_) = dim.extent { vec![n] } else { cut_sizes(&dim.extent) };
    let fits = |n: &u64| {
        n.is_multiple_of(granule)
            && (unit.is_multiple_of(granule) || even(*n, *unit, size) && (n / size).is_multiple_of(granule))
    };
    let Some(n) = sizes.iter().find(|n| !fits(n)) else { return Ok(()) };
    let repacked = match ty.elem.storage().and_then(|q| q.apart()) {
        Some(apart) => format!("; as {apart} it could be cut at sub-blocks of {}", apart.block_elems()),
        None => String::new(),
    };
    let whole = format!("{ty}: {n} columns over {size} ranks of {axis} in units of {unit} cut {} blocks", ty.elem);
    let help = if n.is_multiple_of(granule) {
        format!("split it as {}/{axis}:{granule}, split another dim, or replicate it", dim.extent)
    } else {
        "split another dim, or replicate it".into()
    };
    Err(Diagnostic::new("shard-cuts-block", format!("{whole} of {granule}{repacked}")).help(help))
}
