//! Device memory: few large allocations, addressed by offset.

use super::{Context, CudaError};

/// Bytes on the device, freed with this.
pub struct Memory {
    context: Context,
    at: u64,
    bytes: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes on {:?}", self.bytes, self.context)
    }
}

impl Memory {
    /// Allocates; what is in it is not known.
    ///
    /// # Errors
    /// [`CudaError::Call`], out of memory among them.
    pub fn new(context: &Context, bytes: u64) -> Result<Memory, CudaError> {
        let n = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        Ok(Memory { at: context.api()?.alloc(n)?, context: context.clone(), bytes })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device address of byte `offset`.
    ///
    /// # Errors
    /// [`CudaError::Range`] past the end.
    pub fn address(&self, offset: u64) -> Result<u64, CudaError> {
        self.range(offset, 0)
    }

    pub(super) fn range(&self, offset: u64, len: u64) -> Result<u64, CudaError> {
        let end = offset.checked_add(len).filter(|e| *e <= self.bytes);
        end.map(|_| self.at + offset).ok_or(CudaError::Range { offset, len, bytes: self.bytes })
    }

    /// Copies to the device, from byte `offset` on; returns when the bytes may be changed again.
    ///
    /// # Errors
    /// [`CudaError::Range`], [`CudaError::Call`].
    pub fn upload(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let at = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() { Ok(()) } else { self.context.api()?.upload(at, bytes) }
    }

    /// Copies from the device; waits for it.
    ///
    /// # Errors
    /// [`CudaError::Range`], [`CudaError::Call`]: also that of a kernel that failed before.
    pub fn download(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        let at = self.range(offset, bytes.len() as u64)?;
        if bytes.is_empty() { Ok(()) } else { self.context.api()?.download(at, bytes) }
    }

    /// Fills all whole words with `word`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn fill(&mut self, word: u32) -> Result<(), CudaError> {
        let words = usize::try_from(self.bytes / 4).unwrap_or(usize::MAX);
        if words == 0 { Ok(()) } else { self.context.api()?.fill(self.at, word, words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(e) = self.context.api().and_then(|a| a.free(self.at)) {
            tracing::warn!("{e}");
        }
    }
}
