//! stdout and stderr that are closed or full, and text that would act on a terminal.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;

use super::support::{GLMC, glmc, run, s, tiny, tiny_plan};

/// A pipe whose reading end is closed.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

fn go(args: &[&str], out: Stdio, err: Stdio) -> Output {
    let mut c = Command::new(GLMC);
    c.args(args).stdin(Stdio::null()).stdout(out).stderr(err);
    c.spawn().unwrap().wait_with_output().unwrap()
}

/// What prints on stdout, with the exit code it has when all is well.
fn commands(plan: &str) -> Vec<(Vec<&str>, i32)> {
    vec![
        (vec!["--help"], 0),
        (vec!["run", "--help"], 0),
        (vec!["--version"], 0),
        (vec!["targets", "--json"], 0),
        (vec!["inspect", plan], 0),
        (vec!["run", plan, "--tokens", "1,2", "-n", "3", "--ignore-eos"], 0),
        (vec!["run", plan, "--json"], 2),
        (vec!["frobnicate", "--json"], 2),
        (vec!["run", "/no/such/plan", "--prompt", "x", "--json"], 3),
    ]
}

#[test]
fn a_closed_stdout_is_quiet_and_keeps_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for (args, code) in commands(s(&plan)) {
        let out = go(&args, closed(), Stdio::piped());
        let err = String::from_utf8_lossy(&out.stderr);
        // Nobody reads the text that was to be made: as if the signal had ended it.
        let unread = code == 0 && args.contains(&"--tokens");
        assert_eq!(out.status.code(), Some(if unread { 128 + libc::SIGPIPE } else { code }), "{args:?}: {out:?}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert_eq!(err.contains("error["), code != 0, "{args:?}: {err}");
    }
}

#[test]
fn a_closed_stdout_stops_no_work() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan, npy) = (tiny(), dir.path().join("plan"), dir.path().join("l.npy"));
    for more in [&["--emit", "all"][..], &["--emit", "after=lift"], &[], &["--json"]] {
        let args = [&["compile", s(&model), "-o", s(&plan), "--ctx", "256"], more].concat();
        let out = go(&args, closed(), Stdio::piped());
        assert_eq!(out.status.code(), Some(0), "{more:?}: {out:?}");
        super::support::runs(&plan).ok();
        std::fs::remove_dir_all(&plan).unwrap();
        // What cannot be written elsewhere is an error, and the plan is there as well.
        let out = go(&args, full(), Stdio::piped());
        assert_eq!(out.status.code(), Some(3), "{more:?}: {out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("error[io/io]: stdout: "), "{more:?}: {out:?}");
        super::support::runs(&plan).ok();
    }
    let args = ["run", s(&plan), "--tokens", "1,2", "-n", "9", "--ignore-eos", "--logits", s(&npy)];
    let out = go(&args, closed(), Stdio::piped());
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(std::fs::read(&npy).unwrap().len() > 9 * 2048 * 4);
    // An object that nobody reads was made nevertheless.
    let args = ["run", s(&plan), "--tokens", "1,2", "-n", "3", "--ignore-eos", "--json"];
    assert_eq!(go(&args, closed(), Stdio::piped()).status.code(), Some(0));
    // A page is written whoever hears of it.
    let page = dir.path().join("page.html");
    assert_eq!(go(&["explain", s(&plan), "--html", s(&page)], closed(), Stdio::piped()).status.code(), Some(0));
    assert!(page.is_file());
}

#[test]
fn a_full_stdout_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for (args, code) in commands(s(&plan)) {
        let out = go(&args, full(), Stdio::piped());
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        if code == 0 {
            assert_eq!(out.status.code(), Some(3), "{args:?}: {out:?}");
            assert!(err.contains("error[io/io]: stdout: "), "{args:?}: {err}");
        } else {
            assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
        }
    }
}

#[test]
fn a_stderr_that_takes_nothing_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let mut all = commands(s(&plan));
    all.push((vec!["run"], 2));
    all.push((vec![], 2));
    for (args, code) in all {
        for err in [closed(), full()] {
            let usual = go(&args, Stdio::piped(), Stdio::null());
            let out = go(&args, Stdio::piped(), err);
            assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
            assert_eq!(out.stdout, usual.stdout, "{args:?}");
        }
    }
}

