//! How close the CPU kernels come to the machine's memory bandwidth and multiply-add rate.
//!
//! `cargo run --release -p glmc-runtime --example cpu_ceiling` prints both ceilings, then for each type the bytes of
//! weights read a second by a product with one vector (over more weights than any cache holds) and the rate of a
//! product with 512 vectors.
#![allow(clippy::print_stdout, reason = "a program whose product is a table")]

use glmc_ir::quant::QuantType;
use glmc_runtime::device::cpu::ceiling::{fma_all, read_all};
use glmc_runtime::device::cpu::matmul::{WeightView, matmul};
use glmc_runtime::device::cpu::{KernelError, isa};
use std::time::Instant;

const K: usize = 6144;
const TOTAL: usize = 512 << 20;
const PREFILL: (usize, usize) = (2048, 512);

fn main() -> Result<(), KernelError> {
    let buffer = vec![1.0; 1 << 28];
    let bandwidth = best(8, || read_gb_per_s(&buffer));
    drop(buffer);
    let peak = best(8, gflops);
    println!("{:?}, {} threads", isa(), rayon::current_num_threads());
    println!("memory reads {bandwidth:.1} GB/s, multiply-adds {peak:.0} GFLOP/s");
    println!("{:8} {:>10} {:>7} {:>10} {:>7}", "type", "1 x GB/s", "ratio", "512 x GF/s", "ratio");
    use QuantType as Q;
    let types =
        [Q::Q8_0, Q::Q4_K, Q::Q5_K, Q::Q6_K, Q::Q4_0, Q::Q5_0, Q::BF16, Q::F16, Q::F32, Q::Q2_K, Q::Q3_K, Q::IQ4_XS];
    // Names of types on the command line restrict the table to them.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for ty in types.into_iter().filter(|ty| wanted.is_empty() || wanted.iter().any(|w| w == ty.name())) {
        let (gb, gf) = (stream(ty)?, prefill(ty)?);
        println!("{:8} {gb:10.2} {:7.2} {gf:10.1} {:7.2}", ty.name(), gb / bandwidth, gf / peak);
    }
    Ok(())
}

fn best(times: usize, f: impl Fn() -> f64) -> f64 {
    (0..times).map(|_| f()).fold(0.0, f64::max)
}

fn read_gb_per_s(buffer: &[f32]) -> f64 {
    let start = Instant::now();
    std::hint::black_box(read_all(buffer));
    size_of_val(buffer) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn gflops() -> f64 {
    let start = Instant::now();
    let (flops, value) = std::hint::black_box(fma_all(2_000_000));
    std::hint::black_box(value);
    flops as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Bytes that read as scales or as floats are finite and not subnormal.
fn weights(ty: QuantType, rows: usize) -> Vec<u8> {
    let len = rows * K / ty.block_elems() * ty.block_bytes();
    let mut bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x37).collect();
    if ty.is_float() {
        bytes.chunks_exact_mut(ty.block_bytes()).for_each(|e| e[ty.block_bytes() - 1] = 0x3c);
    }
    bytes
}

fn stream(ty: QuantType) -> Result<f64, KernelError> {
    let rows = TOTAL / (K / ty.block_elems() * ty.block_bytes());
    let bytes = weights(ty, rows);
    let w = WeightView::new(ty, &bytes, rows, K)?;
    let (x, mut y) = (vec![0.5; K], vec![0.0; rows]);
    let mut times = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        matmul(w, &x, 1, &mut y, rows)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(bytes.len() as f64 / times.into_iter().fold(f64::MAX, f64::min) / 1e9)
}

fn prefill(ty: QuantType) -> Result<f64, KernelError> {
    let (n, t) = PREFILL;
    let bytes = weights(ty, n);
    let w = WeightView::new(ty, &bytes, n, K)?;
    let (x, mut y) = (vec![0.5; t * K], vec![0.0; t * n]);
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        matmul(w, &x, t, &mut y, n)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok((2 * n * t * K) as f64 / times.into_iter().fold(f64::MAX, f64::min) / 1e9)
}
