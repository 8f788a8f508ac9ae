//! What is asked for and what comes back.

use std::collections::BTreeSet;

use glmc_ir::diag::Diagnostic;
use glmc_ir::kernel::Kernel;
use glmc_ir::ty::{PendingKind, SymValues, TensorType};

use crate::arch::Arch;
use crate::signature::Signature;

/// How the bytes of a weight lie in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Storage {
    /// As in the file.
    #[default]
    Rows,
    /// In planes that warps stream; see [`crate::repack`].
    Lane,
}

/// What matmuls with quantised weights do to their activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Activations {
    /// Nothing that shows: f32, 24-bit integers with a scale for each 32 elements, or two halves each, for tensor cores
    /// (relative error near 1e-7).
    #[default]
    F32,
    /// Rounded to 16 bits for tensor cores where there are enough tokens, else as `F32`. The budget is that of bf16
    /// (2e-3); vectors are rounded to scaled halves, which lose a tenth of it.
    BF16,
    /// Rounded to 8 bits with a scale for each 32 elements (near 1e-2), where the weight's layout allows it, else as
    /// `F32`.
    Int8,
}

/// How a matrix in the lane layout is dealt to warps; what a benchmark varies. Zero stands for one, or for the usual.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// Warps of a block.
    pub warps: u32,
    /// Rows that a lane multiplies at once: activations are read once for them.
    pub pass: u32,
    /// Passes of one group of rows, which is copied together.
    pub passes: u32,
    /// Warps that share a row.
    pub parts: u32,
    /// Steps along a row that the compiler unrolls.
    pub unroll: u32,
    /// Blocks for each multiprocessor.
    pub resident: u32,
    /// Most bytes of shared memory of a block.
    pub shared: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { warps: 16, pass: 1, passes: 1, parts: 1, unroll: 2, resident: 1, shared: 0 }
    }
}

/// Choices of whoever asks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Options {
    /// See [`Activations`].
    pub activations: Activations,
    /// How each input lies; inputs past the end lie in rows.
    pub storage: Vec<Storage>,
    /// Multiprocessors of the GPU, which launches of few blocks are spread over; `None` counts as 132.
    pub multiprocessors: Option<u32>,
    /// In place of the generator's own choice.
    pub tuning: Option<Tuning>,
    /// Which inputs no launch writes, so that a kernel may read them before it waits for the launch before; inputs past
    /// the end are written.
    pub fixed: Vec<bool>,
    /// The merge that the output awaits where the rank holds a part of what is reduced: it then has the form of a part
    /// ([`glmc_ir::placement::softmax_part`], [`glmc_ir::placement::topk_part`]), positions counted in the part.
    pub merge: Option<PendingKind>,
}

impl Options {
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors.unwrap_or(132).max(1)
    }
}

/// One launch of a plan, as one rank sees it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The contract.
    pub kernel: &'a Kernel,
    /// Types of reads and updates in parameter order, their dims as this rank holds them.
    pub inputs: &'a [TensorType],
    /// Bounds of the phase's symbols, in the order in which their values lie in device memory.
    pub syms: &'a SymValues,
    /// The machine.
    pub arch: Arch,
    /// Choices.
    pub options: &'a Options,
}

/// The shape of one launch. It depends on bounds alone, so that a captured graph may replay it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchShape {
    /// The kernel's symbol in the compiled module.
    pub symbol: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A kernel in source form with everything that a launch needs. All launches take the same arguments, in order.
#[derive(Clone, PartialEq, Debug)]
pub struct Generated {
    /// Name of the family member, such as `matmul_1a2b3c4d5e6f`: the contract and a hash of the source.
    pub name: String,
    /// Headers that the body needs.
    pub includes: BTreeSet<&'static str>,
    /// The body: header comment, argument struct, constants, entries.
    pub body: String,
    /// The argument struct of every launch.
    pub signature: Signature,
    /// Launches in order; each depends on the one before.
    pub launches: Vec<LaunchShape>,
    /// How it may share a launch with others, if it may.
    pub(crate) side: Option<Side>,
    /// Arguments that it could read before its wait, were they known to be settled: see `program/settle.rs`.
    pub(crate) early: Vec<String>,
    /// The chosen configuration in a few words.
    pub config: String,
    /// Configurations that were not possible, each with its reason.
    pub rejected: Vec<String>,
}

/// What a launch that does the work of several kernels takes of each.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Side {
    /// Arguments, tables and constants, without a namespace.
    pub(crate) inner: String,
    /// The statement that runs it, over `args`.
    pub(crate) call: String,
    /// Threads of a block: these, or any multiple of a warp of at least so many.
    pub(crate) threads: u32,
    pub(crate) exact: bool,
    /// Whether any number of blocks does its work.
    pub(crate) loops: bool,
    /// Blocks that must fit a multiprocessor.
    pub(crate) blocks: u32,
}

/// Why there is no kernel.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GenerateError {
    /// The inputs break the contract's type rule.
    #[error("kernel `{kernel}`: {why}")]
    Type {
        /// The contract.
        kernel: String,
        /// The rule.
        why: Diagnostic,
    },
    /// No configuration of the family is possible.
    #[error("kernel `{kernel}` has no configuration for {arch}: {why}")]
    NoConfig {
        /// The contract.
        kernel: String,
        /// The machine.
        arch: Arch,
        /// Every reason.
        why: String,
    },
    /// The family does not know this contract.
    #[error("kernel `{0}` has no CUDA family")]
    NoFamily(String),
    /// A size does not fit the device's index types.
    #[error("kernel `{kernel}`: {why}")]
    TooLarge {
        /// The contract.
        kernel: String,
        /// What.
        why: String,
    },
}
