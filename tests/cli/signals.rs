//! Signals and blocking files: outside the token loop a signal ends the process at once, and nothing that is no regular
//! file is waited for.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{GLMC, glmc, names, own, run, runs, s, tiny, tiny_plan};

pub(super) fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

/// Waits for the end of a child that a signal was sent to; fails if it takes long.
pub(super) fn ends(child: &mut Child, what: &str) -> std::process::ExitStatus {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    panic!("{what}: still running two seconds after the signal");
}

/// Ended by the signal itself, or with its exit code.
pub(super) fn by(status: std::process::ExitStatus, signal: i32, what: &str) {
    assert!(status.signal() == Some(signal) || status.code() == Some(128 + signal), "{what}: {status:?}");
}

fn mkfifo(path: &Path) {
    let c = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a system call on a path that lives through it.
    assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o600) }, 0);
}

#[test]
fn one_signal_ends_a_compilation_into_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let plans = cache.path().join("glmc/plans");
    let command = || {
        let mut c = Command::new(GLMC);
        c.args(["run", s(&tiny()), "--tokens", "1", "-n", "1", "--json"]).env("XDG_CACHE_HOME", cache.path());
        c
    };
    let start = Instant::now();
    let usual = run(command()).ok().time;
    println!("usually {usual:?}, measured {:?}", start.elapsed());
    let mut early = 0;
    for (i, sig) in [libc::SIGINT, libc::SIGTERM].into_iter().cycle().take(12).enumerate() {
        std::fs::remove_dir_all(&plans).unwrap();
        let mut child = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(usual.mul_f64(0.05 * i as f64));
        signal(&child, sig);
        let status = ends(&mut child, "compiling");
        if !status.success() {
            by(status, sig, "compiling");
            early += 1;
        }
        std::fs::create_dir_all(&plans).unwrap();
        assert!(names(&plans).iter().filter(|n| !n.starts_with('.')).count() <= 1);
        // What it left does not hinder the next run, and goes with it.
        let ran = run(command()).ok();
        assert!(!ran.err.contains("again"), "half a plan: {ran:?}");
        let left = names(&plans);
        assert!(left.len() == 1 && !left[0].starts_with('.'), "{left:?}");
    }
    assert!(early >= 6, "only {early} signals came before the end");
}

#[test]
fn one_signal_while_a_plan_is_written_leaves_nothing_unfinished() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    let mut early = 0;
    for sig in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().cycle().take(12) {
        let mut c = Command::new(GLMC);
        c.args(["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--json"]);
        let mut child = c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // As soon as anything of the plan is there.
        let start = Instant::now();
        while names(dir.path()).is_empty() && start.elapsed() < Duration::from_secs(60) {}
        signal(&child, sig);
        let status = ends(&mut child, "compiling");
        if !status.success() {
            by(status, sig, "compiling");
            early += 1;
        }
        let left = names(dir.path());
        assert!(left.iter().all(|n| n == "plan"), "signal {sig}: {left:?}");
        if plan.exists() {
            runs(&plan).ok();
            std::fs::remove_dir_all(&plan).unwrap();
        }
    }
    println!("{early} of 12 signals came before the end");
    assert!(early >= 6, "only {early} signals came before the end");
}

#[test]
fn one_signal_ends_what_waits_for_its_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let fifo = dir.path().join("prompt");
    mkfifo(&fifo);
    for sig in [libc::SIGINT, libc::SIGTERM] {
        for args in [
            &["run", s(&plan), "--prompt-file", s(&fifo)][..],
            &["run", s(&plan), "--chat", "--prompt-file", "/dev/stdin"],
            &["perplexity", s(&plan), "-f", s(&fifo)],
        ] {
            let mut c = Command::new(GLMC);
            c.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = c.spawn().unwrap();
            let mut held = child.stdin.take().unwrap();
            held.write_all(b"1 2 3").unwrap();
            std::thread::sleep(Duration::from_millis(400));
            assert!(child.try_wait().unwrap().is_none(), "{args:?} does not wait");
            signal(&child, sig);
            by(ends(&mut child, args[0]), sig, args[0]);
        }
    }
}

/// Runs a command that must not wait for anything.
fn at_once(args: &[&str], what: &str) -> super::support::Ran {
    let start = Instant::now();
    let mut c = Command::new("timeout");
    c.args(["-s", "KILL", "5", GLMC]).args(args);
    let ran = run(c);
    assert!(start.elapsed() < Duration::from_secs(3), "{what}: {ran:?}");
    ran
}

