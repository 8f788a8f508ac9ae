//! `perplexity`: which ids it takes from a file, and how long its windows may be.

use std::path::Path;

use super::support::{Ran, glmc, s, tiny, tiny_plan};

fn score(plan: &Path, text: &Path, more: &[&str]) -> Ran {
    glmc(&[&["perplexity", s(plan), "-f", s(text), "--json"], more].concat())
}

#[test]
fn a_list_that_is_none_is_not_scored_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, file) = (tiny_plan(dir.path()), dir.path().join("ids"));
    for (list, why) in [
        ("[1,-1]", "entry 1 (counted from 0) is -1, no token id"),
        ("[1,2.0]", "entry 1 (counted from 0) is 2.0, no token id"),
        (" \n[1,2", "EOF"),
        ("[[1,2]]", "entry 0 (counted from 0) is [1,2], no token id"),
        ("[1,null]", "entry 1 (counted from 0) is null"),
        ("[3, 2048]", "entry 1 (counted from 0) is 2048, outside the vocabulary of 2048"),
        ("[1, 99999999999]", "entry 1 (counted from 0) is 99999999999"),
        ("[1] See there", "trailing characters"),
    ] {
        std::fs::write(&file, list).unwrap();
        let ran = score(&plan, &file, &[]);
        assert_eq!((ran.code(), ran.class()), (3, ("format".into(), "ids".into())), "{list}: {ran:?}");
        let e = &ran.json()["error"];
        assert_eq!(e["file"], s(&file), "{list}: {e}");
        assert!(e["message"].as_str().unwrap().contains(why), "{list}: {e}");
    }
    for (text, tokens) in [("[3, 2047]", Some(1)), ("[gMASK] 1 2 3", None), ("[see] 1 2", None)] {
        std::fs::write(&file, text).unwrap();
        let found = score(&plan, &file, &[]).ok().json()["tokens"].as_u64().unwrap();
        assert!(tokens.is_none_or(|n| n == found) && found > 0, "{text}: {found}");
    }
}

#[test]
fn a_window_is_judged_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, file) = (dir.path().join("plan"), dir.path().join("ids"));
    std::fs::write(&file, serde_json::to_vec(&(0..300u32).collect::<Vec<_>>()).unwrap()).unwrap();
    for (sizes, room, flag) in [
        (&["--ctx", "64"][..], 64, "--ctx"),
        (&["--ctx", "64", "--cache", "16"][..], 16, "--cache"),
        (&["--ctx", "1"][..], 1, "--ctx"),
    ] {
        glmc(&[&["compile", s(&tiny()), "-o", s(&plan)], sizes].concat()).ok();
        let ran = score(&plan, &file, &["--window", &(room + 1).to_string()]);
        assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), "window".into())), "{sizes:?}: {ran:?}");
        let line = ran.error_line();
        assert!(line.contains(&format!("--window {}", room + 1)) && line.contains(flag), "{line}");
        assert!(!ran.err.contains("scoring"), "{ran:?}");
        // Unasked, the window is what fits.
        let ran = score(&plan, &file, &[]);
        if room < 2 {
            assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), "window".into())), "{sizes:?}: {ran:?}");
            continue;
        }
        let (usual, asked) = (ran.ok().json(), score(&plan, &file, &["--window", &room.to_string()]).ok().json());
        assert_eq!((&usual["perplexity"], &usual["tokens"]), (&asked["perplexity"], &asked["tokens"]));
    }
}
