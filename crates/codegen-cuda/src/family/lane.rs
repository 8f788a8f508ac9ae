//! Matrices in the lane layout against few tokens: how rows are dealt to blocks and warps, and what fits shared memory.

use std::collections::BTreeMap;

use super::cx::{Cx, Part};
use super::lane_cost::Load;
use crate::repack::LaneType;
use crate::request::{Activations, Tuning};

/// Most tokens of a launch.
pub(super) const MOST_TOKENS: u64 = 8;
/// Blocks below this many bytes only cost block starts.
const LEAST_BLOCK: u64 = 8 * 1024;
/// Most stages of a warp; each has a barrier.
const MOST_STAGES: u64 = 8;
/// Warps of a block.
const WARPS: [u32; 4] = [8, 12, 16, 24];
/// Matrices below so many bytes take at most so many: they share a multiprocessor with other launches.
const SMALL: (u64, u32) = (4 << 20, 16);
/// Most choices that a block's batches may have: a lane holds each.
const MOST_CHOICES: u64 = 32;

/// What a configuration is for; `kernels/gemv.cuh` says what the numbers mean.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Most batches, and the rows of each.
    pub(super) batches: u64,
    pub(super) free: u64,
    pub(super) k: u64,
    pub(super) tokens: u64,
    /// Experts whose results are summed by weight: 0 if none are.
    pub(super) folded: u64,
    /// Matrices of one shape that are read together.
    pub(super) ways: u64,
    /// Batches that share a vector.
    pub(super) share: u64,
    /// 0 where matrices are plain.
    pub(super) experts: u64,
    /// This part's share of the launch's bytes, of 1.
    pub(super) part: f64,
}

impl Shape {
    pub(super) fn fold(&self) -> u64 {
        self.folded.max(1)
    }
}

/// A configuration.
pub(super) struct Config {
    pub(super) blocks: u64,
    pub(super) threads: u64,
    pub(super) shared: u64,
    /// Blocks that a multiprocessor must be able to hold.
    pub(super) resident: u64,
    /// Ways that were not taken, and why.
    pub(super) rejected: Vec<String>,
    /// Microseconds, by the model in [`super::lane_cost`].
    pub(super) cost: f64,
    pub(super) group: u64,
    pub(super) stages: u64,
    /// Copies that a warp makes.
    pub(super) copies: u64,
    pub(super) lanes: u64,
    pub(super) vectors: u64,
    pub(super) shape: Shape,
    pub(super) tuning: Tuning,
    pub(super) lane: LaneType,
    pub(super) bulk: bool,
    pub(super) digits: u64,
}

/// Bytes of a token's vector in shared memory, as `kernels/activation.cuh` lays it out.
fn activation_bytes(k: u64, digits: u64) -> u64 {
    let units = k / 32;
    2 * digits * (units + 1) * 16 + (units * 4).next_multiple_of(16) + (units * 8).next_multiple_of(16)
}

