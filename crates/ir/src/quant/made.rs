//! Weights that a device makes: which blocks of a tensor follow each other in its memory, and what its kernel reads.
//! Plain data between whoever knows slices and whoever has the kernel. Never a random number: [`super::synth`] owns them.

use super::QuantType;
use super::synth::Fill;

/// Blocks of a tensor that follow each other: pieces of as many blocks at equal distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of the first block in its tensor.
    pub first: u64,
    /// Blocks of a piece.
    pub piece: u64,
    /// Pieces.
    pub count: u64,
    /// Blocks from the start of a piece to that of the next.
    pub stride: u64,
}

/// The words that a kernel reads, 8 bytes each: the key; the bits of target and share; those of the mean with the lower
/// code above; the number of runs; the runs.
pub fn words(ty: QuantType, fill: &Fill, runs: &[Run]) -> Vec<u64> {
    let aim = fill.aim(ty);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut out = vec![
        fill.key(),
        pair(aim.target.to_bits(), aim.share.to_bits()),
        pair(aim.mean.to_bits(), aim.low),
        runs.len() as u64,
    ];
    out.extend(runs.iter().flat_map(|r| [r.first, r.piece, r.count, r.stride]));
    out
}

/// The bytes of the runs, as a device makes them.
pub fn bytes(ty: QuantType, fill: &Fill, runs: &[Run]) -> Vec<u8> {
    let size = |r: &Run| (r.piece * r.count) as usize * ty.block_bytes();
    let mut out = vec![0; runs.iter().map(size).sum()];
    let mut rest = out.as_mut_slice();
    for r in runs {
        for i in 0..r.count {
            let (piece, later) = rest.split_at_mut(r.piece as usize * ty.block_bytes());
            fill.blocks(ty, r.first + i * r.stride, piece);
            rest = later;
        }
    }
    out
}
