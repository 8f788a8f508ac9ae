//! What is timed: the matrices that one token meets in a rank of eight of the large model, in every type that has a lane
//! layout, each with the generator's own configuration or with many.

use glmc_codegen_cuda::{Activations, GenerateError, Generated, Options, Request, Storage, Tuning, generate, repack};
use glmc_ir::kernel::{
    GateUpKernel, GroupedDownKernel, GroupedGateUpKernel, GroupedMatmulKernel, Kernel, MatmulKernel,
};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Elem, SymValues, TensorType};

use super::super::gpu::Gpu;
use crate::error::CliError;

/// What a launch does with its matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Matmul,
    GateUp,
    Grouped,
    GroupedGateUp,
    GroupedDown,
}

/// An argument of a launch; `W` counts the matrices that lie one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arg {
    X,
    W(u64),
    Ids,
    Weights,
    Y,
}

impl Task {
    /// In the order of the contract's parameters.
    pub(super) fn args(self) -> &'static [Arg] {
        match self {
            Task::Matmul => &[Arg::X, Arg::W(0), Arg::Y],
            Task::GateUp => &[Arg::X, Arg::W(0), Arg::W(1), Arg::Y],
            Task::Grouped => &[Arg::X, Arg::W(0), Arg::Ids, Arg::Y],
            Task::GroupedGateUp => &[Arg::X, Arg::W(0), Arg::W(1), Arg::Ids, Arg::Y],
            Task::GroupedDown => &[Arg::X, Arg::W(0), Arg::Ids, Arg::Weights, Arg::Y],
        }
    }

    /// Matrices of a launch.
    pub(super) fn matrices(self) -> u64 {
        self.args().iter().filter(|a| matches!(a, Arg::W(_))).count() as u64
    }

    fn contract(self) -> Kernel {
        let spec = "tk,nk->tn".to_owned();
        match self {
            Task::Matmul => MatmulKernel { spec, names: Vec::new() }.into(),
            Task::GateUp => GateUpKernel { spec }.into(),
            Task::Grouped => GroupedMatmulKernel {}.into(),
            Task::GroupedGateUp => GroupedGateUpKernel {}.into(),
            Task::GroupedDown => GroupedDownKernel {}.into(),
        }
    }
}

/// A matrix as a rank of eight holds it.
pub(super) struct Matrix {
    pub(super) what: &'static str,
    pub(super) rows: u64,
    pub(super) k: u64,
    /// Experts and those that a token chooses; both 1 for a plain matrix.
    pub(super) experts: u64,
    pub(super) chosen: u64,
    pub(super) task: Task,
}

const fn plain(what: &'static str, rows: u64, k: u64) -> Matrix {
    Matrix { what, rows, k, experts: 1, chosen: 1, task: Task::Matmul }
}

const fn eight(what: &'static str, rows: u64, k: u64, task: Task) -> Matrix {
    Matrix { what, rows, k, experts: 256, chosen: 8, task }
}

pub(super) const MATRICES: [Matrix; 12] = [
    plain("shared expert, gate or up", 256, 6144),
    Matrix { task: Task::GateUp, ..plain("shared expert, both", 256, 6144) },
    plain("shared expert, down", 6144, 256),
    plain("q_b", 2048, 2048),
    plain("dense, gate or up", 1536, 6144),
    plain("attention output", 6144, 2048),
    plain("q_a, kv_a, indexer key", 2752, 6144),
    eight("8 experts, gate or up", 256, 6144, Task::Grouped),
    eight("8 experts, both", 256, 6144, Task::GroupedGateUp),
    eight("8 experts, down", 6144, 256, Task::Grouped),
    eight("8 experts, down, summed", 6144, 256, Task::GroupedDown),
    plain("head", 19_360, 6144),
];

pub(super) const TYPES: [QuantType; 4] = [QuantType::Q8_0, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K];

/// One thing to time.
pub(super) struct Item {
    pub(super) matrix: &'static Matrix,
    pub(super) quant: QuantType,
    pub(super) activations: Activations,
    pub(super) tuning: Option<Tuning>,
    /// Bytes of a whole weight, and those that a launch reads.
    pub(super) stored: u64,
    pub(super) bytes: u64,
    pub(super) kernel: Generated,
}

