//! Kernels that no contract has, for ranks that share a device: ids and counts as a rank's part sees them, and zeros
//! for a rank that holds nothing of what is summed.

use std::fmt::Write as _;

use glmc_ir::kernel::Access;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

use super::share::{Along, part_statements};
use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

const THREADS: u64 = 256;
const MOST_BLOCKS: u64 = 4096;

/// An elementwise kernel in parts.
pub(super) struct Source<'a> {
    pub(super) stem: &'a str,
    pub(super) comment: String,
    pub(super) fields: Vec<(String, Access, TensorType)>,
    /// The elements that it goes over.
    pub(super) over: &'a [Dim],
    pub(super) syms: &'a SymValues,
    /// Statements over `args` and `i`.
    pub(super) run: String,
    /// Bytes of scratch, `args.slots`.
    pub(super) slots: Option<u64>,
    /// Headers beside that of elementwise kernels.
    pub(super) includes: &'a [&'static str],
}

/// The size of these dims as an expression over `args`.
pub(super) fn size(dims: &[Dim], syms: &SymValues) -> Result<String, String> {
    let mut out = String::from("u64(1)");
    for d in dims {
        let _ = match &d.extent {
            Extent::Sym(s) => {
                let at = syms.0.get_index_of(s).ok_or_else(|| format!("symbol {s} is not declared"))?;
                write!(out, " * args.syms[{at}]")
            }
            e => write!(out, " * {}u", e.as_const().ok_or_else(|| format!("no size of {d}"))?),
        };
    }
    Ok(out)
}

/// Most elements of these dims.
pub(super) fn most(dims: &[Dim], syms: &SymValues) -> Result<u64, String> {
    let of = |d: &Dim| match &d.extent {
        Extent::Sym(x) => syms.get(x),
        e => e.as_const(),
    };
    let bound = dims.iter().try_fold(1u64, |n, d| n.checked_mul(of(d)?)).filter(|n| *n < 1 << 40);
    bound.ok_or_else(|| "too many elements".to_owned())
}

/// The kernel.
pub(super) fn make(s: Source<'_>) -> Result<Generated, String> {
    let bound = most(s.over, s.syms).map_err(|why| format!("{} over {why}", s.stem))?;
    let mut signature = Signature::default();
    for (index, (ident, access, ty)) in s.fields.into_iter().enumerate() {
        signature.0.push(Field { ident, role: Role::Param { index, access, ty, layout: "rows" } });
    }
    let count = size(s.over, s.syms)?;
    if count.contains("syms") || s.run.contains("args.syms") {
        signature.0.push(Field { ident: "syms".into(), role: Role::Symbols });
    }
    if let Some(bytes) = s.slots {
        signature.0.push(Field { ident: "slots".into(), role: Role::Scratch { bytes, kept: false } });
    }
    let mut inner = signature.render();
    let _ = write!(
        inner,
        "struct Config {{\n  typedef Args Arguments;\n  GLMC_DEVICE static u64 least(u64 a, u64 b) {{ return a < b ? a : b; \
         }}\n  GLMC_DEVICE static u64 count(const Args& args) {{ return {count}; \
         }}\n  GLMC_DEVICE static void run(const Args& args, u64 i) {{\n{}  }}\n}};\n",
        s.run
    );
    let head = format!("// {}\n", s.comment);
    let hash = blake3::hash(format!("{head}{inner}{bound}").as_bytes()).to_hex();
    let name = format!("{}_{}", s.stem, &hash[..12]);
    let body = format!(
        "{head}namespace {name}_ {{\n{inner}}}  // namespace\nGLMC_KERNEL({name}, {name}_::Args, {THREADS}, 1) {{\n  \
         elementwise<{name}_::Config>(args);\n}}\n"
    );
    let blocks = bound.div_ceil(THREADS).clamp(1, MOST_BLOCKS) as u32;
    let shape = LaunchShape { symbol: name.clone(), grid: [blocks, 1, 1], threads: THREADS as u32, shared: 0 };
    Ok(Generated {
        name,
        includes: s.includes.iter().copied().chain(["elementwise.cuh"]).collect(),
        body,
        signature,
        launches: vec![shape],
        side: None,
        early: Vec::new(),
        config: "a thread an element".into(),
        rejected: Vec::new(),
    })
}

