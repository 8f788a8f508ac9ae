//! Experts: each choice of each token against its expert's matrix.

use std::fmt::Write as _;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS};
use crate::request::GenerateError;

const WARPS: u64 = 8;

pub(super) fn grouped(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (x, w, ids) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
    let (experts, rows) = (cx.constant(&w.ty.dims[..1])?, cx.constant(&w.ty.dims[1..2])?);
    let (k, slots) = (cx.constant(&w.ty.dims[2..])?, cx.constant(&ids.ty.dims[1..])?);
    let mut m = format!("  typedef {} X;\n  typedef {} W;\n  typedef {} PUT;\n", x.decoder(), w.decoder(), cx.put(0)?);
    let run = if k % 8 == 0 { 8 } else { 1 };
    for (name, value) in [("EXPERTS", experts), ("ROWS", rows), ("K", k), ("RUN", run), ("SLOTS", slots)] {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr bool PER_SLOT = {};", x.ty.rank() == 3);
    let _ = writeln!(m, "  GLMC_DEVICE static u32 choices(const Args& args) {{ return {}; }}", cx.size(&ids.ty.dims));
    let choices = cx.bound(&ids.ty.dims).unwrap_or(0);
    let grid = [rows.div_ceil(WARPS).min(MOST_BLOCKS), choices.min(65_535), 1];
    let mut includes = cx.decoders(&[x, w]);
    includes.push("grouped.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("grouped_rows<Config>(args);", grid, 32 * WARPS as u32, 0)],
        config: format!("a warp a row, a choice a block, {} by {} blocks of {WARPS} warps", grid[0], grid[1]),
        why: "takes every type and any number of choices".into(),
        ..Draft::default()
    })
}