/// One line that does nothing to a terminal.
fn plain_line(ran: &super::support::Ran) -> String {
    let line = ran.error_line().to_owned();
    assert!(!ran.err.trim_end_matches('\n').contains(|c: char| c.is_control() && c != '\n'), "{:?}", ran.err);
    line
}

#[test]
fn terminal_escapes_in_names_are_shown_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let evil = OsStr::from_bytes(b"a\x1b[31m\rb\nerror[internal: c\x07\xc2\x9b1m.gguf");
    let path = dir.path().join(evil);
    // Missing, broken, and named on the command line only.
    let to = dir.path().join("p");
    let args = [OsStr::new("compile"), path.as_os_str(), OsStr::new("-o"), to.as_os_str()];
    let ran = glmc(&args);
    assert_eq!(ran.code(), 3);
    assert!(plain_line(&ran).contains("a\\u{1b}[31m\\rb\\nerror"), "{}", ran.err);
    std::fs::write(&path, b"GGUF\x1b[31m").unwrap();
    let ran = glmc(&[&args[..], &[OsStr::new("--json")]].concat());
    assert_eq!(ran.code(), 3);
    plain_line(&ran);
    // The object keeps the name as it is.
    assert_eq!(ran.json()["error"]["file"], path.to_string_lossy().into_owned());
    let plan = dir.path().join("pl\x1b[2Jan");
    let ran = glmc(&["run", s(&plan), "--prompt", "x"]);
    assert_eq!(ran.code(), 3);
    plain_line(&ran);
    let ran = glmc(&["run", "--\x1b[2Jflag"]);
    assert_eq!(ran.code(), 2);
    plain_line(&ran);
    // An argument that is no UTF-8 is a mistake, not a crash.
    let ran = glmc(&[OsStr::new("run"), OsStr::new("p"), OsStr::new("--prompt"), OsStr::from_bytes(b"\xff\x1b[0m")]);
    assert_eq!(ran.code(), 2, "{ran:?}");
    plain_line(&ran);
}

#[test]
fn terminal_escapes_in_a_model_are_shown_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(tiny()).unwrap();
    // The same length, so that the file stays well formed but for the names.
    for (from, to) in [("general.architecture", "general.\x1b[31mtecture"), ("blk.0.attn_norm", "blk.\x1b[31mn_norm")] {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        let mut edited = bytes.clone();
        edited[at..at + from.len()].copy_from_slice(to.as_bytes());
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, edited).unwrap();
        let ran = glmc(&["compile", s(&path), "-o", s(&dir.path().join("p"))]);
        assert_eq!(ran.code(), 3, "{ran:?}");
        plain_line(&ran);
    }
    // A value that the message repeats.
    let set = open(&tiny()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("general.architecture", "glm\x1b[31m\n");
    let path = dir.path().join("arch.gguf");
    w.write(&path).unwrap();
    let ran = glmc(&["compile", s(&path), "-o", s(&dir.path().join("p"))]);
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(plain_line(&ran).contains("[31m"), "{}", ran.err);
}

#[test]
fn logs_have_no_colours_and_no_escapes() {
    let dir = tempfile::tempdir().unwrap();
    // Bytes after the last tensor: a warning.
    let path = dir.path().join("m\x1b[31m\nWARN n.gguf");
    let mut bytes = std::fs::read(tiny()).unwrap();
    bytes.extend([7; 100]);
    std::fs::write(&path, bytes).unwrap();
    let mut c = Command::new(GLMC);
    c.args(["inspect", s(&path), "--json"]).env("GLMC_LOG", "trace").env_remove("NO_COLOR");
    let ran = run(c).ok();
    let warning: Vec<&str> = ran.err.lines().filter(|l| l.contains("bytes after the last tensor")).collect();
    assert!(warning.len() == 1 && warning[0].contains("m\\u{1b}[31m\\nWARN n.gguf"), "{:?}", ran.err);
    assert!(!ran.err.contains(|c: char| c.is_control() && c != '\n'), "{:?}", ran.err);
}
