//! Kernels as a program for this machine's CPU: the same generated source, compiled by the system's C++ compiler
//! against the emulation of `kernels/emu`. For tests; a GPU run never comes here.
//!
//! A program runs in a process of its own, so that a kernel that touches a closed page, hangs or dies is a report and
//! not the end of the test.

mod job;
mod plan;

pub use job::{Buffer, Job, Launch, Order};
pub use plan::{Left, PlanError, PlanRun, buffer};

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::kernels::{HOST_MAIN, Header, headers};

/// Compilers that are tried, after the environment variable `CXX`.
const COMPILERS: [&str; 3] = ["g++", "c++", "clang++"];
/// Sums must not be contracted: the bits of decoders are compared.
const FLAGS: [&str; 4] = ["-std=c++17", "-O1", "-ffp-contract=off", "-w"];
/// Longest run of one process.
const LIMIT: Duration = Duration::from_secs(300);

/// Why a host program was not built or did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no compiler.
    #[error("no C++ compiler: tried CXX, {}; install g++ or set CXX", COMPILERS.join(", "))]
    NoCompiler,
    /// The compiler refuses the source.
    #[error("{compiler} refuses {source_file}:\n{log}")]
    Compile {
        /// Which compiler.
        compiler: String,
        /// The source, kept for reading.
        source_file: String,
        /// What it says.
        log: String,
    },
    /// A file or process could not be used.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> HostError {
    let what = what.into();
    move |error| HostError::Io { what, error }
}

/// The name of a C++ compiler that answers.
///
/// # Errors
/// [`HostError::NoCompiler`].
pub fn compiler() -> Result<String, HostError> {
    let from_env = std::env::var("CXX").ok().filter(|c| !c.is_empty());
    let all = from_env.into_iter().chain(COMPILERS.iter().map(|c| (*c).to_owned()));
    let answers = |c: &String| {
        let status = Command::new(c).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    };
    all.into_iter().find(answers).ok_or(HostError::NoCompiler)
}

/// The contents of a job's outputs and changed buffers in order, or what went wrong in a kernel.
pub type JobResult = Result<Vec<Vec<u8>>, String>;

/// A compiled program.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
}

/// The buffers of each job that ended.
type Outputs = Vec<Vec<Vec<u8>>>;

impl Program {
    /// Compiles a translation unit ([`crate::emit::unit`]) in `dir`, or takes the program that an equal one left there.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn build(source: &str, dir: &Path) -> Result<Program, HostError> {
        Self::build_with(source, &headers(), dir)
    }

    /// The same over other headers: tests plant faults in them.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn build_with(source: &str, headers: &[Header], dir: &Path) -> Result<Program, HostError> {
        let compiler = compiler()?;
        let mut hash = blake3::Hasher::new();
        for text in [&compiler, source, HOST_MAIN].into_iter().chain(FLAGS) {
            hash.update(text.as_bytes()).update(&[0]);
        }
        for h in headers {
            hash.update(h.name.as_bytes()).update(h.text.as_bytes());
        }
        let key = hash.finalize().to_hex();
        let path = dir.join(format!("host-{}", &key[..24]));
        if path.exists() {
            return Ok(Program { path });
        }
        std::fs::create_dir_all(dir).map_err(io(format!("create {}", dir.display())))?;
        let work = tempfile::Builder::new().prefix("host-build-").tempdir_in(dir).map_err(io("create a folder"))?;
        for h in headers {
            let to = work.path().join(h.name);
            let parent = to.parent().unwrap_or(work.path());
            std::fs::create_dir_all(parent).map_err(io("create a folder"))?;
            std::fs::write(&to, &h.text).map_err(io(format!("write {}", to.display())))?;
        }
        let file = work.path().join("unit.cpp");
        std::fs::write(&file, format!("{source}\n{HOST_MAIN}")).map_err(io("write the source"))?;
        let made = work.path().join("program");
        let mut command = Command::new(&compiler);
        command.args(FLAGS).arg("-DGLMC_HOST").arg("-I").arg(work.path()).arg("-o").arg(&made).arg(&file);
        let out = command.output().map_err(io(format!("run {compiler}")))?;
        if !out.status.success() {
            let kept = work.keep();
            let log = String::from_utf8_lossy(&out.stderr);
            return Err(HostError::Compile {
                compiler,
                source_file: kept.join("unit.cpp").display().to_string(),
                log: log.lines().take(40).collect::<Vec<_>>().join("\n"),
            });
        }
        // Beside the program, for whoever reads what a kernel did.
        std::fs::rename(&file, path.with_extension("cpp")).map_err(io("keep the source"))?;
        std::fs::rename(&made, &path).map_err(io(format!("move to {}", path.display())))?;
        Ok(Program { path })
    }

    /// Runs jobs one after the other; for each the contents of its outputs and changed buffers in order, or what went
    /// wrong in the kernel.
    ///
    /// # Errors
    /// [`HostError::Io`]; a kernel's fault is a job's result.
    pub fn run(&self, jobs: &[Job], order: Order) -> Result<Vec<JobResult>, HostError> {
        let mut results = Vec::new();
        while results.len() < jobs.len() {
            let rest = &jobs[results.len()..];
            let (outputs, fault) = self.process(rest, order)?;
            let done = outputs.len();
            results.extend(outputs.into_iter().map(Ok));
            if done < rest.len() {
                results.push(Err(fault));
            }
        }
        Ok(results)
    }

    /// One process: the outputs of the jobs that it ended, and its last words.
    fn process(&self, jobs: &[Job], order: Order) -> Result<(Outputs, String), HostError> {
        let dir = tempfile::tempdir().map_err(io("create a folder"))?;
        let (input, output, words) = (dir.path().join("jobs"), dir.path().join("out"), dir.path().join("words"));
        std::fs::write(&input, job::encode(jobs, order)).map_err(io("write the jobs"))?;
        let log = std::fs::File::create(&words).map_err(io("create a file"))?;
        let mut command = Command::new(&self.path);
        command.arg(&input).arg(&output).stderr(log).stdout(Stdio::null());
        let mut child = command.spawn().map_err(io(format!("run {}", self.path.display())))?;
        let start = Instant::now();
        let status = loop {
            match child.try_wait().map_err(io("wait"))? {
                Some(status) => break format!("{status}"),
                None if start.elapsed() > LIMIT => {
                    child.kill().and_then(|()| child.wait()).map_err(io("stop a program"))?;
                    break format!("no end after {} s", LIMIT.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let text = std::fs::read_to_string(&words).map_err(io("read the report"))?;
        let done = text.lines().filter(|l| l.starts_with("job ") && l.ends_with(" done")).count();
        let bytes = std::fs::read(&output).map_err(io("read the outputs"))?;
        let said: Vec<&str> = text.lines().filter(|l| !l.starts_with("job ")).collect();
        Ok((job::decode(&jobs[..done.min(jobs.len())], &bytes), format!("{} ({status})", said.join("; "))))
    }
}
