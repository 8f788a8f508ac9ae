//! Where NVRTC may be: the path that the user gives, `GLMC_NVRTC`, CUDA toolkits, Python wheels, the system's loader.

use std::path::{Path, PathBuf};

/// The environment variable with a path to the library or its folder.
pub const ENV: &str = "GLMC_NVRTC";

/// Sonames, newest first. The wheel has no plain `libnvrtc.so`.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// Paths to try, best first. With `given` (or `GLMC_NVRTC`) only that place: an explicit choice is never replaced.
pub(super) fn candidates(given: Option<&Path>) -> Vec<PathBuf> {
    let chosen = given.map(Path::to_owned).or_else(|| std::env::var_os(ENV).map(PathBuf::from));
    if let Some(path) = chosen {
        return if path.is_dir() { in_folder(&path) } else { vec![path] };
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for var in ["CUDA_PATH", "CUDA_HOME", "CUDA_ROOT"] {
        folders.extend(std::env::var_os(var).map(|p| PathBuf::from(p).join("lib64")));
    }
    folders.push("/usr/local/cuda/lib64".into());
    folders.extend(children(Path::new("/usr/local"), "cuda-").into_iter().map(|p| p.join("lib64")));
    folders.extend(wheels());
    let mut out: Vec<PathBuf> = folders.iter().flat_map(|f| in_folder(f)).collect();
    out.extend(NAMES.iter().map(PathBuf::from));
    out
}

/// The `lib` folders of NVIDIA's Python wheels: of the active environment, the user, the Python interpreters on the path,
/// and the system.
pub fn wheels() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let homes = std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let pythons = std::env::split_paths(&path).filter(|p| p.join("python3").exists());
    let pythons = pythons.filter_map(|p| p.parent().map(Path::to_owned));
    let mut out = Vec::new();
    for prefix in environments.chain(homes).chain(pythons).chain(["/usr/local".into(), "/usr".into()]) {
        for python in ["lib", "lib64"].iter().flat_map(|l| children(&prefix.join(l), "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                for lib in children(&nvidia, "").into_iter().map(|p| p.join("lib")) {
                    if !out.contains(&lib) {
                        out.push(lib);
                    }
                }
            }
        }
    }
    out
}

/// The libraries that lie in a folder.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|n| folder.join(n)).filter(|p| p.exists()).collect()
}

/// Entries of a folder whose names start so, newest name first; none if it cannot be read.
fn children(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut out: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
        .collect();
    out.sort();
    out.reverse();
    out
}
