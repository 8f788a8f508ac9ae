//! Where the driver and NCCL may be.

use std::path::{Path, PathBuf};

use super::api;
use super::error::CudaError;

/// The driver comes with the kernel module, so the loader knows it; containers mount it beside.
pub(super) fn drivers() -> Vec<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
    ];
    let files = folders.iter().map(|f| Path::new(f).join("libcuda.so.1")).filter(|p| p.exists());
    std::iter::once(PathBuf::from("libcuda.so.1")).chain(files).collect()
}

/// The file of a library that this process has open.
pub(super) fn loaded(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|l| l.find('/').map(|at| PathBuf::from(&l[at..])));
    paths.into_iter().find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(name)))
}

/// An NCCL that answers.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Nccl {
    /// The library's file.
    pub path: PathBuf,
    /// Major, minor, patch.
    pub version: (u32, u32, u32),
}

/// Opens NCCL: what `GLMC_NCCL` names (nothing else then), one of these folders, what the system's loader finds.
///
/// # Errors
/// [`CudaError::Library`] of the last place that was tried.
pub fn nccl(folders: &[PathBuf]) -> Result<Nccl, CudaError> {
    const NAME: &str = "libnccl.so.2";
    let mut places = Vec::new();
    if let Some(given) = std::env::var_os("GLMC_NCCL").map(PathBuf::from) {
        places.push(if given.is_dir() { given.join(NAME) } else { given });
    } else {
        places.extend(folders.iter().map(|f| f.join(NAME)).filter(|p| p.exists()));
        places.push(NAME.into());
    }
    let mut last = CudaError::Library { path: NAME.into(), why: "no place to look".into() };
    for path in places {
        match api::nccl_version(&path) {
            Err(e) => last = e,
            Ok(v) => {
                let v = u32::try_from(v).unwrap_or(0);
                let path = loaded("libnccl.so").unwrap_or(path);
                return Ok(Nccl { path, version: (v / 10_000, v % 10_000 / 100, v % 100) });
            }
        }
    }
    Err(last)
}
