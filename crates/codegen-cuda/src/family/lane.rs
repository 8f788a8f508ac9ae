//! Matrices in the lane layout against few tokens: how many rows a block holds and what fits its shared memory.

use std::fmt::Write as _;

use super::cx::{Cx, Part};
use crate::repack::LaneType;
use crate::request::Activations;

/// Most tokens of a launch.
pub(super) const MOST_TOKENS: u64 = 8;
/// Blocks below this many bytes only cost block starts.
const LEAST_BLOCK: u64 = 8 * 1024;
/// Bytes of a block where the matrix is larger than all shared memory.
const STREAMED_BLOCK: u64 = 32 * 1024;

/// What a configuration is for.
pub(super) struct Shape {
    pub(super) rows: u64,
    /// Rows that share one vector of x.
    pub(super) free: u64,
    pub(super) k: u64,
    pub(super) tokens: u64,
    /// Matrices that one launch reads: 1, or the choices of experts.
    pub(super) matrices: u64,
}

/// A configuration.
pub(super) struct Config {
    pub(super) block_rows: u64,
    pub(super) threads: u64,
    pub(super) shared: u64,
    pub(super) blocks: u64,
    lane: LaneType,
    bulk: bool,
    int8: bool,
    weights: u64,
}

/// The configuration of a part, or why there is none.
pub(super) fn plan(cx: &Cx<'_>, w: &Part, s: &Shape) -> Result<Config, String> {
    let arch = cx.request.arch;
    let lane = w.lane().ok_or_else(|| format!("{} is not in the lane layout", w.ident))?;
    if s.tokens > MOST_TOKENS {
        return Err(format!("{} tokens, {MOST_TOKENS} at most", s.tokens));
    }
    let units = s.k / 32;
    let steps = (0..7).map(|i| 1u64 << i);
    let step = steps.into_iter().find(|n| lane.aligned(n * units)).ok_or("rows do not end at 16 bytes")?;
    if s.matrices > 1 && !lane.aligned(s.rows * units) {
        return Err("experts do not end at 16 bytes".into());
    }
    let int8 = cx.request.options.activations == Activations::Int8;
    let tokens = s.tokens.next_power_of_two();
    let x = tokens * activation_bytes(s.k, int8);
    let bulk = arch.has_bulk_copy();
    let weights = |rows: u64| if bulk { lane.planes(rows * units).map(|n| n.next_multiple_of(16)).sum() } else { 0 };
    let row: u64 = lane.planes(step * units).sum::<u64>().div_ceil(step);
    // Two blocks share a multiprocessor, so that one computes while the other's copies are under way.
    let half = u64::from(arch.shared_per_block()) / 2 - 1024;
    let room = half.saturating_sub(x + 16).max(LEAST_BLOCK);
    let machines = 2 * u64::from(cx.request.options.multiprocessors());
    let share = (s.rows * row * s.matrices).div_ceil(machines);
    let wanted = if share <= room { share.max(LEAST_BLOCK) } else { STREAMED_BLOCK.min(room) };
    let mut block_rows = (wanted / row / step * step).clamp(step, s.rows.next_multiple_of(step));
    if s.free < s.rows {
        // A block stays within the rows of one vector.
        while block_rows > step && s.free % block_rows != 0 {
            block_rows -= step;
        }
        if s.free % block_rows != 0 {
            return Err(format!("{} rows a vector are not cut at 16 bytes", s.free));
        }
    }
    let most = u64::from(arch.shared_per_block());
    while block_rows > step && 16 + weights(block_rows) + x > most && s.free == s.rows {
        block_rows -= step;
    }
    let shared = 16 + weights(block_rows) + x;
    if shared > most {
        return Err(format!("{shared} bytes of shared memory, a block has {most}"));
    }
    let threads = if s.k >= 1024 { 256 } else { 128 };
    let weights = weights(block_rows);
    Ok(Config { block_rows, threads, shared, blocks: s.rows.div_ceil(block_rows), lane, bulk, int8, weights })
}

/// Bytes of a token's vector in shared memory, as `Activation` in `kernels/gemv.cuh` lays it out.
fn activation_bytes(k: u64, int8: bool) -> u64 {
    let units = k / 32;
    (if int8 { 2 } else { 8 }) * (units + 1) * 16 + (units * 8).next_multiple_of(16)
}

impl Config {
    /// The constants that the device code takes.
    pub(super) fn members(&self, w: &Part, s: &Shape) -> String {
        let units = s.k / 32;
        let mut m = format!("  typedef {}_LANE L;\n", self.lane.name);
        let total = w.ty.elems(&Default::default()).unwrap_or(0) / 32;
        let constants = [
            ("BLOCK_ROWS", self.block_rows),
            ("LANES", units.next_power_of_two().min(32)),
            ("SHARED_WEIGHTS", self.weights),
        ];
        for (name, value) in constants {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let _ = writeln!(m, "  static constexpr u64 UNITS_TOTAL = {total};");
        let _ = writeln!(m, "  static constexpr bool BULK = {}, INT8 = {};", self.bulk, self.int8);
        m
    }

    /// In a few words.
    pub(super) fn words(&self) -> String {
        let copies = if self.bulk { "bulk copies before the wait" } else { "loads from memory" };
        let x = if self.int8 { "8-bit" } else { "f32" };
        format!("{} rows a block of {} threads, {copies}, {x} activations", self.block_rows, self.threads)
    }
}
