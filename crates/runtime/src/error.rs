//! Owns the runtime's errors. Never decides an exit code; the binary does.

use std::path::PathBuf;

use glmc_ir::plan::PhaseKind;

use crate::collective::MeetError;
use crate::device::cpu::KernelError;
use crate::device::cuda::CudaError;
use crate::scan::Unsound;

/// What went wrong in loading or running a plan.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A file cannot be read.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The plan is not one this version can run.
    #[error("{}: {message}", path.display())]
    Plan {
        /// The file at fault.
        path: PathBuf,
        /// Stable kebab-case code.
        code: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// A request that does not fit the plan.
    #[error("{0}")]
    Request(String),
    /// A sequence is longer than the plan allows, or the cache has no free rows.
    #[error("{0}")]
    Context(String),
    /// A step for which the plan has no phase: a loaded plan has one for every step within its limits.
    #[error("the plan has no {kind:?} phase for {tokens} tokens that see {visible} positions; compile the model again")]
    NoPhase {
        /// What the step is for.
        kind: PhaseKind,
        /// Its tokens.
        tokens: u64,
        /// What its longest sequence sees.
        visible: u64,
    },
    /// Memory that the system does not give.
    #[error("{what} needs {bytes} bytes of memory, which the system does not give; {help}")]
    Memory {
        /// What it is for.
        what: String,
        /// Bytes needed.
        bytes: u64,
        /// What to do.
        help: &'static str,
    },
    /// Threads that the system does not start.
    #[error("{0}; set RAYON_NUM_THREADS to fewer, or raise the limits of the process")]
    Threads(String),
    /// A launch failed.
    #[error("step `{step}` ({kernel}): {source}")]
    Kernel {
        /// Provenance of the step.
        step: String,
        /// Its contract.
        kernel: &'static str,
        /// Why.
        source: KernelError,
    },
    /// A step in which ranks meet failed.
    #[error("step `{step}` ({kernel}): {source}")]
    Meet {
        /// Provenance of the step.
        step: String,
        /// Its contract.
        kernel: &'static str,
        /// Why.
        source: MeetError,
    },
    /// A GPU failed.
    #[error("step `{step}`: {source}")]
    Cuda {
        /// Provenance of the step, or the phase.
        step: String,
        /// Why.
        source: CudaError,
    },
    /// The thread of a rank, or of the ranks of a device, died, and all others stopped.
    #[error("its thread died: {0}")]
    Died(String),
    /// One of several ranks failed, and all stopped.
    #[error("rank {rank}: {source}")]
    Rank {
        /// Which.
        rank: usize,
        /// Why.
        source: Box<RuntimeError>,
    },
    /// The logits hold no number to choose from.
    #[error("{0}")]
    Numbers(String),
    /// A step wrote what is no number, and steps are scanned.
    #[error("{0}")]
    Unsound(Box<Unsound>),
}

impl RuntimeError {
    /// Sizes that compilation chose are too large for this machine.
    pub(crate) fn memory(what: impl Into<String>, bytes: u64) -> Self {
        let help = "free memory, or compile with a smaller --ctx, --cache or --max-batch";
        RuntimeError::Memory { what: what.into(), bytes, help }
    }

    /// The model itself is too large for this machine.
    pub(crate) fn weight_memory(what: impl Into<String>, bytes: u64) -> Self {
        RuntimeError::Memory { what: what.into(), bytes, help: "free memory, or use a smaller model" }
    }

    /// Whether a number that is none was met: the weights are at fault, not the machine.
    pub fn is_numbers(&self) -> bool {
        match self {
            RuntimeError::Numbers(_) => true,
            RuntimeError::Kernel { source, .. } => matches!(source, KernelError::Nan { .. }),
            RuntimeError::Rank { source, .. } => source.is_numbers(),
            _ => false,
        }
    }

    /// The step that wrote what is no number; of any other error the last there can be.
    pub(crate) fn unsound_step(&self) -> usize {
        match self {
            RuntimeError::Unsound(u) => u.step,
            _ => usize::MAX,
        }
    }

    pub(crate) fn io(path: &std::path::Path, e: &std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::OutOfMemory {
            // What does not fit is no fault of the file.
            let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
            return Self::memory(path.display().to_string(), bytes);
        }
        RuntimeError::Io { path: path.into(), message: e.to_string() }
    }
}
