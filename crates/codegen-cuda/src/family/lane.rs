//! Matrices in the lane layout against few tokens: how rows are dealt to blocks and warps, and what fits shared memory.

use std::fmt::Write as _;

use super::cx::{Cx, Part};
use crate::repack::LaneType;
use crate::request::{Activations, Tuning};

/// Most tokens of a launch.
pub(super) const MOST_TOKENS: u64 = 8;
/// Blocks below this many bytes only cost block starts.
const LEAST_BLOCK: u64 = 8 * 1024;
/// Most stages of a warp; each has a barrier.
const MOST_STAGES: u64 = 8;

/// What a configuration is for.
pub(super) struct Shape {
    pub(super) rows: u64,
    /// Rows that share one vector of x.
    pub(super) free: u64,
    pub(super) k: u64,
    pub(super) tokens: u64,
    /// Matrices that one launch reads: 1, or the choices of experts.
    pub(super) matrices: u64,
    /// This part's share of the launch's bytes, of 1.
    pub(super) share: f64,
}

/// A configuration.
pub(super) struct Config {
    /// Blocks of a vector of x.
    pub(super) blocks: u64,
    pub(super) threads: u64,
    pub(super) shared: u64,
    /// Blocks that a multiprocessor must be able to hold.
    pub(super) resident: u64,
    group: u64,
    stages: u64,
    /// Copies that a warp makes.
    copies: u64,
    lanes: u64,
    tuning: Tuning,
    lane: LaneType,
    bulk: bool,
    digits: u64,
}

/// Bytes of a token's vector in shared memory, as `Activation` in `kernels/gemv.cuh` lays it out.
fn activation_bytes(k: u64, digits: u64) -> u64 {
    let units = k / 32;
    2 * digits * (units + 1) * 16 + (units * 4).next_multiple_of(16) + (units * 8).next_multiple_of(16)
}

/// What serves most shapes well, best first.
fn usual(cx: &Cx<'_>, s: &Shape, lane: LaneType) -> Vec<Tuning> {
    let units = s.k / 32;
    let side = 32 / units.next_power_of_two().min(32);
    let warps = if s.tokens > 2 { 8 } else { 16 };
    let machines = u64::from(cx.request.options.multiprocessors());
    // Rows of a block if each multiprocessor has one.
    let rows = (s.rows * s.matrices) as f64 * s.share.min(1.0) / machines as f64;
    let warp_rows = rows / (warps * side) as f64;
    // Exact activations take the registers that four rows would need.
    let most = match s.tokens {
        1 if warp_rows >= 2.5 && cx.request.options.activations == Activations::Int8 => 4,
        1 | 2 if warp_rows >= 1.3 => 2,
        _ => 1,
    };
    // With few rows several warps share one.
    let allowed = |p: &u64| units.is_multiple_of(*p) && units / p >= 32 && lane.aligned(units / p);
    let wanted = (warps as f64 / rows.max(1.0)).ceil() as u64;
    let parts = if most > 1 { 1 } else { (1..=wanted.min(6)).rev().find(allowed).unwrap_or(1) };
    let of = |pass: u32| Tuning { warps: warps as u32, pass, parts: parts as u32, ..Tuning::default() };
    [4, 2, 1].into_iter().filter(|n| *n <= most).map(of).collect()
}

/// The configuration of a part, or why there is none: the first that leaves room for a block of the next launch, or
/// else the last.
pub(super) fn plan(cx: &Cx<'_>, w: &Part, s: &Shape) -> Result<Config, String> {
    let lane = w.lane().ok_or_else(|| format!("{} is not in the lane layout", w.ident))?;
    let tunings = cx.request.options.tuning.map_or_else(|| usual(cx, s, lane), |t| vec![t]);
    let mut last = Err("no configuration".to_owned());
    for t in tunings {
        match with(cx, s, lane, t) {
            Ok(c) if c.shared <= half(cx) => return Ok(c),
            other => last = other,
        }
    }
    last
}

/// Half of a multiprocessor's shared memory leaves room for a block of the next launch, whose copies so begin early.
fn half(cx: &Cx<'_>) -> u64 {
    u64::from(cx.request.arch.shared_per_block()) / 2 - 512
}

