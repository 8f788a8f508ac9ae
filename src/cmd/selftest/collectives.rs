//! Collectives under replay: graphs of as many all-reduces as a decoded token of the large model has, each with operands
//! made on the GPUs and compared there, one GPU late now and then. On all GPUs; on one its ranks share it.

use std::time::Instant;

use glmc_runtime::device::cuda::{Backend, CudaError, Wanted};
use serde_json::{Value, json};

use super::super::gpu::Gpu;
use super::super::ring::{MEETINGS, Ring, WAYS};
use super::super::{print_json, print_line};
use crate::cli::SelftestArgs;
use crate::error::CliError;

/// Replays within a self-test.
pub(super) const REPLAYS: u64 = 100;
/// The hidden state of the large model in 16 bits, as floats: 12 KiB. And one that each GPU merges a part of.
const WORDS: [u64; 2] = [3072, 100_003];
/// Most bytes that go whole to every GPU here.
const SMALL: u64 = 64 << 10;

/// One line of the report.
pub(super) struct Stressed {
    ranks: usize,
    gpus: usize,
    way: &'static str,
    bytes: u64,
    replays: u64,
    /// Whether a GPU stayed away, which must be said.
    absent: bool,
    /// Seconds of all replays, or what is wrong.
    pub(super) outcome: Result<f64, String>,
}

impl Stressed {
    pub(super) fn line(&self) -> String {
        let Stressed { ranks, gpus, way, bytes, replays, .. } = self;
        let what = format!("collectives, {way}: {ranks} ranks on {gpus} GPUs, {bytes} bytes, {replays} x {MEETINGS}");
        match &self.outcome {
            Ok(s) if self.absent => format!("collectives, {way}: a GPU that stays away is named after {s:.1} s  ok"),
            Err(e) if self.absent => format!("collectives, {way}: a GPU that stays away  FAIL {e}"),
            Ok(s) => format!("{what}, exact, {s:.1} s  ok"),
            Err(e) => format!("{what}  FAIL {e}"),
        }
    }

    pub(super) fn json(&self) -> Value {
        let Stressed { ranks, gpus, way, bytes, replays, absent, outcome } = self;
        json!({
            "absent": absent, "ranks": ranks, "gpus": gpus, "way": way, "bytes": bytes, "replays": replays, "all_reduces": MEETINGS,
            "seconds": outcome.as_ref().ok(), "why": outcome.as_ref().err(),
        })
    }
}

/// All GPUs, the one that is open first.
fn others(gpu: &Gpu, args: &SelftestArgs) -> Result<Vec<Gpu>, CliError> {
    let own = gpu.context.info();
    let all = gpu.driver.devices()?;
    let more = all.iter().filter(|d| d.index != own.index && d.arch == own.arch);
    more.map(|d| Gpu::open(d.index, args.nvrtc.as_deref())).collect()
}

/// Runs all sizes in every way that there is.
pub(super) fn run(gpu: &Gpu, args: &SelftestArgs, replays: u64) -> Result<Vec<Stressed>, CliError> {
    let more = others(gpu, args)?;
    let gpus: Vec<&Gpu> = std::iter::once(gpu).chain(&more).collect();
    let n = gpus.len();
    // One rank a GPU, and GPUs that ranks share.
    let maps = [(0..n).collect::<Vec<_>>(), (0..4 * n).map(|r| r / 4).collect()];
    let maps = maps.iter().filter(|m| m.len() > 1);
    let mut out = Vec::new();
    for map in maps {
        for words in WORDS {
            for way in WAYS.into_iter().take(if n > 1 { WAYS.len() } else { 1 }) {
                // Ranks of one GPU are not the library's business.
                if way == Backend::Nccl && map.len() > n {
                    continue;
                }
                // The whole number of replays where it says most: the first way, the size of a decoded token.
                let replays = if way == WAYS[0] && words == WORDS[0] { replays } else { replays.min(REPLAYS) };
                let start = Instant::now();
                let ring = Ring::new(&gpus, map, words, SMALL, Wanted::Only(way));
                let (name, outcome) = match ring {
                    Err(e) if e.class == "device" => (way.name(), Err(e.message)),
                    Err(e) => return Err(e),
                    Ok(ring) => (ring.way(), ring.stress(replays).map_err(|e: CudaError| e.to_string())),
                };
                let outcome = outcome.and_then(|wrong| match wrong {
                    0 => Ok(start.elapsed().as_secs_f64()),
                    n => Err(format!("{n} words are not the sum")),
                });
                out.push(Stressed {
                    ranks: map.len(),
                    gpus: n,
                    way: name,
                    bytes: 4 * words,
                    replays,
                    absent: false,
                    outcome,
                });
            }
        }
    }
    if n > 1 {
        let start = Instant::now();
        let (way, map) = (WAYS[0], (0..n).collect::<Vec<_>>());
        let outcome = match Ring::new(&gpus, &map, WORDS[0], SMALL, Wanted::Only(way)) {
            Err(e) if e.class == "device" => Err(e.message),
            Err(e) => return Err(e),
            Ok(ring) => ring.without_last().map(|_| start.elapsed().as_secs_f64()),
        };
        let bytes = 4 * WORDS[0];
        out.push(Stressed { ranks: n, gpus: n, way: way.name(), bytes, replays: 1, absent: true, outcome });
    }
    Ok(out)
}

/// `--collectives`: nothing else.
pub(super) fn alone(gpu: &Gpu, args: &SelftestArgs) -> Result<(), CliError> {
    let all = run(gpu, args, args.replays.unwrap_or(REPLAYS))?;
    let failures = all.iter().filter(|c| c.outcome.is_err()).count();
    if args.json {
        let lines: Vec<Value> = all.iter().map(Stressed::json).collect();
        print_json(&json!({ "machine": gpu.json(), "collectives": lines, "passed": failures == 0 }))?;
    } else {
        all.iter().try_for_each(|c| print_line(&c.line()))?;
    }
    match failures {
        0 => Ok(()),
        n => {
            Err(CliError::usage("selftest", format!("{n} of {} checks of collectives fail", all.len()))
                .class("selftest"))
        }
    }
}
