//! What `compile` accepts, `run` runs: odd vocabularies, paths and places are dealt with when a plan is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::{GgufWriter, MetaValue};

use super::support::{Ran, compile, glmc, names, run, runs, s, tiny, tiny_plan};

const TYPES: &str = "tokenizer.ggml.token_type";

/// The tiny model with some of its metadata changed, compiled.
fn changed(dir: &Path, change: impl FnOnce(&mut GgufWriter<'_>)) -> (Ran, std::path::PathBuf) {
    let (model, plan) = (dir.join("model.gguf"), dir.join("plan"));
    let _ = std::fs::remove_file(&model);
    let set = open(&tiny()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    change(&mut w);
    w.write(&model).unwrap();
    (compile(&model, &plan), plan)
}

/// The types of the tiny model's tokens; its control tokens are the last 16 that are used.
fn types() -> Vec<i32> {
    let set = open(&tiny()).unwrap();
    set.get_ints(TYPES).unwrap().unwrap().map(|t| t as i32).collect()
}

#[test]
fn tokens_of_any_type_may_be_made_by_merges() {
    let dir = tempfile::tempdir().unwrap();
    let text = types().iter().rposition(|t| *t == 1).unwrap();
    for kind in [3, 4] {
        // The last tokens that are text, and that merges make, become control tokens or the user's own.
        let mut types = types();
        types[text - 20..=text].fill(kind);
        let (ran, plan) = changed(dir.path(), |w| {
            w.set(TYPES, MetaValue::I32s(types));
        });
        ran.ok();
        glmc(&["run", s(&plan), "--prompt", "1 2 3", "-n", "2", "--ignore-eos", "--json"]).ok();
    }
}

#[test]
fn a_model_that_may_generate_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let all = types().len() as i32;
    let suppress = |ids: Vec<i32>| {
        changed(dir.path(), |w| {
            w.set("tokenizer.ggml.suppress_tokens", MetaValue::I32s(ids));
        })
    };
    let (ran, plan) = suppress((0..all).collect());
    assert_eq!((ran.code(), ran.class()), (3, ("model".into(), "nothing-to-generate".into())), "{ran:?}");
    assert!(!plan.exists());
    // One is enough.
    let (ran, plan) = suppress((0..all).filter(|id| *id != 7).collect());
    ran.ok();
    assert_eq!(runs(&plan).ok().json()["tokens"], serde_json::json!([7, 7]));
}

#[test]
fn a_path_that_a_plan_cannot_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join(OsStr::from_bytes(b"m\xff"));
    std::fs::create_dir(&odd).unwrap();
    let model = odd.join("model.gguf");
    std::fs::copy(tiny(), &model).unwrap();
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    let plan = dir.path().join("plan");
    for path in [&model, &link] {
        let ran = compile(path, &plan);
        assert_eq!((ran.code(), ran.class()), (3, ("unsupported".into(), "path-not-utf8".into())), "{ran:?}");
        assert!(!plan.exists());
    }
    // The plan itself may lie anywhere.
    let plan = odd.join(OsStr::from_bytes(b"p\xfe\x1b[31m"));
    compile(&tiny(), &plan).ok();
    let args = [OsStr::new("run"), plan.as_os_str(), OsStr::new("--tokens"), OsStr::new("1,2"), OsStr::new("--json")];
    glmc(&args).ok();
}