/// Ways worth a look for blocks of so many warps: those that were timed for this type and rounding.
fn tunings(lane: LaneType, digits: u64, warps: u32) -> Vec<Tuning> {
    // The sweep took all combinations of two types, and fewer of the others.
    let widely = digits == 1 && matches!(lane.name, "Q8_0" | "Q4_K");
    if !widely && !matches!(warps, 8 | 16) {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (pass, parts) in [1, 2, 4].into_iter().flat_map(|pass| [1, 2, 3, 6].map(|parts| (pass, parts))) {
        if pass == 4 && parts > 1 {
            continue;
        }
        let t = Tuning { warps, pass, parts, ..Tuning::default() };
        out.push(t);
        if widely && matches!(warps, 8 | 16) && parts != 2 {
            out.push(Tuning { resident: 2, shared: 56 << 10, ..t });
        }
        if widely && warps == 16 && parts == 1 {
            out.push(Tuning { shared: 220 << 10, ..t });
        }
    }
    out
}

/// What would take more registers than a thread has if two blocks share a multiprocessor.
fn spills(s: &Shape, lane: LaneType, digits: u64, t: &Tuning) -> Option<String> {
    let rows = u64::from(t.pass) * s.ways;
    let steps = (s.k / 32 / u64::from(t.parts)).div_ceil(32);
    let why = match s.tokens {
        1 if rows > 4 => format!("{rows} rows at once"),
        1 if rows > 2 && digits > 1 && t.warps > 8 => format!("{rows} rows at once of {digits} digits"),
        1 if rows > 1 && lane.name == "Q8_0" && t.warps > 8 && steps == 3 => format!("{steps} steps of {rows} rows"),
        2 if rows > 2 || (rows > 1 && t.warps > 8) => format!("{rows} rows at once of two tokens"),
        3.. if rows > s.ways || t.warps > 8 || t.parts > 1 => format!("{} tokens", s.tokens),
        _ => return None,
    };
    Some(format!("registers spill: {why} in {} warps", t.warps))
}

/// The configuration of a matrix: the cheapest by the model, or why there is none.
pub(super) fn plan(cx: &Cx<'_>, w: &Part, s: &Shape) -> Result<Config, String> {
    plan_side_by_side(cx, &[(w, *s)])?.pop().ok_or_else(|| "no matrix".to_owned())
}

/// Configurations of matrices that share a launch, so with one size of blocks: the slowest decides.
pub(super) fn plan_side_by_side(cx: &Cx<'_>, list: &[(&Part, Shape)]) -> Result<Vec<Config>, String> {
    let slowest = |l: &[Config]| l.iter().map(|c| c.cost).fold(0.0, f64::max);
    let mut best: Result<Vec<Config>, String> = Err("no configuration".into());
    let asked = cx.request.options.tuning.map(|t| t.warps);
    let bytes = list.iter().map(|(w, s)| s.ways * w.ty.bytes(&Default::default()).unwrap_or(0)).sum::<u64>();
    let few = WARPS.into_iter().filter(|w| bytes >= SMALL.0 || *w <= SMALL.1).collect();
    for warps in asked.map_or(few, |w| vec![w]) {
        let made: Result<Vec<Config>, String> = list.iter().map(|(w, s)| cheapest(cx, w, s, warps)).collect();
        best = match (best, made) {
            (Ok(a), Ok(b)) if slowest(&b) < slowest(&a) => Ok(b),
            (Ok(a), _) => Ok(a),
            (Err(_), Ok(b)) => Ok(b),
            // Some sizes of blocks have no way at all: the longest reason says most.
            (Err(a), Err(b)) => Err(if b.len() > a.len() { b } else { a }),
        };
    }
    best
}

fn cheapest(cx: &Cx<'_>, w: &Part, s: &Shape, warps: u32) -> Result<Config, String> {
    let lane = w.lane().ok_or_else(|| format!("{} is not in the lane layout", w.ident))?;
    let (asked, digits) = (cx.request.options.tuning, digits(cx));
    let tunings = asked.map_or_else(|| tunings(lane, digits, warps), |t| vec![t]);
    let mut taken: Vec<Config> = Vec::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for t in tunings {
        let spilled = spills(s, lane, digits, &t).filter(|_| asked.is_none());
        match spilled.map_or_else(|| with(cx, s, lane, t), Err) {
            Ok(c) => taken.push(c),
            Err(why) => *reasons.entry(why).or_default() += 1,
        }
    }
    taken.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let mut rejected: Vec<String> = reasons.iter().map(|(why, n)| format!("lane, {n} ways: {why}")).collect();
    let slower = taken.len().saturating_sub(2);
    let mut taken = taken.into_iter();
    let Some(mut best) = taken.next() else {
        return Err(if rejected.is_empty() { "no way".into() } else { rejected.join("; ") });
    };
    if let Some(second) = taken.next() {
        let (a, b) = (best.cost, second.cost);
        rejected.push(format!("lane, {}: {b:.2} us of {a:.2}, and {slower} slower ways", second.words()));
    }
    best.rejected = rejected;
    Ok(best)
}

/// Half of a multiprocessor's shared memory leaves room for a block of the next launch, whose copies so begin early.
fn half(cx: &Cx<'_>) -> u64 {
    u64::from(cx.request.arch.shared_per_block()) / 2 - 512
}

/// Bytes of an activation as an integer.
fn digits(cx: &Cx<'_>) -> u64 {
    match cx.request.options.activations {
        Activations::Int8 => 1,
        Activations::F32 | Activations::BF16 => 3,
    }
}

fn with(cx: &Cx<'_>, s: &Shape, lane: LaneType, tuning: Tuning) -> Result<Config, String> {
    let arch = cx.request.arch;
    if s.tokens > MOST_TOKENS {
        return Err(format!("{} tokens, {MOST_TOKENS} at most", s.tokens));
    }
    let units = s.k / 32;
    if units == 0 || s.free == 0 || s.batches == 0 {
        return Err("nothing is multiplied".into());
    }
    let step = (0..7).map(|i| 1u64 << i).find(|n| lane.aligned(n * units)).ok_or("rows do not end at 16 bytes")?;
    if (s.batches > 1 || s.experts > 1) && !lane.aligned(s.free * units) {
        return Err(format!("{} rows of a matrix do not end at 16 bytes", s.free));
    }
    let (parts, warps) = (u64::from(tuning.parts.max(1)), u64::from(tuning.warps.clamp(1, 32)));
    if !units.is_multiple_of(parts) || (parts > 1 && !lane.aligned(units / parts)) {
        return Err(format!("{units} units are not cut in {parts}"));
    }
    let digits = digits(cx);
    let (tokens, fold) = (s.tokens.next_power_of_two(), s.fold());
    let part = units / parts;
    let lanes = part.next_power_of_two().min(32);
    let at_once = 32 / lanes * u64::from(tuning.pass.max(1));
    let group = (at_once * u64::from(tuning.passes.max(1))).next_multiple_of(step).next_multiple_of(at_once);
    let groups = s.free.div_ceil(group);
    let total = groups * s.batches;
    let row: u64 = s.ways * fold * lane.planes(step * units).sum::<u64>().div_ceil(step);
    let resident = u64::from(tuning.resident.max(1));
    let machines = u64::from(cx.request.options.multiprocessors()) * resident;
    let wanted = (machines as f64 * s.part).round() as u64;
    let mut blocks = wanted.min(s.batches * s.free * row / LEAST_BLOCK).clamp(1, total);
    // Batches that a block's run of groups may touch.
    let near = |blocks: u64| ((total.div_ceil(blocks) - 1).div_ceil(groups) + 1).min(s.batches);
    if s.experts > 0 && near(blocks) > 2 {
        blocks = blocks.max(s.batches);
    }
    let near = near(blocks);
    if s.experts > 0 && near * fold > MOST_CHOICES {
        return Err(format!("{} choices of a block, {MOST_CHOICES} at most", near * fold));
    }
    let vectors = ((near - 1).div_ceil(s.share) + 1).min(s.batches.div_ceil(s.share)) * fold * tokens;
    let block_groups = total.div_ceil(blocks);
    let bulk = arch.has_bulk_copy();
    let stage = s.ways * lane.planes(group * part).map(|n| n.next_multiple_of(16)).sum::<u64>();
    let pieces = block_groups * parts * fold;
    let partial = if parts > 1 || s.folded > 0 { pieces * group * tokens * s.ways * 4 } else { 0 };
    let fixed = vectors * activation_bytes(s.k, digits) + partial;
    let most = u64::from(arch.shared_per_block());
    let needed = |stages: u64| {
        let weights = (warps * stages * 8).next_multiple_of(128) + warps * stages * stage;
        fixed + if bulk { weights } else { 0 }
    };
    if needed(1) > most {
        return Err(format!("more shared memory than the {most} bytes of a block"));
    }
    // Experts begin when their ids are there: the launch behind them, which has its ids then, takes less.
    let usual = if s.experts > 0 && s.folded == 0 { most * 5 / 8 } else { half(cx) };
    let room = if tuning.shared == 0 { usual } else { u64::from(tuning.shared).min(most) };
    let copies = pieces.div_ceil(warps);
    let stages = if bulk { (1..=copies.min(MOST_STAGES)).rev().find(|n| needed(*n) <= room).unwrap_or(1) } else { 1 };
    let threads = 32 * warps;
    let shared = needed(stages);
    let alike = (f64::from(cx.request.options.multiprocessors()) * s.part).round() as u64;
    let per_machine = blocks.div_ceil(alike.max(1));
    let load = Load {
        lane: lane.name,
        digits,
        warps,
        blocks: per_machine,
        pieces,
        copies,
        group: s.ways * group,
        pass: s.ways * u64::from(tuning.pass.max(1)),
        passes: group / at_once,
        steps: part.div_ceil(lanes),
        lanes,
        units: vectors * units,
        bulk: s.ways * lane.planes(units).count() as u64 * if parts > 1 { group } else { 1 },
        stages,
        partial: partial > 0,
        bytes: per_machine * block_groups * group * row,
        ahead: s.experts == 0,
        alone: shared > usual / per_machine || warps * per_machine > 16,
    };
    let cost = load.microseconds();
    // Where two blocks do not fit, a thread may have all registers.
    let resident = if threads <= 512 && s.tokens <= 2 && shared <= usual { 2 } else { 1 };
    let rejected = Vec::new();
    Ok(Config {
        blocks,
        threads,
        shared,
        resident,
        rejected,
        cost,
        group,
        stages,
        copies,
        lanes,
        vectors,
        shape: *s,
        tuning,
        lane,
        bulk,
        digits,
    })
}