/// What a rank sees of integers that speak of a dim of which it holds `ranges`.
pub(super) enum Seen {
    /// Positions: those in the part counted in the part, others -1.
    Positions,
    /// Counts of first entries: how many of them are in the part; negative ones stay.
    Counts,
}

pub(super) fn seen(how: &Seen, ty: &TensorType, along: &Along, syms: &SymValues) -> Result<Generated, String> {
    let mut run = String::from("    i32 x = reinterpret_cast<const i32*>(args.x)[i];\n    u64 p = u32(x);\n");
    run.push_str(match how {
        Seen::Positions => "    i32 y = -1;\n",
        Seen::Counts => "    i32 y = x;\n    if (x >= 0) y = 0;\n",
    });
    let mut range = |start: &str, end: &str, before: u64| {
        let _ = match how {
            Seen::Positions => {
                writeln!(run, "    if (x >= 0 && p >= {start} && p < {end}) y = i32(p - {start} + {before}u);")
            }
            Seen::Counts => {
                writeln!(run, "    if (x >= 0 && p > {start}) y += i32((p < {end} ? p : {end}) - {start});")
            }
        };
    };
    match along {
        Along::Fixed(ranges) => {
            let mut before = 0;
            for r in ranges {
                range(&format!("{}u", r.start), &format!("{}u", r.end), before);
                before += r.end - r.start;
            }
        }
        Along::Part { symbol, unit, at, size } => {
            range("start", "end", 0);
            run.insert_str(0, &part_statements(*symbol, *unit, *at, *size, ""));
        }
    }
    run.push_str("    reinterpret_cast<i32*>(args.y)[i] = y;\n");
    let (stem, what) = match how {
        Seen::Positions => ("own_positions", "positions"),
        Seen::Counts => ("own_counts", "counts"),
    };
    let comment = format!("{what} of a whole dim as a rank sees them that holds {along:?} of it");
    let fields = vec![("x".into(), Access::Read, ty.clone()), ("y".into(), Access::Write, ty.clone())];
    make(Source { stem, comment, fields, over: &ty.dims, syms, run, slots: None, includes: &[] })
}

/// Positions that a rank found in its part of a dim, as the whole dim counts them; `ty` is its part of a selection.
pub(super) fn outward(ty: &TensorType, along: &Along, syms: &SymValues) -> Result<Generated, String> {
    let all = ty.last().and_then(|d| d.extent.as_const()).ok_or_else(|| format!("a selection of {ty}"))?;
    let k = all / 2;
    let over = [&ty.dims[..ty.rank() - 1], &[Dim::new(k)]].concat();
    let mut run = format!("    f32* at = reinterpret_cast<f32*>(args.y) + (i / {k}u * {all}u + i % {k}u);\n");
    run.push_str("    if (*at < 0.0f) return;\n    u64 p = u64(*at);\n");
    match along {
        Along::Fixed(ranges) => {
            let mut before = 0;
            for r in ranges.iter().filter(|r| r.start < r.end) {
                let held = r.end - r.start;
                let _ = writeln!(
                    run,
                    "    if (p >= {before}u && p < {}u) *at = f32(p - {before}u + {}u);",
                    before + held,
                    r.start
                );
                before += held;
            }
        }
        Along::Part { symbol, unit, at, size } => {
            run.push_str(&part_statements(*symbol, *unit, *at, *size, ""));
            run.push_str("    *at = f32(p + start);\n    (void)end;\n");
        }
    }
    let fields = vec![("y".into(), Access::Update, ty.clone())];
    let comment = format!("positions found by a rank that holds {along:?} of a dim, in the whole dim");
    make(Source { stem: "own_found", comment, fields, over: &over, syms, run, slots: None, includes: &[] })
}

/// Zeros of `ty`, four bytes an element.
pub(super) fn zeros(ty: &TensorType, syms: &SymValues) -> Result<Generated, String> {
    if ty.elem.block() != (1, 4) {
        return Err(format!("zeros of {ty}"));
    }
    let run = "    reinterpret_cast<u32*>(args.y)[i] = 0;\n".to_owned();
    let fields = vec![("y".into(), Access::Write, ty.clone())];
    let comment = format!("zeros of {ty}");
    make(Source { stem: "zeros", comment, fields, over: &ty.dims, syms, run, slots: None, includes: &[] })
}
