//! Owns what SIGINT, SIGTERM and SIGHUP do: what is unfinished on disk is removed, then the process ends as the signal
//! ends any. While tokens are made the first one ends that only. A write beyond the limit on file sizes is an error
//! instead of a signal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::error::CliError;

/// What a signal finds.
#[derive(Default)]
struct State {
    /// What is removed.
    unfinished: Vec<PathBuf>,
    /// What is set by the first signal instead of an end.
    cancel: Option<Arc<AtomicBool>>,
}

static STATE: Mutex<State> = Mutex::new(State { unfinished: Vec::new(), cancel: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that waits for signals, once; until then they end the process as they end any.
fn listen() -> io::Result<()> {
    static LISTENS: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    let start = || -> io::Result<()> {
        let (told, done) = mpsc::channel();
        // The thread first: a handler that nobody hears would make a process that no signal ends.
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
                Ok(signals) => signals,
                Err(e) => return told.send(Err(e)).unwrap_or_default(),
            };
            let _ = told.send(Ok(()));
            signals.forever().for_each(act);
        })?;
        done.recv().unwrap_or_else(|e| Err(io::Error::other(e)))
    };
    (*LISTENS.get_or_init(|| start().map_err(|e| e.kind()))).map_err(io::Error::from)
}

fn act(signal: i32) {
    // Held to the end: who would put something unfinished in its place waits here for ever.
    let state = state();
    if state.cancel.as_ref().is_some_and(|flag| !flag.swap(true, Ordering::SeqCst)) {
        return;
    }
    state.unfinished.iter().for_each(|path| remove(path));
    let _ = emulate_default_handler(signal);
    std::process::exit(128 + signal);
}

/// Removes a file, or a folder with all in it, also while another thread still puts files there.
fn remove(path: &Path) {
    while let Ok(m) = fs::symlink_metadata(path) {
        let gone = if m.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if gone.is_err_and(|e| !matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound)) {
            return;
        }
    }
}

/// From now on a write beyond the process's limit on file sizes is an error.
pub(crate) fn no_signal_for_large_files() {
    // Nobody looks at the flag: that there is a handler is what makes it an error.
    if let Err(e) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        tracing::debug!("a write beyond the limit on file sizes will end the process: {e}");
    }
}

/// From now on the first signal sets this flag, and a second one ends the process.
///
/// # Errors
/// Class `memory`: the process may have no further thread.
pub(crate) fn cancel_flag() -> Result<Arc<AtomicBool>, CliError> {
    listen().map_err(|e| {
        let m = format!("the thread that waits for signals cannot be started: {e}; raise the limits of the process");
        CliError::usage("threads", m).class("memory")
    })?;
    let flag = Arc::new(AtomicBool::new(false));
    state().cancel = Some(Arc::clone(&flag));
    Ok(flag)
}

/// From now on one signal ends the process again.
pub(crate) fn end_at_once() {
    state().cancel = None;
}

/// A file or folder that is not finished: it goes when this goes, and when a signal ends the process.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// What `make` makes at `path`.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn new<T>(path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<(Self, T)> {
        Self::made(|| Ok((path.into(), make()?)))
    }

    /// A new folder in the system's place for such.
    ///
    /// # Errors
    /// Class `io`: it cannot be made.
    pub(crate) fn folder() -> Result<Self, CliError> {
        let made = Self::made(|| Ok((tempfile::tempdir()?.keep(), ())));
        made.map(|(folder, ())| folder).map_err(|e| CliError::io(&std::env::temp_dir(), &e))
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn made<T>(make: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(Self, T)> {
        if let Err(e) = listen() {
            // Then a signal ends the process as it ends any, and this is left for the next command to remove.
            tracing::debug!("no thread waits for signals: {e}");
        }
        let mut state = state();
        let (path, made) = make()?;
        state.unfinished.push(path.clone());
        Ok((Unfinished { path }, made))
    }

    /// Puts what is finished now where it belongs; no signal comes between. What is then at the path is removed.
    ///
    /// # Errors
    /// Those of `put`.
    pub(crate) fn finish(self, put: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _held = state();
        put()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut state = state();
        remove(&self.path);
        state.unfinished.retain(|p| *p != self.path);
    }
}
