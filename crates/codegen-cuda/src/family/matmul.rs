//! Matmuls. `any` takes every named-axis contraction; `rows` and `tensor` take those that are
//! `y[t, r] = x[t, r / FREE, :] . w[r, :]`, for few and for many tokens; `tensor` also where an inner part of the rows is
//! the right operand's last index.

use std::fmt::Write as _;

use glmc_ir::kernel::MatmulKernel;
use glmc_ir::ops::Einsum;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem};

use super::cx::{Beside, Cx, Draft, Entry, MOST_BLOCKS, Part, choose};
use super::tensor::{Matrix, Split, THREADS, Tile};
use super::{lane, lane_emit};
use crate::program::settle::EARLY;
use crate::request::GenerateError;

/// Warps of a block of `any` and `rows`.
const WARPS: u64 = 8;
/// The matrix form of a contraction.
pub(super) struct Rows {
    /// Dims of the tokens.
    pub(super) tokens: Vec<Dim>,
    /// Rows that share one vector of x; there are `batches` such groups.
    free: u64,
    pub(super) batches: u64,
    /// Summed elements.
    k: u64,
    /// Rows whose elements are neighbours, where the summed index is not the last; else 1.
    inner: u64,
}

impl Rows {
    pub(super) fn shape(&self, tokens: u64, share: f64) -> lane::Shape {
        let (batches, free, k) = (self.batches, self.free, self.k);
        lane::Shape { batches, free, k, tokens, folded: 0, ways: 1, share: 1, experts: 0, part: share }
    }
}

pub(super) fn matmul(cx: &Cx<'_>, kernel: &MatmulKernel) -> Result<Draft, GenerateError> {
    let e = Einsum::parse(&kernel.spec)
        .map_err(|why| GenerateError::Type { kernel: cx.request.kernel.name().to_owned(), why })?;
    let rights = &cx.inputs[1..];
    let forms: Result<Vec<Rows>, String> = rights.iter().map(|w| rows_form(cx, &e, w)).collect();
    let tokens = forms.as_ref().ok().and_then(|f| cx.bound(&f[0].tokens)).unwrap_or(0);
    // Decoded weights per multiply-add, in units of a decode: `rows` decodes a row once for 8 tokens, a tile once for all
    // its tokens, but computes 16 at a time.
    let rows_cost = tokens.div_ceil(8) as f64 * 8.0 / tokens.max(1) as f64;
    let strided = |w: &Part| match w.ty.elem {
        Elem::Quant(_) => 40.0,
        _ => 20.0,
    };
    let any_cost = rights.iter().map(strided).fold(0.0, f64::max);
    let inner_last = |f: &Vec<Rows>| if f.iter().any(|f| f.inner > 1) { Err(INNER.to_owned()) } else { Ok(()) };
    let rows_verdict = forms.as_ref().map_err(Clone::clone).and_then(inner_last).map(|()| (rows_cost, ()));
    let tile = forms.as_ref().map_err(Clone::clone).and_then(|f| {
        let list = matrices(f, rights);
        list.iter().try_for_each(Matrix::check)?;
        Ok((Tile::choose(cx, &list, tokens)?, list))
    });
    let tile_verdict = tile.as_ref().map(|_| (1.0 / 16.0 + 8.0 / tokens.max(1) as f64, ())).map_err(Clone::clone);
    let lanes = || -> Result<Vec<lane::Config>, String> {
        let forms = forms.as_ref().map_err(Clone::clone)?;
        inner_last(forms)?;
        let bytes: Vec<f64> = rights.iter().map(|w| w.ty.bytes(&Default::default()).unwrap_or(0) as f64).collect();
        let all: f64 = bytes.iter().sum();
        let shares = bytes.iter().map(|b| b / all.max(1.0));
        let shapes = forms.iter().zip(rights).zip(shares).map(|((f, w), n)| (w, f.shape(tokens, n)));
        lane::plan_side_by_side(cx, &shapes.collect::<Vec<_>>())
    };
    let lanes = lanes();
    let repacked = rights.iter().find(|w| w.lane().is_some());
    let any_verdict = match repacked {
        Some(w) => Err(format!("{} is in the lane layout", w.ident)),
        None => Ok((any_cost, ())),
    };
    let lane_verdict = lanes.as_ref().map(|_| (0.05, ())).map_err(Clone::clone);
    let columns_verdict = columns(cx, &forms, tokens).map(|()| (0.06, ()));
    let list = vec![
        ("any", any_verdict),
        ("rows", rows_verdict),
        ("columns", columns_verdict),
        ("tensor", tile_verdict),
        ("lane", lane_verdict),
    ];
    let (name, (), rejected) = choose(cx, list)?;
    let mut draft = match (&forms, &lanes, &tile) {
        (Ok(forms), Ok(lanes), _) if name == "lane" => few(cx, &e, forms, lanes)?,
        (Ok(forms), _, Ok((tile, list))) if name == "tensor" => many(cx, &e, forms, *tile, list)?,
        (Ok(forms), ..) if name == "columns" => in_columns(cx, &e, forms)?,
        (Ok(forms), ..) if name == "rows" => matrix(cx, &e, forms)?,
        _ => any(cx, &e)?,
    };
    draft.rejected.extend(rejected);
    draft.includes.extend(cx.decoders(&cx.inputs.iter().collect::<Vec<_>>()));
    Ok(draft)
}

