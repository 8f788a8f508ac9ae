//! Owns the memory of a CPU rank: anonymous mappings whose pages come into being when they are touched. The arena is
//! lent out in disjoint ranges; each cache pool is a mapping of its own. Never knows what a range holds.
#![allow(
    unsafe_code,
    reason = "several ranges of one allocation are lent at once, after a check that they are disjoint"
)]

use std::ops::Range;

use memmap2::MmapMut;

use super::error::KernelError;
use crate::device::POISON;

/// The memory of the arena buffers.
#[derive(Debug)]
pub(super) struct Arena(MmapMut);

/// A cache pool: f32 rows that become resident when they are first written.
#[derive(Debug)]
pub(super) struct Pool {
    map: MmapMut,
    bytes: usize,
}

impl Pool {
    /// A pool of `elems` zeros; `None` if the system does not give the memory.
    pub(super) fn new(elems: u64) -> Option<Self> {
        let bytes = usize::try_from(elems).ok()?.checked_mul(size_of::<f32>())?;
        Some(Pool { map: zeros(bytes)?, bytes })
    }

    /// Its numbers.
    pub(super) fn rows(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map[..self.bytes])
    }

    /// Its numbers, to be written.
    pub(super) fn rows_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map[..self.bytes])
    }
}

/// Zeros, none of them resident yet. The global allocator would abort where there are none to be had, and its fallible
/// reservation would touch every page to clear it.
fn zeros(bytes: usize) -> Option<MmapMut> {
    MmapMut::map_anon(bytes.max(1)).ok()
}

/// Ranges lent to one launch.
pub(super) struct Lent<'a> {
    /// In the order asked for.
    pub(super) reads: Vec<&'a [u8]>,
    /// In the order asked for.
    pub(super) writes: Vec<&'a mut [u8]>,
}

impl Arena {
    /// An arena of `bytes`, all zero, none of it resident yet; `None` if the system does not give the memory.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        zeros(usize::try_from(bytes).ok()?).map(Arena)
    }

    /// Lends `reads` and `writes` at once.
    ///
    /// # Errors
    /// A range outside the arena, or a written range that overlaps another one.
    pub(super) fn lend(&mut self, reads: &[Range<usize>], writes: &[Range<usize>]) -> Result<Lent<'_>, KernelError> {
        let len = self.0.len();
        let outside = |r: &&Range<usize>| r.start > r.end || r.end > len;
        if let Some(r) = reads.iter().chain(writes).find(outside) {
            return Err(KernelError::Dim { what: "the end of an arena range", have: r.end, need: "inside the arena" });
        }
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        for (i, w) in writes.iter().enumerate() {
            if reads.iter().chain(&writes[..i]).any(|r| meet(w, r)) {
                return Err(KernelError::Dim {
                    what: "a written arena range",
                    have: w.start,
                    need: "one that nothing else uses",
                });
            }
        }
        let base = self.0.as_mut_ptr();
        // SAFETY: every range lies inside the mapping (checked above), which lives and stays exclusively borrowed for
        // the lifetime of the result; written ranges overlap no other range (checked above), read ranges are only
        // shared; any byte is a valid `u8`.
        let reads = reads.iter().map(|r| unsafe { std::slice::from_raw_parts(base.add(r.start), r.len()) }).collect();
        // SAFETY: as above.
        let writes =
            writes.iter().map(|w| unsafe { std::slice::from_raw_parts_mut(base.add(w.start), w.len()) }).collect();
        Ok(Lent { reads, writes })
    }

    /// The bytes of one range; empty if it lies outside.
    pub(super) fn bytes(&self, r: Range<usize>) -> &[u8] {
        self.0.get(r).unwrap_or(&[])
    }

    /// Fills a range of whole words with [`POISON`].
    pub(super) fn poison(&mut self, r: Range<usize>) {
        if let Some(b) = self.0.get_mut(r) {
            b.chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&POISON.to_ne_bytes()));
        }
    }
}
