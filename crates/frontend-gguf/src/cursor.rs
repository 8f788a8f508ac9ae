//! Owns reading little-endian fields from untrusted bytes: every length is checked against what is left before use.
//!
//! It never allocates from a count and never slices past the end. Errors carry the byte offset.

use std::path::Path;

use crate::error::{Class, InputError, Result};

/// A position in the bytes of one file.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], path: &'a Path) -> Self {
        Cursor { bytes, pos: 0, path }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    /// Bytes between the position and the end of the file.
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// The next `n` bytes, or "unexpected end of file" naming `what`.
    pub(crate) fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        if n > self.left() {
            return Err(self.end(n, what));
        }
        let start = self.pos;
        self.pos += n as usize; // n <= left, which came from a usize
        Ok(&self.bytes[start..self.pos])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let bytes = self.take(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.array(what)
    }

    /// A length-prefixed string: its bytes and where they start.
    pub(crate) fn string(&mut self, what: &str) -> Result<(usize, &'a [u8])> {
        let n = self.u64(what)?;
        let start = self.pos;
        Ok((start, self.take(n, what)?))
    }

    fn end(&self, need: u64, what: &str) -> InputError {
        InputError::new(
            Class::Format,
            "truncated",
            self.path,
            format!(
                "unexpected end of file: {what} at offset {} needs {need} bytes and {} are left; the file is cut short or corrupt",
                self.pos,
                self.left()
            ),
        )
    }
}
