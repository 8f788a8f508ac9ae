//! Targets, memory fit and predictions as the commands show them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{glmc, tiny, tiny_plan};

fn s(p: &Path) -> &str {
    p.to_str().unwrap()
}

/// A processor with round figures: 1 GB/s, 1 GFLOP/s, 1 us a launch; `memory` is a line.
pub(crate) fn user_target(dir: &Path, memory: &str) -> PathBuf {
    let path = dir.join("mine.toml");
    let text = format!(
        "name = \"mine\"\ndescription = \"a test's own\"\narch = \"cpu\"\nranks = 1\nmax_batch = 4\nchunk = 512\n\
         [device]\n{memory}\nread_bytes_per_s = 1e9\nf32_flops_per_s = 1e9\nbf16_flops_per_s = 1e9\n\
         int8_ops_per_s = 1e9\nlaunch_s = 1e-6\ncontext_bytes = 1000\ngraph_bytes = 0\ngraph_bytes_per_phase = 10\n\
         reserve_bytes = 5000\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn every_shipped_target_is_listed_with_its_figures() {
    let all = glmc(&["targets", "--json"]).ok().json();
    let all = all["targets"].as_array().unwrap();
    let people = glmc(&["targets"]).ok().out;
    assert_eq!((all.len(), people.lines().count()), (9, 9));
    let dir = tempfile::tempdir().unwrap();
    let (mut compared, model) = (0, tiny());
    for t in all {
        let name = t["name"].as_str().unwrap();
        assert!(people.contains(name));
        assert!(t["device"]["read_bytes_per_s"].as_f64().unwrap() > 1e8, "{t}");
        assert_eq!(t["link"].is_object(), t["ranks"].as_u64().unwrap() > 1, "{t}");
        let plan = dir.path().join(name);
        let args = ["--target", name, "--ctx", "4096", "--tune-ctx", "4096", "--json"];
        let c = glmc(&[["compile", s(&model), "-o", s(&plan)].as_slice(), args.as_slice()].concat()).ok().json();
        assert_eq!((&c["target"], &c["ranks"]), (&t["name"], &t["ranks"]));
        let gpu = t["arch"] != "cpu";
        assert_eq!(c["kernels_compiled"], if gpu { Value::Bool(false) } else { Value::Null }, "{c}");
        // Each part of the fullest rank's memory, and what its collectives need.
        let ranks = c["memory_per_rank"].as_array().unwrap();
        assert_eq!(ranks.len() as u64, t["ranks"].as_u64().unwrap());
        let travels = c["collectives_per_step"].as_object().unwrap().values().any(|n| n.as_u64().unwrap() > 0);
        assert!(ranks.iter().all(|r| (r["collectives"].as_u64().unwrap() > 0) == travels), "{c}");
        let class = &c["predicted"]["decode"]["classes_s"]["collectives"];
        assert_eq!(class.as_f64().unwrap() > 0.0, c["collectives_per_step"]["decode"].as_u64().unwrap() > 0, "{c}");
        let e = glmc(&["explain", s(&plan), "--tune-ctx", "4096", "--json"]).ok().json();
        assert_eq!(e["predicted"], c["predicted"]);
        assert_eq!(e["placement"]["ranks"].as_u64().unwrap_or(1), ranks.len() as u64);
        // What the search for placements minimised is what the plan is predicted to take.
        let decode = &c["predicted"]["decode"];
        for f in e["placement"]["functions"].as_array().into_iter().flatten().filter(|f| f["name"] == decode["phase"]) {
            let (searched, planned) = (number(&f["seconds"]), number(&decode["step_s"]) + number(&decode["hidden_s"]));
            assert!((searched / planned - 1.0).abs() < 0.03, "{}: {searched} for {planned}", t["name"]);
            compared += 1;
        }
    }
    assert_eq!(compared, 7);
}

#[test]
fn what_fits_several_ranks_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    let base = std::fs::read_to_string(user_target(dir.path(), "")).unwrap().replace("ranks = 1", "ranks = 2");
    let (model, target) = (tiny(), dir.path().join("two.toml"));
    let link = "[link]\nbytes_per_s = 1e10\nlatency_s = 1e-5\np2p = true\n";
    for memory in [5_500_000u64, 9_000_000] {
        let text = base.replace("[device]\n", &format!("[device]\nmemory_bytes = {memory}\n"));
        std::fs::write(&target, text + link).unwrap();
        let compile = |ctx: u64| {
            let ctx = ctx.to_string();
            let args = ["compile", s(&model), "-o", s(&plan), "--ctx", &ctx, "--max-batch", "1", "--json"];
            glmc(&[args.as_slice(), &["--target", s(&target)]].concat())
        };
        let refused = compile(2048);
        let (_, rest) = refused.error_line().split_once("the largest context that fits is ").unwrap();
        let largest: u64 = rest.split(',').next().unwrap().parse().unwrap();
        println!("{memory}: {largest} in {:?}", refused.time);
        compile(largest).ok();
        std::fs::remove_dir_all(&plan).unwrap();
        assert_eq!(compile(largest + 1).code(), 3, "{largest}");
    }
}

