//! NCCL, opened at run time: what joins the GPUs of one process, as checked calls. With `api`, the only unsafe code
//! of this device.
//!
//! Communicators are not destroyed: that waits for all others of them, for ever where one hangs. A process that has
//! run a plan ends.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use glmc_ir::launch::Reduction;
use libloading::Library;

use super::{CudaError, Stream};

type Ptr = *mut c_void;

macro_rules! functions {
    ($($field:ident $symbol:literal ($($arg:ty),*);)*) => {
        /// The entry points. The library is never closed: its threads outlive a handle.
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            text: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self, CudaError> {
                fn find<T: Copy>(library: &Library, symbol: &'static str) -> Result<T, CudaError> {
                    // SAFETY: the callers below give the type of NCCL's C header, unchanged since 2.7.
                    let found = unsafe { library.get::<T>(symbol.as_bytes()) };
                    let found = found.map_err(|e| CudaError::Symbol { symbol, why: e.to_string() })?;
                    Ok(*found)
                }
                Ok(Functions { $($field: find(library, $symbol)?,)* text: find(library, "ncclGetErrorString")? })
            }
        }
    };
}

functions! {
    init_all "ncclCommInitAll" (*mut Ptr, c_int, *const c_int);
    abort "ncclCommAbort" (Ptr);
    all_reduce "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Ptr, Ptr);
    send "ncclSend" (*const c_void, usize, c_int, c_int, Ptr, Ptr);
    recv "ncclRecv" (*mut c_void, usize, c_int, c_int, Ptr, Ptr);
    group_start "ncclGroupStart" ();
    group_end "ncclGroupEnd" ();
}

const INT32: c_int = 2;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;
const MAX: c_int = 2;

/// The communicators of all devices, in their order.
pub(super) struct Comms {
    f: Functions,
    handles: Vec<Ptr>,
    aborted: AtomicBool,
}

// SAFETY: each communicator is used by the thread of its device alone, but for the end of all, which NCCL takes from
// any.
unsafe impl Send for Comms {}
// SAFETY: as above.
unsafe impl Sync for Comms {}

impl std::fmt::Debug for Comms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL communicators of {} devices", self.handles.len())
    }
}

/// A part that goes to or comes from a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// Whether it goes.
    pub(super) send: bool,
    /// Its address.
    pub(super) at: u64,
    /// Words of 32 bits.
    pub(super) words: u64,
    /// The other device's place.
    pub(super) peer: usize,
}

impl Comms {
    /// Joins the devices of these numbers, by the library at `path`.
    ///
    /// # Errors
    /// A library that is none; what NCCL says.
    pub(super) fn open(path: &Path, devices: &[usize]) -> Result<Arc<Comms>, CudaError> {
        // SAFETY: NCCL's initialisers have no preconditions.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|e| CudaError::Library { path: path.into(), why: e.to_string() })?;
        let f = Functions::load(&library)?;
        std::mem::forget(library);
        let numbers: Vec<c_int> = devices.iter().map(|d| c_int::try_from(*d).unwrap_or(c_int::MAX)).collect();
        let mut comms = Comms { f, handles: vec![ptr::null_mut(); devices.len()], aborted: AtomicBool::new(false) };
        let n = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
        // SAFETY: both lists have so many entries.
        let code = unsafe { (comms.f.init_all)(comms.handles.as_mut_ptr(), n, numbers.as_ptr()) };
        comms.check(code, "ncclCommInitAll")?;
        Ok(Arc::new(comms))
    }

    fn check(&self, code: c_int, call: &'static str) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL gives a constant string for every code.
        let why = unsafe { CStr::from_ptr((self.f.text)(code)) }.to_string_lossy().into_owned();
        Err(CudaError::Call { call, code, name: "an error of NCCL".into(), why, what: "exchange values".into() })
    }

    /// Reduces `words` words of every device to every device. The caller has checked both ranges.
    pub(super) fn all_reduce(
        &self,
        me: usize,
        stream: &Stream,
        [from, to]: [u64; 2],
        words: u64,
        what: Reduction,
    ) -> Result<(), CudaError> {
        let (kind, op) = match what {
            Reduction::SumF32 => (FLOAT32, SUM),
            Reduction::SumI32 => (INT32, SUM),
            Reduction::MaxF32 => (FLOAT32, MAX),
            Reduction::MaxI32 => (INT32, MAX),
        };
        let n = usize::try_from(words).unwrap_or(usize::MAX);
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: a live communicator and stream; device memory of so many words, which outlives the stream's work.
        let code = unsafe { (self.f.all_reduce)(from, to, n, kind, op, self.handles[me], stream.handle().raw()) };
        self.check(code, "ncclAllReduce")
    }

    /// Does at once what `work` asks for.
    pub(super) fn grouped(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
        // SAFETY: no arguments.
        self.check(unsafe { (self.f.group_start)() }, "ncclGroupStart")?;
        let done = work();
        // SAFETY: no arguments.
        let ended = self.check(unsafe { (self.f.group_end)() }, "ncclGroupEnd");
        done.and(ended)
    }

    /// Sends and receives parts at once. The caller has checked their ranges.
    pub(super) fn parts(&self, me: usize, stream: &Stream, parts: &[Moved]) -> Result<(), CudaError> {
        let one = |p: &Moved| {
            let n = usize::try_from(p.words).unwrap_or(usize::MAX);
            let peer = c_int::try_from(p.peer).unwrap_or(c_int::MAX);
            let (comm, stream) = (self.handles[me], stream.handle().raw());
            // SAFETY: as for `all_reduce`.
            unsafe {
                if p.send {
                    self.check((self.f.send)(p.at as *const c_void, n, INT32, peer, comm, stream), "ncclSend")
                } else {
                    self.check((self.f.recv)(p.at as *mut c_void, n, INT32, peer, comm, stream), "ncclRecv")
                }
            }
        };
        self.grouped(|| parts.iter().try_for_each(one))
    }

    /// Ends the kernels of all devices. On threads of their own: NCCL may wait for them.
    pub(super) fn abort(self: &Arc<Self>) {
        if self.aborted.swap(true, Ordering::Relaxed) {
            return;
        }
        for me in 0..self.handles.len() {
            let of = self.clone();
            let end = move || {
                // SAFETY: a live communicator, which is used no more but by kernels that this ends.
                let code = unsafe { (of.f.abort)(of.handles[me]) };
                if let Err(e) = of.check(code, "ncclCommAbort") {
                    tracing::warn!("{e}");
                }
            };
            if let Err(e) = std::thread::Builder::new().name("nccl-abort".into()).spawn(end) {
                tracing::warn!("no thread to end NCCL's kernels: {e}");
            }
        }
    }
}