#[test]
fn a_plan_of_fifos_and_devices_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = own(dir.path());
    let text = dir.path().join("text");
    std::fs::write(&text, "1 2 3 4").unwrap();
    for name in ["plan.json", "manifest.json", "tokenizer.json", "chat_template.jinja", "target.toml"] {
        let path = plan.join(name);
        let bytes = std::fs::read(&path).unwrap();
        for kind in ["fifo", "/dev/zero", "/dev/tty", "folder"] {
            let _ = std::fs::remove_file(&path);
            match kind {
                "fifo" => mkfifo(&path),
                "folder" => std::fs::create_dir(&path).unwrap(),
                device => std::os::unix::fs::symlink(device, &path).unwrap(),
            }
            let what = format!("{kind} as {name}");
            let commands: &[&[&str]] = match name {
                "chat_template.jinja" => &[&["run", s(&plan), "--chat", "--prompt", "1", "--json"]],
                "target.toml" => &[&["inspect", s(&plan), "--json"], &["explain", s(&plan), "--json"]],
                "tokenizer.json" => &[
                    &["run", s(&plan), "--prompt", "1", "--json"],
                    &["perplexity", s(&plan), "-f", s(&text), "--json"],
                ],
                _ => &[
                    &["run", s(&plan), "--tokens", "1", "--json"],
                    &["inspect", s(&plan), "--json"],
                    &["explain", s(&plan), "--json"],
                    &["perplexity", s(&plan), "-f", s(&text), "--json"],
                ],
            };
            for args in commands {
                let ran = at_once(args, &what);
                assert_eq!(ran.code(), 3, "{what}: {ran:?}");
                assert!(ran.error_line().contains(name), "{what}: {ran:?}");
            }
            if path.is_dir() { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    runs(&plan).ok();
    // The weights, and a model.
    std::fs::remove_file(&model).unwrap();
    mkfifo(&model);
    let to = dir.path().join("to");
    for args in [
        &["run", s(&plan), "--tokens", "1", "--json"][..],
        &["run", s(&model), "--tokens", "1", "--json"],
        &["compile", s(&model), "-o", s(&to), "--json"],
        &["inspect", s(&model), "--json"],
    ] {
        let ran = at_once(args, "a FIFO as model");
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{args:?}: {ran:?}");
    }
    let target = dir.path().join("t.toml");
    mkfifo(&target);
    for args in [
        &["compile", s(&tiny()), "-o", s(&to), "--target", s(&target), "--json"][..],
        &["run", s(&tiny()), "--tokens", "1", "--target", s(&target), "--json"],
        &["compile", s(&tiny()), "-o", s(&to), "--target", "/dev/zero/x.toml", "--json"],
    ] {
        let ran = at_once(args, "a FIFO as target");
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_limit_on_file_sizes_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, npy) = (dir.path().join("plan"), dir.path().join("l.npy"));
    let limited = |args: &[&str], limit: u64| {
        let mut c = Command::new(GLMC);
        c.args(args);
        // SAFETY: between fork and exec only async-signal-safe calls are made. The signal stays as it usually is.
        unsafe {
            c.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        run(c)
    };
    for limit in [0, 100, 5120, 60_000, 150_000] {
        let ran = limited(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--json"], limit);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{limit}: {ran:?}");
        assert_eq!(names(dir.path()), [""; 0], "{limit}");
    }
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--json"]).ok();
    let args = ["run", s(&plan), "--tokens", "1", "-n", "3", "--ignore-eos", "--logits", s(&npy)];
    let ran = limited(&args, 512);
    assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{ran:?}");
    assert_eq!(names(dir.path()), ["plan"]);
}

#[test]
fn no_number_of_threads_is_obeyed_blindly() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for n in ["100000", "18446744073709551615"] {
        let mut c = Command::new(GLMC);
        c.args(["run", s(&plan), "--tokens", "1", "-n", "1", "--ignore-eos", "--json"]).env("RAYON_NUM_THREADS", n);
        let ran = run(c).ok();
        assert!(ran.err.contains(&format!("RAYON_NUM_THREADS={n} is more")), "{ran:?}");
        assert!(ran.time < Duration::from_secs(5), "{ran:?}");
    }
    let mut c = Command::new(GLMC);
    c.args(["run", s(&plan), "--tokens", "1", "-n", "1", "--ignore-eos", "--json"]).env("RAYON_NUM_THREADS", "1");
    assert!(!run(c).ok().err.contains("RAYON"));
}

/// A run of a plan, and what it says once its model has been cut short while it ran.
fn cut_short(model: &Path, args: &[&str]) -> super::support::Ran {
    let bytes = std::fs::read(model).unwrap();
    let mut c = Command::new(GLMC);
    c.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = c.spawn().unwrap();
    let maps = format!("/proc/{}/maps", child.id());
    let name = model.file_name().unwrap().to_str().unwrap();
    while !std::fs::read_to_string(&maps).unwrap_or_default().contains(name) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it mapped the model");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::OpenOptions::new().write(true).open(model).unwrap().set_len(0).unwrap();
    let out = child.wait_with_output().unwrap();
    std::fs::write(model, bytes).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err, status) = (text(out.stdout), text(out.stderr), out.status);
    super::support::Ran { status, out, err, peak: u64::MAX, time: start.elapsed(), busy: std::time::Duration::ZERO }
}

#[test]
fn a_model_that_is_cut_short_while_it_runs_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = (dir.path().join("model.gguf"), dir.path().join("plan"));
    std::fs::copy(tiny(), &model).unwrap();
    let ids = dir.path().join("ids");
    std::fs::write(&ids, serde_json::to_vec(&vec![1u32; 20_000]).unwrap()).unwrap();
    for target in ["cpu", "8x-cpu"] {
        glmc(&["compile", s(&model), "-o", s(&plan), "--ctx", "4096", "--target", target, "--json"]).ok();
        for args in [
            &["run", s(&plan), "--tokens", "1,2,3", "-n", "4000", "--ignore-eos", "--json"][..],
            &["run", s(&plan), "--tokens", "1,2,3", "-n", "4000", "--ignore-eos"],
            &["perplexity", s(&plan), "-f", s(&ids), "--json"],
        ] {
            let ran = cut_short(&model, args);
            if target == "8x-cpu" && ran.status.code() == Some(0) {
                // All that is in pieces was gathered already.
                continue;
            }
            assert_eq!((ran.code(), ran.class()), (3, ("io".into(), "io".into())), "{target} {args:?}: {ran:?}");
            assert!(ran.error_line().contains(&format!("]: {}: ", s(&model))), "{ran:?}");
            if args.contains(&"--json") {
                assert_eq!(ran.json()["error"]["file"], s(&model), "{ran:?}");
            }
        }
    }
    runs(&plan).ok();
}
