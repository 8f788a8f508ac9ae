//! Owns the walk over the byte runs of one rank's part. Never decides what the part is.

use std::ops::Range;

use super::Shard;
use crate::graph::Span;
use crate::plan::Slice;

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
    pub(super) fn new(shard: &Shard, span: Span) -> Self {
        let (extents, ranges) = shard.in_blocks();
        let block = shard.elem.in_file().block().1;
        let whole = |i: usize| ranges[i].len() == 1 && ranges[i][0] == (0..extents[i]);
        let base = Slice { part: span.part, offset: span.offset, bytes: 0, count: 1, stride: 0 };
        let empty = ranges.iter().any(Vec::is_empty) || extents.contains(&0);
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
