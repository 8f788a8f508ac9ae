//! Runs the binary from a process that has hardly begun. The kernel counts the memory of the process that a child was
//! forked from as the child's own, so a peak measured from a test process that holds much is that process's.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::support::{GLMC, Ran};

/// Names the folder of a command to run, in the small process.
const ASKED: &str = "GLMC_TEST_MEASURE";

/// Runs `glmc` with `args`.
pub(crate) fn measured<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let list: Vec<&[u8]> = args.iter().map(|a| a.as_ref().as_bytes()).collect();
    std::fs::write(at("args"), list.join(&0)).unwrap();
    let mut small = Command::new(std::env::current_exe().unwrap());
    small.args(["--exact", "cli::measure::the_measured_peak_is_the_programs_own", "--nocapture", "--test-threads=1"]);
    let out = small.env(ASKED, dir.path()).stdin(Stdio::null()).output().unwrap();
    let end = std::fs::read_to_string(at("end")).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let end: Vec<u64> = end.split(' ').map(|n| n.parse().unwrap()).collect();
    let read = |n: &str| String::from_utf8_lossy(&std::fs::read(at(n)).unwrap()).into_owned();
    Ran {
        status: ExitStatus::from_raw(end[0] as i32),
        out: read("out"),
        err: read("err"),
        peak: end[1],
        time: Duration::from_nanos(end[2]),
        busy: Duration::from_micros(end[3]),
    }
}

/// The small process: runs what the folder says and leaves output, status, peak bytes, nanoseconds and microseconds of work there.
#[allow(clippy::zombie_processes, reason = "wait4 waits for the child, and gives its memory too")]
fn run_as_asked(dir: &Path) {
    let bytes = std::fs::read(dir.join("args")).unwrap();
    let args = if bytes.is_empty() { vec![] } else { bytes.split(|b| *b == 0).collect() };
    let create = |n: &str| File::create(dir.join(n)).unwrap();
    let mut c = Command::new(GLMC);
    c.args(args.into_iter().map(|a| OsString::from_vec(a.to_vec()))).env_remove(ASKED);
    c.stdin(Stdio::null()).stdout(create("out")).stderr(create("err"));
    let start = Instant::now();
    let child = c.spawn().unwrap();
    let mut status = 0;
    // SAFETY: `rusage` is plain data that wait4 fills; the child is ours and not yet waited for.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert!(libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) > 0);
        usage
    };
    let nanos = start.elapsed().as_nanos();
    let micros = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    let busy = micros(usage.ru_utime) + micros(usage.ru_stime);
    std::fs::write(dir.join("end"), format!("{status} {} {nanos} {busy}", usage.ru_maxrss as u64 * 1024)).unwrap();
}

/// Whatever the test process holds. In the small process this is where the command is run.
#[test]
fn the_measured_peak_is_the_programs_own() {
    if let Some(dir) = std::env::var_os(ASKED) {
        return run_as_asked(Path::new(&dir));
    }
    let before = measured(&["--version"]).ok();
    let held = vec![1u8; 300 << 20];
    let after = measured(&["--version"]).ok();
    println!("glmc --version: {} bytes resident, {} beside {}", before.peak, after.peak, held.len());
    assert!(before.out.starts_with("glmc ") && after.out == before.out, "{before:?}");
    for ran in [before, after] {
        assert!((1 << 20..32 << 20).contains(&ran.peak), "{ran:?}");
    }
}
