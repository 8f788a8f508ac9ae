//! Device decoders against the golden vectors of the reference decoder, bit for bit, on the host emulation.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/host.rs"]
mod host;

use std::path::{Path, PathBuf};

use glmc_codegen_cuda::host::{Buffer, Job, Launch, Order, Program};
use glmc_codegen_cuda::{Arch, Generated, Options, Request, emit, generate};
use glmc_ir::kernel::{DecodeKernel, Kernel};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{SymValues, TensorType};
use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn decode_kernel(q: QuantType, elements: u64) -> Generated {
    let kernel: Kernel = DecodeKernel {}.into();
    let inputs = [TensorType::new(q, [elements])];
    let syms = SymValues::default();
    let options = Options::default();
    let request = Request { kernel: &kernel, inputs: &inputs, syms: &syms, arch: Arch::Sm90, options: &options };
    generate(&request).unwrap_or_else(|e| panic!("{q}: {e}"))
}

/// Every type's block bytes and the bits that they stand for.
fn vectors() -> Vec<(QuantType, Vec<u8>, Vec<u8>)> {
    let index: Value = serde_json::from_slice(&fixture("index.json")).expect("index.json is JSON");
    let file = |v: &Value| fixture(v["file"].as_str().expect("a file"));
    let list = index["vectors"].as_array().expect("vectors").iter();
    list.filter_map(|v| {
        let q = QuantType::from_ggml_id(v["id"].as_u64().expect("an id") as u32).ok()?;
        Some((q, file(&v["data"]), file(&v["values"])))
    })
    .flat_map(|(q, data, values)| {
        // Runs that are kept apart stand for what their blocks stand for.
        let apart = q.apart().map(|apart| {
            let (mut runs, all) = (Vec::new(), q.block_elems() / apart.block_elems());
            data.chunks_exact(q.block_bytes()).for_each(|block| q.sub_blocks(block, 0..all, &mut runs));
            (apart, runs, values.clone())
        });
        std::iter::once((q, data, values)).chain(apart)
    })
    .collect()
}

#[test]
fn every_type_decodes_to_the_golden_bits() {
    if !host::compiler_is_there() {
        return;
    }
    let vectors = vectors();
    assert_eq!(vectors.len(), QuantType::ALL.len() + QuantType::SUB.len());
    let kernels: Vec<Generated> = vectors.iter().map(|(q, _, v)| decode_kernel(*q, v.len() as u64 / 4)).collect();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = Program::build(&emit::unit(&kernels), dir).unwrap_or_else(|e| panic!("{e}"));
    let jobs: Vec<Job> = vectors
        .iter()
        .zip(&kernels)
        .map(|((_, data, values), k)| Job {
            buffers: vec![Buffer::Input(data.clone()), Buffer::Output(values.len())],
            launches: vec![Launch { shape: k.launches[0].clone(), args: vec![0, 1], device: 0 }],
        })
        .collect();
    let word = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("four bytes"));
    let same = |got: u32, want: u32| got == want || f32::from_bits(got).is_nan() && f32::from_bits(want).is_nan();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for order in [Order::Rising, Order::Falling] {
        let results = program.run(&jobs, order).expect("the program runs");
        for ((q, _, want), result) in vectors.iter().zip(results) {
            let got = match result {
                Ok(out) => out[0].clone(),
                Err(e) => {
                    wrong.push(format!("{q}: {e}"));
                    continue;
                }
            };
            assert_eq!(got.len(), want.len(), "{q}");
            let pairs = got.chunks_exact(4).zip(want.chunks_exact(4)).map(|(g, w)| (word(g), word(w)));
            compared += got.len() / 4;
            if let Some((i, (g, w))) = pairs.enumerate().find(|(_, (g, w))| !same(*g, *w)) {
                wrong.push(format!("{q} element {i}: {:e}, not {:e}", f32::from_bits(g), f32::from_bits(w)));
            }
        }
    }
    println!("{} types, {compared} elements", vectors.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
