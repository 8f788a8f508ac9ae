//! Owns the mapping of weight files. Never interprets their bytes.
#![allow(unsafe_code, reason = "a file mapping is unsafe to make: the file may change under it")]

use std::path::Path;

use memmap2::Mmap;

use crate::error::RuntimeError;

/// A read-only mapping of a whole file.
///
/// A file that another process cuts short while it is mapped makes the next read of the lost pages fail with SIGBUS:
/// the process must end, and only the binary can say why.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

impl Mapped {
    /// Maps `path`.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or there is no room in the address space for it.
    pub(crate) fn open(path: &Path) -> Result<Self, RuntimeError> {
        let file = glmc_content::open_regular(path).map_err(|e| RuntimeError::io(path, &e))?;
        // SAFETY: the mapping is private to this process and only read. The contents may change if another process
        // writes the file; the bytes are weights, for which every bit pattern is a valid value, so no invariant of ours
        // depends on them.
        let map = unsafe { Mmap::map(&file) };
        map.map(Mapped).map_err(|e| match (e.kind(), file.metadata()) {
            (std::io::ErrorKind::OutOfMemory, Ok(m)) => {
                RuntimeError::weight_memory(format!("the mapping of {}", path.display()), m.len())
            }
            _ => RuntimeError::io(path, &e),
        })
    }

    /// The file's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
