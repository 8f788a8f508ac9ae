//! RMS and layer norm: a block a row, as many threads as the row can use.

use std::fmt::Write as _;

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS, float};
use super::elementwise::broadcast;
use crate::request::GenerateError;

pub(super) fn rms(cx: &Cx<'_>, eps: f64) -> Result<Draft, GenerateError> {
    draft(cx, eps, "rms_norm", &["X", "W"])
}

pub(super) fn layer(cx: &Cx<'_>, eps: f64) -> Result<Draft, GenerateError> {
    draft(cx, eps, "layer_norm", &["X", "W", "B"])
}

/// `h = x + y` and the norm of it.
pub(super) fn add_rms(cx: &Cx<'_>, eps: f64) -> Result<Draft, GenerateError> {
    let (x, y, w) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
    let mut d = draft(cx, eps, "add_rms_norm", &[])?;
    let m = &mut d.members;
    let _ = writeln!(m, "  typedef {} W;\n  typedef {} H;", w.decoder(), cx.put(0)?);
    let _ = writeln!(m, "  GLMC_DEVICE static f32 sum(const Args& args, u64 i) {{");
    let _ = writeln!(m, "    u64 at = {};", broadcast(cx, &x.ty, &y.ty));
    let (a, b) = (x.decoder(), y.decoder());
    let _ = writeln!(m, "    return element<{a}>(args.{}, i) + element<{b}>(args.{}, at);\n  }}", x.ident, y.ident);
    Ok(d)
}

fn draft(cx: &Cx<'_>, eps: f64, template: &str, names: &[&str]) -> Result<Draft, GenerateError> {
    let x = &cx.inputs[0].ty;
    let (outer, last) = x.dims.split_at(x.rank() - 1);
    let width = cx.most(&last[0]).unwrap_or(0);
    if last[0].extent.as_const().is_none_or(|n| u32::try_from(n).is_err()) {
        return Err(cx.too_large(format!("a row of {}", last[0])));
    }
    // Few rows: long blocks hide latency. Many rows: small blocks share a multiprocessor.
    let rows = cx.bound(outer).unwrap_or(0);
    let most = if rows <= 64 { 1024 } else { 256 };
    let threads = width.next_multiple_of(32).clamp(32, most) as u32;
    let mut members = String::new();
    for (name, part) in names.iter().zip(&cx.inputs) {
        let _ = writeln!(members, "  typedef {} {name};", part.decoder());
    }
    let _ = writeln!(members, "  typedef {} PUT;", cx.put(cx.outputs.len() - 1)?);
    let _ = writeln!(members, "  static constexpr u32 WIDTH = {width};");
    let fixed = cx.inputs.iter().position(|p| p.ident == "w").is_some_and(|i| cx.fixed(i));
    let _ = writeln!(members, "  static constexpr bool FIXED = {fixed};");
    let _ = writeln!(members, "  static constexpr f32 EPS = {};", float(eps));
    let _ = writeln!(members, "  GLMC_DEVICE static u32 rows(const Args& args) {{ return {}; }}", cx.size(outer));
    let blocks = rows.min(MOST_BLOCKS);
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("norm.cuh");
    Ok(Draft {
        includes,
        members,
        entries: vec![Entry::only(format!("{template}<Config>(args);"), [blocks, 1, 1], threads, 4 * 32)],
        config: format!("a block of {threads} threads a row"),
        why: "the sum over a row is the only dependence; it stays in one block".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