#[test]
fn a_gpu_plan_says_when_its_kernels_are_compiled() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    let args = ["compile", s(&tiny()), "-o", s(&plan), "--target", "8x-h200", "--ctx", "256"].map(str::to_owned);
    let text = |more: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        glmc(&args).ok().out
    };
    assert!(text(&[]).contains("kernels are compiled at the first run"));
    assert!(text(&["--no-kernels"]).contains("kernels are compiled at the first run"));
}

#[test]
fn a_description_with_a_mistake_is_refused_by_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = user_target(dir.path(), "");
    let good = std::fs::read_to_string(&path).unwrap();
    for (from, to, key) in [
        ("chunk = 512", "chunk = 0", "chunk"),
        ("launch_s = 1e-6\n", "", "device.launch_s"),
        ("launch_s = 1e-6", "launch_s = \"soon\"", "device.launch_s"),
        ("reserve_bytes", "reserved_bytes", "device.reserve_bytes"),
        ("ranks = 1", "ranks = 1\ncolour = 7", "colour"),
        ("ranks = 1", "ranks = 2", "link"),
        ("arch = \"cpu\"", "arch = \"tpu\"", "arch"),
    ] {
        assert!(good.contains(from));
        std::fs::write(&path, good.replace(from, to)).unwrap();
        let ran = glmc(&["compile", s(&tiny()), "-o", s(&dir.path().join("p")), "--target", s(&path), "--json"]);
        assert_eq!((ran.code(), ran.class()), (3, ("format".into(), "target-schema".into())), "{ran:?}");
        let e = &ran.json()["error"];
        assert_eq!((e["file"].as_str(), e["subject"].as_str()), (Some(s(&path)), Some(key)), "{e}");
    }
}

/// `compile` with a context and a target.
fn compile(target: &Path, plan: &Path, ctx: u64) -> super::support::Ran {
    let ctx = ctx.to_string();
    let m = tiny();
    glmc(&["compile", s(&m), "-o", s(plan), "--ctx", &ctx, "--target", s(target), "--tune-ctx", "100", "--json"])
}

