//! One input for several products: `x A` and `x B` are the pieces of `x [A, B]`. Weights are never concatenated; the
//! joined dim exists on the activation alone. Operands keep their own types.

use std::collections::BTreeMap;

use egg::Id;
use glmc_ir::op::Op;
use glmc_ir::ops::{Einsum, Matmul};
use glmc_ir::text::is_word;
use glmc_ir::ty::{Extent, TensorType};

use super::{Rule, What};
use crate::egraph::analysis::{Graph, has_stored_form, ops, stored, ty};
use crate::egraph::lang::Head;
use crate::egraph::saturate::{PieceName, Share};

/// Most products of one launch.
const MOST: usize = 8;

/// The rules.
pub const RULES: &[Rule] = &[Rule {
    name: "share-input",
    why: "one launch reads the activation once for all its projections",
    what: What::Search(search),
}];

/// A product: its class and its right operand.
type Product = (Id, Id);

fn search(g: &Graph) -> Vec<Share> {
    // Products that are joined already are no candidates, so that joins are not joined again.
    let mut groups: BTreeMap<(usize, String), Vec<Product>> = BTreeMap::new();
    let mut ids: Vec<Id> = g.classes().map(|c| c.id).collect();
    ids.sort();
    for id in ids {
        for (op, args) in ops(g, id) {
            let Op::Matmul(m) = op else { continue };
            let [x, w] = [args[0], args[1]].map(|a| g.find(a));
            if !m.names.is_empty() || has_stored_form(g, op, w) || !joins(&m.spec) {
                continue;
            }
            let group = groups.entry((x.into(), m.spec.clone())).or_default();
            if group.iter().all(|(c, v)| *v != w && *c != id) {
                group.push((id, w));
            }
        }
    }
    let in_order = |(key, mut all): ((usize, String), Vec<Product>)| {
        all.sort_by_key(|(_, w)| leaf(g, stored(g, *w).unwrap_or(*w)));
        (key, all)
    };
    let mut out = Vec::new();
    for ((x, spec), all) in groups.into_iter().map(in_order) {
        // Rows that have pieces of their own may have to be joined again for whoever reads them whole: also without.
        let plain: Vec<Product> = all.iter().copied().filter(|(_, w)| plain(g, *w)).collect();
        if plain.len() < all.len() {
            out.extend(share(g, Id::from(x), &spec, plain));
        }
        out.extend(share(g, Id::from(x), &spec, all));
    }
    out
}

/// Whether the last letter of the result is the right operand's alone, so that results can stand side by side.
fn joins(spec: &str) -> bool {
    Einsum::parse(spec).is_ok_and(|e| e.out.last().is_some_and(|c| e.rhs.contains(c) && !e.lhs.contains(c)))
}

/// Whether no dim of a value is joined.
fn plain(g: &Graph, id: Id) -> bool {
    ty(g, id).is_some_and(|t| t.dims.iter().all(|d| !matches!(d.extent, Extent::Joined(_))))
}

fn share(g: &Graph, x: Id, spec: &str, all: Vec<Product>) -> Option<Share> {
    let e = Einsum::parse(spec).ok()?;
    let at = e.rhs.iter().position(|c| Some(c) == e.out.last())?;
    let dims = |w: Id| ty(g, w).map(|t| t.dims.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, d)| d.clone()));
    let first: Vec<_> = dims(all.first()?.1)?.collect();
    let some: Vec<Product> =
        all.into_iter().filter(|(_, w)| dims(*w).is_some_and(|d| d.eq(first.iter().cloned()))).take(MOST).collect();
    if some.len() < 2 {
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    for (i, (_, w)) in some.iter().enumerate() {
        let name = name(g, *w).filter(|n| !names.contains(n));
        names.push(name.unwrap_or_else(|| format!("p{i}")));
    }
    let parts = some.iter().zip(&names).map(|((class, w), name)| (*class, pieces(name, ty(g, *w), at)));
    let parts = parts.collect();
    let args = std::iter::once(x).chain(some.iter().map(|(_, w)| *w)).collect();
    Some(Share { op: Matmul { spec: spec.into(), names }.into(), args, parts })
}

/// The pieces of the joined dim that stand for a product by `w`.
fn pieces(name: &str, w: Option<&TensorType>, at: usize) -> Vec<PieceName> {
    match w.and_then(|t| t.dims.get(at)).map(|d| &d.extent) {
        Some(Extent::Joined(p)) => p.iter().map(|(q, _)| (format!("{name}.{q}"), Some(q.to_string()))).collect(),
        _ => vec![(name.to_owned(), None)],
    }
}

/// The leaf that a class is.
fn leaf(g: &Graph, w: Id) -> Option<u32> {
    g[w].nodes.iter().find_map(|n| match n.head {
        Head::Leaf(i) => Some(i),
        _ => None,
    })
}

/// What a weight is called: its role, without the prefix of parameters.
fn name(g: &Graph, w: Id) -> Option<String> {
    let leaf = &g.analysis.leaves[leaf(g, stored(g, w).unwrap_or(w))? as usize];
    let name = leaf.name.strip_prefix("w.").unwrap_or(&leaf.name);
    is_word(name).then(|| name.to_owned())
}
