//! Owns the rules of weights: spans inside their files, no byte claimed twice, slices as the placement means them, every
//! weight used.

use super::Findings;
use crate::diag::Diagnostic;
use crate::entities::WeightId;
use crate::plan::{Mem, Plan, Recipe, Slice};
use crate::shard_map::{Shard, Slices};
use crate::ty::SymValues;

pub(super) fn check(plan: &Plan, out: &mut Findings) {
    for w in plan.weights.values() {
        if out.full() {
            return;
        }
        if span(plan, w, out) {
            slices(plan, w, out);
        }
    }
    overlaps(plan, out);
    used(plan, out);
}

fn at(w: &Recipe) -> String {
    format!("weight `{}`", w.name)
}

/// `weight-size` and `weight-bounds`; whether slices of the span can be judged.
fn span(plan: &Plan, w: &Recipe, out: &mut Findings) -> bool {
    let Some(bytes) = w.ty.with_elem(w.ty.elem.in_file()).bytes(&SymValues::default()).filter(|b| *b == w.span.bytes)
    else {
        let m = format!("{} is {}, its span in the file has {} bytes", w.tensor, w.ty, w.span.bytes);
        out.push(Diagnostic::new("weight-size", m).at(at(w)).help("the span is the whole tensor of the file"));
        return false;
    };
    let Some(file) = plan.files.get(w.span.part as usize) else {
        let m = format!("the span is in part {}, the plan has {} files", w.span.part, plan.files.len());
        out.push(Diagnostic::new("weight-bounds", m).at(at(w)));
        return false;
    };
    let end = w.span.offset.checked_add(bytes);
    if w.span.offset < file.header_bytes || end.is_none_or(|end| end > file.bytes) {
        let m = format!(
            "{bytes} bytes at {} lie outside the data of {}, which is {}..{}",
            w.span.offset, file.path, file.header_bytes, file.bytes
        );
        out.push(Diagnostic::new("weight-bounds", m).at(at(w)).help("compile the model again from these files"));
        return false;
    }
    true
}

/// `weight-slices`, `weight-cut`, `weight-order`: each rank reads exactly what type, mesh and rank mean.
fn slices(plan: &Plan, w: &Recipe, out: &mut Findings) {
    let ranks = plan.target.ranks as usize;
    if w.slices.len() != ranks {
        let m = format!("slices for {} ranks of {ranks}", w.slices.len());
        return out.push(Diagnostic::new("weight-slices", m).at(at(w)));
    }
    for (rank, found) in w.slices.iter().enumerate() {
        let expected = match expected(plan, w, rank) {
            Ok(slices) => slices,
            Err(d) => return out.push(d.at(at(w))),
        };
        let mut expected = expected.peekable();
        let mut wrong = None;
        for (i, s) in found.iter().enumerate() {
            match expected.next() {
                Some(e) if e == *s => {}
                e => {
                    let e = e.map_or("no more slices".to_owned(), |e| text(&e));
                    wrong = Some(format!("rank {rank} slice {i} is {}, {} means {e}", text(s), w.ty));
                    break;
                }
            }
        }
        if let (None, Some(e)) = (&wrong, expected.peek()) {
            wrong = Some(format!("rank {rank} has {} slices, {} means more: next {}", found.len(), w.ty, text(e)));
        }
        if let Some(m) = wrong {
            return out.push(named(plan, w, rank, m));
        }
    }
}

/// What the rank is to read.
fn expected(plan: &Plan, w: &Recipe, rank: usize) -> Result<Slices, Diagnostic> {
    Shard::of(&w.ty, &plan.mesh, rank as u64, &SymValues::default())?.slices(w.span)
}

/// Slices that are not the rank's, by what they are instead.
fn named(plan: &Plan, w: &Recipe, rank: usize, m: String) -> Diagnostic {
    let found = &w.slices[rank];
    let block = w.ty.elem.in_file().block().1;
    let inside = |s: &Slice| {
        let from = s.offset.wrapping_sub(w.span.offset);
        !from.is_multiple_of(block)
            || !s.bytes.is_multiple_of(block)
            || (s.count > 1 && !s.stride.is_multiple_of(block))
    };
    if found.iter().any(inside) {
        let help = format!("{} is stored in blocks of {block} bytes: cut between them", w.ty.elem);
        return Diagnostic::new("weight-cut", m).at(at(w)).help(help);
    }
    let whose = |r: &usize| expected(plan, w, *r).is_ok_and(|e| e.eq(found.iter().copied()));
    if let Some(other) = (0..w.slices.len()).find(whose) {
        let m = format!("{m}: these are the slices of rank {other}");
        return Diagnostic::new("weight-order", m).at(at(w)).help("rank by rank, in the order of the mesh");
    }
    wrong(m, w)
}

fn wrong(m: String, w: &Recipe) -> Diagnostic {
    Diagnostic::new("weight-slices", m).at(at(w)).help(
        "the ranks' slices partition the tensor in the order of its placement, piece by piece; other bytes, or the \
         right bytes in file order, would give a model that runs and answers nonsense",
    )
}

fn text(s: &Slice) -> String {
    let runs = if s.count == 1 { String::new() } else { format!(" x {} every {}", s.count, s.stride) };
    format!("part {} [{}, {}]{runs}", s.part, s.offset, s.bytes)
}

/// `weight-twice` and `weight-overlap`: no byte of a file belongs to two weights.
fn overlaps(plan: &Plan, out: &mut Findings) {
    let mut order: Vec<WeightId> = plan.weights.keys().collect();
    let key = |w: &WeightId| (plan.weights[*w].span.part, plan.weights[*w].span.offset);
    order.sort_by_key(key);
    let mut reach: Option<&Recipe> = None;
    for w in order.into_iter().map(|w| &plan.weights[w]) {
        let end = |w: &Recipe| w.span.offset.saturating_add(w.span.bytes);
        match reach.filter(|r| r.span.part == w.span.part && end(r) > w.span.offset) {
            Some(r) if r.span == w.span => {
                let m = format!("`{}` and `{}` are the same bytes of the file", r.name, w.name);
                let d = Diagnostic::new("weight-twice", m).at(at(w));
                out.push(d.help("one of them names the wrong tensor; a tied weight is one weight with two uses"));
            }
            Some(r) => {
                let m = format!("the bytes of `{}` and `{}` overlap", r.name, w.name);
                out.push(Diagnostic::new("weight-overlap", m).at(at(w)).help("compile the model again from its files"));
            }
            None => {}
        }
        if reach.is_none_or(|r| r.span.part != w.span.part || end(w) >= end(r)) {
            reach = Some(w);
        }
        if out.full() {
            return;
        }
    }
}

/// `weight-unused`: each weight is read by some phase.
fn used(plan: &Plan, out: &mut Findings) {
    let mut read = vec![false; plan.weights.len()];
    for a in plan.phases.iter().flat_map(|p| &p.steps).flat_map(|s| &s.args) {
        if let Mem::Weight(w) = a.mem {
            read[w.as_u32() as usize] = true;
        }
    }
    for (w, recipe) in plan.weights.iter().filter(|(w, _)| !read[w.as_u32() as usize]) {
        let d = Diagnostic::new("weight-unused", format!("no phase reads {w}")).at(at(recipe));
        out.push(d.help("a step that should read it reads another weight; a weight that is not needed has no recipe"));
    }
}