#[test]
fn a_plan_that_does_not_fit_is_refused_and_the_largest_that_does_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    let memory = |n: u64| user_target(dir.path(), &format!("memory_bytes = {n}"));
    let whole = compile(&user_target(dir.path(), ""), &plan, 2000).ok().json();
    let m = &whole["memory_per_rank"][0];
    let part = |k: &str| m[k].as_u64().unwrap();
    assert_eq!((part("context"), part("graphs"), part("reserve"), part("collectives")), (1000, 80, 5000, 0));
    // Three layers of 256 + 32 latent values and 64 index values, f32.
    let kinds = &m["cache_kinds"];
    assert_eq!(part("caches"), kinds["kv"].as_u64().unwrap() + kinds["index"].as_u64().unwrap());
    let sum: u64 = ["weights", "caches", "arena", "context", "graphs", "reserve"].map(part).iter().sum();
    assert_eq!((part("total"), &m["available"]), (sum, &Value::Null));
    assert_eq!(whole["bytes_per_rank"][0], sum - 6080);

    compile(&memory(sum), &plan, 2000).ok();
    std::fs::remove_dir_all(&plan).unwrap();
    let ran = compile(&memory(sum - 1), &plan, 2000);
    assert_eq!((ran.code(), ran.class()), (3, ("memory".into(), "too-large".into())), "{ran:?}");
    for part in ["weights", "kv cache", "index cache", "arena", "collective buffers", "context", "graphs", "reserve"] {
        assert!(ran.error_line().contains(&format!("{part} ")), "{part}: {}", ran.error_line());
    }
    // What the refusal says fits does, and one more does not.
    for short in [1, sum / 3, sum / 2] {
        let target = memory(sum - short);
        let line = compile(&target, &plan, 2000).error_line().to_owned();
        let (_, rest) = line.split_once("the largest context that fits is ").unwrap();
        let largest: u64 = rest.split(',').next().unwrap().parse().unwrap();
        assert!((1..2000).contains(&largest));
        assert!(!plan.exists());
        compile(&target, &plan, largest).ok();
        std::fs::remove_dir_all(&plan).unwrap();
        assert_eq!(compile(&target, &plan, largest + 1).code(), 3, "{largest}");
    }
    // Pools that were sized apart are what is too large, and the rows that are said to fit do.
    let (model, enough) = (tiny(), memory(sum));
    let rows = |n: u64| {
        let n = n.to_string();
        glmc(&["compile", s(&model), "-o", s(&plan), "--ctx", "64", "--cache", &n, "--json", "--target", s(&enough)])
    };
    let ran = rows(1_000_000);
    assert_eq!((ran.code(), ran.class()), (3, ("memory".into(), "too-large".into())), "{ran:?}");
    let (_, rest) = ran.error_line().split_once("the 1000000 rows of --cache take ").unwrap();
    let fit: u64 = rest.split("of it: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    rows(fit).ok();
    std::fs::remove_dir_all(&plan).unwrap();
    assert_eq!(rows(fit + 1).code(), 3, "{fit}");
    // More rows than can be counted are refused by file and flag.
    let ran = rows(1 << 40);
    assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), "cache".into())), "{ran:?}");
    assert!(ran.error_line().contains(&format!("{}: --cache ", s(&tiny()))), "{ran:?}");
    let ran = compile(&memory(100_000), &plan, 2000);
    assert!(ran.error_line().contains("no context fits at batch 4, no batch fits"), "{}", ran.error_line());
}

#[test]
fn several_ranks_are_placed_again_where_arenas_leave_too_little() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    let base = std::fs::read_to_string(user_target(dir.path(), "")).unwrap();
    let target = |memory: &str| {
        let path = dir.path().join("four.toml");
        let text = base.replace("ranks = 1", "ranks = 4").replace("[device]\n", &format!("[device]\n{memory}\n"));
        std::fs::write(&path, text + "[link]\nbytes_per_s = 1e6\nlatency_s = 1e-3\np2p = true\n").unwrap();
        path
    };
    // Links so slow that everything is on every rank.
    let free = compile(&target(""), &plan, 2000).ok().json();
    assert_eq!(free["collectives_per_step"]["decode"], 0);
    let total = |c: &Value, i: usize| c["memory_per_rank"][i]["total"].as_u64().unwrap();
    let m = &free["memory_per_rank"][0];
    let kept = m["weights"].as_u64().unwrap() + m["caches"].as_u64().unwrap();
    let all = total(&free, 0);
    // Weights and pools alone would leave room.
    assert!(all - kept / 2 > kept + 6040);
    let memory = all - 1;
    let c = compile(&target(&format!("memory_bytes = {memory}")), &plan, 2000).ok().json();
    let most = (0..4).map(|i| total(&c, i)).max().unwrap();
    assert!(most <= memory, "{most} of {memory}");
    assert!(c["collectives_per_step"]["decode"].as_u64().unwrap() > 0);
    let ran = compile(&target("memory_bytes = 300000"), &plan, 2000);
    assert_eq!((ran.code(), ran.class()), (3, ("memory".into(), "too-large".into())), "{ran:?}");
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v}"))
}

