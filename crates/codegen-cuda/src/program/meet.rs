//! Collectives among ranks that share a device: one kernel over the buffers of a group. Sums go in the order of ranks,
//! so all copies have the same bits.

use std::fmt::Write as _;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::placement::Mesh;
use glmc_ir::ty::{Dim, Elem, PendingKind, SymValues, TensorType};

use super::local::Symbols;
use super::own::{Source, make, size};
use super::share::{Along, along, part_statements};
use crate::request::Generated;

/// A meeting of a group of ranks.
pub(super) struct Meet<'a> {
    pub(super) what: &'a Collective,
    pub(super) arg: &'a TensorType,
    pub(super) result: &'a TensorType,
    pub(super) mesh: &'a Mesh,
    /// The ranks in their order along the axis.
    pub(super) members: &'a [usize],
}

/// What the members hold along one dim of a value.
struct Cut {
    dim: usize,
    held: Vec<Along>,
}

impl Meet<'_> {
    /// The kernel: its first arguments are the members' operands, then their results.
    pub(super) fn kernel(&self, symbols: &mut Symbols) -> Result<Generated, String> {
        let first = *self.members.first().ok_or("a group without ranks")?;
        let word = |t: &TensorType| matches!(t.elem, Elem::F32 | Elem::I32);
        if !word(self.arg) || !word(self.result) {
            return Err(format!("stored blocks do not travel: {}", self.arg));
        }
        // The value as the whole group has it: pending and split no more along its axis.
        let mut whole = self.arg.clone();
        whole.pending = None;
        whole.dims.iter_mut().filter(|d| d.axis() == Some(&self.what.axis)).for_each(|d| d.split = None);
        let value = symbols.local(&whole, self.mesh, first as u64)?;
        let bounds = symbols.bounds.clone();
        let mut run = String::new();
        match self.what.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. } => self.merged(&mut run)?,
            CollectiveKind::AllGather | CollectiveKind::AllToAll { .. } => {
                let dim = self.arg.dims.iter().position(|d| d.axis() == Some(&self.what.axis));
                let dim = dim.ok_or_else(|| format!("{} is not split over {}", self.arg, self.what.axis))?;
                let cut = self.cut(self.arg, dim, &bounds)?;
                joined(&mut run, &cut, &value.dims, &bounds)?;
            }
            CollectiveKind::Shard { .. } => run.push_str("    u32 word = reinterpret_cast<const u32*>(args.in0)[i];\n"),
        }
        match self.what.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => {
                for r in 0..self.members.len() {
                    let _ = writeln!(run, "    reinterpret_cast<u32*>(args.out{r})[i] = word;");
                }
            }
            CollectiveKind::ReduceScatter { dim, .. }
            | CollectiveKind::AllToAll { dim, .. }
            | CollectiveKind::Shard { dim, .. } => {
                let cut = self.cut(self.result, dim, &bounds)?;
                scattered(&mut run, &cut, &value.dims, &bounds)?;
            }
        }
        let mut fields = Vec::new();
        for (stem, access, ty) in [("in", Access::Read, self.arg), ("out", Access::Write, self.result)] {
            for (i, r) in self.members.iter().enumerate() {
                fields.push((format!("{stem}{i}"), access, symbols.local(ty, self.mesh, *r as u64)?));
            }
        }
        let comment =
            format!("{:?} over {} of {} ranks: {}", self.what.kind, self.what.axis, self.members.len(), self.arg);
        make(Source { stem: "meet", comment, fields, over: &value.dims, syms: &symbols.bounds, run })
    }

    fn merged(&self, run: &mut String) -> Result<(), String> {
        let kind = self.arg.pending.as_ref().map(|(k, _)| *k);
        let ty = if self.arg.elem == Elem::I32 { "i32" } else { "f32" };
        let step = match (kind, ty) {
            (Some(PendingKind::Sum), "i32") => "v = i32(u32(v) + u32(x))",
            (Some(PendingKind::Sum), _) => "v = v + x",
            (Some(PendingKind::Max), "i32") => "v = v > x ? v : x",
            (Some(PendingKind::Max), _) => "v = glmc_max(v, x)",
            _ => return Err(format!("a merge of {} does not run on this device yet", self.arg)),
        };
        let _ = writeln!(run, "    {ty} v = reinterpret_cast<const {ty}*>(args.in0)[i];");
        for r in 1..self.members.len() {
            let _ = writeln!(run, "    {{ {ty} x = reinterpret_cast<const {ty}*>(args.in{r})[i]; {step}; }}");
        }
        run.push_str(if ty == "i32" { "    u32 word = u32(v);\n" } else { "    u32 word = glmc_float_to_bits(v);\n" });
        Ok(())
    }

    fn cut(&self, ty: &TensorType, dim: usize, bounds: &SymValues) -> Result<Cut, String> {
        let of = |r: &usize| along(ty, dim, self.mesh, *r, bounds);
        Ok(Cut { dim, held: self.members.iter().map(of).collect::<Result<_, _>>()? })
    }
}

