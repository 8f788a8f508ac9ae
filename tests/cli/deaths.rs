//! A rank whose thread dies: all others stop, one message names it, nothing hangs.

use std::time::Duration;

use super::support::{Ran, glmc, s, tiny, tiny_plan};

fn told(ran: &Ran, rank: u64) {
    assert_eq!((ran.code(), ran.class()), (4, ("device".into(), "rank-died".into())), "{ran:?}");
    let line = ran.error_line();
    assert!(line.contains(&format!("rank {rank}: its thread died: it was made to die")), "{ran:?}");
    assert!(ran.time < Duration::from_secs(5), "{:?}", ran.time);
}

#[test]
fn a_rank_that_dies_stops_all_with_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, ids) = (dir.path().join("eight"), dir.path().join("ids"));
    std::fs::write(&ids, "[1, 2, 3, 4, 5]").unwrap();
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--target", "8x-cpu", "--ctx", "256", "--json"]).ok();
    let run = ["run", s(&plan), "--tokens", "1,2,3", "-n", "3", "--json"];
    let all = [&run[..], &["perplexity", s(&plan), "-f", s(&ids), "--json"], &["verify", s(&plan), "--json"]];
    for (rank, step) in [(0, 0), (3, 1), (7, 20), (5, 1_000_000)] {
        for args in all {
            let fault = format!("rank={rank},die,step={step}");
            let ran = glmc(&[args, &["--inject", &fault]].concat());
            told(&ran, rank);
            assert_eq!(ran.json()["error"]["file"], s(&plan), "{ran:?}");
        }
    }
    told(&glmc(&["run", s(&plan), "--tokens", "1", "-n", "1", "--inject", "rank=2,die"]), 2);
    // Without it all is well.
    glmc(&run).ok();
}

#[test]
fn only_a_rank_with_a_thread_of_its_own_can_die() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for (fault, word) in [("rank=0,die", "no thread of its own"), ("rank=0,die,kind=nan", "say rank=R")] {
        let ran = glmc(&["run", s(&plan), "--tokens", "1", "-n", "1", "--inject", fault, "--json"]);
        assert!(ran.code() == 2 && ran.error_line().contains(word), "{ran:?}");
    }
    let eight = dir.path().join("eight");
    glmc(&["compile", s(&tiny()), "-o", s(&eight), "--target", "8x-cpu", "--ctx", "256", "--json"]).ok();
    let ran = glmc(&["run", s(&eight), "--tokens", "1", "-n", "1", "--inject", "rank=8,die", "--json"]);
    assert!(ran.code() == 2 && ran.error_line().contains("no rank 8"), "{ran:?}");
}
