//! Rows as caches keep them (`rope_join`, `latent_row`): pieces of a row, one rotated, the others copied or normed.

use std::fmt::Write as _;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS, Part, float};
use super::pieces::ranges;
use super::rope::frequencies;
use crate::request::GenerateError;

/// Pieces of the operand and what becomes of them.
pub(super) struct Pieces<'k> {
    pub(super) from: &'k [String],
    pub(super) names: &'k [String],
    pub(super) rope: &'k str,
    pub(super) theta: f64,
}

/// `norm`: the weight of the norm and its epsilon; without it pieces are copied.
pub(super) fn rows(
    cx: &Cx<'_>,
    p: &Pieces<'_>,
    norm: Option<(&Part, f64)>,
    pos: &Part,
) -> Result<Draft, GenerateError> {
    let (x, y) = (&cx.inputs[0], &cx.outputs[0]);
    let (all, results) = (ranges(&x.ty), ranges(&y.ty));
    let total = |list: &[(String, u64, u64)]| list.iter().map(|(_, _, n)| n).sum::<u64>();
    let (wide, out) = (total(&all), total(&results));
    let (mut tables, mut calls) = (String::new(), String::new());
    let put = cx.put(0)?;
    for ((from, name), (_, to, _)) in p.from.iter().zip(p.names).zip(&results) {
        let (_, at, n) = all.iter().find(|(piece, _, _)| piece == from).cloned().unwrap_or_default();
        let ends = format!("args.{}, row * {wide} + {at}, args.{}, row * {out} + {to}", x.ident, y.ident);
        let _ = if name == p.rope {
            frequencies(&mut tables, p.theta, n);
            writeln!(calls, "    rotate_piece<X, {put}, {n}>({ends}, FREQUENCIES, pos[row / per_token]);")
        } else if let Some((w, eps)) = norm {
            let (w, ident, eps) = (w.decoder(), &w.ident, float(eps));
            writeln!(calls, "    norm_piece<X, {w}, {put}, {n}>({ends}, args.{ident}, {eps}, scratch);")
        } else {
            writeln!(calls, "    copy_piece<X, {put}, {n}>({ends});")
        };
    }
    let rank = x.ty.rank();
    let mut m = format!("  typedef {} X;\n", x.decoder());
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static u64 rows(const Args& args) {{ return u64(1) * {}; }}",
        cx.size(&x.ty.dims[..rank - 1])
    );
    let _ = writeln!(m, "  GLMC_DEVICE static void row(const Args& args, u64 row, f32* scratch) {{");
    let _ = writeln!(m, "    u64 per_token = u64(1) * {};", cx.size(&x.ty.dims[1..rank - 1]));
    let _ = writeln!(m, "    const i32* pos = reinterpret_cast<const i32*>(args.{});", pos.ident);
    let _ = writeln!(m, "{calls}    (void)per_token, (void)pos, (void)scratch;\n  }}");
    let count = cx.bound(&x.ty.dims[..rank - 1]).unwrap_or(0);
    let most = if norm.is_some() && count <= 64 { 512 } else { 128 };
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
        ..Draft::default()
    })
}