/// Entries before the dim, along it, and in one entry of it, as statements that make `o`, `j` and `k`.
fn place(run: &mut String, cut: &Cut, dims: &[Dim], syms: &SymValues, tag: &str) -> Result<(), String> {
    let inner = size(&dims[cut.dim + 1..], syms)?;
    let n = size(&dims[cut.dim..=cut.dim], syms)?;
    let _ = writeln!(run, "    u64 inner{tag} = {inner}, n{tag} = {n};");
    let _ = writeln!(
        run,
        "    u64 o{tag} = i / (n{tag} * inner{tag}), j{tag} = i / inner{tag} % n{tag}, k{tag} = i % inner{tag};"
    );
    Ok(())
}

/// A run of entries that a member holds: conditions and places are expressions over the statements before.
struct Run {
    member: usize,
    start: String,
    end: String,
    /// Where it starts in the part.
    before: u64,
    /// The size of the part.
    held: String,
}

/// The runs of a cut; what they need is written to `run`.
fn runs(run: &mut String, cut: &Cut, tag: &str) -> Vec<Run> {
    let mut out = Vec::new();
    for (member, along) in cut.held.iter().enumerate() {
        match along {
            Along::Fixed(ranges) => {
                let held = format!("{}u", ranges.iter().map(|x| x.end - x.start).sum::<u64>());
                let mut before = 0;
                for x in ranges.iter().filter(|x| x.start < x.end) {
                    let (start, end) = (format!("{}u", x.start), format!("{}u", x.end));
                    out.push(Run { member, start, end, before, held: held.clone() });
                    before += x.end - x.start;
                }
            }
            Along::Part { symbol, unit, at, size } => {
                let tag = format!("{tag}{member}");
                run.push_str(&part_statements(*symbol, *unit, *at, *size, &tag));
                let (start, end) = (format!("start{tag}"), format!("end{tag}"));
                let held = format!("({end} - {start})");
                out.push(Run { member, start, end, before: 0, held });
            }
        }
    }
    out
}

fn joined(run: &mut String, cut: &Cut, dims: &[Dim], syms: &SymValues) -> Result<(), String> {
    place(run, cut, dims, syms, "_in")?;
    run.push_str("    u32 word = 0;\n");
    for Run { member, start, end, before, held } in runs(run, cut, "_in") {
        let _ = writeln!(
            run,
            "    if (j_in >= {start} && j_in < {end})\n      word = reinterpret_cast<const u32*>(args.in{member})[(o_in * \
             {held} + (j_in - {start} + {before}u)) * inner_in + k_in];"
        );
    }
    Ok(())
}

fn scattered(run: &mut String, cut: &Cut, dims: &[Dim], syms: &SymValues) -> Result<(), String> {
    place(run, cut, dims, syms, "_out")?;
    for Run { member, start, end, before, held } in runs(run, cut, "_out") {
        let _ = writeln!(
            run,
            "    if (j_out >= {start} && j_out < {end})\n      reinterpret_cast<u32*>(args.out{member})[(o_out * {held} + \
             (j_out - {start} + {before}u)) * inner_out + k_out] = word;"
        );
    }
    Ok(())
}
