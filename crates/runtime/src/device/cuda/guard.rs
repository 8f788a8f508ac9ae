//! Waits that end: a step that does not return in time is stopped and named.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::nccl::Comms;
use super::{CudaError, Mapped, Stream};

/// How long a device may take to drain when every wait in its kernels has been ended.
const DRAIN: Duration = Duration::from_secs(2);
/// How long the host looks without a pause.
const SPIN: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(50);

/// What bounds the waits for a device's work.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// Longest time that a step may take.
    pub(super) limit: Duration,
    /// The words that end every wait of kernels for other devices.
    pub(super) halt: Option<Arc<Mapped>>,
    /// The library whose kernels look at no such word.
    pub(super) comms: Option<Arc<Comms>>,
}

impl Guard {
    /// Ends every wait of kernels for other devices.
    pub(super) fn halt(&self) {
        if let Some(h) = &self.halt {
            h.set(0, 1);
        }
        if let Some(c) = &self.comms {
            c.abort();
        }
    }

    fn halted(&self) -> bool {
        self.halt.as_ref().is_some_and(|h| h.word(0) != 0)
    }

    /// Waits until all work of a stream is done; `what` names it.
    ///
    /// # Errors
    /// [`CudaError::Call`] of a kernel that failed; [`CudaError::Late`], where the device is given up unless it drains;
    /// [`CudaError::Stopped`] if another device failed meanwhile.
    pub(super) fn wait(&self, stream: &Stream, what: &str) -> Result<(), CudaError> {
        let start = Instant::now();
        let mut ended: Option<Instant> = None;
        loop {
            let done = stream.done(what).inspect_err(|_| self.halt())?;
            if ended.is_none() && done {
                return if self.halted() { Err(CudaError::Stopped) } else { Ok(()) };
            }
            let late = start.elapsed() >= self.limit;
            if ended.is_none() && (late || self.halted()) {
                ended = Some(Instant::now());
                self.halt();
            }
            // Where no wait can be ended nothing drains.
            let drain = if self.halt.is_some() || self.comms.is_some() { DRAIN } else { Duration::ZERO };
            let over = ended.is_some_and(|e| e.elapsed() >= drain);
            if over && !done {
                // Whatever would wait for it is not asked any more.
                stream.context().set_hung();
            }
            if done && !late {
                return Err(CudaError::Stopped);
            }
            if done || over {
                let (seconds, device) = (self.limit.as_secs_f64(), format!("{:?}", stream.context()));
                let told = if done { "" } else { "; a kernel there does not end" };
                return Err(CudaError::Late { what: what.into(), seconds, device, told: told.into() });
            }
            if start.elapsed() < SPIN { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
        }
    }
}
