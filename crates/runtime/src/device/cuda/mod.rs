//! The CUDA device: the driver, contexts, memory, modules, launches, graphs and timing, each call with a typed error.
//! Owns handles and addresses; never decides what a kernel computes.
//!
//! The driver is opened when it is first asked for. Where it is absent every way in answers with
//! [`CudaError::Absent`].

mod api;
mod capture;
mod eager;
mod error;
mod exec;
mod find;
mod group;
mod guard;
mod launch;
mod links;
mod memory;
mod nccl;
mod pinned;
mod place;
mod timing;
mod upload;

pub use error::CudaError;
pub use exec::{CudaDevice, CudaOptions, Kernel, KernelLaunch};
pub use find::{Nccl, nccl};
pub use group::{CudaGroup, Member};
pub use launch::{Event, Function, Graph, Launch, Module, Stream};
pub use links::{Backend, Links, Probe, Wanted};
pub use memory::Memory;
pub use pinned::{Mapped, Readback, Ring};
pub use timing::{CallTime, Span};
pub use upload::WeightSource;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{Api, ContextHandle};

/// The open driver.
#[derive(Clone)]
pub struct Driver {
    api: Arc<Api>,
    path: PathBuf,
    version: (u32, u32),
}

/// What a device says about itself.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct DeviceInfo {
    /// Its number for this process.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its architecture, such as `sm_90`.
    pub arch: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of second-level cache.
    pub l2: u64,
    /// Bytes of shared memory that one block may have.
    pub shared_per_block: u32,
}

/// Attributes of a device, by their numbers in the driver's C header.
mod attribute {
    pub(super) const MULTIPROCESSORS: i32 = 16;
    pub(super) const L2: i32 = 38;
    pub(super) const MAJOR: i32 = 75;
    pub(super) const MINOR: i32 = 76;
    pub(super) const SHARED_PER_BLOCK: i32 = 97;
}

/// The oldest CUDA that a driver must serve.
const CUDA: u32 = 13;

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "driver for CUDA {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}

impl Driver {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`CudaError::Absent`] where there is none, [`CudaError::Symbol`] or [`CudaError::Old`] of an old one; otherwise
    /// what the first call says.
    pub fn open() -> Result<Driver, CudaError> {
        let mut tried = Vec::new();
        for path in find::drivers() {
            match Api::open(&path) {
                Err(CudaError::Library { why, .. }) => tried.push(why),
                Err(e) => return Err(e),
                Ok(api) => {
                    let v = u32::try_from(api.version()?).unwrap_or(0);
                    let path = find::loaded("libcuda.so").unwrap_or(path);
                    let version = (v / 1000, v % 1000 / 10);
                    if version.0 < CUDA {
                        return Err(CudaError::Old { path, version });
                    }
                    return Ok(Driver { api: Arc::new(api), path, version });
                }
            }
        }
        Err(CudaError::Absent { tried })
    }

    /// The newest CUDA version that it serves.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All devices that this process may use.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, CudaError> {
        let api = &self.api;
        let count = api.device_count()?;
        let one = |index: i32| -> Result<DeviceInfo, CudaError> {
            let d = api.device(index)?;
            let get = |a| api.device_attribute(d, a).map(|n| u32::try_from(n).unwrap_or(0));
            Ok(DeviceInfo {
                index: usize::try_from(index).unwrap_or(0),
                name: api.device_name(d)?,
                arch: format!("sm_{}{}", get(attribute::MAJOR)?, get(attribute::MINOR)?),
                memory: api.device_memory(d)?,
                multiprocessors: get(attribute::MULTIPROCESSORS)?,
                l2: u64::from(get(attribute::L2)?),
                shared_per_block: get(attribute::SHARED_PER_BLOCK)?,
            })
        };
        (0..count).map(one).collect()
    }
}

struct Opened {
    api: Arc<Api>,
    device: i32,
    handle: ContextHandle,
    /// A kernel does not end: calls that would wait for it are not made any more, that of dropped things among them.
    hung: AtomicBool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.hung.load(Ordering::Relaxed) {
            return;
        }
        if let Err(e) = self.api.release(self.device) {
            tracing::warn!("{e}");
        }
    }
}

/// A device that is in use: its primary context. Clones are the same one; it is released with the last thing that
/// was made on it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Opened>,
    info: DeviceInfo,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{} {}", self.info.index, self.info.name)
    }
}

impl Context {
    /// Opens device `index`.
    ///
    /// # Errors
    /// [`CudaError::NoDevice`], or what a call says.
    pub fn open(driver: &Driver, index: usize) -> Result<Context, CudaError> {
        let devices = driver.devices()?;
        let count = devices.len();
        let info = devices.into_iter().nth(index).ok_or(CudaError::NoDevice { index, count })?;
        let device = driver.api.device(i32::try_from(index).unwrap_or(i32::MAX))?;
        let handle = driver.api.retain(device)?;
        Ok(Context {
            inner: Arc::new(Opened { api: driver.api.clone(), device, handle, hung: AtomicBool::new(false) }),
            info,
        })
    }

    /// What the device says about itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.api()?.memory_info()
    }

    /// Nothing is asked of the device any more.
    fn set_hung(&self) {
        self.inner.hung.store(true, Ordering::Relaxed);
    }

    /// Whether this device may use the memory of another.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn reaches(&self, peer: &Context) -> Result<bool, CudaError> {
        self.api()?.peer_can(self.inner.device, peer.inner.device)
    }

    /// Lets kernels on this device use the memory of another.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn reach(&self, peer: &Context) -> Result<(), CudaError> {
        self.api()?.peer_enable(peer.inner.handle)
    }

    /// The entry points, with this context as that of the thread.
    fn api(&self) -> Result<&Api, CudaError> {
        if self.inner.hung.load(Ordering::Relaxed) {
            return Err(CudaError::Hung { device: self.info.index });
        }
        self.inner.api.enter(self.inner.handle)?;
        Ok(&self.inner.api)
    }
}
