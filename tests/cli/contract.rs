//! The command-line contract: JSON, exit codes, text, finish reasons, signals.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{GLMC, compile, fixture, glmc, names, run, runs, s, tiny, tiny_plan};

#[test]
fn the_acceptance_prompts_answer() {
    let dir = tempfile::tempdir().unwrap();
    for model in [tiny(), fixture("models/tiny-UD-Q4_K_XL-00002-of-00003.gguf")] {
        let plan = dir.path().join("plan");
        compile(&model, &plan).ok();
        let out = glmc(&["run", s(&plan), "--prompt", "1 2 3 4 5", "-n", "16"]).ok();
        assert!(out.out.starts_with(" 6 7 8 9 10 11 12"), "{}", out.out);
        assert!(out.err.contains("prompt tokens"), "{}", out.err);
        let chat = glmc(&["run", s(&plan), "--prompt", "Count from 6 to 10", "--chat", "--json"]).ok().json();
        assert_eq!(chat["text"], "6 7 8 9 10");
        assert_eq!(chat["finish"], "stop");
        let last = chat["tokens"].as_array().unwrap().last().unwrap().as_u64().unwrap();
        assert!([2032, 2039, 2041].contains(&last), "{last}");
    }
}

#[test]
fn json_is_one_object_of_the_agreed_shape() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    let c = compile(&tiny(), &plan).ok().json();
    for key in [
        "target",
        "ranks",
        "bytes_per_rank",
        "kernels",
        "collectives_per_step",
        "bytes_per_token",
        "predicted",
        "seconds",
    ] {
        assert!(!c[key].is_null(), "compile lacks {key}: {c}");
    }
    assert!(c["predicted"].get("decode_tps").is_some());
    for key in ["weights_once", "weights_read", "cache"] {
        assert!(c["bytes_per_token"][key].as_u64().is_some_and(|n| n > 0), "{key}: {c}");
    }
    let r = runs(&plan).ok().json();
    for key in ["prompt_tokens", "tokens", "text", "finish", "devices"] {
        assert!(!r[key].is_null(), "run lacks {key}: {r}");
    }
    assert_eq!((&r["prompt_tokens"], &r["finish"]), (&3.into(), &"length".into()));
    for key in ["load_s", "prefill_tps", "decode_tps"] {
        assert!(r["timings"][key].is_number(), "run lacks {key}: {r}");
    }
    for path in [s(&plan), s(&tiny())] {
        assert!(glmc(&["inspect", path, "--json"]).ok().json().is_object());
        assert!(!glmc(&["inspect", path]).ok().out.is_empty());
    }
    let i = glmc(&["inspect", s(&tiny()), "--json"]).ok().json();
    assert!(i["parameters"]["active"].as_u64() < i["parameters"]["trunk"].as_u64(), "{i}");
    let t = glmc(&["targets", "--json"]).ok().json();
    assert!(t["targets"].as_array().unwrap().iter().any(|t| t["name"] == "cpu"));
    let text = dir.path().join("text");
    std::fs::write(&text, "1 2 3 4 5 6 7 8 9 10").unwrap();
    let p = glmc(&["perplexity", s(&plan), "-f", s(&text), "--window", "64", "--json"]).ok().json();
    assert!(p["perplexity"].as_f64().unwrap() > 1.0 && p["tokens"].as_u64().unwrap() > 5, "{p}");
}

#[test]
fn logits_rows_are_those_the_tokens_came_from() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, npy) = (tiny_plan(dir.path()), dir.path().join("l.npy"));
    let r = glmc(&["run", s(&plan), "--prompt", "1 2 3", "-n", "9", "--logits", s(&npy), "--json"]).ok().json();
    let tokens: Vec<u64> = serde_json::from_value(r["tokens"].clone()).unwrap();
    let bytes = std::fs::read(&npy).unwrap();
    let npy = npyz::NpyFile::new(&bytes[..]).unwrap();
    assert_eq!(npy.shape(), [tokens.len() as u64, 2048]);
    let values = npy.into_vec::<f32>().unwrap();
    for (row, t) in values.chunks_exact(2048).zip(tokens) {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!(best as u64, t);
    }
}

#[test]
fn a_generation_ends_as_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "16"]).ok();
    let r = glmc(&["run", s(&plan), "--prompt", "1 2 3 4 5", "-n", "100", "--ignore-eos", "--json"]).ok().json();
    assert_eq!(r["finish"], "context");
    // Nine prompt tokens and seven more fill the context; one further token comes from the last logits.
    assert_eq!(r["tokens"].as_array().unwrap().len(), 8);
    let long = (0..17).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let ran = glmc(&["run", s(&plan), "--tokens", &long, "--json"]);
    assert_eq!((ran.code(), ran.class().1.as_str()), (2, "context"), "{ran:?}");
}

#[test]
fn sampling_repeats_by_seed() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let sample = |seed: &str| {
        let args = [
            "run",
            s(&plan),
            "--prompt",
            "The",
            "-n",
            "24",
            "--temp",
            "2",
            "--top-k",
            "200",
            "--seed",
            seed,
            "--ignore-eos",
            "--json",
        ];
        glmc(&args).ok().json()["tokens"].clone()
    };
    assert_eq!(sample("7"), sample("7"));
    assert_ne!(sample("7"), sample("8"));
}

