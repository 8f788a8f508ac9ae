//! Modules, kernels, streams, events and graphs.

use std::sync::Arc;

use super::api::{EventHandle, FunctionHandle, GraphHandle, ModuleHandle, RawLaunch, StreamHandle};
use super::{Context, CudaError, Memory};

/// Dynamic shared memory that a kernel may have without being asked.
const FREE_SHARED: u32 = 48 * 1024;

struct Loaded {
    context: Context,
    handle: ModuleHandle,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(e) = self.context.api().and_then(|a| a.unload(self.handle)) {
            tracing::warn!("{e}");
        }
    }
}

/// A loaded cubin.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a module on {:?}", self.0.context)
    }
}

/// The driver finds the end of an image by the image's own tables, so they must lie inside it.
fn check_image(image: &[u8], what: &str) -> Result<(), CudaError> {
    let fail = |why: &str| Err(CudaError::Image { what: what.into(), why: why.into() });
    if !image.starts_with(b"\x7fELF\x02\x01") || image.len() < 64 {
        return fail("it does not begin as one");
    }
    let number = |at: usize, n: usize| image[at..at + n].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
    for (start, entry, count) in
        [(number(32, 8), number(54, 2), number(56, 2)), (number(40, 8), number(58, 2), number(60, 2))]
    {
        if start.checked_add(entry * count).is_none_or(|end| end > image.len() as u64) {
            return fail("it ends too early");
        }
    }
    Ok(())
}

impl Module {
    /// Loads a cubin; `what` names it in errors.
    ///
    /// # Errors
    /// [`CudaError::Image`]; [`CudaError::Call`] where the driver refuses it, as with another architecture.
    pub fn load(context: &Context, cubin: &[u8], what: &str) -> Result<Module, CudaError> {
        check_image(cubin, what)?;
        let handle = context.api()?.load(cubin, what)?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), handle })))
    }

    /// The kernel called `name`, allowed `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`CudaError::Call`] if there is none or if it cannot have so much.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function, CudaError> {
        let api = self.0.context.api()?;
        let handle = api.function(self.0.handle, name)?;
        if shared > FREE_SHARED {
            api.allow_shared(handle, shared, name)?;
        }
        let bytes = api.parameter_bytes(handle, name)?;
        Ok(Function { module: self.clone(), handle, name: name.into(), bytes })
    }
}

/// A kernel whose only parameter is a struct of addresses.
#[derive(Clone)]
pub struct Function {
    module: Module,
    handle: FunctionHandle,
    name: String,
    bytes: usize,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}", self.name)
    }
}

/// The shape of a launch and its arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Whether it may start while the launch before it on the stream still runs (programmatic dependent launch).
    pub dependent: bool,
    /// Device addresses, in the order of the kernel's struct.
    pub args: Vec<u64>,
}

/// Work in order. Destroyed with this, after its work.
pub struct Stream {
    context: Context,
    handle: StreamHandle,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a stream on {:?}", self.context)
    }
}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(context: &Context) -> Result<Stream, CudaError> {
        Ok(Stream { handle: context.api()?.stream()?, context: context.clone() })
    }

    /// Starts a kernel.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the arguments are not those of the kernel; [`CudaError::Call`].
    pub fn launch(&self, f: &Function, l: &Launch) -> Result<(), CudaError> {
        if f.bytes != 8 * l.args.len() {
            let why = format!("it takes {} bytes, {} arguments are given", f.bytes, l.args.len());
            return Err(CudaError::Launch { kernel: f.name.clone(), why });
        }
        debug_assert!(Arc::strong_count(&f.module.0) > 0, "a kernel keeps its module");
        let Launch { grid, threads, shared, dependent, args } = l;
        let raw = RawLaunch { grid: *grid, threads: *threads, shared: *shared, dependent: *dependent, words: args };
        self.context.api()?.launch(f.handle, &raw, self.handle, &f.name)
    }

    /// Waits until all work is done; `what` names it in errors.
    ///
    /// # Errors
    /// [`CudaError::Call`]: also that of a kernel that failed.
    pub fn wait(&self, what: &str) -> Result<(), CudaError> {
        self.context.api()?.wait(self.handle, what)
    }

    /// Whether all work is done; `what` names it in errors.
    ///
    /// # Errors
    /// [`CudaError::Call`]: also that of a kernel that failed.
    pub fn done(&self, what: &str) -> Result<bool, CudaError> {
        self.context.api()?.done(self.handle, what)
    }

    /// Records what `work` launches, without running it. Modules and memory of the launches must outlive the graph.
    ///
    /// # Errors
    /// That of `work`, or [`CudaError::Call`]; the stream is usable again.
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let api = self.context.api()?;
        api.capture_begin(self.handle)?;
        let done = work(self);
        let ended = api.capture_end(self.handle).map(|handle| Graph { context: self.context.clone(), handle });
        done.and(ended)
    }

    /// Brings what a graph needs to the device before its first run.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn prepare(&self, graph: &mut Graph) -> Result<(), CudaError> {
        self.context.api()?.graph_upload(graph.handle, self.handle)
    }

    /// Fills `words` words from byte `offset` on, after all work before.
    ///
    /// # Errors
    /// [`CudaError::Range`], [`CudaError::Call`].
    pub fn fill(&self, memory: &mut Memory, offset: u64, words: u64, word: u32) -> Result<(), CudaError> {
        let at = memory.range(offset, words.saturating_mul(4))?;
        let n = usize::try_from(words).unwrap_or(usize::MAX);
        if n == 0 { Ok(()) } else { self.context.api()?.fill_async(at, word, n, self.handle) }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Runs a graph.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn replay(&self, graph: &mut Graph) -> Result<(), CudaError> {
        self.context.api()?.graph_launch(graph.handle, self.handle)
    }

    /// Marks this place in the stream.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.api()?.record(event.handle, self.handle)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Err(e) = self.context.api().and_then(|a| a.stream_destroy(self.handle)) {
            tracing::warn!("{e}");
        }
    }
}

/// Captured launches, ready to run.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    handle: GraphHandle,
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Err(e) = self.context.api().and_then(|a| a.graph_destroy(self.handle)) {
            tracing::warn!("{e}");
        }
    }
}

/// A place in a stream, with its time.
#[derive(Debug)]
pub struct Event {
    context: Context,
    handle: EventHandle,
}

impl Event {
    /// A new event.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        Ok(Event { handle: context.api()?.event()?, context: context.clone() })
    }

    /// Waits until it has happened.
    ///
    /// # Errors
    /// [`CudaError::Call`]: also that of a kernel that failed before it.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.context.api()?.event_wait(self.handle)
    }

    /// Seconds from `self` to `later`; both must have happened.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn seconds_to(&self, later: &Event) -> Result<f64, CudaError> {
        self.context.api()?.elapsed(self.handle, later.handle).map(|ms| f64::from(ms) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Err(e) = self.context.api().and_then(|a| a.event_destroy(self.handle)) {
            tracing::warn!("{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_image;

    #[test]
    fn an_image_that_was_cut_is_refused() {
        let mut image = vec![0u8; 200];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        // Section headers: 2 of 64 bytes at 72.
        image[40] = 72;
        image[58] = 64;
        image[60] = 2;
        assert!(check_image(&image, "x").is_ok());
        assert!(check_image(&image[..199], "x").is_err());
        assert!(check_image(b"PTX", "x").is_err());
        image[47] = 0xff;
        assert!(check_image(&image, "x").is_err());
    }
}