#[test]
fn compile_inspect_and_explain_predict_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, target) = (dir.path().join("p"), user_target(dir.path(), ""));
    let c = compile(&target, &plan, 256).ok().json();
    std::fs::remove_file(&target).unwrap();
    let i = glmc(&["inspect", s(&plan), "--tune-ctx", "100", "--json"]).ok().json();
    let e = glmc(&["explain", s(&plan), "--tune-ctx", "100", "--json"]).ok().json();
    for key in ["predicted", "memory_per_rank", "bytes_per_token"] {
        assert_eq!(c[key], i[key]);
        assert_eq!(c[key], e[key]);
    }
    let d = &c["predicted"]["decode"];
    assert_eq!((d["context"].as_u64(), d["tokens"].as_u64(), &c["tune_ctx"]), (Some(100), Some(1), &100.into()));
    let k = &d["classes_s"];
    let sum: f64 = ["weights", "caches", "collectives", "launches", "other"].map(|c| number(&k[c])).iter().sum();
    assert!((sum / number(&d["step_s"]) - 1.0).abs() < 1e-9, "{d}");
    assert!((number(&c["predicted"]["decode_tps"]) * sum - 1.0).abs() < 1e-9, "{d}");
    // At 1 GB/s a byte is a nanosecond.
    assert!((number(&k["weights"]) * 1e9 - number(&d["bytes"]["weights"])).abs() < 1e-3);
    assert!((number(&k["caches"]) * 1e9 - number(&d["bytes"]["caches"])).abs() < 1e-3);
    assert!((number(&k["launches"]) * 1e6 - number(&d["launches"])).abs() < 1e-6);
    let limit = (number(&d["bytes"]["weights"]) + number(&d["bytes"]["caches"])) / 1e9;
    assert!((number(&d["share_of_limit"]) * sum - limit).abs() < 1e-9);
    // The head is not tied in this file, so no weight is read twice by one rank.
    assert_eq!(c["bytes_per_token"]["weights_once"], c["bytes_per_token"]["weights_read"]);
    assert_eq!(c["bytes_per_token"]["weights_read"], d["bytes"]["weights"]);
    assert_eq!(c["bytes_per_token"]["cache"], d["bytes"]["caches"]);

    assert_eq!(e["phases"].as_array().unwrap().len(), 8);
    let tensors = e["tensors"].as_array().unwrap();
    let held: u64 = tensors.iter().map(|t| t["per_rank"][0].as_u64().unwrap()).sum();
    assert_eq!(held, c["memory_per_rank"][0]["weights"].as_u64().unwrap());
    for command in ["inspect", "explain"] {
        let out = glmc(&[command, s(&plan), "--tune-ctx", "100"]).ok().out;
        for word in ["memory:", "kv cache", "predicted decode_1 at context 100", "byte limit", "launches"] {
            assert!(out.contains(word), "{command} lacks {word}: {out}");
        }
    }
}

#[test]
fn a_plan_whose_target_or_decisions_were_edited_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let file = plan.join("target.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("chunk", "hunk")).unwrap();
    for command in ["inspect", "explain"] {
        let ran = glmc(&[command, s(&plan)]);
        assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-changed".into())), "{ran:?}");
    }
    let plan = dir.path().join("q");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--json"]).ok();
    let file = plan.join("decisions.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"rewrites\"", "\"rewritten\"")).unwrap();
    let ran = glmc(&["explain", s(&plan)]);
    assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-changed".into())), "{ran:?}");
}

