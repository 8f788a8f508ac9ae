//! Runs the binary and measures it.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary under test.
pub(crate) const GLMC: &str = env!("CARGO_BIN_EXE_glmc");

/// A file of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The shipped single-file model.
pub(crate) fn tiny() -> PathBuf {
    fixture("models/tiny-Q4_K_M.gguf")
}

/// What a run of the binary gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
    /// Peak resident bytes.
    pub(crate) peak: u64,
    pub(crate) time: Duration,
}

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// The one JSON object on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The error line; fails unless there is exactly one.
    pub(crate) fn error_line(&self) -> &str {
        let lines: Vec<&str> = self.err.lines().filter(|l| l.starts_with("error[")).collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        lines[0]
    }

    /// The class and code of the error line.
    pub(crate) fn class(&self) -> (String, String) {
        let line = self.error_line();
        let inner = &line["error[".len()..line.find(']').unwrap()];
        let (class, code) = inner.split_once('/').unwrap();
        (class.to_owned(), code.to_owned())
    }

    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code(), 0, "{self:?}");
        self
    }
}

/// Runs `glmc` with `args`.
pub(crate) fn glmc<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let mut c = Command::new(GLMC);
    c.args(args);
    run(c)
}

/// Runs a command, with its output and its peak memory.
#[allow(clippy::zombie_processes, reason = "wait4 waits for the child, and gives its memory too")]
pub(crate) fn run(mut command: Command) -> Ran {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || read(&mut stderr));
    let out = read(&mut stdout);
    let err = reader.join().unwrap();
    let mut status = 0;
    // SAFETY: `rusage` is plain data that wait4 fills; the child is ours and not yet waited for.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert!(libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) > 0);
        usage
    };
    let peak = usage.ru_maxrss as u64 * 1024;
    Ran { status: ExitStatus::from_raw(status), out, err, peak, time: start.elapsed() }
}

fn read(pipe: &mut impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Compiles `model` to `plan` with a small context.
pub(crate) fn compile(model: &Path, plan: &Path) -> Ran {
    glmc(&[
        Path::new("compile"),
        model,
        Path::new("-o"),
        plan,
        Path::new("--ctx"),
        Path::new("256"),
        Path::new("--json"),
    ])
}

/// A plan of the tiny model in `dir`.
pub(crate) fn tiny_plan(dir: &Path) -> PathBuf {
    let plan = dir.join("plan");
    compile(&tiny(), &plan).ok();
    plan
}

/// `run PLAN --tokens 1,2,3 -n 2 --ignore-eos --json`.
pub(crate) fn runs(plan: &Path) -> Ran {
    let p = plan.to_str().unwrap();
    glmc(&["run", p, "--tokens", "1,2,3", "-n", "2", "--ignore-eos", "--json"])
}

/// Names in a folder, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut n: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    n.sort();
    n
}