const INNER: &str = "the summed index is not the right operand's last";

fn matrices<'a>(forms: &[Rows], rights: &'a [Part]) -> Vec<Matrix<'a>> {
    let one = |(f, w): (&Rows, &'a Part)| Matrix { w, count: f.batches, rows: f.free, k: f.k, inner: f.inner };
    forms.iter().zip(rights).map(one).collect()
}

/// Offsets of each right operand's part in the joined last dim of the result, and that dim's size. A part may have
/// pieces of its own, so the result's pieces say nothing about parts.
fn joined(cx: &Cx<'_>, e: &Einsum) -> (Vec<u64>, u64) {
    let rights = &cx.inputs[1..];
    if rights.len() < 2 {
        return (vec![0], 0);
    }
    let at = e.out.last().and_then(|c| e.rhs.iter().position(|l| l == c));
    let size = |w: &Part| at.and_then(|at| cx.bound(&w.ty.dims[at..=at])).unwrap_or(0);
    let sizes: Vec<u64> = rights.iter().map(size).collect();
    let offsets = sizes.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect();
    (offsets, sizes.iter().sum())
}

/// The matrix form, or why there is none.
pub(super) fn rows_form(cx: &Cx<'_>, e: &Einsum, w: &Part) -> Result<Rows, String> {
    let sum = e.contracted();
    let batch: Vec<u8> = e.rhs.iter().copied().filter(|c| e.lhs.contains(c) && e.out.contains(c)).collect();
    let free: Vec<u8> = e.rhs.iter().copied().filter(|c| !e.lhs.contains(c)).collect();
    let tokens: Vec<u8> = e.lhs.iter().copied().filter(|c| !e.rhs.contains(c)).collect();
    let cat = |parts: [&[u8]; 3]| parts.concat();
    if sum.is_empty() {
        return Err("nothing is summed".into());
    }
    // The summed index may lie between the rows' indices.
    let outer = (0..=free.len()).rev().find(|n| e.rhs == [&batch[..], &free[..*n], &sum, &free[*n..]].concat());
    let Some(outer) = outer else {
        return Err("the right operand is not batch, rows, summed in this order, nor summed between rows".into());
    };
    if e.lhs != cat([&tokens, &batch, &sum]) || e.out != cat([&tokens, &batch, &free]) {
        return Err("the left operand or the result has another order".into());
    }
    let x = &cx.inputs[0].ty;
    let size = |letters: &[u8], side: &[u8], dims: &[Dim]| -> Result<u64, String> {
        letters.iter().try_fold(1u64, |n, c| {
            let at = side.iter().position(|l| l == c).ok_or("a letter is lost")?;
            let d = dims[at].extent.as_const().ok_or_else(|| format!("dim `{}` is symbolic", *c as char))?;
            n.checked_mul(d).filter(|n| *n <= u64::from(u32::MAX)).ok_or_else(|| "a matrix is too large".to_owned())
        })
    };
    let k = size(&sum, &e.rhs, &w.ty.dims)?;
    let inner = size(&free[outer..], &e.rhs, &w.ty.dims)?;
    let (free, batches) = (size(&free, &e.rhs, &w.ty.dims)?, size(&batch, &e.rhs, &w.ty.dims)?);
    if free * batches > u64::from(u32::MAX) {
        return Err("too many rows".into());
    }
    Ok(Rows { tokens: x.dims[..tokens.len()].to_vec(), free, batches, k, inner })
}