#[test]
fn mistakes_on_the_command_line_are_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let (p, model, folder, q) = (s(&plan), tiny(), fixture("models"), dir.path().join("q"));
    let t = s(&model);
    let cases: &[&[&str]] = &[
        &["run", p],
        &["run", p, "--chat"],
        &["run", p, "--system", "x", "--prompt", "y"],
        &["run", p, "--prompt", ""],
        &["run", p, "--prompt", "x", "--tokens", "1"],
        &["run", p, "--tokens", "2048"],
        &["run", p, "--prompt", "x", "--temp", "-1"],
        &["run", p, "--prompt", "x", "--device", "abacus"],
        &["run", p, "--prompt", "x", "--ctx", "64"],
        &["run", p, "--prompt", "x", "--target", "cpu"],
        &["run", p, "--prompt", "x", "--fuel", "0"],
        &["run", p, "--prompt", "x", "-n", "-1"],
        &["run", p, "--tokens", "-1"],
        &["run", p, "--tokens", "1,-2"],
        &["run", p, "--frobnicate"],
        &["frobnicate"],
        &["compile", t],
        &["compile", t, "-o", t],
        &["compile", t, "-o", s(&folder)],
        &["compile", t, "-o", "/no/such/folder/plan"],
        &["compile", t, "-o", s(&q), "--ctx", "0"],
        &["compile", t, "-o", s(&q), "--ctx", "999999"],
        &["compile", t, "-o", s(&q), "--target", "9x-abacus"],
        &["compile", t, "-o", s(&q), "--emit", "after=lunch"],
    ];
    for args in cases {
        let ran = glmc(args);
        assert_eq!(ran.code(), 2, "{args:?}: {ran:?}");
        assert_eq!(ran.class().0, "usage", "{args:?}");
        // No advice to write `-- -1`, which would be another command.
        assert!(!ran.err.contains("tip:") || args.contains(&"--frobnicate") || args.len() == 1, "{ran:?}");
    }
    let missing = glmc(&["run", "/no/such/plan", "--prompt", "x"]);
    assert_eq!((missing.code(), missing.class()), (3, ("io".into(), "no-such-file".into())), "{missing:?}");
    // A model where a plan is wanted.
    for args in [&["explain", t][..], &["perplexity", t, "-f", t]] {
        let ran = glmc(args);
        assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "no-plan".into())), "{ran:?}");
    }
    assert_eq!(names(dir.path()), ["plan"]);
}

#[test]
fn a_plan_is_replaced_whole_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    compile(&fixture("models/tiny-UD-Q4_K_XL-00001-of-00003.gguf"), &plan).ok();
    let i = glmc(&["inspect", s(&plan), "--json"]).ok().json();
    assert_eq!(i["files"].as_array().unwrap().len(), 3);
    assert_eq!(names(dir.path()), ["plan"]);
    // An empty folder holds nothing to lose.
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    compile(&tiny(), &empty).ok();
    runs(&empty).ok();
    std::fs::remove_dir_all(&empty).unwrap();
    // A folder that holds anything else is left alone.
    std::fs::write(plan.join("notes.txt"), "mine").unwrap();
    let ran = compile(&tiny(), &plan);
    assert_eq!(ran.code(), 2, "{ran:?}");
    assert_eq!(std::fs::read_to_string(plan.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_model_runs_without_a_plan_and_compiles_once() {
    let cache = tempfile::tempdir().unwrap();
    let go = || {
        let mut c = Command::new(GLMC);
        c.args(["run", s(&tiny()), "--prompt", "1 2 3 4 5", "-n", "6", "--json"]).env("XDG_CACHE_HOME", cache.path());
        run(c).ok().json()
    };
    let first = go();
    let plans = cache.path().join("glmc/plans");
    let made = names(&plans);
    assert_eq!(made.len(), 1);
    let stamp = |n: &str| std::fs::metadata(plans.join(n).join("plan.json")).unwrap().modified().unwrap();
    let before = stamp(&made[0]);
    assert_eq!(go()["tokens"], first["tokens"]);
    assert_eq!((names(&plans), stamp(&made[0])), (made.clone(), before));
}

#[test]
fn a_split_model_opens_by_any_part_or_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    for i in 1..=3 {
        let name = format!("tiny-UD-Q4_K_XL-0000{i}-of-00003.gguf");
        std::fs::copy(fixture("models").join(&name), folder.join(&name)).unwrap();
    }
    let mut plans = Vec::new();
    for open in ["", "tiny-UD-Q4_K_XL-00001-of-00003.gguf", "tiny-UD-Q4_K_XL-00003-of-00003.gguf"] {
        let plan = dir.path().join(format!("plan-{}", plans.len()));
        compile(&folder.join(open), &plan).ok();
        plans.push(std::fs::read(plan.join("plan.json")).unwrap());
    }
    assert!(plans.iter().all(|p| *p == plans[0]));
    std::fs::remove_file(folder.join("tiny-UD-Q4_K_XL-00002-of-00003.gguf")).unwrap();
    let ran = compile(&folder.join("tiny-UD-Q4_K_XL-00001-of-00003.gguf"), &dir.path().join("no"));
    assert_eq!(ran.code(), 3);
    assert!(ran.err.contains("00002-of-00003"), "{}", ran.err);
}

#[test]
fn interrupting_ends_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "4096"]).ok();
    let args = ["run", s(&plan), "--prompt", "1 2 3 4 5", "-n", "4000", "--ignore-eos", "--json"];
    let mut child = Command::new(GLMC).args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    // SAFETY: a signal to our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
    let start = Instant::now();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let status = child.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(0));
    let r: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(r["finish"], "cancelled");
}

#[test]
fn a_closed_pipe_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let args = ["run", s(&plan), "--prompt", "1 2 3 4 5", "-n", "200", "--ignore-eos"];
    let mut child = Command::new(GLMC).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&out.stderr).contains("error["));
    // The tokens are not made: as if the signal of the pipe had ended it.
    assert_eq!(out.status.code(), Some(128 + libc::SIGPIPE));
}
