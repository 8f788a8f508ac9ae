//! What the system does not give: threads, and folders that may not be read.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::memory::limited;
use super::support::{GLMC, Ran, compile, glmc, run, s, tiny};

#[test]
fn threads_that_cannot_be_started_are_a_lack_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "64", "--target", "8x-cpu", "--json"]).ok();
    let (mut threads, mut runs) = (0, 0);
    // From hardly enough to begin with to enough for all.
    for megabytes in (16..=400).step_by(8) {
        let ran = limited(&["run", s(&plan), "--tokens", "1", "-n", "1", "--json"], megabytes << 20);
        match ran.status.code() {
            Some(0) => runs += 1,
            // The allocator, or the loader of the program, has nowhere to turn.
            None | Some(127) => continue,
            _ => {
                assert_eq!((ran.code(), ran.class().0.as_str()), (3, "memory"), "{megabytes} MB: {ran:?}");
                threads += usize::from(ran.class().1 == "threads");
            }
        }
    }
    println!("{threads} limits left too little for threads, {runs} enough");
    assert!(threads > 0 && runs > 0, "{threads}, {runs}");
}

/// Runs `glmc` as a user to whom permissions apply; `None` where the program cannot be reached by one.
fn as_nobody(args: &[&str]) -> Option<Ran> {
    let command = |program: &str| {
        let mut c = Command::new(program);
        // SAFETY: a system call without arguments.
        if unsafe { libc::geteuid() } == 0 {
            c.uid(65534).gid(65534);
        }
        c
    };
    let mut c = command(GLMC);
    if !c.arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("skipped: another user cannot run {GLMC}");
        return None;
    }
    let mut c = command(GLMC);
    c.args(args);
    Some(run(c))
}

#[test]
fn a_plan_that_may_not_be_read_is_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    compile(&tiny(), &plan).ok();
    let mode = |p: &Path, m: u32| std::fs::set_permissions(p, std::fs::Permissions::from_mode(m)).unwrap();
    mode(dir.path(), 0o755);
    mode(&plan, 0o000);
    for args in [
        &["run", s(&plan), "--tokens", "1", "--json"][..],
        &["explain", s(&plan), "--json"],
        &["inspect", s(&plan), "--json"],
    ] {
        let Some(ran) = as_nobody(args) else { break };
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{args:?}: {ran:?}");
        assert!(ran.error_line().to_lowercase().contains("permission denied"), "{args:?}: {ran:?}");
    }
    mode(&plan, 0o755);
}
