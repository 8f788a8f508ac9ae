//! Contracts whose meaning is products and one elementwise step on them: `gate_up`, `grouped_gate_up`, `grouped_down`.
//! For few tokens in the lane layout one launch does both. Else products are the kernels of `matmul` and
//! `grouped_matmul` as they are, their results in scratch; the step is a last launch.

use std::fmt::Write as _;

use glmc_ir::kernel::{GateUpKernel, GroupedMatmulKernel, Kernel, MatmulKernel};
use glmc_ir::ops::Einsum;
use glmc_ir::ty::TensorType;

use super::cx::{Cx, Draft, Entry, MOST_BLOCKS, Part};
use super::{grouped, lane, matmul};
use crate::request::{GenerateError, Options, Request};
use crate::signature::{Field, Role};

const THREADS: u64 = 256;

/// A product: its text in a namespace of its own, and where its result lies in scratch.
struct Product {
    name: &'static str,
    text: String,
    draft: Draft,
    at: u64,
    end: u64,
}

/// `kernel` on these inputs of the launch, its result at byte `at` of scratch.
fn product(
    cx: &Cx<'_>,
    name: &'static str,
    kernel: &Kernel,
    inputs: &[usize],
    at: u64,
) -> Result<Product, GenerateError> {
    let types: Vec<TensorType> = inputs.iter().map(|i| cx.inputs[*i].ty.clone()).collect();
    let storage = inputs.iter().map(|i| cx.inputs[*i].storage).collect();
    let options = Options { storage, fixed: Vec::new(), ..cx.request.options.clone() };
    let request = Request { kernel, inputs: &types, options: &options, ..*cx.request };
    let inner = Cx::new(&request)?;
    let mut draft = match kernel {
        Kernel::Matmul(k) => matmul::matmul(&inner, k)?,
        _ => grouped::grouped(&inner)?,
    };
    let bytes = 4 * inner.bound(&inner.outputs[0].ty.dims).unwrap_or(0);
    let scratch_at = (at + bytes).next_multiple_of(256);
    let signature = inner.signature(draft.scratch, draft.loose);
    let mut given = inputs.iter();
    let mut values = Vec::new();
    let foreign = |f: &Field| {
        let why = format!("its product {name} takes `{}`, which the launch does not have", f.ident);
        GenerateError::NoConfig { kernel: cx.request.kernel.name().into(), arch: cx.request.arch, why }
    };
    for f in &signature.0 {
        values.push(match &f.role {
            Role::Param { access, .. } if *access == glmc_ir::kernel::Access::Write => format!("o.scratch + {at}"),
            Role::Param { .. } => {
                let input = given.next().ok_or_else(|| foreign(f))?;
                format!("o.{}", cx.inputs[*input].ident)
            }
            Role::Symbols => "o.syms".into(),
            Role::Scratch { .. } => format!("o.scratch + {scratch_at}"),
            Role::Slab { .. } | Role::Control | Role::Halt => return Err(foreign(f)),
        });
    }
    let (tables, members, more) = (&draft.tables, &draft.members, &draft.more);
    let mut text = format!("namespace {name} {{\n{}\n{tables}", signature.render());
    let _ = write!(text, "struct Config {{\n  typedef Args Arguments;\n{members}}};\n{more}");
    for (i, e) in draft.entries.iter().enumerate() {
        let (values, call) = (values.join(", "), &e.call);
        let _ = write!(text, "GLMC_DEVICE void run{i}(const Outer& o) {{\n  Args args = {{{values}}};\n  {call}\n}}\n");
    }
    let _ = writeln!(text, "}}  // namespace {name}");
    let rejected = std::mem::take(&mut draft.rejected);
    draft.rejected = rejected.into_iter().map(|r| format!("{name}, {r}")).collect();
    let end = (scratch_at + draft.scratch).next_multiple_of(256);
    Ok(Product { name, text, draft, at, end })
}

