//! Owns the rendering of chat templates in a process of its own. A template is a program that came with the model, and
//! its engine can be made to overflow its stack or to ask for all memory; here that ends a process that nobody misses.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use glmc_runtime::text::{Rendering, TextError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hidden command that renders.
pub(crate) const COMMAND: &str = "render-template";

/// Address space of the process: its stack, its program and what the template makes.
const MEMORY: u64 = 448 << 20;
/// Seconds of computing.
const SECONDS: u64 = 2;

/// Whether a template parses, in another process.
///
/// # Errors
/// As for [`render`].
pub(crate) fn check(source: &str) -> Result<(), TextError> {
    render(&Rendering::parse(source)).map(|_| ())
}

/// Renders in another process.
///
/// # Errors
/// Those of the rendering; [`TextError::Template`] if the process did not outlive it, [`TextError::NoRoom`] if there is
/// none.
pub(crate) fn render(rendering: &Rendering) -> Result<String, TextError> {
    let room = |e: std::io::Error| TextError::NoRoom(e.to_string());
    let asked = serde_json::to_vec(rendering).map_err(|e| TextError::Template(e.to_string()))?;
    // This very program, even where its file has been replaced or removed.
    let mut child = Command::new("/proc/self/exe")
        .arg0("glmc")
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(room)?;
    // It reads all before it writes anything. If it dies on the way, its end says more than a broken pipe.
    if let Some(mut to) = child.stdin.take() {
        let _ = to.write_all(&asked);
    }
    let done = child.wait_with_output().map_err(room)?;
    if !done.status.success() {
        let why = format!("it needs more than the {SECONDS} s and {} MiB allowed, or nests too deep", MEMORY >> 20);
        return Err(TextError::Template(why));
    }
    let answer = serde_json::from_slice::<Result<String, TextError>>(&done.stdout);
    answer.map_err(|e| TextError::Template(format!("its process gave no answer: {e}")))?
}

/// The other process: a rendering on stdin, its result on stdout.
pub(crate) fn serve() -> ExitCode {
    let mut asked = Vec::new();
    // A limit that the process already has may be the lower one.
    let bound = |what, most: u64| {
        let most = getrlimit(what).maximum.map_or(most, |m| m.min(most));
        setrlimit(what, Rlimit { current: Some(most), maximum: Some(most) })
    };
    let bounded = std::io::stdin().read_to_end(&mut asked).is_ok()
        && bound(Resource::Core, 0).is_ok()
        && bound(Resource::Cpu, SECONDS).is_ok()
        && bound(Resource::As, MEMORY).is_ok();
    let Ok(rendering) = serde_json::from_slice::<Rendering>(&asked) else { return ExitCode::FAILURE };
    if !bounded {
        return ExitCode::FAILURE;
    }
    let written = serde_json::to_vec(&rendering.run()).map(|answer| std::io::stdout().write_all(&answer));
    if matches!(written, Ok(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
