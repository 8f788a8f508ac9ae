//! Rows as caches keep them (`rope_join`, `latent_row`, `index_row`, and `append_row` of each): pieces of a row, one
//! rotated, the others copied or normed.

use std::fmt::Write as _;

use glmc_ir::kernel::{IndexRowKernel, LatentRowKernel, RopeJoinKernel, RowMaker};

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS, Part, float};
use super::pieces::ranges;
use super::rope::frequencies;
use crate::request::GenerateError;

/// Pieces of the operand and what becomes of them.
struct Pieces<'k> {
    from: &'k [String],
    names: &'k [String],
    rope: &'k str,
    theta: f64,
    norm: Norm<'k>,
}

/// What is normed before.
enum Norm<'k> {
    None,
    /// Each piece that is not rotated, by this weight.
    Each(&'k Part, f64),
    /// The row, by a weight and a bias.
    Row(&'k Part, &'k Part, f64),
}

/// Rows in a buffer.
pub(super) fn rows(cx: &Cx<'_>, make: &RowMaker) -> Result<Draft, GenerateError> {
    made(cx, make, &cx.inputs, None)
}

/// Rows in a pool.
pub(super) fn append_row(cx: &Cx<'_>, make: &RowMaker) -> Result<Draft, GenerateError> {
    made(cx, make, &cx.inputs[2..], Some((&cx.inputs[0], &cx.inputs[1])))
}

fn made(cx: &Cx<'_>, make: &RowMaker, inputs: &[Part], pool: Option<(&Part, &Part)>) -> Result<Draft, GenerateError> {
    let p = match make {
        RowMaker::RopeJoin(RopeJoinKernel { theta, from, names, rope }) => {
            Pieces { from, names, rope, theta: *theta, norm: Norm::None }
        }
        RowMaker::LatentRow(LatentRowKernel { eps, theta, from, names, rope }) => {
            Pieces { from, names, rope, theta: *theta, norm: Norm::Each(&inputs[1], *eps) }
        }
        RowMaker::IndexRow(IndexRowKernel { eps, theta, from, names, rope }) => {
            Pieces { from, names, rope, theta: *theta, norm: Norm::Row(&inputs[1], &inputs[2], *eps) }
        }
    };
    let (x, pos) = (&inputs[0], &inputs[inputs.len() - 1]);
    let y = pool.map_or_else(|| &cx.outputs[0], |(pool, _)| pool);
    let put = cx.writer_of(y)?;
    let (all, results) = (ranges(&x.ty), ranges(&y.ty));
    let total = |list: &[(String, u64, u64)]| list.iter().map(|(_, _, n)| n).sum::<u64>();
    let (wide, out) = (total(&all), total(&results));
    let sources: Vec<(u64, u64)> = p
        .from
        .iter()
        .map(|from| all.iter().find(|(piece, ..)| piece == from).map(|(_, at, n)| (*at, *n)).unwrap_or_default())
        .collect();
    let (mut tables, mut calls) = (String::new(), String::new());
    if let Norm::Row(_, _, eps) = &p.norm {
        let sum = |f: &str, more: &str| {
            let one = |(at, n): &(u64, u64)| format!("{f}<X, {n}>(args.{}, row * {wide} + {at}{more})", x.ident);
            sources.iter().map(one).collect::<Vec<_>>().join(" + ")
        };
        let _ = writeln!(calls, "    f32 mean = block_sum({}, scratch) / f32({out});", sum("sum_piece", ""));
        let _ = writeln!(calls, "    f32 spread = block_sum({}, scratch) / f32({out});", sum("spread_piece", ", mean"));
        let _ = writeln!(calls, "    f32 inverse = 1.0f / glmc_sqrt(spread + {});", float(*eps));
    }
    for (((at, n), name), (_, to, _)) in sources.iter().zip(p.names).zip(&results) {
        let from = format!("args.{}, row * {wide} + {at}", x.ident);
        let ends = format!("{from}, args.{}, to * {out} + {to}", y.ident);
        let rotated = name == p.rope;
        if rotated {
            frequencies(&mut tables, p.theta, *n);
        }
        let _ = match &p.norm {
            Norm::Row(w, b, _) => {
                let v = format!(
                    "NormedPiece<X, {}, {}>{{args.{}, args.{}, args.{}, row * {wide} + {at}, {to}, mean, inverse}}",
                    w.decoder(),
                    b.decoder(),
                    x.ident,
                    w.ident,
                    b.ident
                );
                let ends = format!("{v}, args.{}, to * {out} + {to}", y.ident);
                if rotated {
                    writeln!(calls, "    put_rotated_piece<{put}, {n}>({ends}, FREQUENCIES, pos[row / per_token]);")
                } else {
                    writeln!(calls, "    put_piece<{put}, {n}>({ends});")
                }
            }
            _ if rotated => {
                writeln!(calls, "    rotate_piece<X, {put}, {n}>({ends}, FREQUENCIES, pos[row / per_token]);")
            }
            Norm::Each(w, eps) => {
                let (w, ident, eps) = (w.decoder(), &w.ident, float(*eps));
                writeln!(calls, "    norm_piece<X, {w}, {put}, {n}>({ends}, args.{ident}, {eps}, scratch);")
            }
            Norm::None => writeln!(calls, "    copy_piece<X, {put}, {n}>({ends});"),
        };
    }
    let rank = x.ty.rank();
    let mut m = format!("  typedef {} X;\n", x.decoder());
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static u64 rows(const Args& args) {{ return u64(1) * {}; }}",
        cx.size(&x.ty.dims[..rank - 1])
    );
    let place = match pool {
        None => "(void)args;\n    return i64(row)".to_owned(),
        Some((pool, ids)) => format!(
            "return place_in_pool(reinterpret_cast<const i32*>(args.{}), row, rows(args), {})",
            ids.ident,
            cx.size(&pool.ty.dims[..1])
        ),
    };
    let _ = writeln!(m, "  GLMC_DEVICE static i64 place(const Args& args, u64 row) {{\n    {place};\n  }}");
    let _ = writeln!(m, "  GLMC_DEVICE static void row(const Args& args, u64 row, u64 to, f32* scratch) {{");
    let _ = writeln!(m, "    u64 per_token = u64(1) * {};", cx.size(&x.ty.dims[1..rank - 1]));
    let _ = writeln!(m, "    const i32* pos = reinterpret_cast<const i32*>(args.{});", pos.ident);
    let _ = writeln!(m, "{calls}    (void)per_token, (void)pos, (void)scratch;\n  }}");
    let count = cx.bound(&x.ty.dims[..rank - 1]).unwrap_or(0);
    let most = if !matches!(p.norm, Norm::None) && count <= 64 { 512 } else { 128 };
    let threads = out.next_multiple_of(32).clamp(32, most) as u32;
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("rows.cuh");
    Ok(Draft {
        includes,
        tables,
        members: m,
        entries: vec![Entry::only("rows_of_pieces<Config>(args);", [count.min(MOST_BLOCKS), 1, 1], threads, 4 * 32)],
        config: format!("a block of {threads} threads a row, piece after piece"),
        why: "a row is short; its pieces need no other row".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
