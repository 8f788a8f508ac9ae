//! What a collective makes of the parts of a group of ranks, one element or candidate after the other. Sums go in the
//! order of ranks, so all copies have the same bits, whoever merges them.

use std::fmt::Write as _;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::launch::Reduction;
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
    /// Whether each member's memory is on this device; the operands of the others come by an exchange.
    pub(super) here: &'a [bool],
}

/// What the members hold along one dim of a value.
struct Cut {
    dim: usize,
    held: Vec<Along>,
}

/// Statements over `args`, `i` and the operands `in0`, `in1`, .. that make one element of the results, or look at one
/// candidate of a selection.
pub(super) struct Body {
    pub(super) run: String,
    /// What `i` goes over.
    pub(super) over: Vec<Dim>,
    pub(super) includes: &'static [&'static str],
}

impl Meet<'_> {
    /// The kernel of a group on one device: its first arguments are the members' operands, then their results.
    pub(super) fn kernel(&self, symbols: &mut Symbols) -> Result<Generated, String> {
        let body = self.body(symbols)?;
        let mut run = String::new();
        for m in 0..self.members.len() {
            let _ = writeln!(run, "    const u8* in{m} = args.in{m};");
        }
        run.push_str(&body.run);
        let fields = self.fields(symbols)?;
        let (over, includes) = (&body.over[..], body.includes);
        make(Source {
            stem: "meet",
            comment: self.comment(),
            fields,
            over,
            syms: &symbols.bounds,
            run,
            slots: None,
            includes,
        })
    }

    pub(super) fn comment(&self) -> String {
        format!("{:?} over {} of {} ranks: {}", self.what.kind, self.what.axis, self.members.len(), self.arg)
    }

    /// The arguments: operands and results of the members that are here.
    pub(super) fn fields(&self, symbols: &mut Symbols) -> Result<Vec<(String, Access, TensorType)>, String> {
        let mut fields = Vec::new();
        for (stem, access, ty) in [("in", Access::Read, self.arg), ("out", Access::Write, self.result)] {
            for (i, r) in self.members.iter().enumerate().filter(|(i, _)| self.here[*i]) {
                fields.push((format!("{stem}{i}"), access, symbols.local(ty, self.mesh, *r as u64)?));
            }
        }
        Ok(fields)
    }

    /// The value as the whole group has it: pending and split no more along its axis.
    pub(super) fn value(&self, symbols: &mut Symbols) -> Result<TensorType, String> {
        let first = *self.members.first().ok_or("a group without ranks")?;
        let word = |t: &TensorType| matches!(t.elem, Elem::F32 | Elem::I32);
        if !word(self.arg) || !word(self.result) {
            return Err(format!("stored blocks do not travel: {}", self.arg));
        }
        let mut whole = self.arg.clone();
        whole.pending = None;
        whole.dims.iter_mut().filter(|d| d.axis() == Some(&self.what.axis)).for_each(|d| d.split = None);
        symbols.local(&whole, self.mesh, first as u64)
    }

    /// The merge of an all-reduce or a reduce-scatter.
    pub(super) fn pending(&self) -> Option<PendingKind> {
        self.arg.pending.as_ref().map(|(k, _)| *k)
    }

    /// The operation of a merge that is done word by word.
    pub(super) fn reduction(&self) -> Option<Reduction> {
        match (self.pending()?, self.arg.elem) {
            (PendingKind::Sum | PendingKind::Owned, Elem::I32) => Some(Reduction::SumI32),
            (PendingKind::Sum | PendingKind::Owned, _) => Some(Reduction::SumF32),
            (PendingKind::Max, Elem::I32) => Some(Reduction::MaxI32),
            (PendingKind::Max, _) => Some(Reduction::MaxF32),
            (PendingKind::Softmax | PendingKind::TopK, _) => None,
        }
    }

    /// What is done for one element of the value, or one candidate.
    pub(super) fn body(&self, symbols: &mut Symbols) -> Result<Body, String> {
        let value = self.value(symbols)?;
        let bounds = symbols.bounds.clone();
        let mut run = String::new();
        match self.what.kind {
            CollectiveKind::AllReduce if self.pending() == Some(PendingKind::TopK) => return self.selected(&value),
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter { .. } => self.merged(&mut run, &value)?,
            CollectiveKind::AllGather | CollectiveKind::AllToAll { .. } => {
                let dim = self.arg.dims.iter().position(|d| d.axis() == Some(&self.what.axis));
                let dim = dim.ok_or_else(|| format!("{} is not split over {}", self.arg, self.what.axis))?;
                let cut = self.cut(self.arg, dim, &bounds)?;
                joined(&mut run, &cut, &value.dims, &bounds)?;
            }
            CollectiveKind::Shard { .. } => run.push_str("    u32 word = reinterpret_cast<const u32*>(in0)[i];\n"),
        }
        match self.what.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllGather => {
                for m in self.ours() {
                    let _ = writeln!(run, "    reinterpret_cast<u32*>(args.out{m})[i] = word;");
                }
            }
            CollectiveKind::ReduceScatter { dim, .. }
            | CollectiveKind::AllToAll { dim, .. }
            | CollectiveKind::Shard { dim, .. } => {
                let cut = self.cut(self.result, dim, &bounds)?;
                scattered(&mut run, &cut, &value.dims, &bounds, self.here)?;
            }
        }
        Ok(Body { run, over: value.dims, includes: &["merge.cuh"] })
    }

    /// The members that are here.
    pub(super) fn ours(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|m| self.here[*m])
    }

    fn merged(&self, run: &mut String, value: &TensorType) -> Result<(), String> {
        let ty = if self.arg.elem == Elem::I32 { "i32" } else { "f32" };
        let members = self.members.len();
        if self.pending() == Some(PendingKind::Softmax) {
            let width = value.last().and_then(|d| d.extent.as_const()).ok_or_else(|| format!("parts of {value}"))?;
            self.rows(run, &format!("i / {width}u * {}u", width + 2));
            let _ = writeln!(
                run,
                "    u32 word = glmc_float_to_bits(merge_softmax<{members}, {width}>(u32(i % {width}u), part));"
            );
            return Ok(());
        }
        let step = match (self.pending(), ty) {
            (Some(PendingKind::Sum | PendingKind::Owned), "i32") => "v = i32(u32(v) + u32(x))",
            (Some(PendingKind::Sum | PendingKind::Owned), _) => "v = v + x",
            (Some(PendingKind::Max), "i32") => "v = v > x ? v : x",
            (Some(PendingKind::Max), _) => "v = glmc_max(v, x)",
            _ => return Err(format!("there is no such merge of {}", self.arg)),
        };
        let _ = writeln!(run, "    {ty} v = reinterpret_cast<const {ty}*>(in0)[i];");
        for r in 1..members {
            let _ = writeln!(run, "    {{ {ty} x = reinterpret_cast<const {ty}*>(in{r})[i]; {step}; }}");
        }
        run.push_str(if ty == "i32" { "    u32 word = u32(v);\n" } else { "    u32 word = glmc_float_to_bits(v);\n" });
        Ok(())
    }

    /// Every candidate finds its place among all; those behind the last fill the rest with -1.
    fn selected(&self, value: &TensorType) -> Result<Body, String> {
        let members = self.members.len();
        let k = value.last().and_then(|d| d.extent.as_const()).ok_or_else(|| format!("a selection of {value}"))?;
        let mut run = format!("    u32 me = u32(i % {members}u), own = u32(i / {members}u % {k}u), found;\n");
        let _ = writeln!(run, "    u64 row = i / {}u;", members as u64 * k);
        self.rows(&mut run, &format!("row * {}u", 2 * k));
        let _ = writeln!(run, "    u32 rank = merge_rank<{members}, {k}>(me, own, part, &found);");
        let _ = writeln!(run, "    i32 at = i32(part(me)[own]);");
        for m in self.ours() {
            let _ = writeln!(run, "    i32* to{m} = reinterpret_cast<i32*>(args.out{m}) + row * {k}u;");
            let _ = writeln!(
                run,
                "    if (rank < {k}u) to{m}[rank] = at;\n    if (me == 0 && own >= found) to{m}[own] = -1;"
            );
        }
        let over = [&value.dims[..], &[Dim::new(members as u64)]].concat();
        Ok(Body { run, over, includes: &["merge.cuh"] })
    }

    /// `part(m)`: the row of a member, `at` floats from its start.
    fn rows(&self, run: &mut String, at: &str) {
        let all: Vec<String> = (0..self.members.len()).map(|m| format!("in{m}")).collect();
        let _ = writeln!(run, "    const u8* ins[] = {{{}}};\n    u64 row_at = {at};", all.join(", "));
        run.push_str("    auto part = [&](u32 m) { return reinterpret_cast<const f32*>(ins[m]) + row_at; };\n");
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
            "    if (j_in >= {start} && j_in < {end})\n      word = reinterpret_cast<const u32*>(in{member})[(o_in * \
             {held} + (j_in - {start} + {before}u)) * inner_in + k_in];"
        );
    }
    Ok(())
}

fn scattered(run: &mut String, cut: &Cut, dims: &[Dim], syms: &SymValues, here: &[bool]) -> Result<(), String> {
    place(run, cut, dims, syms, "_out")?;
    for Run { member, start, end, before, held } in runs(run, cut, "_out").into_iter().filter(|r| here[r.member]) {
        let _ = writeln!(
            run,
            "    if (j_out >= {start} && j_out < {end})\n      reinterpret_cast<u32*>(args.out{member})[(o_out * {held} + \
             (j_out - {start} + {before}u)) * inner_out + k_out] = word;"
        );
    }
    Ok(())
}
