//! Plans whose caches do not fit: an error with the bytes needed, never an abort, and nothing resident for nothing.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::support::{GLMC, Ran, glmc, own, plan_json, reseal, run, runs, s, tiny};

/// Most cache rows that a plan can promise.
const MOST_ROWS: u64 = i32::MAX as u64;
/// Rows of more than half a PiB a pool: beyond what a process can address.
const NO_MACHINE: u64 = 1 << 39;

pub(crate) fn limited(args: &[&str], address_space: u64) -> Ran {
    let mut c = Command::new(GLMC);
    c.args(args).env("RAYON_NUM_THREADS", "2");
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        c.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: address_space, rlim_max: address_space };
            match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    run(c)
}

fn no_memory(ran: &Ran, at_least: u64, what: &str) {
    assert_eq!((ran.code(), ran.class()), (3, ("memory".into(), "allocation".into())), "{what}: {ran:?}");
    let line = ran.error_line();
    let after = |word: &str| line.split(' ').skip_while(|w| *w != word).nth(1).unwrap().trim_end_matches(',');
    let (all, caches): (u64, u64) = (after("needs").parse().unwrap(), after("caches").parse().unwrap());
    assert!(all >= caches && caches >= at_least, "{what}: {line}");
    assert!(line.contains("--cache"), "{what}: {line}");
}

fn commands(dir: &Path, plan: &str, go: &dyn Fn(&[&str]) -> Ran) -> Vec<Ran> {
    let text = dir.join("text");
    std::fs::write(&text, "1 2 3 4 5").unwrap();
    vec![
        go(&["run", plan, "--tokens", "1,2,3", "-n", "2", "--ignore-eos", "--json"]),
        go(&["perplexity", plan, "-f", s(&text), "--window", "8", "--json"]),
    ]
}

#[test]
fn a_cache_beyond_the_limit_of_the_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    // Some ten GB.
    let rows = 20_000_000u64;
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--cache", &rows.to_string(), "--json"]).ok();
    for ran in commands(dir.path(), s(&plan), &|args| limited(args, 4 << 30)) {
        no_memory(&ran, rows * 4, "limited");
    }
    // The limit leaves enough for a small cache.
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--json"]).ok();
    for ran in commands(dir.path(), s(&plan), &|args| limited(args, 4 << 30)) {
        ran.ok();
    }
}

/// Every number `from` in a type or elsewhere but the limits becomes `to`.
fn rows(json: &Value, from: u64, to: u64) -> Value {
    let mut text = serde_json::to_string(json).unwrap();
    text = text.replace(&from.to_string(), &to.to_string());
    let mut json: Value = serde_json::from_str(&text).unwrap();
    json["limits"]["cache_rows"] = MOST_ROWS.into();
    json
}

#[test]
fn a_cache_beyond_all_addresses_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = own(dir.path());
    let most = MOST_ROWS.to_string();
    glmc(&["compile", s(&model), "-o", s(&plan), "--ctx", "64", "--cache", &most, "--json"]).ok();
    reseal(&plan, &rows(&plan_json(&plan), MOST_ROWS, NO_MACHINE));
    for ran in commands(dir.path(), s(&plan), &|args| glmc(args)) {
        no_memory(&ran, NO_MACHINE * 4, "no machine");
        assert!(ran.peak < 64 << 20, "{} bytes resident", ran.peak);
    }
}

#[test]
fn rows_that_no_token_uses_cost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    let of = |cache: &str| {
        glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--cache", cache, "--json"]).ok();
        let ran = runs(&plan).ok();
        (ran.json()["tokens"].clone(), ran.peak)
    };
    // 64 rows and a million: the pools of the latter would take about 500 MB.
    let (small, large) = (of("64"), of("1000000"));
    assert_eq!(small.0, large.0);
    println!("peak {} and {}", small.1, large.1);
    assert!(large.1 < small.1 + (32 << 20), "{} bytes resident, {} with a small cache", large.1, small.1);
}
