//! Runs the binary and measures it.

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
    /// Peak resident bytes; the largest number where nothing was measured.
    pub(crate) peak: u64,
    pub(crate) time: Duration,
    /// Processor time of all its threads: what other processes on the machine do not change. Zero where it was not measured.
    pub(crate) busy: Duration,
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

/// Runs `glmc` with `args`; its peak is measured.
pub(crate) fn glmc<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    super::measure::measured(args)
}

/// Runs a command, with its output. Its peak is not measured; see [`super::measure`].
pub(crate) fn run(mut command: Command) -> Ran {
    let start = Instant::now();
    let out = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        status: out.status,
        out: text(out.stdout),
        err: text(out.stderr),
        peak: u64::MAX,
        time: start.elapsed(),
        busy: Duration::ZERO,
    }
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

/// A path as an argument.
pub(crate) fn s(p: &Path) -> &str {
    p.to_str().unwrap()
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

/// A plan of a copy of the tiny model, both in one folder.
pub(crate) fn own(dir: &Path) -> (PathBuf, PathBuf) {
    let (model, plan) = (dir.join("model.gguf"), dir.join("plan"));
    std::fs::copy(tiny(), &model).unwrap();
    compile(&model, &plan).ok();
    (model, plan)
}

/// Writes `plan.json` and a manifest that fits it, as if glmc had made it so.
pub(crate) fn reseal(plan: &Path, json: &Value) {
    std::fs::write(plan.join("plan.json"), serde_json::to_vec(json).unwrap()).unwrap();
    let files: Vec<(String, Vec<u8>)> = names(plan)
        .into_iter()
        .filter(|n| n != "manifest.json")
        .map(|n| (n.clone(), std::fs::read(plan.join(n)).unwrap()))
        .collect();
    let manifest = glmc_runtime::load::Manifest::of(files.iter().map(|(n, b)| (n.as_str(), b.as_slice())));
    std::fs::write(plan.join("manifest.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
}

/// The plan as JSON.
pub(crate) fn plan_json(plan: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(plan.join("plan.json")).unwrap()).unwrap()
}
