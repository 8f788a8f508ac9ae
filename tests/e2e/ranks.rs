//! Plans of 1 to 8 ranks in one process: the goldens, and what one rank computes. Targets are files of a user's own: the
//! shipped `8x-cpu` on as many ranks, and one whose links cost nothing, so that much more is split.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use glmc_runtime::engine::{Engine, SeqId, Want};

use super::models::models;
use super::support::{engine, fixture, glmc, golden_json, golden_npy, prompts, scratch};

/// Largest difference of a logit.
const LOGIT: f64 = 1e-3;
/// Prompts compared: short, longer than what the indexer selects, with control tokens.
const PROMPTS: [&str; 3] = ["count", "text65", "chat_count"];

/// Machines of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Links {
    Shipped,
    Free,
}

pub(crate) fn target(ranks: u32, links: Links) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/passes/targets/8x-cpu.toml");
    let mut text = std::fs::read_to_string(path).unwrap();
    let mut put = |from: &str, to: &str| {
        assert!(text.contains(from), "8x-cpu.toml lacks {from}");
        text = text.replace(from, to);
    };
    put("ranks = 8", &format!("ranks = {ranks}"));
    put("\"8x-cpu\"", "\"own\"");
    if links == Links::Free {
        put("launch_s = 2e-6", "launch_s = 1e-9");
        put("latency_s = 2e-5", "latency_s = 1e-9");
        put("bytes_per_s = 1.875e9", "bytes_per_s = 1e15");
    }
    if ranks == 1 {
        text.truncate(text.find("[link]").unwrap());
    }
    let path = scratch().join(format!("{ranks}-{links:?}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

/// A plan for `ranks`, with what `compile` said of it.
fn plan(model: &Path, ranks: u32, links: Links) -> (PathBuf, serde_json::Value) {
    let name = model.file_stem().unwrap().to_string_lossy().into_owned();
    let plan = scratch().join(format!("{name}-{ranks}-{links:?}"));
    let target = target(ranks, links);
    let args = [model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", target.to_str().unwrap()];
    let said = glmc(&[&["compile"], &args[..], &["--ctx", "1024", "--json"]].concat());
    (plan, serde_json::from_str(&said).unwrap())
}

#[test]
fn ranks_give_the_goldens_and_what_one_rank_gives() {
    let mut runs = 0;
    for m in models() {
        let (single, said) = plan(&m.path, 1, Links::Shipped);
        assert_eq!((&said["ranks"], &said["collectives_per_step"]["decode"]), (&1.into(), &0.into()));
        let mut one = engine(&single);
        for (ranks, links) in [(2, Links::Shipped), (4, Links::Free), (8, Links::Shipped), (8, Links::Free)] {
            let what = format!("{} on {ranks} ranks, {links:?} links", m.golden);
            let (dir, said) = plan(&m.path, ranks, links);
            assert_eq!(said["bytes_per_rank"].as_array().unwrap().len(), ranks as usize);
            let collectives = said["collectives_per_step"]["decode"].as_u64().unwrap();
            assert!(collectives > 0 || links == Links::Shipped, "{what}: nothing is split");
            goes_on_counting(&dir, &m.golden, &what);
            let mut many = engine(&dir);
            assert_eq!(many.plan().target.ranks, ranks);
            let apart = golden_logits(&mut many, &m.golden, &what);
            let batch = in_a_batch(&mut one, &mut many, &m.golden, &what);
            println!("{what}: {collectives} collectives a token, off by {apart:.1e}, of one rank by {batch:.1e}");
            runs += 1;
        }
    }
    assert!(runs >= 12 && runs % 4 == 0, "{runs} runs");
}

pub(crate) fn goes_on_counting(plan: &Path, golden: &str, what: &str) {
    let golden = golden_json(&format!("gen-{golden}.json"));
    let want: Vec<u32> = serde_json::from_value(golden["count"]["ids"].clone()).unwrap();
    let out = glmc(&["run", plan.to_str().unwrap(), "--prompt", "1 2 3 4 5", "-n", "64", "--ignore-eos", "--json"]);
    let out: serde_json::Value = serde_json::from_str(&out).unwrap();
    let have: Vec<u32> = serde_json::from_value(out["tokens"].clone()).unwrap();
    assert_eq!(have, want, "{what}");
    assert_eq!(have.len(), 64);
}

/// The last logits of some prompts beside HF's; the largest difference.
pub(crate) fn golden_logits(e: &mut Engine, golden: &str, what: &str) -> f64 {
    let (shape, golden) = golden_npy(&format!("logits-{golden}.npy"));
    assert_eq!(shape, [12, 2, 2048]);
    let (mut worst, mut compared) = (0.0f64, 0);
    for (i, (name, ids)) in prompts().iter().enumerate().filter(|(_, (name, _))| PROMPTS.contains(&name.as_str())) {
        let seq = e.start();
        let logits = e.feed(seq, ids, Want::Last).unwrap();
        e.end(seq);
        worst = worst.max(apart(&logits, &golden[(2 * i + 1) * 2048..(2 * i + 2) * 2048], what, name));
        compared += 1;
    }
    assert_eq!(compared, PROMPTS.len());
    worst
}

/// Three sequences decoded at once, in a bucket of four, on both engines; the largest difference of a logit.
fn in_a_batch(one: &mut Engine, many: &mut Engine, golden: &str, what: &str) -> f64 {
    let golden = golden_json(&format!("gen-{golden}.json"));
    let all = prompts();
    let chosen: Vec<&(String, Vec<u32>)> = all.iter().filter(|(name, _)| PROMPTS.contains(&name.as_str())).collect();
    let start = |e: &mut Engine| -> Vec<SeqId> {
        let of = |(_, ids): &&(String, Vec<u32>)| {
            let seq = e.start();
            e.feed(seq, ids, Want::Last).unwrap();
            seq
        };
        chosen.iter().map(of).collect()
    };
    let (a, b) = (start(one), start(many));
    let mut worst = 0.0f64;
    for step in 0..6 {
        let next = |seqs: &[SeqId]| -> Vec<(SeqId, u32)> {
            let id = |name: &str| golden[name]["ids"][step].as_u64().unwrap() as u32;
            seqs.iter().zip(&chosen).map(|(s, (name, _))| (*s, id(name))).collect()
        };
        let want: Vec<f64> = one.decode(&next(&a)).unwrap().into_iter().map(f64::from).collect();
        let have = many.decode(&next(&b)).unwrap();
        worst = worst.max(apart(&have, &want, what, &format!("batch, step {step}")));
    }
    a.into_iter().for_each(|s| one.end(s));
    b.into_iter().for_each(|s| many.end(s));
    worst
}

#[track_caller]
fn apart(have: &[f32], want: &[f64], what: &str, which: &str) -> f64 {
    assert_eq!(have.len(), want.len());
    let off = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs();
    let worst = have.iter().zip(want).map(off).fold(0.0, |m: f64, d| if d.is_nan() { f64::INFINITY } else { m.max(d) });
    assert!(worst <= LOGIT, "{what} {which}: a logit is off by {worst}");
    worst
}

#[test]
fn the_shipped_target_of_eight_ranks_runs() {
    let model = fixture("models/tiny-Q4_K_M.gguf");
    let plan = scratch().join("8x-cpu");
    let args = ["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", "8x-cpu", "--json"];
    let said: serde_json::Value = serde_json::from_str(&glmc(&args)).unwrap();
    assert_eq!((&said["target"], &said["ranks"]), (&"8x-cpu".into(), &8.into()));
    let out = glmc(&["run", plan.to_str().unwrap(), "--prompt", "1 2 3 4 5", "-n", "8", "--json"]);
    let out: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(out["text"].as_str().unwrap().starts_with(" 6 7 8 9"), "{out}");
    let devices = out["devices"].as_array().unwrap();
    assert_eq!(devices.iter().map(|d| d["rank"].as_u64().unwrap()).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
}

/// Every file of a directory by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    all.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

/// Each process has hash seeds of its own.
#[test]
fn compiling_again_gives_the_same_bytes() {
    let model = fixture("models/tiny-UD-Q4_K_XL-00001-of-00003.gguf");
    for (name, fuel) in [("8x-cpu", None), ("8x-rtx-pro-6000-two-sockets", None), ("8x-cpu", Some("7"))] {
        let mut first = None;
        for run in 0..3 {
            let plan = scratch().join(format!("again-{run}"));
            let mut args = vec!["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", name];
            args.extend(["--ctx", "512", "--json"]);
            args.extend(fuel.iter().flat_map(|n| ["--fuel", n]));
            glmc(&args);
            let made = files(&plan);
            assert!(made.contains_key("plan.json") && made.contains_key("decisions.json"));
            let first = first.get_or_insert_with(|| made.clone());
            for (file, bytes) in &made {
                assert!(first.get(file) == Some(bytes), "{name}, fuel {fuel:?}: {file} differs in run {run}");
            }
            assert_eq!(first.len(), made.len());
        }
    }
}

/// What optional choices there are may be left out from any on: the plan is slower, never wrong.
#[test]
fn any_fuel_gives_the_goldens_on_eight_ranks() {
    let model = fixture("models/tiny-Q4_K_M.gguf");
    let golden = golden_json("gen-Q4_K_M.json");
    let want: Vec<u32> = serde_json::from_value(golden["count"]["ids"].clone()).unwrap();
    let mut collectives = Vec::new();
    for fuel in ["0", "3", "40", "400", "100000"] {
        let plan = scratch().join("fuel");
        let args = ["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--target", "8x-cpu"];
        let said: serde_json::Value =
            serde_json::from_str(&glmc(&[&args[..], &["--ctx", "512", "--fuel", fuel, "--json"]].concat())).unwrap();
        collectives.push(said["collectives_per_step"]["decode"].as_u64().unwrap());
        let out = glmc(&["run", plan.to_str().unwrap(), "--prompt", "1 2 3 4 5", "-n", "12", "--ignore-eos", "--json"]);
        let out: serde_json::Value = serde_json::from_str(&out).unwrap();
        let have: Vec<u32> = serde_json::from_value(out["tokens"].clone()).unwrap();
        assert_eq!(have, want[..12], "fuel {fuel}");
    }
    println!("collectives a token by fuel: {collectives:?}");
    assert!(collectives.first() < collectives.last(), "{collectives:?}: fuel does not reach the search");
}
