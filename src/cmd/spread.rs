//! A plan on several GPUs: which GPUs are named, which rank runs where, and the device of all of them.

use std::fmt;
use std::time::{Duration, Instant};

use glmc_codegen_cuda::nvrtc::wheels;
use glmc_codegen_cuda::program::{Choices, Spread, links};
use glmc_runtime::device::Device;
use glmc_runtime::device::cuda::{Backend, CudaDevice, CudaGroup, CudaOptions, Member, Probe, Wanted, WeightSource};
use glmc_runtime::load::Loaded;
use serde_json::{Value, json};

use super::device::{UNIT, Where, weights_told};
use super::gpu::Gpu;
use super::human_bytes;
use crate::cli::DeviceArgs;
use crate::error::CliError;
use crate::terminal::say;

/// Most GPUs that can be named.
const MOST: usize = 64;

/// A set of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gpus(u64);

impl Gpus {
    /// Those that are there.
    pub(crate) const ALL: Gpus = Gpus(u64::MAX);

    /// The first `n`.
    pub(crate) fn first(n: usize) -> Gpus {
        Gpus((0..n.min(MOST)).fold(0, |m, i| m | 1 << i))
    }

    /// `cuda:0,1`.
    pub(crate) fn parse(text: &str) -> Result<Gpus, String> {
        let told = || format!("`{text}` names no GPUs: cuda:0,1 does");
        let list = text.strip_prefix("cuda:").ok_or_else(told)?;
        let mut set = 0u64;
        for n in list.split(',') {
            let n: usize = n.strip_prefix("cuda:").unwrap_or(n).parse().map_err(|_| told())?;
            if n >= MOST || set & 1 << n != 0 {
                return Err(format!("`{text}` names cuda:{n} twice, or more than {MOST} GPUs"));
            }
            set |= 1 << n;
        }
        Ok(Gpus(set))
    }

    pub(crate) fn numbers(self) -> Vec<usize> {
        (0..MOST).filter(|n| self.0 & 1 << n != 0).collect()
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers().iter().map(ToString::to_string).collect();
        write!(f, "cuda:{}", numbers.join(","))
    }
}

/// The GPU of each rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Map(Vec<usize>);

/// `0,0,1,1`.
pub(crate) fn parse_map(text: &str) -> Result<Map, String> {
    let number = |n: &str| n.parse::<usize>().ok().filter(|n| *n < MOST);
    let all: Option<Vec<usize>> = text.split(',').map(number).collect();
    all.map(Map).ok_or_else(|| format!("`{text}` is no map: a GPU's number for each rank, such as 0,0,1,1"))
}

/// Seconds, more than none.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let n = text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 1e6);
    n.map(Duration::from_secs_f64).ok_or_else(|| format!("`{text}` is no time in seconds above 0"))
}

/// `auto`, `p2p`, `nccl` or `host`.
pub(crate) fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted::Auto),
        "p2p" => Ok(Wanted::Only(Backend::P2p)),
        "host" => Ok(Wanted::Only(Backend::Host)),
        "nccl" => Ok(Wanted::Only(Backend::Nccl)),
        _ => Err(format!("`{text}` is no way to exchange values: auto, p2p, nccl, host")),
    }
}

impl Map {
    /// Whether it is one of so many ranks.
    pub(crate) fn check(&self, ranks: usize) -> Result<(), CliError> {
        if self.0.len() == ranks {
            return Ok(());
        }
        let message = format!("--map names GPUs for {} ranks, the plan has {ranks}", self.0.len());
        Err(CliError::usage("map", message))
    }

    /// Its GPUs in the order in which ranks meet them, if `place` has them all.
    pub(crate) fn devices(&self, place: Where) -> Result<Vec<usize>, CliError> {
        let allowed = match place {
            Where::Several(gpus) => gpus,
            Where::Cuda(n) if n < MOST => Gpus(1 << n),
            _ => return Err(CliError::usage("map", "--map names GPUs, --device none")),
        };
        let mut out = Vec::new();
        for n in &self.0 {
            if allowed.0 & 1 << n == 0 {
                return Err(CliError::usage("map", format!("--map names cuda:{n}, --device {place}")));
            }
            if !out.contains(n) {
                out.push(*n);
            }
        }
        Ok(out)
    }

    /// For each rank the place of its GPU among `devices`.
    fn places(&self, devices: &[usize]) -> Vec<usize> {
        self.0.iter().filter_map(|n| devices.iter().position(|d| d == n)).collect()
    }
}

/// Ranks dealt in equal runs.
fn evenly(ranks: usize, devices: usize) -> Vec<usize> {
    (0..ranks).map(|r| r * devices / ranks.max(1)).collect()
}

