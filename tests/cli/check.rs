//! `--check`: what steps write is poisoned before and scanned after; without it a NaN never becomes a token.

use std::path::{Path, PathBuf};

use super::support::{glmc, s, tiny, tiny_plan};

/// The rank of eight that is corrupted.
const RANK: usize = 5;

fn plans(dir: &Path) -> [(PathBuf, usize); 2] {
    let eight = dir.join("eight");
    glmc(&["compile", s(&tiny()), "-o", s(&eight), "--target", "8x-cpu", "--ctx", "256", "--json"]).ok();
    [(tiny_plan(dir), 0), (eight, RANK)]
}

#[test]
fn a_right_plan_passes_with_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    // More tokens than the indexer selects: all kinds of steps.
    let ids: Vec<String> = (0..90).map(|i| (20 + 13 * i % 500).to_string()).collect();
    let (ids, text) = (ids.join(","), dir.path().join("ids.json"));
    std::fs::write(&text, format!("[{ids}]")).unwrap();
    for (plan, _) in plans(dir.path()) {
        let run = |more: &[&str]| {
            let args = ["run", s(&plan), "--tokens", &ids, "-n", "6", "--ignore-eos", "--json"];
            glmc(&[&args as &[&str], more].concat()).ok().json()["tokens"].clone()
        };
        assert_eq!(run(&["--check"]), run(&[]));
        let score = |more: &[&str]| {
            let args = ["perplexity", s(&plan), "-f", s(&text), "--json"];
            glmc(&[&args as &[&str], more].concat()).ok().json()["perplexity"].clone()
        };
        assert_eq!(score(&["--check"]), score(&[]));
    }
}

#[test]
fn nan_stops_a_run_with_and_without_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("ids.json");
    std::fs::write(&text, "[5, 6, 7, 8, 9, 10]").unwrap();
    for (plan, rank) in plans(dir.path()) {
        for (weight, layer, kernel) in [
            ("blk.0.attn_output", Some(0), "matmul"),
            // Made where the pool keeps it, or before: `append_row`, `latent_row`.
            ("blk.1.attn_kv_a_norm", Some(1), "_row"),
            ("blk.2.ffn_down_shexp", Some(2), "matmul"),
            ("blk.1.ffn_norm", Some(1), "add_rms_norm"),
            ("output", None, "matmul"),
        ] {
            let fault = format!("rank={rank},weight={weight},block=0,kind=nan");
            let args = ["run", s(&plan), "--tokens", "5,6,7,8,9,10", "-n", "3", "--json", "--inject", &fault];
            let ran = glmc(&[&args as &[&str], &["--check"]].concat());
            assert_eq!((ran.code(), ran.class()), (5, ("verification".into(), "no-number".into())), "{fault} {ran:?}");
            let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
            let layer = layer.map_or(String::new(), |l: u64| format!("layer {l}: "));
            let words = [kernel, "of phase prefill.short", &format!("on rank {rank}"), "NaN at [", "(step "];
            assert!(
                message.starts_with(&format!("{layer}`")) && words.iter().all(|w| message.contains(w)),
                "{message}"
            );
            // Without it the run ends all the same, later, and no token came out.
            let ran = glmc(&args);
            assert_eq!((ran.code(), ran.class()), (3, ("model".into(), "numbers".into())), "{fault} {ran:?}");
            assert!(ran.json()["tokens"].is_null(), "{ran:?}");
            let plain = glmc(&["run", s(&plan), "--tokens", "5,6,7,8,9,10", "-n", "3", "--inject", &fault]);
            assert_eq!((plain.code(), plain.out.as_str()), (3, ""), "{plain:?}");
            for (check, code) in [(&["--check"] as &[&str], 5), (&[], 3)] {
                let args = ["perplexity", s(&plan), "-f", s(&text), "--json", "--inject", &fault];
                assert_eq!(glmc(&[&args as &[&str], check].concat()).code(), code, "{fault}");
            }
        }
    }
}
