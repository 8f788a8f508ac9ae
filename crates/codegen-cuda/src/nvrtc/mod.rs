//! Compiling for GPUs: finds NVRTC, compiles units to cubins, keeps them by content, and reports what each kernel uses.
//! Needs no GPU and no CUDA header, and answers with an error, never a panic, where NVRTC is absent.

mod cache;
mod find;
mod library;
mod report;

pub use cache::Cache;
pub use find::{ENV, wheels};
pub use report::Resources;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::Arch;
use crate::kernels::{Header, headers};
use crate::request::Generated;
use library::Nvrtc;

/// Why there is no cubin.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// NVRTC is nowhere.
    #[error(
        "NVRTC was not found ({} places tried): install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, or name \
         the library with --nvrtc PATH or the environment variable {ENV}",
        .tried.len()
    )]
    NotFound {
        /// Each place with what happened there.
        tried: Vec<String>,
    },
    /// A library is there, but not usable.
    #[error("{}: {why}", .path.display())]
    Library {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// This NVRTC does not know the architecture.
    #[error("{unit}: NVRTC {}.{} cannot compile for {arch}: it knows {known:?}", .version.0, .version.1)]
    Arch {
        /// The unit.
        unit: String,
        /// The architecture.
        arch: Arch,
        /// NVRTC's version.
        version: (u32, u32),
        /// What it knows.
        known: Vec<u32>,
    },
    /// The source does not compile.
    #[error("NVRTC refuses the source (code {code}):\n{log}")]
    Compile {
        /// NVRTC's code.
        code: i32,
        /// What it says.
        log: String,
    },
    /// A unit failed; which one.
    #[error("unit {unit} for {arch}: {error}")]
    Unit {
        /// The unit.
        unit: String,
        /// The architecture.
        arch: Arch,
        /// Why.
        error: Box<NvrtcError>,
    },
    /// A kernel asks for more than a block of the architecture has.
    #[error("kernel {kernel} for {arch}: {why}")]
    Resources {
        /// The kernel's symbol.
        kernel: String,
        /// The architecture.
        arch: Arch,
        /// What it asks for.
        why: String,
    },
    /// A call failed that should not.
    #[error("{call} failed with code {code}")]
    Call {
        /// Which.
        call: &'static str,
        /// The code.
        code: i32,
    },
    /// The compiler answered with success and no bytes.
    #[error("NVRTC made an empty cubin")]
    Empty,
    /// The source holds a zero byte.
    #[error("a source with a zero byte")]
    Source,
    /// A compiled unit could not be kept.
    #[error("the kernel cache: {0}")]
    Cache(#[from] std::io::Error),
}

/// A translation unit to compile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// For messages.
    pub name: String,
    /// From [`crate::emit::unit`].
    pub source: String,
}

/// A compiled unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Machine code for one architecture.
    pub cubin: Vec<u8>,
    /// What each kernel uses.
    pub resources: Vec<Resources>,
    /// Whether it was taken from the cache.
    pub cached: bool,
}

/// Registers of a multiprocessor; one block must fit.
const REGISTERS: u32 = 65_536;

impl Compiled {
    /// Whether every launch of these kernels can start on `arch`, by what the compiler reported.
    ///
    /// # Errors
    /// [`NvrtcError::Resources`] with the kernel, the architecture and what is too much.
    pub fn check<'a>(&self, kernels: impl IntoIterator<Item = &'a Generated>, arch: Arch) -> Result<(), NvrtcError> {
        for launch in kernels.into_iter().flat_map(|k| &k.launches) {
            let refuse = |why| NvrtcError::Resources { kernel: launch.symbol.clone(), arch, why };
            let Some(r) = self.resources.iter().find(|r| r.kernel == launch.symbol) else {
                return Err(refuse("it is not in the compiled unit".into()));
            };
            let registers = r.registers.next_multiple_of(8).saturating_mul(launch.threads.next_multiple_of(32));
            if registers > REGISTERS {
                let why = format!("{} registers for {} threads, {REGISTERS} at most", r.registers, launch.threads);
                return Err(refuse(why));
            }
            let (shared, most) = (r.shared.saturating_add(launch.shared), arch.shared_per_block());
            if shared > most {
                return Err(refuse(format!("{shared} bytes of shared memory, a block has {most}")));
            }
        }
        Ok(())
    }
}

