//! Owns the check that a run fits this machine's memory, before a byte of it is asked for or a weight is read.

use std::fs::read_to_string;
use std::path::Path;

use glmc_ir::plan::Plan;
use glmc_runtime::need::HostNeed;
use rustix::process::{Resource, getrlimit};

use crate::error::CliError;

/// Refuses a plan whose weights in pieces, caches and arenas are more than this process can have; on a GPU only the
/// first are the host's.
///
/// # Errors
/// Class `memory`, with each part.
pub(crate) fn check(plan: &Plan, on_cpu: bool) -> Result<(), CliError> {
    let need = HostNeed::of(plan);
    let bytes = if on_cpu { need.total() } else { need.gathered };
    let Some(have) = available().filter(|have| bytes > *have) else { return Ok(()) };
    let HostNeed { gathered, caches, arenas } = need;
    let parts = if on_cpu {
        format!("weights gathered for ranks {gathered}, caches {caches}, arenas {arenas}")
    } else {
        "weights gathered for ranks, which a GPU gets from there".to_owned()
    };
    let help = if gathered > have {
        "use a machine with more memory or a smaller model, or compile for `--target cpu`, whose weights stay in their files"
    } else {
        "free memory, or compile with a smaller --ctx, --cache or --max-batch"
    };
    let m = format!("the plan needs {bytes} bytes of memory here and this process can have {have}: {parts}; {help}");
    Err(CliError::usage("allocation", m).class("memory"))
}

/// The least of the machine's memory and the limits of this process; `None` where nothing is known.
fn available() -> Option<u64> {
    let limits = [Resource::As, Resource::Data].into_iter().filter_map(|r| getrlimit(r).current);
    limits.chain(machine()).chain(groups()).min()
}

/// What the machine has, with what it can swap.
fn machine() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let of = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(of("MemTotal:")?.saturating_add(of("SwapTotal:").unwrap_or(0)))
}

/// The least limit of the control groups that the process is in.
fn groups() -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    let unified = root.join(own);
    let unified = unified.ancestors().take_while(|g| g.starts_with(root)).map(|g| g.join("memory.max"));
    let files = unified.chain([root.join("memory/memory.limit_in_bytes")]);
    files.filter_map(|f| read_to_string(f).ok()?.trim().parse().ok()).min()
}