impl Item {
    fn new(
        gpu: &Gpu,
        matrix: &'static Matrix,
        quant: QuantType,
        activations: Activations,
        tuning: Option<Tuning>,
    ) -> Result<Item, GenerateError> {
        let Matrix { rows, k, experts, chosen, task, .. } = *matrix;
        let stored = repack::lane_bytes(quant, experts * rows * k).unwrap_or(0);
        // Each chosen expert has a vector of its own where experts end.
        let of_slot = experts > 1 && k < rows;
        let dims = |a: Arg| match a {
            Arg::X if of_slot => TensorType::new(QuantType::F32, [1, chosen, k]),
            Arg::X => TensorType::new(QuantType::F32, [1, k]),
            Arg::W(_) if experts > 1 => TensorType::new(quant, [experts, rows, k]),
            Arg::W(_) => TensorType::new(quant, [rows, k]),
            Arg::Ids => TensorType::new(Elem::I32, [1, chosen]),
            Arg::Weights | Arg::Y => TensorType::new(QuantType::F32, [1, chosen]),
        };
        let ins: Vec<Arg> = task.args().iter().copied().filter(|a| *a != Arg::Y).collect();
        let inputs: Vec<TensorType> = ins.iter().map(|a| dims(*a)).collect();
        let lane = |a: &Arg| if matches!(a, Arg::W(_)) { Storage::Lane } else { Storage::Rows };
        let storage = ins.iter().map(lane).collect();
        let contract = task.contract();
        let multiprocessors = Some(gpu.context.info().multiprocessors);
        let options = Options { activations, storage, multiprocessors, tuning, fixed: Vec::new(), merge: None };
        let syms = SymValues::default();
        let request = Request { kernel: &contract, inputs: &inputs, syms: &syms, arch: gpu.arch, options: &options };
        let kernel = generate(&request)?;
        Ok(Item {
            matrix,
            quant,
            activations,
            tuning,
            stored,
            bytes: stored / experts * chosen * task.matrices(),
            kernel,
        })
    }

    /// Whether the lane kernels serve it; a configuration may be refused, and another family serve the shape.
    fn in_lanes(&self) -> bool {
        self.kernel.body.contains("_lane<")
    }

    /// In one word.
    pub(super) fn acts(&self) -> &'static str {
        if self.activations == Activations::Int8 { "int8" } else { "f32" }
    }
}

const ROUNDINGS: [Activations; 2] = [Activations::Int8, Activations::F32];

/// Every matrix, type and rounding as the generator configures it.
pub(super) fn usual(gpu: &Gpu) -> Result<Vec<Item>, CliError> {
    let mut out = Vec::new();
    for matrix in &MATRICES {
        for quant in TYPES {
            for activations in ROUNDINGS {
                out.push(Item::new(gpu, matrix, quant, activations, None)?);
            }
        }
    }
    Ok(out)
}

/// The same in many configurations: all combinations for 8-bit activations in two types, fewer elsewhere. Two that give
/// one kernel count once.
pub(super) fn candidates(gpu: &Gpu) -> Result<Vec<Item>, CliError> {
    let mut out = usual(gpu)?;
    let mut seen: std::collections::BTreeSet<String> = out.iter().map(|i| i.kernel.name.clone()).collect();
    for matrix in &MATRICES {
        for quant in TYPES {
            for activations in ROUNDINGS {
                let full = activations == Activations::Int8 && matches!(quant, QuantType::Q8_0 | QuantType::Q4_K);
                for tuning in tunings(full) {
                    let Ok(item) = Item::new(gpu, matrix, quant, activations, Some(tuning)) else { continue };
                    if item.in_lanes() && seen.insert(item.kernel.name.clone()) {
                        out.push(item);
                    }
                }
            }
        }
    }
    Ok(out)
}

fn tunings(full: bool) -> Vec<Tuning> {
    let mut out = Vec::new();
    for warps in [8, 12, 16, 24] {
        for pass in [1, 2, 4] {
            for parts in [1, 2, 3, 6] {
                if parts > 1 && pass == 4 {
                    continue;
                }
                let usual = Tuning { warps, pass, parts, ..Tuning::default() };
                if full || matches!(warps, 8 | 16) {
                    out.push(usual);
                }
                if full && matches!(warps, 8 | 16) && parts != 2 {
                    out.push(Tuning { resident: 2, shared: 56 << 10, ..usual });
                    out.push(Tuning { unroll: 6, ..usual });
                }
                if full && warps == 16 && parts == 1 {
                    out.push(Tuning { passes: 2, ..usual });
                    out.push(Tuning { shared: 220 << 10, ..usual });
                }
            }
        }
    }
    out
}
