//! Expert choice: a warp a token.

use std::fmt::Write as _;

use glmc_ir::ops::{Gating, MoeRoute};

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS, float};
use crate::request::GenerateError;

pub(super) fn route(cx: &Cx<'_>, op: &MoeRoute) -> Result<Draft, GenerateError> {
    let logits = &cx.inputs[0];
    let experts = cx.constant(&logits.ty.dims[1..])?;
    let mut m = format!("  typedef {} X;\n", logits.decoder());
    let constants = [("EXPERTS", experts), ("CHOSEN", op.k), ("GROUPS", op.groups), ("GROUPS_USED", op.groups_used)];
    for (name, value) in constants {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let softmax = op.gating == Gating::Softmax;
    let _ = writeln!(m, "  static constexpr bool SOFTMAX = {softmax}, NORM = {}, FIXED = {};", op.norm, cx.fixed(1));
    let _ = writeln!(m, "  static constexpr f32 SCALE = {};", float(op.scale));
    let tokens = &logits.ty.dims[..1];
    let _ = writeln!(m, "  GLMC_DEVICE static u32 tokens(const Args& args) {{ return {}; }}", cx.size(tokens));
    let bias = match cx.inputs.get(1) {
        Some(b) => format!("element<{}>(args.{}, e)", b.decoder(), b.ident),
        None => "0.0f".into(),
    };
    let _ = writeln!(m, "  GLMC_DEVICE static f32 bias(const Args& args, u32 e) {{ return {bias}; }}");
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("route.cuh");
    let blocks = cx.bound(tokens).unwrap_or(0).min(MOST_BLOCKS);
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("route<Config>(args);", [blocks, 1, 1], 32, 8 * experts + 4 * (op.groups + op.k))],
        config: "a warp a token, scores in registers".into(),
        why: "few experts: the selection is short, a second launch would cost more".into(),
        beside: Some(Beside::Any),
        ..Draft::default()
    })
}