/// Where arithmetic dwarfs the links, placements cost the same but for their last digits.
#[test]
fn targets_of_extreme_rates_have_placements() {
    let dir = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/passes/targets/8x-cpu.toml");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    let with = |rates: &str, latency: &str| {
        let key = |l: &str| l.split(" = ").next().unwrap_or_default().to_owned();
        let line = |l: &str| match key(l).as_str() {
            k @ ("f32_flops_per_s" | "read_bytes_per_s") => format!("{k} = {rates}"),
            k @ ("latency_s" | "launch_s") => format!("{k} = {latency}"),
            _ => l.to_owned(),
        };
        shipped.lines().map(line).collect::<Vec<_>>().join("\n").replace("\"8x-cpu\"", "\"own\"")
    };
    for (rates, latency) in [("1", "2e-6"), ("10", "0"), ("1e18", "1e-9"), ("1e18", "1")] {
        let target = dir.path().join("own.toml");
        std::fs::write(&target, with(rates, latency)).unwrap();
        let (plan, model) = (dir.path().join("plan"), tiny());
        let args = ["compile", s(&model), "-o", s(&plan), "--target", s(&target), "--ctx", "256", "--json"];
        assert_eq!(glmc(&args).ok().json()["ranks"], 8, "{rates} {latency}");
    }
}

#[test]
fn a_forged_target_is_no_fault_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--target", "8x-cpu", "--json"]).ok();
    let json = super::support::plan_json(&plan);
    let good = std::fs::read_to_string(plan.join("target.toml")).unwrap();
    let without_link = good.split("[link]").next().unwrap().to_owned();
    let one = without_link.replace("ranks = 8", "ranks = 1");
    for (what, text) in [
        ("one rank", one.clone()),
        ("four ranks", good.replace("ranks = 8", "ranks = 4")),
        ("no link", without_link),
        ("another machine", good.replace("name = \"8x-cpu\"", "name = \"8x-cpu2\"")),
        ("another kind", good.replace("arch = \"cpu\"", "arch = \"sm_90\"")),
    ] {
        assert_ne!(text, good, "{what}");
        std::fs::write(plan.join("target.toml"), text).unwrap();
        super::support::reseal(&plan, &json);
        for args in [&["inspect", s(&plan)][..], &["explain", s(&plan)], &["explain", s(&plan), "logits"]] {
            let ran = glmc(args);
            assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-invalid".into())), "{what}: {ran:?}");
            assert!(ran.error_line().contains("target.toml: "), "{what}: {ran:?}");
        }
    }
    std::fs::write(plan.join("target.toml"), good).unwrap();
    super::support::reseal(&plan, &json);
    glmc(&["explain", s(&plan)]).ok();
}

#[test]
fn a_gpu_that_kernels_cannot_be_made_for_is_refused_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let path =
        user_target(dir.path(), "memory_bytes = 80000000000\nsm_count = 100\nshared_memory_per_block_bytes = 65536");
    let good = std::fs::read_to_string(&path).unwrap();
    for (arch, known) in [("sm_90", true), ("sm_1", false), ("sm_90a", false), ("sm_75", false)] {
        std::fs::write(&path, good.replace("arch = \"cpu\"", &format!("arch = \"{arch}\""))).unwrap();
        let ran = glmc(&["compile", s(&tiny()), "-o", s(&dir.path().join("p")), "--target", s(&path), "--json"]);
        if known {
            ran.ok();
            continue;
        }
        assert_eq!((ran.code(), ran.class()), (3, ("format".into(), "target-schema".into())), "{arch}: {ran:?}");
        assert_eq!(ran.json()["error"]["subject"], "arch");
        assert!(ran.error_line().contains("sm_80") && ran.error_line().contains("sm_121"), "{arch}: {ran:?}");
    }
}
