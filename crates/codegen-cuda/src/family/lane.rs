//! Matrices in the lane layout against few tokens: how many rows a block holds and what fits its shared memory.

use std::fmt::Write as _;

use super::cx::{Cx, Part};
use crate::repack::LaneType;
use crate::request::Activations;

/// Most tokens of a launch.
pub(super) const MOST_TOKENS: u64 = 8;
/// Blocks below this many bytes only cost block starts.
const LEAST_BLOCK: u64 = 8 * 1024;
/// Most stages of a block; each has a barrier.
const MOST_STAGES: u64 = 8;
/// Bytes of barriers, as in `kernels/gemv.cuh`.
const BARRIERS: u64 = 64;

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
    stage_rows: u64,
    stages: u64,
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
    let most = u64::from(arch.shared_per_block());
    if 2 * x > most {
        return Err(format!("activations of {x} bytes, a block has {most}"));
    }
    let bulk = arch.has_bulk_copy();
    let weights = |rows: u64| lane.planes(rows * units).map(|n| n.next_multiple_of(16)).sum::<u64>();
    let row: u64 = lane.planes(step * units).sum::<u64>().div_ceil(step);
    // Two blocks share a multiprocessor, so that one computes while the other's copies are under way.
    let room = (most / 2 - 1024).saturating_sub(x + BARRIERS).max(weights(step));
    let machines = 2 * u64::from(cx.request.options.multiprocessors());
    let share = (s.rows * row * s.matrices).div_ceil(machines);
    let rounded = |bytes: u64| (bytes / row / step * step).clamp(step, s.rows.next_multiple_of(step));
    let mut block_rows = rounded(share.max(LEAST_BLOCK)).max(step);
    // Rounding down would leave a last wave of a few blocks.
    if share > LEAST_BLOCK && s.rows.div_ceil(block_rows) * s.matrices > machines {
        block_rows = (block_rows + step).min(s.rows.next_multiple_of(step));
    }
    if s.free < s.rows {
        // A block stays within the rows of one vector.
        while block_rows > step && !s.free.is_multiple_of(block_rows) {
            block_rows -= step;
        }
        if !s.free.is_multiple_of(block_rows) {
            return Err(format!("{} rows a vector are not cut at 16 bytes", s.free));
        }
    }
    let threads: u64 = if s.k >= 1024 { 256 } else { 128 };
    // A stage keeps every warp busy once.
    let at_once = (threads / units.next_power_of_two().min(32)).next_multiple_of(step);
    let mut stage_rows = if weights(block_rows) <= room { block_rows } else { at_once.min(block_rows) };
    while stage_rows > step && 2 * weights(stage_rows) > room && stage_rows < block_rows {
        stage_rows -= step;
    }
    let fitting = (room / weights(stage_rows)).clamp(1, MOST_STAGES);
    let stages = if bulk { fitting.min(block_rows.div_ceil(stage_rows)) } else { 1 };
    let weights = if bulk { stages * weights(stage_rows) } else { 0 };
    let shared = BARRIERS + weights + x;
    if shared > most {
        return Err(format!("{shared} bytes of shared memory, a block has {most}"));
    }
    let blocks = s.rows.div_ceil(block_rows);
    Ok(Config { block_rows, stage_rows, stages, threads, shared, blocks, lane, bulk, int8, weights })
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
            ("STAGE_ROWS", self.stage_rows),
            ("STAGES", self.stages),
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
        let (rows, threads, stages) = (self.block_rows, self.threads, self.stages);
        let copies = match (self.bulk, rows.div_ceil(self.stage_rows)) {
            (false, _) => "loads from memory".to_owned(),
            (true, 1) => "one bulk copy a plane".to_owned(),
            (true, _) => format!("bulk copies in stages of {} rows, {stages} at a time", self.stage_rows),
        };
        let x = if self.int8 { "8-bit" } else { "f32" };
        format!("{rows} rows a block of {threads} threads, {copies}, {x} activations")
    }
}
