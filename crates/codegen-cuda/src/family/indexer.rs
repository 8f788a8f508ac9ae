//! Indexer scores and top-k.

use std::fmt::Write as _;

use glmc_ir::ty::{Dim, PendingKind};

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS, Part, choose, float};
use crate::request::GenerateError;

/// Scores of keys `[Q, S, d]`.
pub(super) fn scores(cx: &Cx<'_>, scale: f64) -> Result<Draft, GenerateError> {
    let k = &cx.inputs[1];
    let width = cx.constant(&k.ty.dims[2..])?;
    let key = format!("element<{}>(args.{}, position * {width} + d)", k.decoder(), k.ident);
    score(cx, scale, &k.ty.dims[..2], &cx.inputs[2], &format!("    return {key};"))
}

/// Scores of the rows of a pool `[R, d]` that a table `[Q, S]` names.
pub(super) fn paged_scores(cx: &Cx<'_>, scale: f64) -> Result<Draft, GenerateError> {
    let (pool, table) = (&cx.inputs[1], &cx.inputs[2]);
    let rows = cx.size(&pool.ty.dims[..1]);
    let width = cx.constant(&pool.ty.dims[1..])?;
    let mut body = String::new();
    let _ = writeln!(body, "    i32 row = reinterpret_cast<const i32*>(args.{})[position];", table.ident);
    body.push_str("    if (row < 0) return 0.0f;\n");
    let _ = writeln!(body, "    if (u32(row) >= {rows}) return not_a_number();");
    let _ = write!(body, "    return element<{}>(args.{}, u64(row) * {width} + d);", pool.decoder(), pool.ident);
    score(cx, scale, &table.ty.dims, &cx.inputs[3], &body)
}

fn score(cx: &Cx<'_>, scale: f64, positions: &[Dim], w: &Part, key: &str) -> Result<Draft, GenerateError> {
    let (q, k) = (&cx.inputs[0], &cx.inputs[1]);
    let (heads, width) = (cx.constant(&q.ty.dims[1..2])?, cx.constant(&q.ty.dims[2..])?);
    let heads4 = heads.next_multiple_of(4);
    let most = u64::from(cx.request.arch.shared_per_block());
    let bytes = |keys: u64| 4 * ((width + 1) * heads4 + keys * (width | 1));
    let fits = |keys: u64| {
        let (n, all) = (bytes(keys), cx.bound(&positions[1..2]).unwrap_or(0));
        // Short contexts do not fill a large block.
        if n <= most {
            Ok((1.0 / keys.min(all.max(1)) as f64 + keys as f64 * 1e-6, keys))
        } else {
            Err(format!("{n} bytes of shared memory, a block has {most}"))
        }
    };
    let list = vec![
        ("128 keys a block", fits(128)),
        ("64 keys a block", fits(64)),
        ("32 keys a block", fits(32)),
        ("8 keys a block", fits(8)),
    ];
    let (_, keys, rejected) = choose(cx, list)?;
    let mut m = format!("  typedef {} Q;\n  typedef {} W;\n", q.decoder(), w.decoder());
    for (name, value) in [("HEADS", heads), ("WIDTH", width), ("KEYS", keys)] {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr f32 SCALE = {};", float(scale));
    let tokens = &q.ty.dims[..1];
    for (name, dims) in [("tokens", tokens), ("sequences", &positions[..1]), ("keys", &positions[1..2])] {
        let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {}; }}", cx.size(dims));
    }
    let _ = writeln!(m, "  GLMC_DEVICE static f32 key(const Args& args, u64 position, u32 d) {{\n{key}\n  }}");
    let blocks = cx.bound(&positions[1..2]).unwrap_or(0).div_ceil(keys);
    let grid = [blocks, cx.bound(tokens).unwrap_or(0).min(65_535), 1];
    let mut includes = cx.decoders(&[q, k, w]);
    includes.push("indexer.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("indexer_scores<Config>(args);", grid, 128, bytes(keys))],
        config: format!("{keys} keys a block, a thread a key"),
        why: "exact f32: near ties decide what is attended to".into(),
        rejected,
        ..Draft::default()
    })
}

pub(super) fn topk(cx: &Cx<'_>, k: u64) -> Result<Draft, GenerateError> {
    let x = &cx.inputs[0];
    let mut m = format!("  typedef {} X;\n  static constexpr u32 COUNT = {k};\n", x.decoder());
    for (name, dims) in [("rows", &x.ty.dims[..1]), ("width", &x.ty.dims[1..])] {
        let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {}; }}", cx.size(dims));
    }
    let part = cx.request.options.merge == Some(PendingKind::TopK);
    let _ = writeln!(m, "  static constexpr bool PART = {part};");
    let (rows, width) = (cx.bound(&x.ty.dims[..1]).unwrap_or(0), cx.bound(&x.ty.dims[1..]).unwrap_or(0));
    let threads = width.next_multiple_of(32).clamp(64, 1024) as u32;
    let mut includes = cx.decoders(&[x]);
    includes.push("topk.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("topk<Config>(args);", [rows.min(MOST_BLOCKS), 1, 1], threads, 1216 + 8 * k)],
        config: format!("a block of {threads} threads a row, radix selection"),
        why: "four passes over the row, whatever the numbers are; ties by position in every run".into(),
        ..Draft::default()
    })
}
