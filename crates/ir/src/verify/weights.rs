//! Owns the rules on the weight table.

use std::collections::HashSet;

use super::types::judge;
use crate::diag::Diagnostic;
use crate::entities::WeightId;
use crate::graph::{Module, ValueDef, Weight};
use crate::text::weight_place;
use crate::ty::SymValues;

/// `duplicate-name`: weights.
pub(super) fn names(m: &Module, found: &mut Vec<Diagnostic>) {
    let mut seen = HashSet::new();
    for w in m.weights.values().filter(|w| !seen.insert(w.name.as_str())) {
        let d = Diagnostic::new("duplicate-name", format!("two weights are called @{}", w.name));
        found.push(d.at(weight_place(w)));
    }
}

/// `bad-weight`, and what no type may say: types that stored bytes have, spans of their size.
pub(super) fn types(m: &Module, found: &mut Vec<Diagnostic>) {
    for w in m.weights.values() {
        let mut bad = judge(m, &w.ty);
        if bad.is_empty() {
            bad.extend(stored(w).err().map(|what| Diagnostic::new("bad-weight", what)));
        }
        found.extend(bad.into_iter().map(|d| d.at(weight_place(w))));
    }
}

fn stored(w: &Weight) -> Result<(), String> {
    let t = &w.ty.with_elem(w.ty.elem.in_file());
    if t.state || t.pending.is_some() {
        return Err(format!("{t}: a weight is neither state nor pending"));
    }
    if t.dims.iter().any(|d| d.extent.as_const().is_none()) {
        return Err(format!("{t}: a weight has constant dims"));
    }
    let block = t.elem.block().0;
    let last = t.last().and_then(|d| d.extent.as_const()).unwrap_or(1);
    if !last.is_multiple_of(block) {
        return Err(format!("{t}: the last dim is no whole number of blocks of {block}"));
    }
    let Some(bytes) = t.bytes(&SymValues::default()) else { return Err(format!("{t}: the size overflows")) };
    if bytes != w.span.bytes {
        return Err(format!("{t} is {bytes} bytes, the span has {}", w.span.bytes));
    }
    match w.span.offset.checked_add(w.span.bytes) {
        Some(_) => Ok(()),
        None => Err("the span ends beyond 2^64".into()),
    }
}

/// `weight-twice`, `weight-overlap`: each byte belongs to at most one weight.
pub(super) fn spans(m: &Module, found: &mut Vec<Diagnostic>) {
    let mut order: Vec<&Weight> = m.weights.values().filter(|w| w.span.bytes > 0).collect();
    order.sort_by_key(|w| (w.span.part, w.span.offset, w.span.bytes));
    let end = |w: &Weight| w.span.offset.saturating_add(w.span.bytes);
    let mut furthest: Option<&Weight> = None;
    for w in order {
        if let Some(f) = furthest.filter(|f| f.span.part == w.span.part && end(f) > w.span.offset) {
            let (code, verb) = if f.span == w.span { ("weight-twice", "are") } else { ("weight-overlap", "overlap") };
            let what = format!("the bytes of @{} {verb} those of @{}", w.name, f.name);
            found.push(Diagnostic::new(code, what).at(weight_place(w)));
        }
        if furthest.is_none_or(|f| f.span.part != w.span.part || end(w) > end(f)) {
            furthest = Some(w);
        }
    }
}

/// `weight-unused`: a function uses every weight.
pub(super) fn uses(m: &Module, found: &mut Vec<Diagnostic>) {
    let mut used: HashSet<WeightId> = HashSet::new();
    for f in m.funcs.values() {
        let operands = f.body.iter().filter_map(|i| f.insts.get(*i)).flat_map(|i| &i.args).copied();
        for v in operands.chain(f.results.iter().map(|(_, v)| *v)) {
            if let Some(ValueDef::Weight(w)) = f.values.get(v).map(|d| d.def) {
                used.insert(w);
            }
        }
    }
    for (_, w) in m.weights.iter().filter(|(id, _)| !used.contains(id)) {
        let d = Diagnostic::new("weight-unused", format!("nothing uses @{}", w.name)).at(weight_place(w));
        found.push(d.help("use it, or leave it out of the table"));
    }
}