/// Calls one configuration for each right operand; `z` of the grid says which.
fn per_part(names: &[String], template: &str) -> String {
    if let [only] = names {
        return format!("{template}<{only}>(args);");
    }
    let mut out = String::from("switch (glmc_block_z()) {\n");
    for (i, n) in names.iter().enumerate() {
        let _ = writeln!(out, "    case {i}: return {template}<{n}>(args);");
    }
    out.push_str("  }");
    out
}

/// Rows of a block of `columns`, its fewest threads, and the runs of a row that one of them holds.
const COLUMNS_ROWS: u64 = 2;
const COLUMNS_THREADS: u64 = 512;
const COLUMNS_HELD: u64 = 2;
/// More rows fill the machine a warp each.
const COLUMNS_MOST: u64 = 2048;

/// Whether `columns` serves: one token, floats, few long rows.
fn columns(cx: &Cx<'_>, forms: &Result<Vec<Rows>, String>, tokens: u64) -> Result<(), String> {
    let forms = forms.as_ref().map_err(Clone::clone)?;
    if tokens != 1 {
        return Err(format!("{tokens} tokens, it takes one"));
    }
    let float = |w: &Part| matches!(w.ty.elem.storage(), Some(QuantType::F32 | QuantType::F16 | QuantType::BF16));
    if let Some(w) = cx.inputs[1..].iter().find(|w| !float(w)) {
        return Err(format!("{} is no matrix of floats", w.ident));
    }
    let most = 8 * COLUMNS_THREADS * COLUMNS_HELD;
    match forms.iter().find(|f| f.batches != 1 || f.free > COLUMNS_MOST || f.k % 8 != 0 || f.k > most) {
        Some(f) => Err(format!("{} rows of {} in {} batches", f.free, f.k, f.batches)),
        None => Ok(()),
    }
}

/// Splits structs into the members of `Config` (the first) and the text after it.
fn structs(list: Vec<String>) -> (String, String, Vec<String>) {
    let names: Vec<String> =
        (0..list.len()).map(|i| if i == 0 { "Config".to_owned() } else { format!("Config{i}") }).collect();
    let mut it = list.into_iter();
    let first = it.next().unwrap_or_default();
    let more =
        it.zip(&names[1..]).map(|(m, n)| format!("struct {n} {{\n  typedef Args Arguments;\n{m}}};\n")).collect();
    (first, more, names)
}

fn types(cx: &Cx<'_>, w: &Part) -> Result<String, GenerateError> {
    let mut m = format!("  typedef {} X;\n  typedef {} W;\n", cx.inputs[0].decoder(), w.decoder());
    let _ = writeln!(m, "  typedef {} PUT;", cx.put(0)?);
    let _ = writeln!(m, "  GLMC_DEVICE static const u8* w(const Args& args) {{ return args.{}; }}", w.ident);
    Ok(m)
}

