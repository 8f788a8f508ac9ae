//! Prompts and texts that no plan has room for: refused before they cost memory or time.

use std::path::Path;
use std::time::Duration;

use super::support::{Ran, compile, glmc, run, s, tiny, tiny_plan};

fn with_file(plan: &Path, file: &Path, chat: bool) -> Ran {
    let mut args = vec!["run", s(plan), "--prompt-file", s(file), "-n", "1", "--json"];
    args.extend(chat.then_some("--chat"));
    glmc(&args)
}

fn refused(ran: &Ran, code: &str, peak: u64, what: &str) {
    assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), code.into())), "{what}: {ran:?}");
    assert!(ran.peak < peak && ran.time < Duration::from_secs(3), "{what}: {} bytes, {:?}", ran.peak, ran.time);
}

#[test]
fn a_prompt_file_beyond_the_context_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let usual = glmc(&["run", s(&plan), "--prompt", "1 2 3", "-n", "1", "--json"]).ok().peak;
    let file = dir.path().join("prompt");
    for text in ["1 2 3 ", "a", " ", "<|", "<|user|>", "\n"] {
        std::fs::write(&file, text.repeat(12_000_000 / text.len())).unwrap();
        for chat in [false, true] {
            let ran = with_file(&plan, &file, chat);
            refused(&ran, "context", usual + (16 << 20), text);
            let line = ran.error_line();
            assert!(line.contains("prompt: ") && line.contains("--ctx") && line.contains("256 tokens"), "{line}");
            assert!(line.contains(" bytes ("), "the size: {line}");
        }
    }
    // Files without an end.
    for file in ["/dev/zero", "/dev/urandom"] {
        refused(&with_file(&plan, Path::new(file), false), "context", usual + (16 << 20), file);
    }
}

#[test]
fn a_prompt_that_only_its_tokens_make_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let ran = glmc(&["run", s(&plan), "--prompt", &"1 ".repeat(200), "-n", "1", "--json"]);
    refused(&ran, "context", u64::MAX, "text");
    assert!(ran.error_line().contains("more than 256 tokens"), "{ran:?}");
    let ids = vec!["1"; 257].join(",");
    let ran = glmc(&["run", s(&plan), "--tokens", &ids, "-n", "1", "--json"]);
    refused(&ran, "context", u64::MAX, "ids");
    assert!(ran.error_line().contains("257 tokens"), "{ran:?}");
    // The room is the smaller of context and caches, and it can be filled.
    let small = dir.path().join("small");
    glmc(&["compile", s(&tiny()), "-o", s(&small), "--ctx", "64", "--cache", "16", "--json"]).ok();
    let ids = |n: usize| vec!["1"; n].join(",");
    let ran = glmc(&["run", s(&small), "--tokens", &ids(17), "-n", "1", "--json"]);
    assert!(ran.error_line().contains("--cache") && ran.class().1 == "context", "{ran:?}");
    glmc(&["run", s(&small), "--tokens", &ids(16), "-n", "1", "--json"]).ok();
}

#[test]
fn a_long_text_is_scored_in_little_memory_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let text = dir.path().join("text");
    let score = |file: &str| glmc(&["perplexity", s(&plan), "-f", file, "--window", "256", "--json"]);
    std::fs::write(&text, "1 2 3 4 ").unwrap();
    let usual = score(s(&text)).ok().peak;
    // Too much to score in a test: the process ends itself while it scores, with all tokens made.
    std::fs::write(&text, "1 2 3 ".repeat(250_000)).unwrap();
    let mut c = std::process::Command::new("/bin/sh");
    let score_some = format!(
        "ulimit -v {}; timeout 60 {} perplexity {} -f {} --window 256 & p=$!; sleep 20; kill $p; wait $p",
        400 << 10,
        super::support::GLMC,
        s(&plan),
        s(&text)
    );
    c.args(["-c", &score_some]).env("RAYON_NUM_THREADS", "2");
    let ran = run(c);
    assert!(!ran.err.contains("memory") && !ran.err.contains("error["), "{ran:?}");
    assert!(ran.err.contains("scoring"), "it came to scoring: {ran:?}");
    for (file, code) in [("/dev/zero", "too-long"), ("/dev/urandom", "too-long")] {
        let ran = score(file);
        assert_eq!((ran.code(), ran.class().1.as_str()), (2, code), "{ran:?}");
        assert!(ran.peak < usual + (160 << 20), "{file}: {} beside {usual}", ran.peak);
    }
    std::fs::write(&text, "x".repeat(1 << 20)).unwrap();
    let ran = score(s(&text));
    assert!(ran.code() == 2 && ran.error_line().contains("without a place to cut"), "{ran:?}");
}

#[test]
fn a_prompt_may_come_through_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    compile(&tiny(), &plan).ok();
    let mut c = std::process::Command::new("/bin/sh");
    let line = format!("printf '1 2 3 4 5' | {} run {} --prompt-file /dev/stdin -n 3", super::support::GLMC, s(&plan));
    c.args(["-c", &line]);
    assert!(run_with_stdin(c).starts_with(" 6"));
}

fn run_with_stdin(mut c: std::process::Command) -> String {
    String::from_utf8(c.output().unwrap().stdout).unwrap()
}