/// The device of a plan on these GPUs, and a line for each rank.
pub(super) fn group(
    gpus: &[&Gpu],
    loaded: &Loaded,
    args: &DeviceArgs,
    quiet: bool,
) -> Result<(Box<dyn Device>, Vec<Value>), CliError> {
    let start = Instant::now();
    let ranks = loaded.plan.target.ranks as usize;
    let first = gpus.first().ok_or_else(|| CliError::internal("no GPU for a plan"))?;
    let numbers: Vec<usize> = gpus.iter().map(|g| g.context.info().index).collect();
    if let Some(other) = gpus.iter().find(|g| g.arch != first.arch) {
        let message = format!(
            "{:?} is {}, {:?} is {}: a plan runs on GPUs of one architecture",
            first.context, first.arch, other.context, other.arch
        );
        return Err(CliError::usage("arch", message).class("device"));
    }
    let map = args.map.as_ref().map_or_else(|| evenly(ranks, gpus.len().min(ranks)), |m| m.places(&numbers));
    let used = map.iter().max().map_or(0, |d| d + 1);
    let used_gpus: Vec<&Gpu> = gpus.iter().take(used).copied().collect();
    let wanted = args.collectives.unwrap_or_default();
    let library = wanted == Wanted::Only(Backend::Nccl);
    let small_bytes = if used > 1 && !library { Some(super::measure::small_bytes(&used_gpus, wanted)?) } else { None };
    let multiprocessors = Some(first.context.info().multiprocessors);
    let precision = args.precision();
    let choices = Choices { precision, multiprocessors, small_bytes, library, ..Choices::default() };
    let Spread { kernels, devices, .. } = Spread::new(&loaded.plan, first.arch, &choices, &map)?;
    let probe = links::probe();
    let mut members = Vec::new();
    let mut counts = (0, 0, 0);
    for (gpu, launches) in gpus.iter().zip(devices) {
        let on = gpu.load(kernels.iter().chain([&probe]), UNIT, quiet || !members.is_empty())?;
        counts = (on.kernels, on.units, on.cached);
        let kernels = kernels.iter().map(|k| on.kernel(k)).collect::<Result<Vec<_>, _>>()?;
        let probe = Probe { kernel: on.kernel(&probe)? };
        members.push(Member { context: gpu.context.clone(), launches, kernels, probe });
    }
    let kernels_s = start.elapsed().as_secs_f64();
    let options =
        CudaOptions { dependent: first.arch.has_bulk_copy(), graphs: !args.eager, limit: args.step_timeout() };
    let progress = weights_told(quiet);
    let start = Instant::now();
    let (plan, weights) = (&loaded.plan, &loaded.weights);
    let (device, way, bytes, launches): (Box<dyn Device>, _, _, Vec<usize>) = if used == 1 {
        let Some(m) = members.pop() else { return Err(CliError::internal("a map without a GPU")) };
        let d = CudaDevice::new(
            &m.context,
            plan,
            WeightSource::Stored(weights),
            m.launches,
            m.kernels,
            options,
            &progress,
        )?;
        let (bytes, starts) = (vec![d.bytes()], (0..plan.phases.len()).map(|i| d.starts(i)).collect());
        (Box::new(d), "local", bytes, starts)
    } else {
        let d = CudaGroup::new(members, plan, weights, options, (wanted, &wheels()), &progress)?;
        if let Some(note) = d.note() {
            say(&format!("warning: {note}"));
        }
        let starts = (0..plan.phases.len()).map(|i| d.starts(i)).collect();
        let (way, bytes) = (d.backend().name(), d.bytes().to_vec());
        (Box::new(d), way, bytes, starts)
    };
    let weights_s = start.elapsed().as_secs_f64();
    if !quiet {
        let total = human_bytes(bytes.iter().sum());
        let gpus: Vec<String> = gpus.iter().take(used).map(|g| format!("{:?}", g.context)).collect();
        let (n, units, cached) = counts;
        say(&format!(
            "{} {}: {n} kernels in {units} units ({cached} from the cache) in {kernels_s:.1} s, {total} on the devices in \
             {weights_s:.1} s, collectives {way}",
            gpus.join(", "),
            first.arch,
        ));
    }
    let starts: serde_json::Map<String, Value> =
        plan.phases.iter().zip(launches).map(|(p, n)| (p.name.clone(), json!(n))).collect();
    let line = |(rank, d): (usize, &usize)| {
        let info = gpus[*d].context.info();
        json!({
            "rank": rank, "device": format!("cuda:{}", info.index), "arch": first.arch.name(), "name": info.name,
            "kernels": counts.0, "units": counts.1, "units_cached": counts.2, "kernels_s": kernels_s,
            "weights_s": weights_s, "bytes": bytes[*d], "graphs": options.graphs, "launches": starts,
            "collectives": way,
        })
    };
    Ok((device, map.iter().enumerate().map(line).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_dealt_in_runs() {
        assert_eq!(evenly(8, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(evenly(3, 2), [0, 0, 1]);
        assert_eq!(evenly(4, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn maps_and_sets_are_read() {
        assert_eq!(Gpus::parse("cuda:0,2").unwrap().numbers(), [0, 2]);
        assert_eq!(Gpus::parse("cuda:0,cuda:2").unwrap().to_string(), "cuda:0,2");
        assert!(Gpus::parse("cuda:0,0").is_err() && Gpus::parse("cuda:0,64").is_err() && Gpus::parse("gpu,1").is_err());
        let map = parse_map("3,3,1,3").unwrap();
        assert!(parse_map("0,x").is_err() && parse_map("").is_err());
        assert_eq!(map.devices(Where::Several(Gpus::ALL)).unwrap(), [3, 1]);
        assert_eq!(map.places(&[3, 1]), [0, 0, 1, 0]);
        assert!(map.check(4).is_ok() && map.check(2).is_err());
        assert!(map.devices(Where::Cuda(3)).is_err() && map.devices(Where::Cpu).is_err());
        assert!(parse_seconds("0.5").is_ok() && parse_seconds("0").is_err() && parse_seconds("inf").is_err());
    }
}
