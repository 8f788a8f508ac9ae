//! Splits and joins of the last dim: column copies.

use std::fmt::Write as _;

use glmc_ir::ty::{Extent, TensorType};

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS, Part};
use crate::request::GenerateError;

const THREADS: u64 = 256;

/// Name, offset and size of each piece of a joined last dim.
pub(super) fn ranges(t: &TensorType) -> Vec<(String, u64, u64)> {
    let Some(Extent::Joined(list)) = t.last().map(|d| &d.extent) else { return Vec::new() };
    let mut at = 0;
    let mut out = Vec::new();
    for (name, n) in list {
        out.push((name.as_str().to_owned(), at, *n));
        at += n;
    }
    out
}

pub(super) fn split(cx: &Cx<'_>, names: &[String]) -> Result<Draft, GenerateError> {
    let x = &cx.inputs[0];
    let all = ranges(&x.ty);
    let total: u64 = all.iter().map(|(_, _, n)| n).sum();
    let mut call = String::new();
    for (i, (name, y)) in names.iter().zip(&cx.outputs).enumerate() {
        let (_, at, n) = all.iter().find(|(p, _, _)| p == name).cloned().unwrap_or_default();
        let (q, put) = (x.decoder(), cx.put(i)?);
        let _ = write!(
            call,
            "\n  copy_columns<{q}, {put}>(args.{}, {total}, {at}, args.{}, {n}, 0, {n}, rows);",
            x.ident, y.ident
        );
    }
    draft(cx, x, &call)
}

pub(super) fn join(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let y = &cx.outputs[0];
    let all = ranges(&y.ty);
    let total: u64 = all.iter().map(|(_, _, n)| n).sum();
    let mut call = String::new();
    for ((_, at, n), x) in all.iter().zip(&cx.inputs) {
        let (q, put) = (x.decoder(), cx.put(0)?);
        let _ = write!(
            call,
            "\n  copy_columns<{q}, {put}>(args.{}, {n}, 0, args.{}, {total}, {at}, {n}, rows);",
            x.ident, y.ident
        );
    }
    draft(cx, y, &call)
}

fn draft(cx: &Cx<'_>, whole: &Part, copies: &str) -> Result<Draft, GenerateError> {
    let outer = &whole.ty.dims[..whole.ty.rank() - 1];
    let m = format!("  GLMC_DEVICE static u64 rows(const Args& args) {{ return u64(1) * {}; }}\n", cx.size(outer));
    let blocks = cx.bound(&whole.ty.dims).unwrap_or(0).div_ceil(THREADS).min(MOST_BLOCKS);
    let call = format!("glmc_launch_trigger();\n  glmc_launch_wait();\n  u64 rows = Config::rows(args);{copies}");
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("pieces.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only(call, [blocks, 1, 1], THREADS as u32, 0)],
        config: format!("a thread an element, piece after piece, {blocks} blocks of {THREADS}"),
        why: "a copy: bound by memory".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
