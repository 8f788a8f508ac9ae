//! The CPU device: numeric kernels over slices.
//!
//! Owns the arithmetic, in f32 on weights decoded in registers, spread over the current rayon pool. Every result is
//! the same for any number of threads: work is cut so that each output is computed by one task, in one order.
//! The kernels know no plan; only `exec` and `prepare` do. Nothing here knows a file or a tensor's name, and nothing panics on shapes or values: both give [`KernelError`].
//!
//! Conventions: row-major slices, the last dim contiguous; `T` tokens, `S` cached positions, `H` heads.

pub mod attention;
pub mod cached;
pub mod ceiling;
pub mod elementwise;
pub mod gather;
pub mod indexer;
pub mod matmul;
pub mod matmul_mid;
pub mod norm;
pub mod rope;
pub mod route;
pub mod topk;

mod align;
mod arena;
mod attend;
mod call;
mod dot;
mod error;
mod exec;
mod fixed;
mod fusions;
mod gemm;
mod group;
mod math;
mod prepare;
mod share;
mod simd;
mod strided;
mod unpack;

pub use error::KernelError;
pub use exec::CpuDevice;
pub use group::{Before, CpuGroup};
pub use simd::{Isa, isa};

#[cfg(test)]
mod testing;