/// `lane`.
fn few(cx: &Cx<'_>, e: &Einsum, forms: &[Rows], lanes: &[lane::Config]) -> Result<Draft, GenerateError> {
    let (offsets, total) = joined(cx, e);
    let mut list = Vec::new();
    for (((f, l), w), first) in forms.iter().zip(lanes).zip(&cx.inputs[1..]).zip(&offsets) {
        let rows = f.free * f.batches;
        let mut m = format!("  typedef {} X;\n  typedef {} PUT;\n", cx.inputs[0].decoder(), cx.put(0)?);
        m.push_str(&l.members(w));
        m.push_str(&lane_emit::accessors(&cx.inputs[0].ident, &cx.outputs[0].ident, &[&w.ident]));
        let steps = [("XSTEP", f.batches * f.k), ("YSTEP", if total == 0 { rows } else { total }), ("YFIRST", *first)];
        for (name, value) in steps {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let counts = [("tokens", cx.size(&f.tokens)), ("batches", format!("{}u", f.batches))];
        for (name, value) in counts {
            let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {value}; }}");
        }
        list.push(m);
    }
    let (members, more, names) = structs(list);
    let counts: Vec<u64> = lanes.iter().map(|l| l.blocks).collect();
    let most_of = |f: fn(&lane::Config) -> u64| lanes.iter().map(f).max().unwrap_or(1);
    let threads = most_of(|l| l.threads);
    let call = dealt(&names, &counts, "gemv_lane");
    let entry = Entry {
        suffix: String::new(),
        call,
        grid: [counts.iter().sum(), 1, 1],
        threads: threads as u32,
        blocks: lanes.iter().map(|l| l.resident).min().unwrap_or(1) as u32,
        shared: most_of(|l| l.shared),
    };
    Ok(Draft {
        includes: vec!["gemv.cuh"],
        members,
        more,
        entries: vec![entry],
        config: lanes.iter().map(lane::Config::words).collect::<Vec<_>>().join("; "),
        why: "bound by the weight's bytes, whose copies hide the launch before".into(),
        rejected: lanes.iter().flat_map(|l| l.rejected.clone()).collect(),
        beside: Some(Beside::Exact),
        ..Draft::default()
    })
}

