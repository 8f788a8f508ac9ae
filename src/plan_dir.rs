//! Owns the writing of a plan directory: beside its place, synced, then put there in one step. A process that dies on
//! the way leaves the old plan or none, never half a one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use glmc_runtime::load::{MANIFEST, Manifest, PLAN};

use crate::cmd::decisions::DECISIONS;
use crate::cmd::figures::TARGET;
use crate::cmd::human_bytes;
use crate::error::CliError;
use crate::signals::Unfinished;

/// The files a plan may have; a directory with any other is no plan of ours and is never replaced.
const KNOWN: &[&str] = &[PLAN, MANIFEST, "graph.glir", TARGET, DECISIONS, "tokenizer.json", "chat_template.jinja"];

/// Middle part of the names of unfinished plans.
const UNFINISHED: &str = ".glmc-unfinished-";

/// The place that a user names, by a path that ends in its name: `plan/.` and `plan/` are `plan`, `.` is where it leads.
///
/// # Errors
/// There is no name, and nothing there.
pub(crate) fn named(place: &Path) -> Result<PathBuf, CliError> {
    let plain: PathBuf = place.components().collect();
    if plain.file_name().is_some() {
        return Ok(plain);
    }
    let whole = fs::canonicalize(place).ok().filter(|p| p.file_name().is_some());
    whole.ok_or_else(|| {
        CliError::usage("output-name", "is no name for a plan; give a directory that may be new").of(place)
    })
}

/// Refuses a place that is neither free nor a plan, nor an empty directory.
pub(crate) fn check_place(dir: &Path) -> Result<(), CliError> {
    let refuse =
        |why: &str| Err(CliError::usage("output-exists", format!("{why}; choose another place for the plan")).of(dir));
    let meta = match fs::symlink_metadata(dir) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return check_parent(dir, "the plan");
        }
        Err(e) => return Err(CliError::io(dir, &e)),
        Ok(m) => m,
    };
    if !meta.is_dir() {
        return refuse("exists and is not a plan");
    }
    let names: Vec<_> = fs::read_dir(dir)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(|e| CliError::io(dir, &e))?
        .into_iter()
        .map(|e| e.file_name())
        .collect();
    let is_plan = names.iter().any(|n| n == PLAN) && names.iter().all(|n| KNOWN.iter().any(|k| n == k));
    if is_plan || names.is_empty() { Ok(()) } else { refuse("is a directory that holds something else than a plan") }
}

/// Refuses a place whose folder is not there; `what` is to be put there.
pub(crate) fn check_parent(place: &Path, what: &str) -> Result<(), CliError> {
    let parent = parent(place);
    let none = || CliError::usage("output-parent", format!("there is no such directory to put {what} in")).of(parent);
    match fs::metadata(parent) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(CliError::usage("output-parent", "is not a directory").of(parent)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(none()),
        Err(e) => Err(CliError::io(parent, &e)),
    }
}

/// The folder that a place lies in.
pub(crate) fn parent(dir: &Path) -> &Path {
    dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes `files` and their manifest as the plan `dir`.
pub(crate) fn write(dir: &Path, files: &[(&str, Vec<u8>)]) -> Result<(), CliError> {
    check_place(dir)?;
    replace(dir, files)
}

/// As [`write()`], in the place of whatever is there. The place must be glmc's own.
pub(crate) fn replace(dir: &Path, files: &[(&str, Vec<u8>)]) -> Result<(), CliError> {
    remove_leftovers(dir);
    let manifest = Manifest::of(files.iter().map(|(name, bytes)| (*name, bytes.as_slice())));
    let manifest = serde_json::to_vec_pretty(&manifest).map_err(|e| CliError::internal(e.to_string()))?;
    let mut all: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    // Last: a folder without it is no plan.
    all.push((MANIFEST, &manifest));
    check_room(dir, all.iter().map(|(_, bytes)| bytes.len() as u64))?;
    let aside = unfinished(dir, std::process::id());
    // What is left aside is the unfinished plan, or the old one that was exchanged for it: it is removed.
    let written = Unfinished::new(&aside, || fs::create_dir(&aside)).and_then(|(unfinished, ())| {
        fill(&aside, &all)?;
        unfinished.finish(|| put(&aside, dir))
    });
    written.map_err(|e| CliError::io(dir, &e))
}

fn unfinished(dir: &Path, pid: u32) -> PathBuf {
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    parent(dir).join(format!(".{name}{UNFINISHED}{pid}"))
}

fn fill(aside: &Path, files: &[(&str, &[u8])]) -> io::Result<()> {
    files.iter().try_for_each(|(name, bytes)| write_synced(&aside.join(name), bytes))?;
    File::open(aside)?.sync_all()
}

/// Removes a folder with all in it, or what else is there. A link is removed, not followed.
fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Refuses files that the file system of their place has no room for, before a byte of them is written.
///
/// # Errors
/// Class `io`, code `no-space`, with the bytes that are needed and those that are free. Where the system does not say
/// what is free, the write will tell.
pub(crate) fn check_room(place: &Path, files: impl Iterator<Item = u64>) -> Result<(), CliError> {
    let folder = parent(place);
    let Ok(fs) = rustix::fs::statvfs(folder) else { return Ok(()) };
    // A file takes whole blocks. A file system without a size has no limit of its own.
    let need = files.map(|n| n.div_ceil(fs.f_frsize.max(1)).saturating_mul(fs.f_frsize)).fold(0, u64::saturating_add);
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    if fs.f_blocks == 0 || need <= free { Ok(()) } else { Err(no_room(place, folder, need, free)) }
}

fn no_room(place: &Path, folder: &Path, need: u64, free: u64) -> CliError {
    let m = format!(
        "{need} bytes ({}) are needed and {free} ({}) are free on the file system of {}: free some, or choose another \
         place",
        human_bytes(need),
        human_bytes(free),
        folder.display()
    );
    CliError::usage("no-space", m).class("io").of(place)
}

/// Refuses a file that the process's limit on file sizes cuts short, before a byte of it is written.
///
/// # Errors
/// As the write would give.
pub(crate) fn check_size(bytes: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|most| bytes > most) { Err(rustix::io::Errno::FBIG.into()) } else { Ok(()) }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    check_size(bytes.len() as u64)?;
    let mut f = File::create_new(path)?;
    f.write_all(bytes)?;
    f.sync_all()
}

/// Moves the finished plan to its place; an old plan there is exchanged for it in the same step.
fn put(aside: &Path, dir: &Path) -> io::Result<()> {
    if fs::symlink_metadata(dir).is_ok() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, aside, CWD, dir, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // A file system that cannot exchange: there is a moment without a plan, never half a one.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                remove(dir)?;
                fs::rename(aside, dir)?;
            }
            Err(e) => return Err(e.into()),
        }
    } else {
        fs::rename(aside, dir)?;
    }
    File::open(parent(dir))?.sync_all()
}

/// Removes what killed compilations of the same plan left behind.
fn remove_leftovers(dir: &Path) {
    let prefix = unfinished(dir, 0);
    let Some(prefix) = prefix.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix('0')) else { return };
    let Ok(entries) = fs::read_dir(parent(dir)) else { return };
    for e in entries.flatten() {
        let name = e.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(prefix)).and_then(|p| p.parse::<u32>().ok());
        if pid.is_some_and(|p| !Path::new(&format!("/proc/{p}")).exists()) {
            let _ = fs::remove_dir_all(e.path());
        }
    }
}
