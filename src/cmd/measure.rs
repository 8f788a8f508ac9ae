//! How fast the GPUs of this machine exchange values: what `devices --measure` prints, and up to which size a value goes
//! whole to every GPU, which a plan on several GPUs needs to know. Kept in the user's cache folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use glmc_runtime::device::cuda::{Backend, Wanted};
use serde_json::{Value, json};

use super::gpu::Gpu;
use super::ring::{Ring, WAYS};
use super::{human_bytes, print_line};
use crate::error::CliError;

/// A value that only shows how long a meeting takes, that of a decoded token, and one that fills the links.
const TINY: u64 = 64;
const TOKEN: u64 = 3072;
const LARGE: u64 = 4 << 20;
/// Sizes in bytes at which both forms of an all-reduce are timed.
const SIZES: [u64; 5] = [32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];

/// Two GPUs and a way between them.
pub(crate) struct Pair {
    gpus: [usize; 2],
    way: Backend,
    /// Seconds of an all-reduce of 256 bytes and of 12 KiB, bytes a second and direction; or why there is none.
    figures: Result<[f64; 3], String>,
}

/// All that was measured.
pub(crate) struct Measured {
    pairs: Vec<Pair>,
    crossover: u64,
}

/// Measures every pair in every way, and the crossover over all GPUs.
pub(crate) fn measure(gpus: &[&Gpu]) -> Result<Measured, CliError> {
    let mut pairs = Vec::new();
    for (i, a) in gpus.iter().enumerate() {
        for b in &gpus[i + 1..] {
            for way in WAYS {
                let numbers = [a, b].map(|g| g.context.info().index);
                let figures = match pair(&[a, b], way) {
                    Err(e) if e.class == "device" => Err(e.message),
                    Err(e) => return Err(e),
                    Ok(figures) => Ok(figures),
                };
                pairs.push(Pair { gpus: numbers, way, figures });
            }
        }
    }
    let crossover = crossover(gpus, Wanted::Auto)?;
    store(gpus, Wanted::Auto, crossover);
    Ok(Measured { pairs, crossover })
}

fn pair(gpus: &[&Gpu; 2], way: Backend) -> Result<[f64; 3], CliError> {
    let time =
        |words: u64, small: u64| Ok::<_, CliError>(Ring::new(gpus, &[0, 1], words, small, Wanted::Only(way))?.time()?);
    let (tiny, token, large) = (time(TINY, u64::MAX >> 8)?, time(TOKEN, u64::MAX >> 8)?, time(LARGE, 0)?);
    // Of a value that each of two GPUs merges a half of, each sends all once.
    Ok([tiny, token, 4.0 * LARGE as f64 / large])
}

/// The largest of some sizes up to which a value goes whole to every GPU in less time than in parts; 0 if none does.
fn crossover(gpus: &[&Gpu], wanted: Wanted) -> Result<u64, CliError> {
    let map: Vec<usize> = (0..gpus.len()).collect();
    let mut best = 0;
    for bytes in SIZES {
        let time = |small: u64| Ok::<_, CliError>(Ring::new(gpus, &map, bytes / 4, small, wanted)?.time()?);
        if time(bytes)? > time(0)? {
            break;
        }
        best = bytes;
    }
    Ok(best)
}

/// The crossover of these GPUs, from the cache or measured now.
pub(crate) fn small_bytes(gpus: &[&Gpu], wanted: Wanted) -> Result<u64, CliError> {
    if let Some(n) = file().and_then(|f| std::fs::read_to_string(f).ok()).and_then(|t| kept(&t, &key(gpus, wanted))) {
        return Ok(n);
    }
    let n = crossover(gpus, wanted)?;
    store(gpus, wanted, n);
    Ok(n)
}

fn file() -> Option<PathBuf> {
    dirs::cache_dir().map(|d| d.join("glmc").join("links.json"))
}

/// What the figure depends on.
fn key(gpus: &[&Gpu], wanted: Wanted) -> String {
    let names: Vec<String> = gpus.iter().map(|g| format!("{:?}", g.context)).collect();
    let driver = gpus.first().map_or((0, 0), |g| g.driver.version());
    format!("{} {} {driver:?} {wanted:?}", env!("CARGO_PKG_VERSION"), names.join(", "))
}

fn kept(text: &str, key: &str) -> Option<u64> {
    serde_json::from_str::<BTreeMap<String, u64>>(text).ok()?.get(key).copied()
}

/// A cache that cannot be written costs the next load a second, no more.
fn store(gpus: &[&Gpu], wanted: Wanted, n: u64) {
    let Some(file) = file() else { return };
    let old = std::fs::read_to_string(&file).ok().and_then(|t| serde_json::from_str(&t).ok());
    let mut all: BTreeMap<String, u64> = old.unwrap_or_default();
    all.insert(key(gpus, wanted), n);
    let write = || -> std::io::Result<()> {
        let dir = file.parent().unwrap_or(&file);
        std::fs::create_dir_all(dir)?;
        let aside = tempfile::NamedTempFile::new_in(dir)?;
        std::fs::write(aside.path(), serde_json::to_string(&all)?)?;
        aside.persist(&file).map_err(|e| e.error)?;
        Ok(())
    };
    if let Err(e) = write() {
        tracing::debug!("{}: {e}", file.display());
    }
}

impl Measured {
    pub(crate) fn json(&self) -> Value {
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|p| {
                let f = p.figures.as_ref().ok();
                json!({
                    "gpus": p.gpus, "way": p.way.name(), "latency_us": f.map(|f| 1e6 * f[0]),
                    "all_reduce_12_kib_us": f.map(|f| 1e6 * f[1]), "bytes_per_s": f.map(|f| f[2]),
                    "error": p.figures.as_ref().err(),
                })
            })
            .collect();
        json!({ "pairs": pairs, "crossover_bytes": self.crossover })
    }

    pub(crate) fn print(&self) -> Result<(), CliError> {
        for p in &self.pairs {
            let ([a, b], way) = (p.gpus, p.way.name());
            let text = match &p.figures {
                Ok([tiny, token, rate]) => format!(
                    "all-reduce of 256 bytes {:.1} us, of 12 KiB {:.1} us, {:.1} GB/s a direction",
                    1e6 * tiny,
                    1e6 * token,
                    rate / 1e9
                ),
                Err(e) => format!("none: {e}"),
            };
            print_line(&format!("cuda:{a} - cuda:{b} {way:<5} {text}"))?;
        }
        let up_to = human_bytes(self.crossover);
        print_line(&format!("values up to {up_to} go whole to every GPU, larger ones in parts"))
    }
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn a_cache_of_other_machines_says_nothing() {
        let text = r#"{ "a": 5 }"#;
        assert_eq!((kept(text, "a"), kept(text, "b"), kept("{", "a")), (Some(5), None, None));
    }
}
