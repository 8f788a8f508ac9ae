//! Rotary embedding: frequencies are made here, in f64.

use std::fmt::Write as _;

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS};
use crate::kernels::list;
use crate::request::GenerateError;

const THREADS: u64 = 128;

/// The table `FREQUENCIES` of a piece of `d` elements.
pub(super) fn frequencies(out: &mut String, theta: f64, d: u64) {
    let frequency = |j: u64| format!("{:e}", theta.powf(-2.0 * j as f64 / d as f64));
    let all: Vec<String> = (0..d / 2).map(frequency).collect();
    list(out, "f64", "FREQUENCIES", all.into_iter());
}

pub(super) fn rope(cx: &Cx<'_>, theta: f64) -> Result<Draft, GenerateError> {
    let x = &cx.inputs[0];
    let d = cx.constant(&x.ty.dims[x.ty.rank() - 1..])?;
    let mut tables = String::new();
    frequencies(&mut tables, theta, d);
    let mut m = format!("  typedef {} X;\n  typedef {} PUT;\n", x.decoder(), cx.put(0)?);
    let _ = writeln!(m, "  static constexpr u32 WIDTH = {d};");
    let (tokens, per_token) = (cx.size(&x.ty.dims[..1]), cx.size(&x.ty.dims[1..]));
    let _ = writeln!(m, "  GLMC_DEVICE static u64 tokens(const Args& args) {{ return {tokens}; }}");
    let _ = writeln!(m, "  GLMC_DEVICE static u64 per_token(const Args& args) {{ return u64(1) * {per_token}; }}");
    let _ = writeln!(m, "  GLMC_DEVICE static f64 frequency(u32 j) {{ return FREQUENCIES[j]; }}");
    let blocks = (cx.bound(&x.ty.dims).unwrap_or(0) / 2).div_ceil(THREADS).min(MOST_BLOCKS);
    let mut includes = cx.decoders(&[x]);
    includes.push("rope.cuh");
    Ok(Draft {
        includes,
        tables,
        members: m,
        entries: vec![Entry::only("rope<Config>(args);", [blocks, 1, 1], THREADS as u32, 0)],
        config: format!("a thread a pair, {blocks} blocks of {THREADS}"),
        why: "angles need f64; a table of frequencies saves the power".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
