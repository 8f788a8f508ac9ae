//! Elementwise contracts: one loop over the output, a functor that reads operands as stored.

use std::fmt::Write as _;

use glmc_ir::ty::{Extent, TensorType};

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS};
use crate::request::GenerateError;

const THREADS: u64 = 256;

/// `value` over `x`.
pub(super) fn unary(cx: &Cx<'_>, value: &str) -> Result<Draft, GenerateError> {
    let read = format!("    f32 x = element<{}>(args.{}, i);\n", cx.inputs[0].decoder(), cx.inputs[0].ident);
    draft(cx, &read, value)
}

/// `value` over `a` and `b`, `b` broadcast where its extent is 1.
pub(super) fn binary(cx: &Cx<'_>, value: &str) -> Result<Draft, GenerateError> {
    let (a, b) = (&cx.inputs[0], &cx.inputs[1]);
    let mut read = format!("    f32 a = element<{}>(args.{}, i);\n", a.decoder(), a.ident);
    let _ = writeln!(read, "    u64 at = {};", broadcast(cx, &a.ty, &b.ty));
    let _ = writeln!(read, "    f32 b = element<{}>(args.{}, at);", b.decoder(), b.ident);
    draft(cx, &read, value)
}

/// `silu(gate) * up`, the halves in two operands or pieces of one.
pub(super) fn swiglu(cx: &Cx<'_>, pieces: &[String]) -> Result<Draft, GenerateError> {
    let x = &cx.inputs[0];
    if pieces.is_empty() {
        let up = &cx.inputs[1];
        let mut read = format!("    f32 gate = element<{}>(args.{}, i);\n", x.decoder(), x.ident);
        let _ = writeln!(read, "    f32 up = element<{}>(args.{}, i);", up.decoder(), up.ident);
        return draft(cx, &read, "silu(gate) * up");
    }
    let (mut at, mut offset, mut width) = ([0, 0], 0, 0);
    if let Some(Extent::Joined(list)) = x.ty.last().map(|d| &d.extent) {
        for (name, n) in list {
            for (k, wanted) in pieces.iter().enumerate().take(2) {
                if wanted == name.as_str() {
                    (at[k], width) = (offset, *n);
                }
            }
            offset += n;
        }
    }
    let mut read = format!("    u64 row = i / {width}u, j = i % {width}u;\n");
    for (name, at) in ["gate", "up"].into_iter().zip(at) {
        let (q, x) = (x.decoder(), &x.ident);
        let _ = writeln!(read, "    f32 {name} = element<{q}>(args.{x}, row * {offset}u + {at}u + j);");
    }
    draft(cx, &read, "silu(gate) * up")
}

/// The flat index in `b` of flat index `i` in `a`.
pub(super) fn broadcast(cx: &Cx<'_>, a: &TensorType, b: &TensorType) -> String {
    let one = |d: usize| b.dims[d].extent.as_const() == Some(1) && a.dims[d].extent.as_const() != Some(1);
    if !(0..a.rank()).any(one) {
        return "i".into();
    }
    let mut terms = Vec::new();
    for d in (0..a.rank()).filter(|d| !one(*d)) {
        let inner = cx.size(&a.dims[d + 1..]);
        let stride = cx.size(&b.dims[d + 1..]);
        let n = cx.size(&a.dims[d..=d]);
        terms.push(format!("i / (u64(1) * {inner}) % ({n}) * (u64(1) * {stride})"));
    }
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}

fn draft(cx: &Cx<'_>, read: &str, value: &str) -> Result<Draft, GenerateError> {
    let y = &cx.outputs[0];
    let put = cx.put(0)?;
    let count = cx.bound(&y.ty.dims).unwrap_or(0);
    let mut members = String::new();
    let _ = writeln!(
        members,
        "  GLMC_DEVICE static u64 count(const Args& args) {{ return u64(1) * {}; }}",
        cx.size(&y.ty.dims)
    );
    let _ = write!(members, "  GLMC_DEVICE static void run(const Args& args, u64 i) {{\n{read}");
    let _ = writeln!(members, "    {put}::put(args.{}, i, {value});\n  }}", y.ident);
    let blocks = count.div_ceil(THREADS).min(MOST_BLOCKS);
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("elementwise.cuh");
    Ok(Draft {
        includes,
        members,
        entries: vec![Entry::only("elementwise<Config>(args);", [blocks, 1, 1], THREADS as u32, 0)],
        config: format!("a thread an element, {blocks} blocks of {THREADS}"),
        why: "bound by memory; operands are decoded where they are read".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