/// `columns`.
fn in_columns(cx: &Cx<'_>, e: &Einsum, forms: &[Rows]) -> Result<Draft, GenerateError> {
    let (offsets, _) = joined(cx, e);
    let (mut list, mut call, mut blocks) = (Vec::new(), String::from("u32 block = glmc_block_x();\n"), 0);
    for (i, ((f, w), first)) in forms.iter().zip(&cx.inputs[1..]).zip(&offsets).enumerate() {
        let mut m = types(cx, w)?;
        let constants =
            [("ROWS", f.free), ("K", f.k), ("GROUP", COLUMNS_ROWS), ("HELD", COLUMNS_HELD), ("YFIRST", *first)];
        for (name, value) in constants {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let count = cx.size(&f.tokens);
        let _ = writeln!(m, "  static constexpr bool FIXED = {};", cx.fixed(i + 1));
        let _ = writeln!(m, "  GLMC_DEVICE static u32 tokens(const Args& args) {{ return {count}; }}");
        list.push(m);
        let name = if i == 0 { "Config".to_owned() } else { format!("Config{i}") };
        let from = if blocks == 0 { "block".to_owned() } else { format!("block - {blocks}") };
        blocks += f.free.div_ceil(COLUMNS_ROWS);
        let _ = writeln!(call, "  if (block < {blocks}) return matmul_columns<{name}>(args, {from});");
    }
    let (members, more, _) = structs(list);
    let shared = 4 * 32 * COLUMNS_ROWS;
    Ok(Draft {
        includes: vec!["matmul.cuh"],
        members,
        more,
        entries: vec![Entry::only(call, [blocks, 1, 1], COLUMNS_THREADS as u32, shared)],
        config: format!("{COLUMNS_ROWS} rows a block, columns over its threads, {blocks} blocks"),
        why: "one token: all of a row is on its way at once, before the launch that makes x has ended".into(),
        beside: Some(Beside::Wide(COLUMNS_THREADS as u32)),
        ..Draft::default()
    })
}

/// `rows`.
fn matrix(cx: &Cx<'_>, e: &Einsum, forms: &[Rows]) -> Result<Draft, GenerateError> {
    let (offsets, total) = joined(cx, e);
    let most = cx.bound(&forms[0].tokens).unwrap_or(0);
    let tokens = most.next_power_of_two().clamp(1, 8);
    let mut list = Vec::new();
    let mut blocks = 0;
    for ((f, w), first) in forms.iter().zip(&cx.inputs[1..]).zip(&offsets) {
        let rows = f.free * f.batches;
        let mut m = types(cx, w)?;
        let run = if f.k % 8 == 0 { 8 } else { 1 };
        let constants = [
            ("ROWS", rows),
            ("FREE", f.free),
            ("K", f.k),
            ("RUN", run),
            ("TOKENS", tokens),
            ("XSTEP", f.batches * f.k),
            ("YSTEP", if total == 0 { rows } else { total }),
            ("YFIRST", *first),
        ];
        for (name, value) in constants {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let _ = writeln!(m, "  {EARLY}");
        let count = cx.size(&f.tokens);
        let _ = writeln!(m, "  GLMC_DEVICE static u32 tokens(const Args& args) {{ return {count}; }}");
        list.push(m);
        blocks = blocks.max(rows.div_ceil(WARPS).min(MOST_BLOCKS));
    }
    let (members, more, names) = structs(list);
    let y = most.div_ceil(tokens);
    let grid = [blocks, y.min(65_535), names.len() as u64];
    Ok(Draft {
        includes: vec!["matmul.cuh"],
        members,
        more,
        entries: vec![Entry::only(per_part(&names, "matmul_rows"), grid, 32 * WARPS as u32, 0)],
        config: format!("a warp a row, {tokens} tokens at a time, {blocks} by {y} blocks of {WARPS} warps"),
        why: "few tokens: bound by the weight's bytes, which are read once".into(),
        ..Draft::default()
    })
}

/// `tensor`.
fn many(cx: &Cx<'_>, e: &Einsum, forms: &[Rows], tile: Tile, matrices: &[Matrix<'_>]) -> Result<Draft, GenerateError> {
    let (offsets, total) = joined(cx, e);
    let (x, tokens, batches) = (&cx.inputs[0], &forms[0].tokens, forms[0].batches);
    let most = cx.bound(tokens).unwrap_or(0);
    let count = format!("{} * {batches}u", cx.size(tokens));
    let split = Split::new(x, matrices, tile, most * batches, &count, 0);
    let mut list = Vec::new();
    for (m, first) in matrices.iter().zip(&offsets) {
        let rows = m.rows * m.count;
        let mut members = format!("  typedef {} PUT;\n{}", cx.put(0)?, tile.members(m));
        let step = if total == 0 { rows } else { total };
        for (name, value) in [("FREE", m.rows), ("BATCHES", m.count), ("YSTEP", step), ("YFIRST", *first)] {
            let _ = writeln!(members, "  static constexpr u32 {name} = {value};");
        }
        let count = cx.size(tokens);
        let _ = writeln!(members, "  GLMC_DEVICE static u32 tokens(const Args& args) {{ return {count}; }}");
        list.push(members);
    }
    let (members, more, names) = structs(list);
    let counts: Vec<u64> = matrices.iter().map(|m| m.count * m.rows.div_ceil(tile.rows())).collect();
    let call = dealt(&names, &counts, "matmul_tensor");
    let across = most.div_ceil(tile.columns).clamp(1, 65_535);
    let blocks: u64 = counts.iter().sum();
    let mut tiles = Entry::only(call, [blocks, across, 1], THREADS, tile.bytes(matrices));
    tiles.blocks = tile.resident(matrices);
    Ok(Draft {
        includes: vec!["tensor.cuh"],
        tables: split.text,
        members,
        more,
        entries: vec![split.entry, Entry { suffix: "tiles".into(), ..tiles }],
        scratch: split.end,
        loose: true,
        config: format!("{}, {blocks} by {across} blocks", tile.words()),
        why: "many tokens: a decoded weight serves a whole tile".into(),
        ..Draft::default()
    })
}

/// Calls one configuration for each right operand, whose blocks follow each other.
fn dealt(names: &[String], counts: &[u64], template: &str) -> String {
    let mut call = String::from("u32 block = glmc_block_x();\n");
    let mut before = 0;
    for (name, n) in names.iter().zip(counts) {
        let from = if before == 0 { "block".to_owned() } else { format!("block - {before}") };
        before += n;
        let _ = writeln!(call, "  if (block < {before}) return {template}<{name}>(args, {from});");
    }
    call
}

/// The general form, from letters to index arithmetic.
fn any(cx: &Cx<'_>, e: &Einsum) -> Result<Draft, GenerateError> {
    let (offsets, total) = joined(cx, e);
    let sum = e.contracted();
    let x = &cx.inputs[0];
    let mut list = Vec::new();
    let mut outputs = 0;
    for (w, first) in cx.inputs[1..].iter().zip(&offsets) {
        let dim = |c: &u8| -> Dim {
            let on = |side: &[u8], t: &Part| side.iter().position(|l| l == c).map(|i| t.ty.dims[i].clone());
            on(&e.rhs, w).or_else(|| on(&e.lhs, x)).unwrap_or_else(|| Dim::new(1))
        };
        let out: Vec<Dim> = e.out.iter().map(dim).collect();
        let inner: Vec<Dim> = sum.iter().map(dim).collect();
        let mut m = types(cx, w)?;
        let wide = |dims: &[Dim]| format!("u64(1) * {}", cx.size(dims));
        let _ = writeln!(m, "  GLMC_DEVICE static u64 outputs(const Args& args) {{ return {}; }}", wide(&out));
        let _ = writeln!(m, "  GLMC_DEVICE static u64 sums(const Args& args) {{ return {}; }}", wide(&inner));
        // Index `from` over `letters` with sizes `dims`, as an offset in a tensor with `side`'s letters.
        let offset = |from: &str, letters: &[u8], dims: &[Dim], side: &[u8], of: &[Dim]| -> String {
            let mut terms = Vec::new();
            for (i, c) in letters.iter().enumerate() {
                let Some(at) = side.iter().position(|l| l == c) else { continue };
                let (below, n, step) = (wide(&dims[i + 1..]), cx.size(&dims[i..=i]), wide(&of[at + 1..]));
                let index = if i == 0 { format!("{from} / ({below})") } else { format!("{from} / ({below}) % ({n})") };
                terms.push(format!("{index} * ({step})"));
            }
            if terms.is_empty() { "0".into() } else { terms.join(" + ") }
        };
        let _ = writeln!(m, "  GLMC_DEVICE static void origin(const Args& args, u64 o, u64* x, u64* w, u64* y) {{");
        let _ = writeln!(m, "    *x = {};", offset("o", &e.out, &out, &e.lhs, &x.ty.dims));
        let _ = writeln!(m, "    *w = {};", offset("o", &e.out, &out, &e.rhs, &w.ty.dims));
        let n = cx.size(&out[out.len().saturating_sub(1)..]);
        let y = if total == 0 { "o".to_owned() } else { format!("o / ({n}) * {total}u + {first}u + o % ({n})") };
        let _ = writeln!(m, "    *y = {y};\n  }}");
        let _ = writeln!(m, "  GLMC_DEVICE static void step(const Args& args, u64 k, u64* x, u64* w) {{");
        let _ = writeln!(m, "    *x = {};", offset("k", &sum, &inner, &e.lhs, &x.ty.dims));
        let _ = writeln!(m, "    *w = {};\n  }}", offset("k", &sum, &inner, &e.rhs, &w.ty.dims));
        list.push(m);
        outputs = outputs.max(cx.bound(&out).unwrap_or(0));
    }
    let (members, more, names) = structs(list);
    let blocks = outputs.div_ceil(WARPS).min(MOST_BLOCKS);
    Ok(Draft {
        includes: vec!["matmul.cuh"],
        members,
        more,
        entries: vec![Entry::only(
            per_part(&names, "matmul_any"),
            [blocks, 1, names.len() as u64],
            32 * WARPS as u32,
            0,
        )],
        config: format!("a warp an output element, {blocks} blocks of {WARPS} warps"),
        why: "takes any order of indices".into(),
        ..Draft::default()
    })
}