#[test]
fn a_place_is_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let to = |place: &str| {
        let mut c = std::process::Command::new(super::support::GLMC);
        c.args(["compile", s(&tiny()), "-o", place, "--ctx", "256", "--json"]).current_dir(dir.path());
        run(c)
    };
    // Free, and then a plan to replace.
    for _ in 0..2 {
        for place in ["new/.", "new/", "new/./", "./new"] {
            to(place).ok();
            runs(&at("new")).ok();
            assert_eq!(names(dir.path()), ["new"], "{place}");
        }
    }
    // From inside.
    let mut c = std::process::Command::new(super::support::GLMC);
    c.args(["compile", s(&tiny()), "-o", ".", "--ctx", "128", "--json"]).current_dir(at("new"));
    run(c).ok();
    assert_eq!(super::support::plan_json(&at("new"))["limits"]["ctx"], 128);
    assert_eq!(names(dir.path()), ["new"]);
    for place in ["", "/", "..", "new/..", "no/..", "no/.", "new/../no/..", "no/such/."] {
        let ran = to(place);
        if place == "no/." {
            ran.ok();
            std::fs::remove_dir_all(at("no")).unwrap();
            continue;
        }
        assert_eq!((ran.code(), ran.class().0.as_str()), (2, "usage"), "{place}: {ran:?}");
        assert!(!ran.err.contains("compiling"), "{place}: {ran:?}");
        assert_eq!(names(dir.path()), ["new"], "{place}");
    }
}

#[test]
fn names_on_stdout_do_nothing_to_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("p\x1b[31m\n\u{9b}1m");
    let text = |ran: Ran| {
        let ran = ran.ok();
        assert!(!ran.out.contains(|c: char| c.is_control() && c != '\n'), "{:?}", ran.out);
        ran.out
    };
    let out = text(glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256"]));
    assert!(out.contains("p\\u{1b}[31m\\n\\u{9b}1m: plan for"), "{out:?}");
    text(glmc(&["inspect", s(&plan)]));
    text(glmc(&["explain", s(&plan)]));
    let (ran, named) = changed(dir.path(), |w| {
        w.set("general.name", "a\x1b[31m\nforged line");
    });
    ran.ok();
    let target = super::targets::user_target(dir.path(), "");
    let evil = std::fs::read_to_string(&target).unwrap().replace("\"mine\"", "\"mine\\nforged line\"");
    std::fs::write(&target, evil).unwrap();
    let (model, of_target) = (dir.path().join("model.gguf"), dir.path().join("of_target"));
    let args = ["compile", s(&model), "-o", s(&of_target), "--ctx", "64", "--target", s(&target)];
    let outs = [
        text(glmc(&args)),
        text(glmc(&["inspect", s(&named)])),
        text(glmc(&["inspect", s(&model)])),
        text(glmc(&["inspect", s(&of_target)])),
        text(glmc(&["explain", s(&of_target)])),
        text(glmc(&[&args[..], &["--emit", "after=schedule"]].concat())),
    ];
    for out in outs {
        assert!(out.contains("\\nforged line"), "{out:?}");
        assert!(!out.lines().any(|l| l.trim_start().starts_with("forged")), "{out:?}");
    }
}

#[test]
fn errors_of_a_run_name_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let ids = vec!["1"; 300].join(",");
    for args in [&["--tokens", ids.as_str()][..], &["--prompt", &"1 ".repeat(300)]] {
        let ran = glmc(&[&["run", s(&plan), "--json"], args].concat());
        assert!(ran.error_line().starts_with(&format!("error[usage/context]: {}: ", s(&plan))), "{ran:?}");
        assert_eq!(ran.json()["error"]["file"], s(&plan));
    }
}

#[test]
fn weights_without_numbers_are_the_models_fault() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = (dir.path().join("model.gguf"), dir.path().join("plan"));
    let mut bytes = std::fs::read(tiny()).unwrap();
    let data = open(&tiny()).unwrap().parts()[0].header_len() as usize;
    bytes[data + 4096..].fill(0xff);
    std::fs::write(&model, bytes).unwrap();
    compile(&model, &plan).ok();
    let ran = runs(&plan);
    assert_eq!((ran.code(), ran.class()), (3, ("model".into(), "numbers".into())), "{ran:?}");
    let line = ran.error_line();
    assert!(line.contains(&format!(": {}: ", s(&plan))) && line.contains("checksum"), "{line}");
    let text = dir.path().join("text");
    std::fs::write(&text, "1 2 3 4").unwrap();
    let ran = glmc(&["perplexity", s(&plan), "-f", s(&text), "--window", "64", "--json"]);
    assert_eq!((ran.code(), ran.class()), (3, ("model".into(), "numbers".into())), "{ran:?}");
}