/// The launches of the products: side by side where they have one shape, else one after the other.
fn launches(products: &mut [Product]) -> Vec<Entry> {
    let shapes = |p: &Product| -> Vec<_> {
        p.draft.entries.iter().map(|e| (e.suffix.clone(), e.grid, e.threads, e.blocks)).collect()
    };
    let first = shapes(&products[0]);
    let mut out = Vec::new();
    if first.iter().all(|s| s.1[2] == 1) && products.iter().all(|p| shapes(p) == first) {
        for (n, (suffix, mut grid, threads, blocks)) in first.into_iter().enumerate() {
            let mut call = String::from("switch (glmc_block_z()) {\n");
            for (i, p) in products.iter().enumerate() {
                let _ = writeln!(call, "    case {i}: return {}::run{n}(args);", p.name);
            }
            call.push_str("  }");
            grid[2] = products.len() as u64;
            let shared = products.iter().map(|p| p.draft.entries[n].shared).max().unwrap_or(0);
            let suffix = if suffix.is_empty() { "products".into() } else { suffix };
            out.push(Entry { suffix, call, grid, threads, blocks, shared });
        }
        return out;
    }
    for p in products {
        for (i, e) in std::mem::take(&mut p.draft.entries).into_iter().enumerate() {
            let (suffix, call) = (format!("{}{i}", p.name), format!("{}::run{i}(args);", p.name));
            out.push(Entry { suffix, call, ..e });
        }
    }
    out
}

/// Products, then `y[i] = value` for each element of the output; `reads` may use `args` and `i`.
fn with_step(
    cx: &Cx<'_>,
    mut products: Vec<Product>,
    members: &str,
    reads: &str,
    value: &str,
) -> Result<Draft, GenerateError> {
    let y = &cx.outputs[0];
    let put = cx.put(0)?;
    let mut m = members.to_owned();
    let _ =
        writeln!(m, "  GLMC_DEVICE static u64 count(const Args& args) {{ return u64(1) * {}; }}", cx.size(&y.ty.dims));
    for p in &products {
        let _ = writeln!(
            m,
            "  GLMC_DEVICE static const f32* {}(const Args& args) {{\n    return reinterpret_cast<const \
             f32*>(args.scratch + {});\n  }}",
            p.name, p.at
        );
    }
    let _ = write!(m, "  GLMC_DEVICE static void run(const Args& args, u64 i) {{\n{reads}");
    let _ = writeln!(m, "    {put}::put(args.{}, i, {value});\n  }}", y.ident);
    let mut entries = launches(&mut products);
    let blocks = cx.bound(&y.ty.dims).unwrap_or(0).div_ceil(THREADS).min(MOST_BLOCKS);
    let mut step = Entry::only("elementwise<Config>(args);", [blocks, 1, 1], THREADS as u32, 0);
    step.suffix = "step".into();
    entries.push(step);
    let mut d = Draft { entries, members: m, tables: "typedef Args Outer;\n".into(), ..Draft::default() };
    d.scratch = products.last().map_or(0, |p| p.end);
    d.loose = products.iter().all(|p| p.draft.scratch == 0 || p.draft.loose);
    d.includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    d.includes.push("elementwise.cuh");
    let mut words: Vec<String> = Vec::new();
    for p in products {
        d.tables.push_str(&p.text);
        d.includes.extend(p.draft.includes);
        d.rejected.extend(p.draft.rejected);
        words.push(format!("{}: {}", p.name, p.draft.config));
    }
    d.config = words.join("; ");
    d.why = "products stream their weights as they do alone; their results are small and stay in the second-level \
             cache for the last launch"
        .into();
    Ok(d)
}

fn swiglu(cx: &Cx<'_>, kernel: &Kernel, inputs: [&[usize]; 2]) -> Result<Draft, GenerateError> {
    let gate = product(cx, "gate", kernel, inputs[0], 0)?;
    let up = product(cx, "up", kernel, inputs[1], gate.end)?;
    with_step(cx, vec![gate, up], "", "", "silu(gate(args)[i]) * up(args)[i]")
}

