//! Experts: each choice of each token against its expert's matrix.

use std::fmt::Write as _;

use glmc_ir::ty::Dim;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS, choose};
use super::lane;
use super::tensor::{Matrix, Split, THREADS, Tile};
use crate::request::GenerateError;

const WARPS: u64 = 8;

/// How choices meet their experts.
enum Way {
    Rows,
    Lane(Box<lane::Config>),
    Tiles(Tile),
}

/// Lists the choices of each expert and splits the vectors in two launches, multiplies tiles in a third.
fn by_expert(cx: &Cx<'_>, tile: Tile) -> Result<Draft, GenerateError> {
    let (x, w, ids) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
    let (experts, rows) = (cx.constant(&w.ty.dims[..1])?, cx.constant(&w.ty.dims[1..2])?);
    let (k, slots) = (cx.constant(&w.ty.dims[2..])?, cx.constant(&ids.ty.dims[1..])?);
    let choices = cx.bound(&ids.ty.dims).unwrap_or(0);
    let matrix = Matrix { w, count: experts, rows, k, inner: 1 };
    let mut m = format!("  typedef {} PUT;\n{}", cx.put(0)?, tile.members(&matrix));
    for (name, value) in [("EXPERTS", experts), ("ROWS", rows), ("SLOTS", slots)] {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr bool PER_SLOT = {};", x.ty.rank() == 3);
    let _ = writeln!(m, "  GLMC_DEVICE static u32 choices(const Args& args) {{ return {}; }}", cx.size(&ids.ty.dims));
    // Each expert's last tile may be partly filled.
    let most_tiles = (experts.min(choices) + choices / tile.columns).max(1);
    let list = (4 * (experts + 1)).next_multiple_of(256);
    let tiles = (list + 4 * choices.max(1)).next_multiple_of(256);
    for (name, at) in [("starts", 0), ("list", list), ("tiles", tiles)] {
        let _ = writeln!(
            m,
            "  GLMC_DEVICE static u32* {name}(const Args& args) {{\n    return reinterpret_cast<u32*>(args.scratch + \
             {at});\n  }}"
        );
    }
    let of = &x.ty.dims[..x.ty.rank() - 1];
    let vectors = cx.bound(of).unwrap_or(0);
    let split = Split::new(x, &[matrix], tile, vectors, &cx.size(of), tiles + 4 + 8 * most_tiles);
    let mut includes = cx.decoders(&[x, w]);
    includes.push("experts.cuh");
    let entry = |suffix: &str, call: &str, grid, threads, shared| Entry {
        suffix: suffix.into(),
        call: call.into(),
        grid,
        threads,
        blocks: 1,
        shared,
    };
    let multiply = entry(
        "tiles",
        "expert_tiles<Config>(args);",
        [rows.div_ceil(tile.rows()), most_tiles.min(65_535), 1],
        THREADS,
        tile.bytes(&[matrix]),
    );
    Ok(Draft {
        includes,
        tables: split.text,
        members: m,
        entries: vec![
            entry("lists", "list_choices<Config>(args);", [1, 1, 1], 1024, 4 * experts + 160),
            split.entry,
            Entry { blocks: tile.resident(&[matrix]), ..multiply },
        ],
        scratch: split.end,
        loose: true,
        config: format!("choices listed by expert, then {}", tile.words()),
        why: "many choices share an expert: its rows are decoded once for all of them".into(),
        ..Draft::default()
    })
}

/// What the lane kernels are to do: inputs `x`, the matrices and ids by their places; `ways` matrices from the second
/// place on; with `folded` a token's results are summed.
pub(super) fn shape(cx: &Cx<'_>, at: [usize; 3], ways: u64, folded: bool) -> Result<lane::Shape, String> {
    let (x, w, ids) = (&cx.inputs[at[0]], &cx.inputs[at[1]], &cx.inputs[at[2]]);
    let size = |d: &[Dim]| cx.constant(d).map_err(|e| e.to_string());
    let slots = size(&ids.ty.dims[1..])?.max(1);
    let tokens = cx.bound(&ids.ty.dims[..1]).unwrap_or(0);
    // Many choices share experts: each would be read again and again.
    if tokens > lane::MOST_TOKENS {
        return Err(format!("{tokens} tokens, {} at most", lane::MOST_TOKENS));
    }
    let of_slot = x.ty.rank() == 3;
    if folded && !of_slot {
        return Err("choices share a vector".into());
    }
    Ok(lane::Shape {
        batches: if folded { tokens } else { tokens * slots },
        free: size(&w.ty.dims[1..2])?,
        k: size(&w.ty.dims[2..])?,
        tokens: 1,
        folded: if folded { slots } else { 0 },
        ways,
        share: if of_slot { 1 } else { slots },
        experts: size(&w.ty.dims[..1])?,
        part: 1.0,
    })
}

pub(super) fn grouped(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (x, w, ids) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
    let (experts, rows) = (cx.constant(&w.ty.dims[..1])?, cx.constant(&w.ty.dims[1..2])?);
    let (k, slots) = (cx.constant(&w.ty.dims[2..])?, cx.constant(&ids.ty.dims[1..])?);
    let choices = cx.bound(&ids.ty.dims).unwrap_or(0);
    let verdict = shape(cx, [0, 1, 2], 1, false).and_then(|s| lane::plan(cx, w, &s));
    // A block a choice reads an expert once a choice, tiles once for many.
    let crowd = choices as f64 / experts as f64;
    let fit = if experts > 65_535 { Err(format!("{experts} experts, 65535 at most")) } else { Ok(()) };
    let matrix = Matrix { w, count: experts, rows, k, inner: 1 };
    let tiles = fit.and_then(|()| matrix.check()).and_then(|()| {
        let tile = Tile::choose(cx, &[matrix], choices.div_ceil(experts.max(1)))?;
        Ok(((0.05 * (1.0 + 32.0 / crowd.max(0.01))).min(1e3), Way::Tiles(tile)))
    });
    let list = vec![
        ("rows", Ok((1.0, Way::Rows))),
        ("lane", verdict.map(|l| (0.5, Way::Lane(Box::new(l))))),
        ("tensor", tiles),
    ];
    let (_, way, rejected) = choose(cx, list)?;
    let draft = match way {
        Way::Tiles(tile) => Some(by_expert(cx, tile)?),
        Way::Lane(l) => Some(l.draft(cx, &[w], None, [cx.size(&ids.ty.dims), "1u".into()])?),
        Way::Rows => None,
    };
    if let Some(mut d) = draft {
        d.rejected.extend(rejected);
        return Ok(d);
    }
    let mut m = format!("  typedef {} X;\n  typedef {} W;\n  typedef {} PUT;\n", x.decoder(), w.decoder(), cx.put(0)?);
    let run = if k % 8 == 0 { 8 } else { 1 };
    for (name, value) in [("EXPERTS", experts), ("ROWS", rows), ("K", k), ("RUN", run), ("SLOTS", slots)] {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr bool PER_SLOT = {};", x.ty.rank() == 3);
    let _ = writeln!(m, "  GLMC_DEVICE static u32 choices(const Args& args) {{ return {}; }}", cx.size(&ids.ty.dims));
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
