//! What goes wrong between this program and a GPU.

use std::path::PathBuf;

/// A failure of the CUDA device, with what was tried.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver on this machine.
    #[error("no CUDA driver: {}; a GPU run needs NVIDIA's driver (libcuda.so.1)", .tried.join("; "))]
    Absent {
        /// Each place with what happened there.
        tried: Vec<String>,
    },
    /// A library cannot be opened.
    #[error("{}: {why}", .path.display())]
    Library {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The library lacks an entry point.
    #[error("the library has no {symbol} ({why}): it is older than this program needs (driver 580, CUDA 13)")]
    Symbol {
        /// Which.
        symbol: &'static str,
        /// What the loader says.
        why: String,
    },
    /// The driver is older than what is compiled for it.
    #[error(
        "{}: the driver serves CUDA {}.{}, this program needs CUDA 13 (driver 580 or later): update the driver",
        .path.display(), .version.0, .version.1
    )]
    Old {
        /// The library.
        path: PathBuf,
        /// The newest CUDA that it serves.
        version: (u32, u32),
    },
    /// A call failed.
    #[error("{what}: {call} gives {name} ({code}){}{why}", if .why.is_empty() { "" } else { ", " })]
    Call {
        /// The entry point.
        call: &'static str,
        /// Its code.
        code: i32,
        /// The code's name.
        name: String,
        /// The driver's sentence.
        why: String,
        /// What was tried.
        what: String,
    },
    /// There is no such device.
    #[error("there is no device cuda:{index}: {count} found")]
    NoDevice {
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A name that holds a zero byte.
    #[error("`{name}` is no kernel's name")]
    Name {
        /// The name.
        name: String,
    },
    /// What should be a cubin is none.
    #[error("{what} is no cubin: {why}")]
    Image {
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
    /// A launch that does not fit its kernel.
    #[error("kernel {kernel}: {why}")]
    Launch {
        /// Which.
        kernel: String,
        /// What does not fit.
        why: String,
    },
    /// A range that lies outside its memory.
    #[error("bytes {offset}..{} of {bytes}", .offset.saturating_add(*.len))]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        bytes: u64,
    },
    /// The plan does not fit the device's memory.
    #[error(
        "{device} has {} of {} bytes free, the plan needs {} more: {}; free memory on the GPU, or compile with a \
         smaller --ctx, --cache or --max-batch",
        .free, .total, .needs.iter().fold(0u64, |a, (_, n)| a.saturating_add(*n)),
        .needs.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    )]
    Memory {
        /// Which.
        device: String,
        /// Bytes that are free.
        free: u64,
        /// Bytes that it has.
        total: u64,
        /// What is needed, with bytes.
        needs: Vec<(&'static str, u64)>,
    },
    /// The device gave out of memory although what was counted fits.
    #[error(
        "{source}; {device} had {free} of {total} bytes free and {} were counted: {}; something else took memory: free it, or \
         compile with a smaller --ctx, --cache or --max-batch",
        .needs.iter().fold(0u64, |a, (_, n)| a.saturating_add(*n)),
        .needs.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    )]
    Taken {
        /// What the driver said.
        source: Box<CudaError>,
        /// Which.
        device: String,
        /// Bytes that were free before anything was taken.
        free: u64,
        /// Bytes that it has.
        total: u64,
        /// What was counted, with bytes.
        needs: Vec<(&'static str, u64)>,
    },
    /// A device that was given up: a kernel on it does not end.
    #[error("cuda:{device} no longer answers")]
    Hung {
        /// Which.
        device: usize,
    },
    /// Work did not end in time.
    #[error("{what} did not end within {seconds} s on {device}{told}")]
    Late {
        /// The work.
        what: String,
        /// The limit.
        seconds: f64,
        /// Where.
        device: String,
        /// What more is known.
        told: String,
    },
    /// Another device failed, or gave up waiting.
    #[error("another device failed")]
    Stopped,
    /// Devices that did not meet.
    #[error("{0}")]
    Meeting(String),
    /// Devices that cannot exchange anything.
    #[error("{0}")]
    Links(String),
    /// A launch program that does not fit the plan or the kernels that came with it.
    #[error("the launch program does not fit the plan: {0}")]
    Program(String),
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

impl CudaError {
    /// Whether the device's memory is too small.
    pub fn is_memory(&self) -> bool {
        matches!(self, CudaError::Memory { .. } | CudaError::Taken { .. })
            || matches!(self, CudaError::Call { code: OUT_OF_MEMORY, .. })
    }

    /// Out of memory, with what was counted and what was free; anything else as it is.
    pub(super) fn counted(self, device: String, free: u64, total: u64, needs: &[(&'static str, u64)]) -> Self {
        match self {
            CudaError::Call { code: OUT_OF_MEMORY, .. } => {
                CudaError::Taken { source: Box::new(self), device, free, total, needs: needs.to_vec() }
            }
            e => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: i32) -> CudaError {
        let name = if code == 2 { "CUDA_ERROR_OUT_OF_MEMORY" } else { "CUDA_ERROR_INVALID_VALUE" };
        CudaError::Call {
            call: "cuMemAlloc_v2",
            code,
            name: name.into(),
            why: String::new(),
            what: "1000 bytes".into(),
        }
    }

    #[test]
    fn too_little_memory_says_what_was_counted_and_what_was_free() {
        let needs = vec![("weights", 700), ("caches", 200), ("arenas", 100)];
        let small = CudaError::Memory { device: "cuda:0 X".into(), free: 900, total: 2000, needs: needs.clone() };
        let taken = call(2).counted("cuda:0 X".into(), 1500, 2000, &needs);
        for (e, free) in [(&small, "900"), (&taken, "1500")] {
            let text = e.to_string();
            for word in ["cuda:0 X", free, "2000", "1000", "weights 700", "caches 200", "arenas 100", "--ctx"] {
                assert!(text.contains(word), "no {word}: {text}");
            }
            assert!(e.is_memory());
        }
        assert!(taken.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{taken}");
        assert_eq!(call(1).counted("cuda:0".into(), 1, 2, &needs), call(1));
        assert!(!call(1).is_memory() && call(2).is_memory());
    }
}