fn with(cx: &Cx<'_>, s: &Shape, lane: LaneType, tuning: Tuning) -> Result<Config, String> {
    let arch = cx.request.arch;
    if s.tokens > MOST_TOKENS {
        return Err(format!("{} tokens, {MOST_TOKENS} at most", s.tokens));
    }
    let units = s.k / 32;
    let step = (0..7).map(|i| 1u64 << i).find(|n| lane.aligned(n * units)).ok_or("rows do not end at 16 bytes")?;
    if s.matrices > 1 && !lane.aligned(s.rows * units) {
        return Err("experts do not end at 16 bytes".into());
    }
    if s.free < s.rows && !lane.aligned(s.free * units) {
        return Err(format!("{} rows a vector do not end at 16 bytes", s.free));
    }
    let (parts, warps) = (u64::from(tuning.parts.max(1)), u64::from(tuning.warps.clamp(1, 32)));
    if !units.is_multiple_of(parts) || (parts > 1 && !lane.aligned(units / parts)) {
        return Err(format!("{units} units are not cut in {parts}"));
    }
    let digits = match cx.request.options.activations {
        Activations::Int8 => 1,
        Activations::F32 | Activations::BF16 => 3,
    };
    let tokens = s.tokens.next_power_of_two();
    let part = units / parts;
    let lanes = part.next_power_of_two().min(32);
    let at_once = 32 / lanes * u64::from(tuning.pass.max(1));
    let group = (at_once * u64::from(tuning.passes.max(1))).next_multiple_of(step).next_multiple_of(at_once);
    let vectors = s.rows.div_ceil(s.free.max(1)) * s.matrices;
    let groups = s.free.div_ceil(group);
    let row: u64 = lane.planes(step * units).sum::<u64>().div_ceil(step);
    let resident = u64::from(tuning.resident.max(1));
    let machines = ((u64::from(cx.request.options.multiprocessors()) * resident) as f64 * s.share).round() as u64;
    let blocks = (machines / vectors).max(1).min((s.free * row / LEAST_BLOCK).max(1)).min(groups);
    let block_groups = groups.div_ceil(blocks);
    let bulk = arch.has_bulk_copy();
    let stage = lane.planes(group * part).map(|n| n.next_multiple_of(16)).sum::<u64>();
    let partial = if parts > 1 { block_groups * group * parts * tokens * 4 } else { 0 };
    let fixed = tokens * activation_bytes(s.k, digits) + partial;
    let most = u64::from(arch.shared_per_block());
    let needed = |stages: u64| {
        let weights = (warps * stages * 8).next_multiple_of(128) + warps * stages * stage;
        fixed + if bulk { weights } else { 0 }
    };
    if needed(1) > most {
        return Err(format!("{} bytes of shared memory, a block has {most}", needed(1)));
    }
    let room = if tuning.shared == 0 { half(cx) } else { u64::from(tuning.shared).min(most) };
    let copies = (block_groups * parts).div_ceil(warps);
    let stages = if bulk { (1..=copies.min(MOST_STAGES)).rev().find(|n| needed(*n) <= room).unwrap_or(1) } else { 1 };
    let threads = 32 * warps;
    let shared = needed(stages);
    let resident = if threads <= 512 && s.tokens <= 2 { 2 } else { 1 };
    Ok(Config { blocks, threads, shared, resident, group, stages, copies, lanes, tuning, lane, bulk, digits })
}

impl Config {
    /// The constants that the device code takes.
    pub(super) fn members(&self, w: &Part) -> String {
        let mut m = format!("  typedef {}_LANE L;\n", self.lane.name);
        let total = w.ty.elems(&Default::default()).unwrap_or(0) / 32;
        let constants = [
            ("BLOCKS", self.blocks),
            ("THREADS", self.threads),
            ("GROUP", self.group),
            ("PASS", u64::from(self.tuning.pass.max(1))),
            ("PARTS", u64::from(self.tuning.parts.max(1))),
            ("STAGES", self.stages),
            ("LANES", self.lanes),
            ("UNROLL", u64::from(self.tuning.unroll.max(1))),
            ("DIGITS", self.digits),
        ];
        for (name, value) in constants {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let _ = writeln!(m, "  static constexpr u64 UNITS_TOTAL = {total};");
        let _ = writeln!(m, "  static constexpr bool BULK = {};", self.bulk);
        m
    }

    /// In a few words.
    pub(super) fn words(&self) -> String {
        let Config { blocks, group, stages, .. } = self;
        let warps = self.threads / 32;
        let parts = match self.tuning.parts {
            0 | 1 => String::new(),
            n => format!(" in {n} parts"),
        };
        let copies = match (self.bulk, self.copies) {
            (false, _) => "loads from memory".to_owned(),
            (true, n) if n <= *stages => format!("all {n} of its copies ahead"),
            (true, n) => format!("{n} copies in a ring of {stages}"),
        };
        let pass = self.tuning.pass;
        let x = if self.digits == 1 { "8-bit" } else { "24-bit" };
        format!(
            "{blocks} blocks of {warps} warps, {group} rows a warp{parts}, {pass} a pass, {copies}, {x} activations"
        )
    }
}
