//! Owns the one memory mapping of a file, and with it the crate's only `unsafe`.
//!
//! It never opens anything but a regular file: the path is looked at first, so that a FIFO, a device or a directory is
//! refused instead of blocking. A file that is cut short *after* it was mapped makes later reads fault (SIGBUS); that
//! is out of scope here, as for every program that maps its weights: do not change a model file while it is in use.
#![allow(unsafe_code, reason = "mapping a file has no safe interface")]

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::{Class, InputError, Result};

/// A read-only mapping of a whole regular file; an empty file is an empty slice.
#[derive(Debug)]
pub struct FileMap {
    map: Option<memmap2::Mmap>,
}

impl FileMap {
    /// Maps a file.
    ///
    /// # Errors
    /// Class `io`: no such file, a directory, not a regular file, no permission, too many links.
    pub fn open(path: &Path) -> Result<FileMap> {
        let meta = stat(path)?;
        if meta.is_dir() {
            return Err(InputError::new(Class::Io, "is-a-directory", path, "this is a directory, not a GGUF file"));
        }
        regular(&meta, path)?;
        let file = glmc_content::open_regular(path).map_err(|e| io_error(path, &e))?;
        // Looked at again through the open handle: the name may have changed hands in between.
        let meta = file.metadata().map_err(|e| io_error(path, &e))?;
        regular(&meta, path)?;
        if meta.len() == 0 {
            return Ok(FileMap { map: None });
        }
        if usize::try_from(meta.len()).is_err() {
            return Err(InputError::new(Class::Io, "file-too-large", path, "the file does not fit the address space"));
        }
        // SAFETY: the mapping is private to this value and read-only. Its bytes are only ever read as `u8`, for which
        // every pattern is valid. Another process that changes the file can change the bytes seen, or make a read
        // fault if it cuts the file; the module documentation puts both out of scope.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| io_error(path, &e))?;
        Ok(FileMap { map: Some(map) })
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

/// Looks at a path, following links.
pub(crate) fn stat(path: &Path) -> Result<Metadata> {
    std::fs::metadata(path).map_err(|e| io_error(path, &e))
}

fn regular(meta: &Metadata, path: &Path) -> Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    Err(InputError::new(
        Class::Io,
        "not-a-regular-file",
        path,
        "not a regular file (a FIFO, socket or device); give a GGUF file on disk",
    ))
}

/// Turns a system error into one that says what to do.
pub(crate) fn io_error(path: &Path, e: &std::io::Error) -> InputError {
    let (code, message) = match e.kind() {
        ErrorKind::NotFound => ("no-such-file", "no such file or directory".to_owned()),
        ErrorKind::PermissionDenied => ("permission-denied", "permission denied: this user may not read it".to_owned()),
        _ => ("cannot-read", e.to_string()),
    };
    InputError::new(Class::Io, code, path, message)
}
