//! What commands on a GPU share: the device, NVRTC with its cache, kernels compiled and loaded.

use std::collections::BTreeMap;
use std::path::Path;

use glmc_codegen_cuda::nvrtc::{Cache, Compiler, NvrtcError, Unit};
use glmc_codegen_cuda::{Arch, GenerateError, Generated, emit};
use glmc_runtime::device::cuda::{Context, CudaError, Driver, Function, Kernel, KernelLaunch, Launch, Module, Stream};

use crate::error::CliError;
use crate::terminal::say;

impl From<CudaError> for CliError {
    fn from(e: CudaError) -> Self {
        let code = match e {
            CudaError::Absent { .. } => "no-driver",
            CudaError::NoDevice { .. } => "no-device",
            CudaError::Old { .. } | CudaError::Symbol { .. } => "old-driver",
            _ if e.is_memory() => "device-memory",
            _ => "cuda",
        };
        CliError::usage(code, e.to_string()).class("device")
    }
}

impl From<NvrtcError> for CliError {
    fn from(e: NvrtcError) -> Self {
        let code = if matches!(e, NvrtcError::NotFound { .. }) { "no-nvrtc" } else { "nvrtc" };
        CliError::usage(code, e.to_string()).class("device")
    }
}

impl From<GenerateError> for CliError {
    fn from(e: GenerateError) -> Self {
        CliError::usage("generate", e.to_string()).class("device")
    }
}

/// The number of `cuda:N`; `cuda` is the first.
pub(crate) fn parse_device(text: &str) -> Result<usize, String> {
    let number = if text == "cuda" { Some(0) } else { text.strip_prefix("cuda:").and_then(|n| n.parse().ok()) };
    number.ok_or_else(|| format!("`{text}` is no GPU: cuda:0, cuda:1, .."))
}

/// NVRTC, its cubins kept in the user's cache folder.
pub(crate) fn compiler(given: Option<&Path>) -> Result<Compiler, CliError> {
    let cache = dirs::cache_dir().map(|d| Cache::new(d.join("glmc").join("cubins")));
    Ok(Compiler::find(given, cache)?)
}

/// A GPU that is in use and what compiles for it.
pub(crate) struct Gpu {
    pub(crate) driver: Driver,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) arch: Arch,
    pub(crate) compiler: Compiler,
}

impl Gpu {
    pub(crate) fn open(index: usize, nvrtc: Option<&Path>) -> Result<Gpu, CliError> {
        let driver = Driver::open()?;
        let context = Context::open(&driver, index)?;
        let arch = context.info().arch.parse::<Arch>().map_err(|e| CliError::usage("arch", e).class("device"))?;
        let stream = Stream::new(&context)?;
        Ok(Gpu { driver, stream, context, arch, compiler: compiler(nvrtc)? })
    }

    /// For reports.
    pub(crate) fn json(&self) -> serde_json::Value {
        let dotted = |v: (u32, u32)| format!("{}.{}", v.0, v.1);
        serde_json::json!({
            "device": self.context.info(), "cuda": dotted(self.driver.version()),
            "nvrtc": dotted(self.compiler.version()), "nvrtc_path": self.compiler.path(),
        })
    }

    /// Compiles and loads all kernels, `per_unit` in a translation unit; each kernel's launches by its name.
    pub(crate) fn load<'k>(
        &self,
        kernels: impl IntoIterator<Item = &'k Generated>,
        per_unit: usize,
        quiet: bool,
    ) -> Result<Loaded, CliError> {
        self.load_with("", kernels, per_unit, quiet)
    }

    /// The same with lines before each unit's source.
    pub(crate) fn load_with<'k>(
        &self,
        head: &str,
        kernels: impl IntoIterator<Item = &'k Generated>,
        per_unit: usize,
        quiet: bool,
    ) -> Result<Loaded, CliError> {
        let mut unique: BTreeMap<&str, &Generated> = BTreeMap::new();
        for k in kernels {
            unique.insert(&k.name, k);
        }
        let all: Vec<&Generated> = unique.into_values().collect();
        let groups: Vec<&[&Generated]> = all.chunks(per_unit.max(1)).collect();
        let name = |i: usize, g: &[&Generated]| format!("{i}, {} and {} more", g[0].name, g.len() - 1);
        let units: Vec<Unit> = groups
            .iter()
            .enumerate()
            .map(|(i, g)| Unit { name: name(i, g), source: format!("{head}{}", emit::unit(g.iter().copied())) })
            .collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let step = units.len().div_ceil(8).max(1);
        let progress = |done: usize| {
            if !quiet && (done.is_multiple_of(step) || done == units.len()) {
                say(&format!("compiled {done} of {} units", units.len()));
            }
        };
        let compiled = self.compiler.compile_all(&units, self.arch, threads, &progress)?;
        let mut functions = BTreeMap::new();
        let mut cached = 0;
        for ((group, unit), made) in groups.iter().zip(&units).zip(&compiled) {
            made.check(group.iter().copied(), self.arch)?;
            cached += usize::from(made.cached);
            let module = Module::load(&self.context, &made.cubin, &unit.name)?;
            for k in *group {
                let of: Result<Vec<Function>, CudaError> =
                    k.launches.iter().map(|l| module.function(&l.symbol, l.shared)).collect();
                functions.insert(k.name.clone(), of?);
            }
        }
        Ok(Loaded { functions, kernels: all.len(), units: units.len(), cached })
    }
}

/// Kernels on the device.
pub(crate) struct Loaded {
    functions: BTreeMap<String, Vec<Function>>,
    pub(crate) kernels: usize,
    pub(crate) units: usize,
    pub(crate) cached: usize,
}

impl Loaded {
    /// A kernel with all that a device needs to start it.
    pub(crate) fn kernel(&self, k: &Generated) -> Result<Kernel, CudaError> {
        let missing = || CudaError::Launch { kernel: k.name.clone(), why: "it is not loaded".into() };
        let functions = self.functions.get(&k.name).ok_or_else(missing)?;
        let launches = functions.iter().zip(&k.launches).map(|(f, l)| {
            let function = f.clone();
            KernelLaunch { function, grid: l.grid, threads: l.threads, shared: l.shared }
        });
        Ok(Kernel { name: k.name.clone(), launches: launches.collect() })
    }

    /// Starts the launches of a kernel, all with these arguments.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        k: &Generated,
        args: &[u64],
        dependent: bool,
    ) -> Result<(), CudaError> {
        let missing = || CudaError::Launch { kernel: k.name.clone(), why: "it is not loaded".into() };
        let functions = self.functions.get(&k.name).ok_or_else(missing)?;
        for (f, l) in functions.iter().zip(&k.launches) {
            let launch = Launch { grid: l.grid, threads: l.threads, shared: l.shared, dependent, args: args.to_vec() };
            stream.launch(f, &launch)?;
        }
        Ok(())
    }
}
