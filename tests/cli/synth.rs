//! `synth` and what ends it: no signal, limit or full disk leaves anything behind, and room is looked for first.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::signals::{by, ends, signal};
use super::support::{GLMC, Ran, glmc, names, run, s, tiny};

/// A model of some seconds.
fn long(to: &Path) -> Command {
    let mut c = Command::new(GLMC);
    c.args(["synth", "--preset", "tiny", "--layers", "70", "--dims", "expert_ff=1024", "--json", "-o", s(to)]);
    c
}

#[test]
fn a_signal_leaves_nothing_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m.gguf");
    let start = Instant::now();
    run(long(&to)).ok();
    let usual = start.elapsed();
    let whole = std::fs::metadata(&to).unwrap().len();
    println!("{whole} bytes in {usual:?}");
    std::fs::remove_file(&to).unwrap();
    let mut early = 0;
    for (i, sig) in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGKILL].into_iter().cycle().take(8).enumerate() {
        let mut child = long(&to).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(usual.mul_f64(0.1 + 0.05 * i as f64));
        signal(&child, sig);
        by(ends(&mut child, "synth"), sig, "synth");
        // What was whole when the signal came is there, with its name.
        if std::fs::metadata(&to).is_ok_and(|m| m.len() == whole) {
            std::fs::remove_file(&to).unwrap();
        } else {
            early += 1;
        }
        assert_eq!(names(dir.path()), [""; 0], "signal {sig}");
    }
    println!("{early} of 8 signals came before the end");
    assert!(early >= 4, "only {early} signals came before the end");
}

/// A command whose files may have at most so many bytes.
fn limited(mut c: Command, limit: u64) -> Ran {
    // SAFETY: between fork and exec only async-signal-safe calls are made. The signal stays as it usually is.
    unsafe {
        c.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    run(c)
}

#[test]
fn a_limit_on_file_sizes_leaves_nothing_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m.gguf");
    let whole = run(long(&to)).ok().json()["bytes"].as_u64().unwrap();
    assert_eq!(std::fs::metadata(&to).unwrap().len(), whole, "the bytes that it says");
    std::fs::remove_file(&to).unwrap();
    for hollow in [false, true] {
        for limit in [0, 1000, 1 << 20, whole - 1] {
            let mut c = long(&to);
            c.args(hollow.then_some("--hollow"));
            let ran = limited(c, limit);
            assert_eq!((ran.code(), ran.class()), (3, ("io".into(), "io".into())), "{limit}: {ran:?}");
            assert_eq!(names(dir.path()), [""; 0], "{limit}");
            assert!(ran.time < Duration::from_secs(1), "{limit}: it was written first: {ran:?}");
        }
    }
    limited(long(&to), whole).ok();
    assert_eq!(names(dir.path()), ["m.gguf"]);
}

#[test]
fn room_is_looked_for_before_a_byte_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m.gguf");
    // More than any disk has: 2^53 bytes or so.
    let dims = "expert_ff=2097152,width=2097152,ff=2097152";
    let args = ["synth", "--mix", "f32", "--dims", dims, "-o", s(&to), "--json"];
    let ran = glmc(&args);
    assert_eq!((ran.code(), ran.class()), (3, ("io".into(), "no-space".into())), "{ran:?}");
    let message = ran.json()["error"]["message"].as_str().unwrap().to_owned();
    let numbers: Vec<u64> = message.split(' ').filter_map(|w| w.parse().ok()).collect();
    let free = rustix::fs::statvfs(dir.path()).unwrap();
    let near = |n: u64, m: u64| n.abs_diff(m) < m / 2;
    assert!(numbers.len() >= 2 && numbers[0] > 1 << 53, "{message}");
    assert!(numbers.iter().any(|n| near(*n, free.f_bavail * free.f_frsize)), "{message}");
    assert!(message.contains("needed") && message.contains("free"), "{message}");
    assert_eq!(names(dir.path()), [""; 0]);
    // A hole takes none.
    glmc(&["synth", "--preset", "glm-5", "--hollow", "-o", s(&to), "--json"]).ok();
}

/// Runs a command line in a folder of `bytes` bytes that holds nothing else: then what lies in it, after a line of dashes.
/// None where this machine makes no such folder for us.
fn in_a_small_folder(bytes: u64, args: &str) -> Option<Ran> {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size={bytes} none {0} || exit 99; cd {0}; {GLMC} {args}; code=$?; echo; echo ---; ls -A; exit $code",
        s(dir.path())
    );
    let mut c = Command::new("unshare");
    c.args(["-Urm", "sh", "-c", &script]);
    let able = Command::new("unshare").args(["-Urm", "true"]).stderr(Stdio::null()).status();
    let ran = able.is_ok_and(|s| s.success()).then(|| run(c)).filter(|r| r.code() != 99);
    if ran.is_none() {
        println!("SKIPPED: no file system can be mounted here");
    }
    ran
}

#[test]
fn a_full_disk_is_told_with_its_bytes_and_leaves_nothing() {
    let model = tiny();
    let compile = format!("compile {} -o plan --ctx 256 --json", s(&model));
    let synth = "synth --preset tiny -o m.gguf --json".to_owned();
    for (what, args, small, large) in [("plan", compile, 256 << 10, 16 << 20), ("m.gguf", synth, 1 << 20, 64 << 20)] {
        for bytes in [small, large] {
            let Some(ran) = in_a_small_folder(bytes, &args) else { return };
            let (out, left) = ran.out.split_once("\n---\n").unwrap_or_else(|| panic!("{ran:?}"));
            if bytes == large {
                assert_eq!((ran.code(), left.trim()), (0, what), "{ran:?}");
                continue;
            }
            assert_eq!((ran.code(), ran.class(), left), (3, ("io".into(), "no-space".into()), ""), "{ran:?}");
            let said: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
            let message = said["error"]["message"].as_str().unwrap();
            assert!(message.contains(&format!("{bytes} (")), "{message}");
        }
    }
}
