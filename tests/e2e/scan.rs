//! Steps under the scan of `--check`: infinities are named, and those that say "not visible" are none.

use glmc_runtime::RuntimeError;
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, Want};
use glmc_runtime::load::load;

use super::models::{bf16, with_floats};
use super::support::{compile, long_engine, prompts};

fn text400() -> Vec<u32> {
    prompts().into_iter().find(|(n, _)| n == "text400").unwrap().1
}

#[test]
fn an_infinity_is_named_where_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_floats(dir.path(), "huge", "blk.1.ffn_norm.weight", |x| x.fill(f32::MAX));
    let mut e = Engine::new(load(&compile(&path)).unwrap()).unwrap();
    e.set_check(true);
    let seq = e.start();
    let error = e.feed(seq, &text400()[..6], Want::Last).unwrap_err();
    let RuntimeError::Unsound(u) = &error else { panic!("{error}") };
    assert_eq!((u.layer, u.value.as_str(), u.rank, u.what), (Some(1), "blk.1.ffn_norm", 0, "infinity"), "{error}");
    assert_eq!((u.phase.as_str(), u.kernel), ("prefill.short", "add_rms_norm"));
    // The sequence is as it was before the step that failed.
    assert_eq!(e.len(seq), 0);
}

#[test]
fn scores_of_what_is_not_visible_are_no_alarm() {
    let mut e = long_engine(&compile(&bf16()));
    e.set_check(true);
    let mut hidden = 0usize;
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        if let Output::F32(v) = s.data {
            hidden += v.iter().filter(|x| **x == f32::NEG_INFINITY).count();
        }
        Ok(())
    };
    let seq = e.start();
    e.feed_observed(seq, &text400(), Want::All, Some(&mut see)).unwrap();
    e.decode_observed(&[(seq, 20)], Some(&mut see)).unwrap();
    println!("{hidden} scores say that a position is not visible");
    assert!(hidden > 100_000);
}
