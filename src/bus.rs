//! Owns the end of a process whose mapped file lost bytes while they were read: the system tells it by SIGBUS, and
//! nobody can go on. The report is rendered beforehand, for a handler may do next to nothing.
#![allow(unsafe_code, reason = "signal handlers are set and run by system calls")]

use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use glmc_ir::plan::FileRef;

use crate::error::CliError;

/// What is written, whole.
struct Report {
    line: Vec<u8>,
    /// On stdout, with `--json`.
    object: Vec<u8>,
}

/// The report of now; those before it are never freed, for a handler may be reading them.
static REPORT: AtomicPtr<Report> = AtomicPtr::new(null_mut());
static JSON: AtomicBool = AtomicBool::new(false);
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Sets the handler. `json`: the error is also an object on stdout.
pub(crate) fn install(json: bool) {
    JSON.store(json, Ordering::SeqCst);
    report(None, "a mapped file");
    let handler: extern "C" fn(libc::c_int) = on_bus;
    // SAFETY: a zeroed `sigaction` is a valid one without flags; the handler is async-signal-safe, see there; no other
    // thread runs yet. If the call fails, the signal ends the process as it always did.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, null_mut());
    }
}

/// From now on this model is what is read.
pub(crate) fn reading(model: &Path) {
    report(Some(model), "the file");
}

/// From now on these files are what is read.
pub(crate) fn reading_files(files: &[FileRef]) {
    let what = if files.len() > 1 { "this file or another part of the model" } else { "the file" };
    report(files.first().map(|f| Path::new(&f.path)), what);
}

fn report(file: Option<&Path>, what: &str) {
    let m = format!("{what} was cut short, or could no longer be read, while glmc was reading it");
    let e = CliError { class: "io", file: file.map(Into::into), ..CliError::usage("io", m) };
    let object = if JSON.load(Ordering::SeqCst) { format!("{}\n", e.object()) } else { String::new() };
    let made = Report { line: format!("{}\n", e.line()).into_bytes(), object: object.into_bytes() };
    REPORT.store(Box::leak(Box::new(made)), Ordering::SeqCst);
}

/// Writes the report and ends the process.
extern "C" fn on_bus(_: libc::c_int) {
    // SAFETY: `pause`, `write` and `_exit` are async-signal-safe and atomics take no lock. The report, if there is one,
    // was whole when it was stored, is never changed and never freed; the pointers and lengths are those of its bytes.
    unsafe {
        // Several ranks may read what is gone: one reports, the others wait for the end.
        while REPORTED.swap(true, Ordering::SeqCst) {
            libc::pause();
        }
        if let Some(r) = REPORT.load(Ordering::SeqCst).as_ref() {
            for (stream, bytes) in [(2, &r.line), (1, &r.object)] {
                // There is nowhere to report a stream that takes nothing.
                let _ = libc::write(stream, bytes.as_ptr().cast(), bytes.len());
            }
        }
        libc::_exit(3);
    }
}
