//! Rows by id: `gather` and `append`.

use std::fmt::Write as _;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS};
use crate::request::GenerateError;

const THREADS: u64 = 256;

pub(super) fn gather(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (table, ids) = (&cx.inputs[0], &cx.inputs[1]);
    let width = cx.constant(&table.ty.dims[1..])?;
    let mut m = format!("  typedef {} TABLE;\n  typedef {} PUT;\n", table.decoder(), cx.put(0)?);
    let _ = writeln!(m, "  static constexpr u32 WIDTH = {width};");
    let _ =
        writeln!(m, "  GLMC_DEVICE static u32 rows(const Args& args) {{ return {}; }}", cx.size(&table.ty.dims[..1]));
    let _ = writeln!(m, "  GLMC_DEVICE static u32 ids(const Args& args) {{ return {}; }}", cx.size(&ids.ty.dims));
    let count = cx.bound(&cx.outputs[0].ty.dims).unwrap_or(0);
    let blocks = count.div_ceil(THREADS).min(MOST_BLOCKS);
    let mut includes = cx.decoders(&[table]);
    includes.push("gather.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("gather<Config>(args);", [blocks, 1, 1], THREADS as u32, 0)],
        config: format!("a thread an element, {blocks} blocks of {THREADS}"),
        why: "neighbouring threads read neighbouring elements of a row".into(),
        ..Draft::default()
    })
}

pub(super) fn append(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (pool, x) = (&cx.inputs[0], &cx.inputs[2]);
    let width = cx.constant(&pool.ty.dims[1..])?;
    let put = cx.writer_of(pool)?;
    let mut m = format!("  typedef {} X;\n  typedef {put} PUT;\n", x.decoder());
    let _ = writeln!(m, "  static constexpr u32 WIDTH = {width};");
    let _ =
        writeln!(m, "  GLMC_DEVICE static u32 rows(const Args& args) {{ return {}; }}", cx.size(&pool.ty.dims[..1]));
    let _ = writeln!(m, "  GLMC_DEVICE static u32 tokens(const Args& args) {{ return {}; }}", cx.size(&x.ty.dims[..1]));
    let tokens = cx.bound(&x.ty.dims[..1]).unwrap_or(0);
    let mut includes = cx.decoders(&[x]);
    includes.push("gather.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("append<Config>(args);", [tokens.min(MOST_BLOCKS), 1, 1], THREADS as u32, 0)],
        config: format!("a block of {THREADS} threads a token"),
        why: "a block looks for later tokens with its row, so that the last one wins in every run".into(),
        ..Draft::default()
    })
}
