//! Experts: each choice of each token against its expert's matrix.

use std::fmt::Write as _;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS, choose};
use super::lane;
use crate::request::GenerateError;

const WARPS: u64 = 8;

pub(super) fn grouped(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (x, w, ids) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
    let (experts, rows) = (cx.constant(&w.ty.dims[..1])?, cx.constant(&w.ty.dims[1..2])?);
    let (k, slots) = (cx.constant(&w.ty.dims[2..])?, cx.constant(&ids.ty.dims[1..])?);
    let choices = cx.bound(&ids.ty.dims).unwrap_or(0);
    // Many choices share experts: a block a choice would read each expert again and again.
    let tokens = choices.div_ceil(slots.max(1));
    let shape = lane::Shape { rows, free: rows, k, tokens: 1, matrices: choices };
    let verdict = if tokens > lane::MOST_TOKENS {
        Err(format!("{tokens} tokens, {} at most", lane::MOST_TOKENS))
    } else {
        lane::plan(cx, w, &shape)
    };
    let list = vec![("rows", Ok((1.0, None))), ("lane", verdict.map(|l| (0.5, Some(l))))];
    let (_, config, rejected) = choose(cx, list)?;
    let mut m = format!("  typedef {} X;\n  typedef {} W;\n  typedef {} PUT;\n", x.decoder(), w.decoder(), cx.put(0)?);
    let run = if k % 8 == 0 { 8 } else { 1 };
    for (name, value) in [("EXPERTS", experts), ("ROWS", rows), ("K", k), ("RUN", run), ("SLOTS", slots)] {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr bool PER_SLOT = {};", x.ty.rank() == 3);
    let _ = writeln!(m, "  GLMC_DEVICE static u32 choices(const Args& args) {{ return {}; }}", cx.size(&ids.ty.dims));
    if let Some(l) = &config {
        m.push_str(&l.members(w, &shape));
        for (name, value) in [("TOKENS", 1), ("FREE", rows), ("YSTEP", 0)] {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        m.push_str("  GLMC_DEVICE static u32 tokens(const Args& args) { return choices(args); }\n");
        m.push_str("  GLMC_DEVICE static const u8* w(const Args& args) { return args.w; }\n");
        let grid = [l.blocks, choices, 1];
        let mut includes = cx.decoders(&[x, w]);
        includes.push("gemv.cuh");
        return Ok(Draft {
            includes,
            members: m,
            entries: vec![Entry::only("grouped_lane<Config>(args);", grid, l.threads as u32, l.shared)],
            config: format!("a choice a block, {}", l.words()),
            why: "ids come from the launch before, so the copies follow the wait, all at once".into(),
            rejected,
            ..Draft::default()
        });
    }
    let grid = [rows.div_ceil(WARPS).min(MOST_BLOCKS), choices.min(65_535), 1];
    let mut includes = cx.decoders(&[x, w]);
    includes.push("grouped.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("grouped_rows<Config>(args);", grid, 32 * WARPS as u32, 0)],
        config: format!("a warp a row, a choice a block, {} by {} blocks of {WARPS} warps", grid[0], grid[1]),
        why: "takes every type and any number of choices".into(),
        rejected,
        ..Draft::default()
    })
}
