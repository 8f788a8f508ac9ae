//! Owns what is known of an e-class: the type of its value and a name for it. Types come from the op table's one type
//! rule; classes of unequal types never merge silently.

use std::sync::Arc;

use egg::{Analysis, DidMerge, EGraph, Id};
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::WeightId;
use glmc_ir::op::Op;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

use super::lang::{ENode, Head};

/// The e-graph of one function.
pub type Graph = EGraph<ENode, Types>;

/// Where a leaf comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The function's parameter of this index.
    Param(usize),
    /// A weight of the module.
    Weight(WeightId),
    /// Result of an instruction of the skeleton: its place there, the result's index.
    Effect(usize, usize),
}

/// A leaf.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its type.
    pub ty: TensorType,
    /// Where it comes from.
    pub source: Source,
    /// What people call it.
    pub name: String,
}

/// The analysis of an e-graph: leaves, the rule at work, and what went wrong.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// The leaves that nodes name by index.
    pub leaves: Vec<Leaf>,
    /// The bounds of the module's symbols.
    pub bounds: SymValues,
    /// The rule whose right side is being added.
    pub rule: &'static str,
    /// The application that is at work.
    pub line: u32,
    /// Applications in order; that with number n is entry n - 1.
    pub(super) history: Vec<Applied>,
    /// Broken type rules and merges of unequal types, each naming its rule.
    pub errors: Vec<Diagnostic>,
}

/// A rule that was applied to nodes that other applications had made.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    rule: &'static str,
    to: Vec<u32>,
}

/// What an e-class is.
#[derive(Clone, PartialEq, Debug)]
pub struct Data {
    /// One type, or those of a tuple; none after an error.
    pub types: Vec<TensorType>,
    /// The name of its value, the one with the smallest number if there are several.
    pub name: Option<(usize, Arc<str>)>,
}

impl Types {
    /// From now on what is added is the work of this rule, applied to nodes that these applications made.
    pub fn begin(&mut self, rule: &'static str, mut to: Vec<u32>) {
        to.retain(|line| *line > 0);
        to.sort_unstable();
        to.dedup();
        self.history.push(Applied { rule, to });
        (self.rule, self.line) = (rule, self.history.len() as u32);
    }

    /// What is added is no rule's work any more.
    pub fn end(&mut self) {
        (self.rule, self.line) = ("", 0);
    }

    /// The rules that led to a node of this application, each once, the last one last.
    pub fn chain(&self, line: u32) -> Vec<&'static str> {
        // Applications build on earlier ones only, so that their numbers are an order.
        let mut all = std::collections::BTreeSet::new();
        let mut open = vec![line];
        while let Some(line) = open.pop() {
            if line > 0 && all.insert(line) {
                open.extend(self.history.get(line as usize - 1).iter().flat_map(|a| &a.to));
            }
        }
        let mut out = Vec::new();
        for rule in all.iter().rev().filter_map(|line| self.history.get(*line as usize - 1)).map(|a| a.rule) {
            if !out.contains(&rule) {
                out.push(rule);
            }
        }
        out.reverse();
        out
    }

    fn fail(&mut self, what: String) {
        let rule = if self.rule.is_empty() { "the function itself" } else { self.rule };
        self.errors.push(Diagnostic::new("rule-type", format!("rule `{rule}`: {what}")));
    }
}

impl Analysis<ENode> for Types {
    type Data = Data;

    fn make(g: &mut Graph, node: &ENode, _: Id) -> Data {
        let types = match &node.head {
            Head::Leaf(i) => Ok(vec![g.analysis.leaves[*i as usize].ty.clone()]),
            Head::Get(i) => match g[node.args[0]].data.types.get(*i as usize) {
                Some(t) => Ok(vec![t.clone()]),
                None => Err(format!("`get {i}` of a value without that many parts")),
            },
            Head::Op(k) => infer(g, &k.op, &node.args).map_err(|d| d.to_string()),
        };
        let types = types.unwrap_or_else(|what| {
            g.analysis.fail(what);
            Vec::new()
        });
        Data { types, name: None }
    }

    fn merge(&mut self, a: &mut Data, b: Data) -> DidMerge {
        if a.types != b.types {
            let text = |d: &Data| d.types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
            self.fail(format!("makes {} and {} one value", text(a), text(&b)));
        }
        let (name, types) = (a.name.clone().into_iter().chain(b.name.clone()).min(), b.types.clone());
        let merged = Data { types: if a.types.is_empty() { types } else { a.types.clone() }, name };
        let did = DidMerge(merged != *a, merged != b);
        *a = merged;
        did
    }
}

/// The type rule of `op` on operands that are classes.
pub fn infer(g: &Graph, op: &Op, args: &[Id]) -> Result<Vec<TensorType>, Diagnostic> {
    let types: Option<Vec<&TensorType>> = args.iter().map(|a| ty(g, *a)).collect();
    let types = types.ok_or_else(|| Diagnostic::new("rule-type", format!("`{}` of a tuple", op.name())))?;
    op.infer(&types)
}

/// The type of a class, unless it is a tuple.
pub fn ty(g: &Graph, id: Id) -> Option<&TensorType> {
    match g[id].data.types.as_slice() {
        [t] => Some(t),
        _ => None,
    }
}

/// The largest size that a dim can have, by the bounds of symbols.
pub fn most(g: &Graph, d: &Dim) -> Option<u64> {
    match &d.extent {
        Extent::Sym(s) => g.analysis.bounds.get(s),
        e => e.as_const(),
    }
}

/// What people call the value of a class: its name, or that of the leaf that it is.
pub fn name(g: &Graph, id: Id) -> Option<&str> {
    let leaf = g[id].nodes.iter().find_map(|n| match n.head {
        Head::Leaf(i) => Some(g.analysis.leaves[i as usize].name.as_str()),
        _ => None,
    });
    g[id].data.name.as_ref().map(|(_, n)| &**n).or(leaf)
}

/// The applications that made nodes of a class that satisfy `of`.
pub fn lines(g: &Graph, id: Id, of: impl Fn(&ENode) -> bool) -> Vec<u32> {
    g[id].nodes.iter().filter(|n| of(n)).map(|n| n.line).collect()
}

/// The nodes of a class that are ops, with their operands.
pub fn ops(g: &Graph, id: Id) -> impl Iterator<Item = (&Op, &[Id])> {
    g[id].nodes.iter().filter_map(|n| n.op().map(|o| (o, n.args.as_slice())))
}

/// The stored operand behind a class that is a decode.
pub fn stored(g: &Graph, id: Id) -> Option<Id> {
    ops(g, id).find(|(o, _)| matches!(o, Op::Dequant(_))).map(|(_, args)| g.find(args[0]))
}

/// Whether the graph holds `op` on the stored form of its operand `w`: rules then rewrite that, and the decoded form
/// would only repeat it.
pub fn has_stored_form(g: &Graph, op: &Op, w: Id) -> bool {
    let Some(w) = stored(g, w) else { return false };
    g[w].parents().any(|p| ops(g, g.find(p)).any(|(o, args)| o == op && args.iter().any(|a| g.find(*a) == w)))
}