/// An NVRTC that answers.
pub struct Compiler {
    nvrtc: Nvrtc,
    headers: Vec<Header>,
    cache: Option<Cache>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {}.{} at {}", self.nvrtc.version.0, self.nvrtc.version.1, self.nvrtc.path.display())
    }
}

impl Compiler {
    /// Opens NVRTC: `given` (a library or its folder), else what the environment names, else the usual places.
    ///
    /// # Errors
    /// [`NvrtcError::NotFound`] with every place that was tried.
    pub fn find(given: Option<&Path>, cache: Option<Cache>) -> Result<Compiler, NvrtcError> {
        let mut tried = Vec::new();
        for path in find::candidates(given) {
            match Nvrtc::open(&path) {
                Ok(nvrtc) => return Ok(Compiler { nvrtc, headers: headers(), cache }),
                Err(e) => tried.push(e.to_string()),
            }
        }
        if let (true, Some(path)) = (tried.is_empty(), given) {
            tried.push(format!("{}: no library there", path.display()));
        }
        Err(NvrtcError::NotFound { tried })
    }

    /// Version of NVRTC.
    pub fn version(&self) -> (u32, u32) {
        self.nvrtc.version
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.nvrtc.path
    }

    /// Compiler options for an architecture. Contraction is off, so that decoders give exact bits; kernels say where
    /// they want a fused multiply-add.
    pub fn options(arch: Arch) -> Vec<String> {
        let fixed = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];
        std::iter::once(format!("--gpu-architecture={arch}")).chain(fixed.map(str::to_owned)).collect()
    }

    fn key(&self, unit: &Unit, arch: Arch) -> String {
        let mut hash = blake3::Hasher::new();
        let mut add = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        add(&format!("NVRTC {}.{}", self.nvrtc.version.0, self.nvrtc.version.1));
        add(&unit.source);
        self.headers.iter().for_each(|h| {
            add(h.name);
            add(&h.text);
        });
        Self::options(arch).iter().for_each(|o| add(o));
        hash.finalize().to_hex().to_string()
    }

    /// Compiles a unit, or takes it from the cache.
    ///
    /// # Errors
    /// [`NvrtcError`]; it names the unit and the architecture.
    pub fn compile(&self, unit: &Unit, arch: Arch) -> Result<Compiled, NvrtcError> {
        let named = |error| NvrtcError::Unit { unit: unit.name.clone(), arch, error: Box::new(error) };
        if !self.nvrtc.archs.contains(&arch.number()) {
            let (version, known) = (self.nvrtc.version, self.nvrtc.archs.clone());
            return Err(NvrtcError::Arch { unit: unit.name.clone(), arch, version, known });
        }
        let key = self.key(unit, arch);
        if let Some((cubin, resources)) = self.cache.as_ref().and_then(|c| c.get(&key)) {
            return Ok(Compiled { cubin, resources, cached: true });
        }
        let (cubin, log) = self.nvrtc.compile(&unit.source, &self.headers, &Self::options(arch)).map_err(named)?;
        // An architecture name that stands for PTX alone gives success and nothing.
        if cubin.is_empty() {
            return Err(named(NvrtcError::Empty));
        }
        let resources = report::parse(&log);
        if let Some(c) = &self.cache {
            c.put(&key, &cubin, &resources)?;
        }
        Ok(Compiled { cubin, resources, cached: false })
    }

    /// Compiles units on `threads` threads; `progress` is called with the number of units that are done.
    ///
    /// # Errors
    /// The first unit in order that fails.
    pub fn compile_all(
        &self,
        units: &[Unit],
        arch: Arch,
        threads: usize,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<Compiled>, NvrtcError> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let slots: Vec<Mutex<Option<Result<Compiled, NvrtcError>>>> = units.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, units.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(unit), Some(slot)) = (units.get(i), slots.get(i)) else { return };
                        let result = self.compile(unit, arch);
                        if let Ok(mut s) = slot.lock() {
                            *s = Some(result);
                        }
                        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                    }
                });
            }
        });
        let missing = || Err(NvrtcError::Call { call: "compile", code: -1 });
        slots.into_iter().map(|s| s.into_inner().ok().flatten().unwrap_or_else(missing)).collect()
    }
}