/// A draft of one launch, or why there is none.
type Fused = Result<Result<Draft, GenerateError>, String>;

/// The fused draft if there is one, else the other with the reason.
fn fused_or(fused: Fused, other: impl FnOnce() -> Result<Draft, GenerateError>) -> Result<Draft, GenerateError> {
    match fused {
        Ok(d) => d,
        Err(why) => {
            let mut d = other()?;
            d.rejected.push(format!("one launch: {why}"));
            Ok(d)
        }
    }
}

/// Two matrices that one launch may read side by side.
fn alike<'a>(cx: &'a Cx<'_>) -> Result<[&'a Part; 2], String> {
    let (a, b) = (&cx.inputs[1], &cx.inputs[2]);
    if a.ty != b.ty || a.storage != b.storage {
        return Err(format!("{} is {}, {} is {}", a.ident, a.ty, b.ident, b.ty));
    }
    Ok([a, b])
}

pub(super) fn gate_up(cx: &Cx<'_>, k: &GateUpKernel) -> Result<Draft, GenerateError> {
    let fused = || -> Fused {
        let w = alike(cx)?;
        let form = matmul::rows_form(cx, &Einsum::parse(&k.spec).map_err(|e| e.to_string())?, w[0])?;
        let shape = form.shape(cx.bound(&form.tokens).unwrap_or(u64::MAX), 1.0);
        if form.batches > 1 {
            return Err("several matrices".into());
        }
        let config = lane::plan(cx, w[0], &lane::Shape { ways: 2, ..shape })?;
        Ok(config.draft(cx, &w, None, ["1u".into(), cx.size(&form.tokens)]))
    };
    let kernel = MatmulKernel { spec: k.spec.clone(), names: Vec::new() }.into();
    fused_or(fused(), || swiglu(cx, &kernel, [&[0, 1], &[0, 2]]))
}

pub(super) fn grouped_gate_up(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let fused = || -> Fused {
        let w = alike(cx)?;
        let config = lane::plan(cx, w[0], &grouped::shape(cx, [0, 1, 3], 2, false)?)?;
        Ok(config.draft(cx, &w, None, [cx.size(&cx.inputs[3].ty.dims), "1u".into()]))
    };
    fused_or(fused(), || swiglu(cx, &GroupedMatmulKernel {}.into(), [&[0, 1, 3], &[0, 2, 3]]))
}

pub(super) fn grouped_down(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let fused = || -> Fused {
        let config = lane::plan(cx, &cx.inputs[1], &grouped::shape(cx, [0, 1, 2], 1, true)?)?;
        let counts = [cx.size(&cx.inputs[2].ty.dims[..1]), "1u".into()];
        Ok(config.draft(cx, &[&cx.inputs[1]], Some(&cx.inputs[3]), counts))
    };
    fused_or(fused(), || down_in_two(cx))
}

fn down_in_two(cx: &Cx<'_>) -> Result<Draft, GenerateError> {
    let (ids, weights) = (&cx.inputs[2], &cx.inputs[3]);
    let (slots, width) = (cx.constant(&ids.ty.dims[1..])?, cx.constant(&cx.outputs[0].ty.dims[1..])?);
    let product = product(cx, "product", &GroupedMatmulKernel {}.into(), &[0, 1, 2], 0)?;
    let members = format!("  static constexpr u32 SLOTS = {slots}, WIDTH = {width};\n");
    let mut reads = String::from("    u64 first = i / WIDTH * SLOTS, column = i % WIDTH;\n    f32 sum = 0.0f;\n");
    let _ = write!(
        reads,
        "    for (u32 j = 0; j < SLOTS; ++j)\n      sum = glmc_fma(element<{}>(args.{}, first + j), \
         product(args)[(first + j) * WIDTH + column], sum);\n",
        weights.decoder(),
        weights.ident
    );
    with_step(cx, vec![product], &members, &reads, "sum")
}
