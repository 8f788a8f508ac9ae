//! Page-locked memory between host and device. Owns that nothing touches it while a copy uses it.

use std::sync::atomic::Ordering;

use super::api::PinnedHandle;
use super::guard::Guard;
use super::{Context, CudaError, Event, Memory, Stream};

/// Slots through which bytes go to the device while the next ones are made ready.
pub struct Ring {
    context: Context,
    slots: Vec<Slot>,
    next: usize,
    bytes: usize,
}

struct Slot {
    pinned: PinnedHandle,
    copied: Event,
    busy: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} page-locked slots of {} bytes", self.slots.len(), self.bytes)
    }
}

impl Ring {
    /// `slots` slots of `bytes` each, at least one of one byte.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(context: &Context, slots: usize, bytes: usize) -> Result<Ring, CudaError> {
        let bytes = bytes.max(1);
        let mut ring = Ring { context: context.clone(), slots: Vec::new(), next: 0, bytes };
        for _ in 0..slots.max(1) {
            let copied = Event::new(context)?;
            let pinned = context.api()?.host_alloc(bytes)?;
            ring.slots.push(Slot { pinned, copied, busy: false });
        }
        Ok(ring)
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.bytes
    }

    /// Lets `write` fill the first `len` bytes of a free slot, waiting for one, and copies them to `to` from byte
    /// `offset` on, in the order of `stream`.
    ///
    /// # Errors
    /// [`CudaError::Range`], also of more bytes than a slot has; [`CudaError::Call`].
    pub fn send(
        &mut self,
        stream: &Stream,
        to: &mut Memory,
        offset: u64,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), CudaError> {
        let at = to.range(offset, len as u64)?;
        if len > self.bytes {
            return Err(CudaError::Range { offset: 0, len: len as u64, bytes: self.bytes as u64 });
        }
        if len == 0 {
            return Ok(());
        }
        let slot = &mut self.slots[self.next];
        if slot.busy {
            slot.copied.wait()?;
            slot.busy = false;
        }
        write(&mut slot.pinned.bytes_mut()[..len]);
        // Busy from here on, whatever fails: the copy may have begun.
        slot.busy = true;
        self.context.api()?.upload_async(at, &slot.pinned, len, stream.handle())?;
        stream.record(&slot.copied)?;
        self.next = (self.next + 1) % self.slots.len();
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for slot in &self.slots {
            // Memory that a copy may still read is not given back.
            let waited = if slot.busy { slot.copied.wait() } else { Ok(()) };
            if let Err(e) = waited.and_then(|()| self.context.api().and_then(|a| a.host_free(&slot.pinned))) {
                tracing::warn!("{e}");
            }
        }
    }
}

/// Page-locked memory that results are read back through.
pub struct Readback {
    context: Context,
    pinned: PinnedHandle,
}

impl std::fmt::Debug for Readback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} page-locked bytes", self.pinned.bytes().len())
    }
}

impl Readback {
    /// Room for `bytes`, at least one.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(context: &Context, bytes: usize) -> Result<Readback, CudaError> {
        Ok(Readback { pinned: context.api()?.host_alloc(bytes.max(1))?, context: context.clone() })
    }

    /// Copies `len` bytes from byte `offset` of `from` on, after all work before it on the stream, and waits as long as
    /// the guard allows; `what` names the work in errors.
    ///
    /// # Errors
    /// [`CudaError::Range`], [`CudaError::Call`]: also that of a kernel that failed before; work that does not end.
    pub(super) fn get(
        &mut self,
        guard: &Guard,
        stream: &Stream,
        from: &Memory,
        offset: u64,
        len: usize,
        what: &str,
    ) -> Result<&[u8], CudaError> {
        let at = from.range(offset, len as u64)?;
        let room = self.pinned.bytes().len();
        if len > room {
            return Err(CudaError::Range { offset: 0, len: len as u64, bytes: room as u64 });
        }
        if len > 0 {
            self.context.api()?.download_async(at, &mut self.pinned, len, stream.handle())?;
        }
        guard.wait(stream, what)?;
        Ok(&self.pinned.bytes()[..len])
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        // Every copy has been waited for; after a wait that failed nothing runs any more.
        if let Err(e) = self.context.api().and_then(|a| a.host_free(&self.pinned)) {
            tracing::warn!("{e}");
        }
    }
}

/// Page-locked memory that devices and the host read and write at the same time, as words.
pub struct Mapped {
    context: Context,
    pinned: PinnedHandle,
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes that all devices see", self.pinned.bytes().len())
    }
}

impl Mapped {
    /// `bytes` bytes of zeros, rounded up to words.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(context: &Context, bytes: u64) -> Result<Mapped, CudaError> {
        let n = usize::try_from(bytes.max(8).next_multiple_of(8)).unwrap_or(usize::MAX);
        Ok(Mapped { pinned: context.api()?.host_alloc_mapped(n)?, context: context.clone() })
    }

    /// Where a device sees it.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn address(&self, of: &Context) -> Result<u64, CudaError> {
        of.api()?.host_address(&self.pinned)
    }

    /// Word `i`; what was written before it is visible.
    pub fn word(&self, i: usize) -> u64 {
        self.pinned.words().get(i).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Writes word `i`, if there is one.
    pub fn set(&self, i: usize, value: u64) {
        if let Some(w) = self.pinned.words().get(i) {
            w.store(value, Ordering::Release);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Whoever owns it has waited for the kernels that use it.
        if let Err(e) = self.context.api().and_then(|a| a.host_free(&self.pinned)) {
            tracing::warn!("{e}");
        }
    }
}
