//! The device sources as files of a virtual folder, for NVRTC (which takes headers by name) and for the host compiler
//! (which gets them written beside the program).

use std::fmt::Write as _;

use glmc_ir::quant::{DOUBLED_E2M1, IQ4_LEVELS, grids};

/// One header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The name in `#include`.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../kernels/", $name)))),*];
    };
}

files! {
    "prim.cuh", "prim_device.cuh", "emu/emu.h", "emu/fiber.h", "emu/prim_host.h",
    "quant/common.cuh", "quant/float.cuh", "quant/q4_0.cuh", "quant/q5_0.cuh", "quant/q8_0.cuh", "quant/q2_k.cuh",
    "quant/q3_k.cuh", "quant/q4_k.cuh", "quant/q5_k.cuh", "quant/q6_k.cuh", "quant/iq1.cuh", "quant/iq2.cuh",
    "quant/iq3.cuh", "quant/iq4.cuh", "quant/tq.cuh", "quant/fp4.cuh", "quant/q1_0.cuh", "quant/sub.cuh", "quant/run.cuh",
    "quant/lane.cuh", "activation.cuh", "gemv.cuh", "read.cuh", "repack.cuh", "split.cuh", "tensor.cuh", "experts.cuh",
    "scan.cuh", "elementwise.cuh", "norm.cuh", "matmul.cuh", "grouped.cuh", "gather.cuh", "pieces.cuh", "rope.cuh", "rows.cuh",
    "synth.cuh", "route.cuh", "indexer.cuh", "topk.cuh", "attention.cuh", "attention_tiles.cuh", "order.cuh", "merge.cuh", "exchange.cuh",
    "links.cuh",
}

/// The entry of a host program; appended to its source.
pub(crate) const HOST_MAIN: &str = include_str!("../kernels/emu/main.cpp");

/// Every header, the generated one of tables (`grids.cuh`) included.
pub fn headers() -> Vec<Header> {
    let files = FILES.iter().map(|(name, text)| Header { name, text: (*text).to_owned() });
    files.chain([Header { name: "grids.cuh", text: grids_text() }]).collect()
}

/// The tables that `ir::quant` owns, as device tables.
fn grids_text() -> String {
    let mut out =
        String::from("// Code books and levels, written from the tables of the reference decoders.\n#pragma once\n");
    out.push_str("#include \"prim.cuh\"\n");
    let wide = [
        ("IQ1S_GRID", &grids::IQ1S[..]),
        ("IQ2XXS_GRID", &grids::IQ2XXS),
        ("IQ2XS_GRID", &grids::IQ2XS),
        ("IQ2S_GRID", &grids::IQ2S),
    ];
    for (name, table) in wide {
        list(&mut out, "u64", name, table.iter().map(|w| format!("0x{w:016x}ull")));
    }
    for (name, table) in [("IQ3XXS_GRID", &grids::IQ3XXS[..]), ("IQ3S_GRID", &grids::IQ3S)] {
        list(&mut out, "u32", name, table.iter().map(|w| format!("0x{w:08x}u")));
    }
    for (name, table) in [("IQ4_LEVELS", &IQ4_LEVELS), ("E2M1_DOUBLED", &DOUBLED_E2M1)] {
        list(&mut out, "i8", name, table.iter().map(i8::to_string));
    }
    out
}

/// `GLMC_TABLE ty name[n] = {..};`, some entries a line.
pub(crate) fn list(out: &mut String, ty: &str, name: &str, entries: impl ExactSizeIterator<Item = String>) {
    let _ = write!(out, "GLMC_TABLE {ty} {name}[{}] = {{", entries.len());
    for (i, e) in entries.enumerate() {
        out.push_str(if i % 4 == 0 { "\n  " } else { " " });
        out.push_str(&e);
        out.push(',');
    }
    out.push_str("\n};\n");
}
