//! What the machine can do at best, measured in the same run.

use std::time::Instant;

use glmc_codegen_cuda::ceiling;
use glmc_runtime::device::cpu::ceiling::read_all;
use glmc_runtime::device::cuda::Memory;
use serde_json::{Value, json};

use super::super::gpu::Gpu;
use super::kernels::{READ, ROUNDS, read_speed, time};
use crate::error::CliError;

/// Launches of the graph that the gap is measured with.
const GAPS: u64 = 1000;
/// Floats that a processor reads, and how often.
const FLOATS: usize = 64 << 20;
const READS: usize = 5;

/// The ceilings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// Of a kernel that only reads.
    pub(super) read_bytes_per_s: f64,
    /// A launch in a graph that waits for the one before and does nothing; 0 on a processor.
    pub(super) gap_s: f64,
}

impl Machine {
    pub(super) fn of_gpu(gpu: &Gpu) -> Result<Machine, CliError> {
        let (read, gap) = (ceiling::kernel(READ), ceiling::gap());
        let loaded = gpu.load([&read, &gap], 1, true)?;
        let mut memory = Memory::new(&gpu.context, READ)?;
        let mut word = Memory::new(&gpu.context, 256)?;
        word.fill(0)?;
        // Any pattern but zeros.
        memory.fill(0x3c6e_f372)?;
        let read_bytes_per_s = read_speed(gpu, &loaded, &read, &memory, &word)?;
        let dependent = gpu.arch.has_bulk_copy();
        let at = word.address(0)?;
        let gap_s = time(gpu, GAPS, ROUNDS, |_| loaded.launch(&gpu.stream, &gap, &[at], dependent))?;
        Ok(Machine { read_bytes_per_s, gap_s })
    }

    pub(super) fn of_cpu() -> Machine {
        let data = vec![1.0f32; FLOATS];
        let mut best = f64::INFINITY;
        for _ in 0..READS {
            let start = Instant::now();
            std::hint::black_box(read_all(std::hint::black_box(&data)));
            best = best.min(start.elapsed().as_secs_f64());
        }
        Machine { read_bytes_per_s: (4 * FLOATS) as f64 / best, gap_s: 0.0 }
    }

    pub(super) fn json(self) -> Value {
        json!({ "read_bytes_per_s": self.read_bytes_per_s, "gap_s": self.gap_s })
    }
}
