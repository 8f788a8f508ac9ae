//! What a run refuses before it maps or gathers a weight: another machine's plan, too much memory, a wrong prompt.

use std::path::Path;
use std::time::Duration;

use super::hollow::{on_eight_cards, ud_q4_k_xl, write};
use super::memory::limited;
use super::support::{Ran, glmc, runs, s, tiny};

/// Address space that the refusals are made in.
const LITTLE: u64 = 1 << 30;

fn commands(plan: &Path, ids: &Path, more: &[&str]) -> [Ran; 2] {
    let run = ["run", s(plan), "--tokens", "1,2,3", "-n", "2", "--json"];
    let perplexity = ["perplexity", s(plan), "-f", s(ids), "--json"];
    [&run[..], &perplexity].map(|args| limited(&[args, more].concat(), LITTLE))
}

#[test]
fn a_plan_for_gpus_runs_on_the_cpu_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids");
    std::fs::write(&ids, "[1, 2, 3, 4, 5]").unwrap();
    let cpu = dir.path().join("cpu");
    glmc(&["compile", s(&tiny()), "-o", s(&cpu), "--ctx", "64", "--json"]).ok();
    let tokens = runs(&cpu).ok().json()["tokens"].clone();
    for target in ["1x-h200", "8x-h200", "8x-rtx-pro-6000"] {
        let plan = dir.path().join(target);
        glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--target", target, "--json"]).ok();
        if super::gpu::machine().1 == 0 {
            for ran in commands(&plan, &ids, &[]) {
                assert_eq!((ran.code(), ran.class().0.as_str()), (4, "device"), "{target}: {ran:?}");
                assert!(ran.error_line().contains("--device cpu"), "{target}: {ran:?}");
            }
        }
        let args = ["run", s(&plan), "--tokens", "1,2,3", "-n", "2", "--ignore-eos", "--json", "--device", "cpu"];
        let ran = glmc(&args).ok().json();
        assert_eq!((&ran["tokens"], &ran["devices"][0]["device"]), (&tokens, &"cpu".into()), "{target}: {ran}");
        glmc(&["perplexity", s(&plan), "-f", s(&ids), "--json", "--device", "cpu"]).ok();
    }
}

#[test]
fn glm_5_on_eight_ranks_is_refused_before_its_weights_are_gathered() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, ids) = (dir.path().join("p"), dir.path().join("ids"));
    std::fs::write(&ids, "[1, 2, 3, 4, 5]").unwrap();
    on_eight_cards(&write(dir.path(), ud_q4_k_xl, false, 1), &plan).ok();
    let check = |ran: &Ran, code: i32, class: &str, words: &[&str]| {
        println!("{:?}: {}", ran.time, ran.error_line());
        assert_eq!((ran.code(), ran.class().0.as_str()), (code, class), "{ran:?}");
        assert!(words.iter().all(|w| ran.error_line().contains(w)), "{ran:?}");
        assert!(ran.time < Duration::from_secs(5), "{:?}", ran.time);
    };
    if super::gpu::machine().1 == 0 {
        commands(&plan, &ids, &[]).iter().for_each(|r| check(r, 4, "device", &["8x-rtx-pro-6000", "--device cpu"]));
    }
    let parts = ["weights gathered for ranks", "caches", "arenas"];
    commands(&plan, &ids, &["--device", "cpu"]).iter().for_each(|r| check(r, 3, "memory", &parts));
}
