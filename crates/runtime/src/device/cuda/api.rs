//! The CUDA driver, opened at run time. The only unsafe code of this device: its entry points as checked calls on
//! handles that nobody outside `device::cuda` can make.
//!
//! Entry points are declared here and not taken from a binding crate: a binding panics where the library or a symbol is
//! missing, and result codes that are newer than it would be invalid values of its enum. Here a code is a number.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::AtomicU64;

use libloading::Library;

use super::error::CudaError;

type Ptr = *mut c_void;

macro_rules! functions {
    ($($field:ident $symbol:literal ($($arg:ty),*);)*) => {
        /// The entry points, valid as long as the library is open.
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Functions {
            fn load(library: &Library) -> Result<Self, CudaError> {
                Ok(Functions { $($field: {
                    // SAFETY: the type is that of this version of the entry point in the driver's C header.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> c_int>(concat!($symbol, "\0").as_bytes())
                    };
                    *found.map_err(|e| CudaError::Symbol { symbol: $symbol, why: why(&e) })?
                },)* })
            }
        }
    };
}

functions! {
    init "cuInit" (c_uint);
    driver_version "cuDriverGetVersion" (*mut c_int);
    error_name "cuGetErrorName" (c_int, *mut *const c_char);
    error_string "cuGetErrorString" (c_int, *mut *const c_char);
    device_count "cuDeviceGetCount" (*mut c_int);
    device_get "cuDeviceGet" (*mut c_int, c_int);
    device_name "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_memory "cuDeviceTotalMem_v2" (*mut usize, c_int);
    device_attribute "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_retain "cuDevicePrimaryCtxRetain" (*mut Ptr, c_int);
    context_release "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_set "cuCtxSetCurrent" (Ptr);
    memory_info "cuMemGetInfo_v2" (*mut usize, *mut usize);
    module_load "cuModuleLoadData" (*mut Ptr, *const c_void);
    module_unload "cuModuleUnload" (Ptr);
    module_function "cuModuleGetFunction" (*mut Ptr, Ptr, *const c_char);
    function_set "cuFuncSetAttribute" (Ptr, c_int, c_int);
    function_parameter "cuFuncGetParamInfo" (Ptr, usize, *mut usize, *mut usize);
    alloc "cuMemAlloc_v2" (*mut u64, usize);
    free "cuMemFree_v2" (u64);
    upload "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    download "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    fill "cuMemsetD32_v2" (u64, c_uint, usize);
    host_alloc "cuMemHostAlloc" (*mut Ptr, usize, c_uint);
    host_free "cuMemFreeHost" (Ptr);
    upload_async "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Ptr);
    download_async "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Ptr);
    fill_async "cuMemsetD32Async" (u64, c_uint, usize, Ptr);
    stream_create "cuStreamCreate" (*mut Ptr, c_uint);
    stream_destroy "cuStreamDestroy_v2" (Ptr);
    stream_wait "cuStreamSynchronize" (Ptr);
    stream_query "cuStreamQuery" (Ptr);
    host_address "cuMemHostGetDevicePointer_v2" (*mut u64, Ptr, c_uint);
    peer_can "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    peer_enable "cuCtxEnablePeerAccess" (Ptr, c_uint);
    capture_begin "cuStreamBeginCapture_v2" (Ptr, c_int);
    capture_end "cuStreamEndCapture" (Ptr, *mut Ptr);
    graph_instantiate "cuGraphInstantiateWithFlags" (*mut Ptr, Ptr, u64);
    graph_upload "cuGraphUpload" (Ptr, Ptr);
    graph_launch "cuGraphLaunch" (Ptr, Ptr);
    graph_exec_destroy "cuGraphExecDestroy" (Ptr);
    graph_destroy "cuGraphDestroy" (Ptr);
    event_create "cuEventCreate" (*mut Ptr, c_uint);
    event_record "cuEventRecord" (Ptr, Ptr);
    event_wait "cuEventSynchronize" (Ptr);
    event_elapsed "cuEventElapsedTime" (*mut f32, Ptr, Ptr);
    event_destroy "cuEventDestroy_v2" (Ptr);
    launch "cuLaunchKernelEx" (*const LaunchConfig, Ptr, *mut *mut c_void, *mut *mut c_void);
}

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Ptr,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`: a tag, and a union of 64 bytes at offset 8.
#[repr(C, align(8))]
struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
const MAX_DYNAMIC_SHARED: c_int = 8;
const STREAM_NON_BLOCKING: c_uint = 1;
/// Page-locked memory that every context may use, at an address of its own.
const HOST_PORTABLE_MAPPED: c_uint = 3;
/// What a query of work that is not done gives.
const NOT_READY: c_int = 600;
const PEER_ALREADY_ENABLED: c_int = 704;
const CAPTURE_THREAD_LOCAL: c_int = 1;

macro_rules! handles {
    ($($name:ident $doc:literal;)*) => {
        $(#[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(Ptr);

        // SAFETY: the driver's handles may be used from any thread; it locks inside.
        unsafe impl Send for $name {}
        // SAFETY: as above. Graphs, which two threads must not use at once, are behind `&mut`.
        unsafe impl Sync for $name {})*
    };
}

handles! {
    ContextHandle "A primary context.";
    ModuleHandle "A loaded module.";
    FunctionHandle "A kernel of a module.";
    StreamHandle "A stream.";
    EventHandle "An event.";
    GraphHandle "An executable graph.";
}

impl StreamHandle {
    /// The handle itself, for another library.
    pub(super) fn raw(self) -> *mut c_void {
        self.0
    }
}

/// Page-locked host memory, which copies that run beside the host may use.
pub(super) struct PinnedHandle {
    at: ptr::NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory that this owns.
unsafe impl Send for PinnedHandle {}
// SAFETY: shared access reads it, or goes through atomics.
unsafe impl Sync for PinnedHandle {}

impl PinnedHandle {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has so many bytes, all of them written when it was made, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    /// Its words, which devices may write at any time.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-locked memory starts at a page; it has so many whole words, which are read and written as
        // atomics alone by those who see it so.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast::<AtomicU64>(), self.bytes / 8) }
    }

    /// The caller has waited for every copy that uses it.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

/// One launch, as the driver takes it.
pub(super) struct RawLaunch<'a> {
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared: u32,
    pub(super) dependent: bool,
    /// As many words as the kernel's parameter has.
    pub(super) words: &'a [u64],
}

/// What the loader says, with its reason.
fn why(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |s| s.to_string())
}

/// The open driver.
pub(super) struct Api {
    f: Functions,
    // Kept open: the functions point into it.
    _library: Library,
}

/// Runs a call and turns its code into an error that names it.
macro_rules! call {
    ($self:ident, $field:ident, $what:expr, $($arg:expr),*) => {{
        // SAFETY: arguments are live handles of this driver, or point at memory of this frame or of the caller that is
        // as large as the call says; the method states what else it needs.
        let code = unsafe { ($self.f.$field)($($arg),*) };
        $self.check(code, stringify!($field), || $what)?
    }};
}

impl Api {
    /// Opens the library at `path` (or a name that the system's loader finds) and starts the driver.
    pub(super) fn open(path: &Path) -> Result<Self, CudaError> {
        // SAFETY: the driver's initialisers have no preconditions.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|e| CudaError::Library { path: path.into(), why: why(&e) })?;
        let api = Api { f: Functions::load(&library)?, _library: library };
        call!(api, init, "start the driver".into(), 0);
        Ok(api)
    }

    fn check(&self, code: c_int, call: &'static str, what: impl FnOnce() -> String) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let text = |f: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut p: *const c_char = ptr::null();
            // SAFETY: the call writes one pointer.
            let found = unsafe { f(code, &raw mut p) } == 0 && !p.is_null();
            // SAFETY: the driver gives a constant string.
            if found { unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned() } else { String::new() }
        };
        let (name, why) = (text(self.f.error_name), text(self.f.error_string));
        Err(CudaError::Call { call, code, name, why, what: what() })
    }

    /// The newest CUDA version that the driver serves, as `1000 * major + 10 * minor`.
    pub(super) fn version(&self) -> Result<i32, CudaError> {
        let mut v = 0;
        call!(self, driver_version, "ask for its version".into(), &raw mut v);
        Ok(v)
    }

    pub(super) fn device_count(&self) -> Result<i32, CudaError> {
        let mut n = 0;
        call!(self, device_count, "count the devices".into(), &raw mut n);
        Ok(n)
    }

    pub(super) fn device(&self, index: i32) -> Result<i32, CudaError> {
        let mut d = 0;
        call!(self, device_get, format!("find device {index}"), &raw mut d, index);
        Ok(d)
    }

    pub(super) fn device_name(&self, device: i32) -> Result<String, CudaError> {
        let mut name = [0u8; 256];
        call!(self, device_name, format!("name device {device}"), name.as_mut_ptr().cast(), 255, device);
        Ok(CStr::from_bytes_until_nul(&name).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default())
    }

    pub(super) fn device_memory(&self, device: i32) -> Result<u64, CudaError> {
        let mut n = 0usize;
        call!(self, device_memory, format!("size device {device}"), &raw mut n, device);
        Ok(n as u64)
    }

    pub(super) fn device_attribute(&self, device: i32, attribute: i32) -> Result<i32, CudaError> {
        let mut n = 0;
        let what = || format!("ask device {device} for attribute {attribute}");
        call!(self, device_attribute, what(), &raw mut n, attribute, device);
        Ok(n)
    }

    pub(super) fn retain(&self, device: i32) -> Result<ContextHandle, CudaError> {
        let mut c = ptr::null_mut();
        call!(self, context_retain, format!("open a context on device {device}"), &raw mut c, device);
        Ok(ContextHandle(c))
    }

    pub(super) fn release(&self, device: i32) -> Result<(), CudaError> {
        call!(self, context_release, format!("close the context of device {device}"), device);
        Ok(())
    }

    /// Makes the context that of this thread.
    pub(super) fn enter(&self, c: ContextHandle) -> Result<(), CudaError> {
        call!(self, context_set, "enter a context".into(), c.0);
        Ok(())
    }

    /// Free and total bytes of the current context's device.
    pub(super) fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self, memory_info, "ask for free memory".into(), &raw mut free, &raw mut total);
        Ok((free as u64, total as u64))
    }

    /// Loads a cubin. The driver reads an ELF by its own headers: `image` is checked to be one, whole.
    pub(super) fn load(&self, image: &[u8], what: &str) -> Result<ModuleHandle, CudaError> {
        let mut m = ptr::null_mut();
        call!(self, module_load, format!("load {what}"), &raw mut m, image.as_ptr().cast());
        Ok(ModuleHandle(m))
    }

    pub(super) fn unload(&self, m: ModuleHandle) -> Result<(), CudaError> {
        call!(self, module_unload, "unload a module".into(), m.0);
        Ok(())
    }

    pub(super) fn function(&self, m: ModuleHandle, name: &str) -> Result<FunctionHandle, CudaError> {
        let text = CString::new(name).map_err(|_| CudaError::Name { name: name.into() })?;
        let mut f = ptr::null_mut();
        call!(self, module_function, format!("find kernel {name}"), &raw mut f, m.0, text.as_ptr());
        Ok(FunctionHandle(f))
    }

    /// Bytes of a kernel's only parameter.
    pub(super) fn parameter_bytes(&self, f: FunctionHandle, name: &str) -> Result<usize, CudaError> {
        let (mut offset, mut size) = (0usize, 0usize);
        let what = || format!("ask for the parameter of {name}");
        call!(self, function_parameter, what(), f.0, 0, &raw mut offset, &raw mut size);
        Ok(size)
    }

    pub(super) fn allow_shared(&self, f: FunctionHandle, bytes: u32, name: &str) -> Result<(), CudaError> {
        let n = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let what = || format!("allow {bytes} bytes of shared memory for {name}");
        call!(self, function_set, what(), f.0, MAX_DYNAMIC_SHARED, n);
        Ok(())
    }

    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, CudaError> {
        let mut p = 0;
        call!(self, alloc, format!("allocate {bytes} bytes"), &raw mut p, bytes);
        Ok(p)
    }

    pub(super) fn free(&self, at: u64) -> Result<(), CudaError> {
        call!(self, free, "free memory".into(), at);
        Ok(())
    }

    /// `at` and `bytes.len()` bytes after it are in one allocation; the caller has checked it.
    pub(super) fn upload(&self, at: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let n = bytes.len();
        call!(self, upload, format!("copy {n} bytes to the device"), at, bytes.as_ptr().cast(), n);
        // The call may return with the last bytes still under way, and streams of ours do not wait for it.
        call!(self, stream_wait, "wait for a copy".into(), ptr::null_mut());
        Ok(())
    }

    /// As [`Api::upload`].
    pub(super) fn download(&self, at: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        let n = bytes.len();
        call!(self, download, format!("copy {n} bytes from the device"), bytes.as_mut_ptr().cast(), at, n);
        Ok(())
    }

    /// As [`Api::upload`], `words` times the same word.
    pub(super) fn fill(&self, at: u64, word: u32, words: usize) -> Result<(), CudaError> {
        call!(self, fill, format!("fill {words} words"), at, word, words);
        call!(self, stream_wait, "wait for a fill".into(), ptr::null_mut());
        Ok(())
    }

    pub(super) fn host_alloc(&self, bytes: usize) -> Result<PinnedHandle, CudaError> {
        self.pinned(bytes, 0)
    }

    /// Page-locked memory that all devices see.
    pub(super) fn host_alloc_mapped(&self, bytes: usize) -> Result<PinnedHandle, CudaError> {
        self.pinned(bytes, HOST_PORTABLE_MAPPED)
    }

    /// The address under which the current context's device sees such memory.
    pub(super) fn host_address(&self, p: &PinnedHandle) -> Result<u64, CudaError> {
        let mut at = 0;
        call!(self, host_address, "map page-locked memory".into(), &raw mut at, p.at.as_ptr().cast(), 0);
        Ok(at)
    }

    /// Whether a device may use the memory of another.
    pub(super) fn peer_can(&self, device: i32, peer: i32) -> Result<bool, CudaError> {
        let mut n = 0;
        let what = || format!("ask whether device {device} reaches device {peer}");
        call!(self, peer_can, what(), &raw mut n, device, peer);
        Ok(n != 0)
    }

    /// Lets the current context use the memory of another.
    pub(super) fn peer_enable(&self, peer: ContextHandle) -> Result<(), CudaError> {
        // SAFETY: the handle is a live context.
        let code = unsafe { (self.f.peer_enable)(peer.0, 0) };
        if code == PEER_ALREADY_ENABLED {
            return Ok(());
        }
        self.check(code, "peer_enable", || "reach a device's memory from another".into())
    }

    fn pinned(&self, bytes: usize, flags: c_uint) -> Result<PinnedHandle, CudaError> {
        let mut p = ptr::null_mut();
        let what = || format!("allocate {bytes} bytes of page-locked memory");
        call!(self, host_alloc, what(), &raw mut p, bytes, flags);
        let Some(at) = ptr::NonNull::new(p.cast::<u8>()) else {
            let (call, name, why) = ("host_alloc", "a null pointer".into(), String::new());
            return Err(CudaError::Call { call, code: 0, name, why, what: what() });
        };
        // SAFETY: the allocation has so many bytes.
        unsafe { at.as_ptr().write_bytes(0, bytes) };
        Ok(PinnedHandle { at, bytes })
    }

    /// The caller has waited for every copy that uses it.
    pub(super) fn host_free(&self, p: &PinnedHandle) -> Result<(), CudaError> {
        call!(self, host_free, "free page-locked memory".into(), p.at.as_ptr().cast());
        Ok(())
    }

    /// Copies the first `n` bytes of `from`, which stay as they are until the stream has done it; the caller has
    /// checked both ranges.
    pub(super) fn upload_async(
        &self,
        at: u64,
        from: &PinnedHandle,
        n: usize,
        s: StreamHandle,
    ) -> Result<(), CudaError> {
        let bytes = &from.bytes()[..n];
        call!(self, upload_async, format!("copy {n} bytes to the device"), at, bytes.as_ptr().cast(), n, s.0);
        Ok(())
    }

    /// Copies to the first `n` bytes of `to`, which nobody touches until the stream has done it.
    pub(super) fn download_async(
        &self,
        at: u64,
        to: &mut PinnedHandle,
        n: usize,
        s: StreamHandle,
    ) -> Result<(), CudaError> {
        let bytes = &mut to.bytes_mut()[..n];
        let what = || format!("copy {n} bytes from the device");
        call!(self, download_async, what(), bytes.as_mut_ptr().cast(), at, n, s.0);
        Ok(())
    }

    /// As [`Api::fill`], in the order of a stream.
    pub(super) fn fill_async(&self, at: u64, word: u32, words: usize, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, fill_async, format!("fill {words} words"), at, word, words, s.0);
        Ok(())
    }

    pub(super) fn stream(&self) -> Result<StreamHandle, CudaError> {
        let mut s = ptr::null_mut();
        call!(self, stream_create, "make a stream".into(), &raw mut s, STREAM_NON_BLOCKING);
        Ok(StreamHandle(s))
    }

    pub(super) fn stream_destroy(&self, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, stream_destroy, "end a stream".into(), s.0);
        Ok(())
    }

    pub(super) fn wait(&self, s: StreamHandle, what: &str) -> Result<(), CudaError> {
        call!(self, stream_wait, format!("wait for {what}"), s.0);
        Ok(())
    }

    /// Whether all work of a stream is done.
    pub(super) fn done(&self, s: StreamHandle, what: &str) -> Result<bool, CudaError> {
        // SAFETY: the handle is a live stream.
        let code = unsafe { (self.f.stream_query)(s.0) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.check(code, "stream_query", || format!("wait for {what}"))?;
        Ok(true)
    }

    pub(super) fn capture_begin(&self, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, capture_begin, "begin a capture".into(), s.0, CAPTURE_THREAD_LOCAL);
        Ok(())
    }

    /// Ends the capture; the graph that it made, ready to run.
    pub(super) fn capture_end(&self, s: StreamHandle) -> Result<GraphHandle, CudaError> {
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        call!(self, capture_end, "end a capture".into(), s.0, &raw mut graph);
        // SAFETY: the graph came from the call above and is destroyed once, below.
        let code = unsafe { (self.f.graph_instantiate)(&raw mut exec, graph, 0) };
        call!(self, graph_destroy, "drop a graph".into(), graph);
        self.check(code, "graph_instantiate", || "make a graph ready".into())?;
        Ok(GraphHandle(exec))
    }

    pub(super) fn graph_upload(&self, g: GraphHandle, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, graph_upload, "bring a graph to the device".into(), g.0, s.0);
        Ok(())
    }

    pub(super) fn graph_launch(&self, g: GraphHandle, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, graph_launch, "start a graph".into(), g.0, s.0);
        Ok(())
    }

    pub(super) fn graph_destroy(&self, g: GraphHandle) -> Result<(), CudaError> {
        call!(self, graph_exec_destroy, "drop a graph".into(), g.0);
        Ok(())
    }

    pub(super) fn event(&self) -> Result<EventHandle, CudaError> {
        let mut e = ptr::null_mut();
        call!(self, event_create, "make an event".into(), &raw mut e, 0);
        Ok(EventHandle(e))
    }

    pub(super) fn record(&self, e: EventHandle, s: StreamHandle) -> Result<(), CudaError> {
        call!(self, event_record, "record an event".into(), e.0, s.0);
        Ok(())
    }

    pub(super) fn event_wait(&self, e: EventHandle) -> Result<(), CudaError> {
        call!(self, event_wait, "wait for an event".into(), e.0);
        Ok(())
    }

    /// Milliseconds between two events that have happened.
    pub(super) fn elapsed(&self, from: EventHandle, to: EventHandle) -> Result<f32, CudaError> {
        let mut ms = 0.0;
        call!(self, event_elapsed, "time between events".into(), &raw mut ms, from.0, to.0);
        Ok(ms)
    }

    pub(super) fn event_destroy(&self, e: EventHandle) -> Result<(), CudaError> {
        call!(self, event_destroy, "drop an event".into(), e.0);
        Ok(())
    }

    /// Starts a kernel. The caller has checked that `words` is what the kernel's parameter takes.
    pub(super) fn launch(
        &self,
        f: FunctionHandle,
        l: &RawLaunch<'_>,
        s: StreamHandle,
        name: &str,
    ) -> Result<(), CudaError> {
        let mut value = [0; 16];
        value[0] = 1;
        let attribute = LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, pad: 0, value };
        let config = LaunchConfig {
            grid: l.grid,
            block: [l.threads, 1, 1],
            shared: l.shared,
            stream: s.0,
            attributes: &raw const attribute,
            attribute_count: u32::from(l.dependent),
        };
        let mut parameters = [l.words.as_ptr().cast_mut().cast::<c_void>()];
        let what = || format!("start {name}, grid {:?} of {}, {} bytes shared", l.grid, l.threads, l.shared);
        call!(self, launch, what(), &raw const config, f.0, parameters.as_mut_ptr(), ptr::null_mut());
        Ok(())
    }
}

/// NCCL's version as `10000 * major + 100 * minor + patch`.
pub(super) fn nccl_version(path: &Path) -> Result<i32, CudaError> {
    // SAFETY: NCCL's initialisers have no preconditions.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|e| CudaError::Library { path: path.into(), why: why(&e) })?;
    // SAFETY: the type is that of NCCL's C header, unchanged since 2.0.
    let f = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0") };
    let f = f.map_err(|e| CudaError::Symbol { symbol: "ncclGetVersion", why: why(&e) })?;
    let mut v = 0;
    // SAFETY: the call writes one integer.
    let code = unsafe { f(&raw mut v) };
    // Its threads and destructors may outlive a handle that is closed.
    std::mem::forget(library);
    if code == 0 {
        return Ok(v);
    }
    let (call, name, why, what) = ("ncclGetVersion", "an error".into(), String::new(), "ask for its version".into());
    Err(CudaError::Call { call, code, name, why, what })
}
