//! Decode speed of the `glmc` binary on the CPU, as a share of the memory read bandwidth measured in the same run.
//!
//! `cargo bench --bench decode [-- MODEL ...]`: the shipped tiny model, and models of 1 GB of weights in one type each.
//! For each: tokens a second, bytes of weights that a token reads (experts that are not chosen left out), their product
//! as a share of the bandwidth, and the peak resident memory beside weights and caches.
//!
//! `cargo bench --bench decode -- --plain [MODEL ...]`: how much faster the optimised plan decodes than the plain one
//! (`--fuel 0`), in alternating runs.
#![allow(clippy::print_stdout, reason = "a program whose product is a table")]
#![allow(unsafe_code, reason = "wait4 gives a child's peak memory")]
#![allow(missing_docs, reason = "a bench")]

mod model;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use glmc_ir::quant::QuantType;
use glmc_runtime::device::cpu::ceiling::read_all;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const GLMC: &str = env!("CARGO_BIN_EXE_glmc");
/// Asks this program for the bandwidth alone.
const BANDWIDTH: &str = "--bandwidth";
/// Compares with the plan that no pass optimised.
const PLAIN: &str = "--plain";
/// Tokens in the cache when the two plans are compared.
const LONG_CONTEXT: usize = 512;
/// Runs of each of the two.
const ALTERNATING: usize = 5;
/// Tokens in the cache when timing starts.
const CONTEXT: usize = 64;
/// Tokens timed.
const STEPS: usize = 48;

fn main() -> Result<()> {
    if std::env::args().any(|a| a == BANDWIDTH) {
        println!("{}", read_rate());
        return Ok(());
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let plain = std::env::args().any(|a| a == PLAIN);
    let dir = tempfile::tempdir()?;
    println!("memory reads {:.2} GB/s at the start", bandwidth()?);
    if plain {
        println!("{:<12} {:>12} {:>12} {:>7}", "model", "tok/s", "plain tok/s", "ratio");
    } else {
        println!(
            "{:<12} {:>9} {:>9} {:>12} {:>9} {:>9} {:>7} {:>12}",
            "model", "weights", "tok/s", "read/token", "GB/s", "ceiling", "share", "extra RSS"
        );
    }
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let mut models: Vec<(String, PathBuf)> = vec![("tiny".into(), tiny)];
    for ty in [QuantType::Q4_K, QuantType::Q8_0] {
        models.push((format!("1gb-{ty}"), dir.path().join(format!("{ty}.gguf"))));
    }
    for (name, path) in models.into_iter().filter(|(n, _)| wanted.is_empty() || wanted.contains(n)) {
        if let Some(ty) = name.strip_prefix("1gb-").and_then(QuantType::from_name) {
            model::write(&path, ty, 1_000_000_000)?;
        }
        let of = if plain { compare } else { measure };
        of(&name, &path, dir.path())?;
        if path.starts_with(dir.path()) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn measure(name: &str, model: &Path, dir: &Path) -> Result<()> {
    let plan = dir.join(format!("{name}.plan"));
    let compile = ["compile", text(model)?, "-o", text(&plan)?, "--ctx", "512", "--max-batch", "1", "--json"];
    let (compiled, _) = json(&compile)?;
    let read = compiled["bytes_per_token"]["weights_read"].as_f64().ok_or("no weights_read")?;
    let memory = &compiled["memory_per_rank"][0];
    let weights = memory["weights"].as_f64().ok_or("no weights")?;
    let caches = memory["caches"].as_f64().ok_or("no caches")?;
    let (prompt, n) = (prompt(CONTEXT), (STEPS + 1).to_string());
    let (mut best, mut extra, mut ceiling) = (0.0f64, 0.0f64, 0.0f64);
    for _ in 0..3 {
        ceiling = ceiling.max(bandwidth()?);
        let (ran, peak) = json(&["run", text(&plan)?, "--tokens", &prompt, "-n", &n, "--ignore-eos", "--json"])?;
        best = best.max(ran["timings"]["decode_tps"].as_f64().ok_or("no decode_tps")?);
        extra = extra.max(peak - weights - caches);
    }
    let rate = best * read / 1e9;
    println!(
        "{name:<12} {:>6.0} MB {best:>9.1} {:>9.1} MB {rate:>9.2} {ceiling:>9.2} {:>6.0}% {:>9.0} MB",
        weights / 1e6,
        read / 1e6,
        rate / ceiling * 100.0,
        extra / 1e6
    );
    Ok(())
}

/// Medians over alternating runs of the optimised and the plain plan.
fn compare(name: &str, model: &Path, dir: &Path) -> Result<()> {
    let mut plans = Vec::new();
    for (kind, fuel) in [("optimised", None), ("plain", Some("0"))] {
        let plan = dir.join(format!("{name}.{kind}"));
        let mut args = vec!["compile", text(model)?, "-o", text(&plan)?, "--ctx", "1024", "--max-batch", "1", "--json"];
        args.extend(fuel.iter().flat_map(|n| ["--fuel", n]));
        json(&args)?;
        plans.push((plan, Vec::new()));
    }
    let (prompt, n) = (prompt(LONG_CONTEXT), (STEPS + 1).to_string());
    for _ in 0..ALTERNATING {
        for (plan, speeds) in &mut plans {
            let (ran, _) = json(&["run", text(plan)?, "--tokens", &prompt, "-n", &n, "--ignore-eos", "--json"])?;
            speeds.push(ran["timings"]["decode_tps"].as_f64().ok_or("no decode_tps")?);
        }
    }
    let median = |speeds: &mut Vec<f64>| {
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    };
    let (fast, slow) = (median(&mut plans[0].1), median(&mut plans[1].1));
    println!("{name:<12} {fast:>12.1} {slow:>12.1} {:>7.2}", fast / slow);
    Ok(())
}

/// `n` token ids.
fn prompt(n: usize) -> String {
    (0..n).map(|i| (i * 37 % 2000).to_string()).collect::<Vec<_>>().join(",")
}

fn text(p: &Path) -> Result<&str> {
    p.to_str().ok_or_else(|| "a path that is not UTF-8".into())
}

/// Runs `glmc` and returns its JSON and its peak resident bytes.
fn json(args: &[&str]) -> Result<(Value, f64)> {
    let mut child = Command::new(GLMC).args(args).stdout(Stdio::piped()).spawn()?;
    let mut out = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        std::io::Read::read_to_string(&mut pipe, &mut out)?;
    }
    let mut status = 0;
    // SAFETY: `rusage` is plain data that wait4 fills; the child is ours and not yet waited for.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage), usage)
    };
    if pid < 0 || status != 0 {
        return Err(format!("glmc {args:?} failed: {out}").into());
    }
    Ok((serde_json::from_str(&out)?, usage.ru_maxrss as f64 * 1024.0))
}

/// Read bandwidth in GB/s, measured by a process of its own: a child's peak memory counts its parent's too.
fn bandwidth() -> Result<f64> {
    let out = Command::new(std::env::current_exe()?).arg(BANDWIDTH).output()?;
    Ok(String::from_utf8(out.stdout)?.trim().parse()?)
}

/// Over 1 GB, best of four.
fn read_rate() -> f64 {
    let words = vec![1f32; 1 << 28];
    let once = || {
        let start = Instant::now();
        std::hint::black_box(read_all(&words));
        (words.len() * 4) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..4).map(|_| once()).fold(0.0, f64::max)
}
