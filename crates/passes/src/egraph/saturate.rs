//! Owns the saturation of one e-graph: rules are matched, applied and counted until nothing changes or a limit is hit.

use egg::Id;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, ValueDef};
use glmc_ir::kernel::Kernel;
use glmc_ir::op::Op;
use glmc_ir::ops::Fused;

use super::analysis::{Graph, lines, ty};
use super::lang::{ENode, Head, Key};
use super::pattern::{Match, add, get};
use super::rules::{Body, Checked};
use crate::pass::Answer;

/// Most e-nodes of one function: about ten times what a layer with every rule has.
pub const NODES: usize = 20_000;
/// Most rounds: chains of rewrites in the rules are at most five long.
pub const ROUNDS: usize = 16;
/// Most matches of rules over all rounds of one function. Measured layers have some thousands; this only stops a runaway,
/// and unlike a clock it ends the same search at the same place everywhere.
pub const MATCHES: usize = 1_000_000;

/// How a saturation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// No rule has anything to add.
    Saturated,
    /// [`NODES`].
    Nodes,
    /// [`ROUNDS`].
    Rounds,
    /// [`MATCHES`].
    Matches,
    /// The caller allows no further rewrite.
    Fuel,
}

/// Saturates `g` by `rules`. `choose` is asked before each rewrite that may change something.
///
/// # Errors
/// `rule-type`: a rule whose right side breaks a type rule or has another type than its left; the rule is named.
pub fn saturate(
    g: &mut Graph,
    rules: &[Checked],
    choose: &mut dyn FnMut() -> Answer,
) -> Result<(End, usize), Diagnostic> {
    let mut matches = 0;
    for round in 0..ROUNDS {
        let mut work = Vec::new();
        for rule in rules {
            rule.find(g, &mut work);
            if matches + work.len() > MATCHES {
                return Ok((End::Matches, round));
            }
        }
        matches += work.len();
        let before = (g.total_number_of_nodes(), g.number_of_classes());
        let mut merged = false;
        for (rule, step) in work {
            if g.total_number_of_nodes() > NODES {
                g.rebuild();
                return Ok((End::Nodes, round));
            }
            if step.is_done(g) {
                continue;
            }
            match choose() {
                Answer::Yes => {}
                Answer::No => continue,
                Answer::Never => {
                    g.rebuild();
                    return settled(g).map(|()| (End::Fuel, round));
                }
            }
            let to = step.lines(g);
            g.analysis.begin(rule.name, to);
            let applied = step.apply(g, rule);
            merged |= applied.map_err(|d| named(rule.name, d))?;
            g.analysis.end();
        }
        g.rebuild();
        settled(g)?;
        if !merged && before == (g.total_number_of_nodes(), g.number_of_classes()) {
            return Ok((End::Saturated, round));
        }
    }
    Ok((End::Rounds, ROUNDS))
}

/// All errors that the analysis met, as one.
fn settled(g: &mut Graph) -> Result<(), Diagnostic> {
    let errors: Vec<String> = g.analysis.errors.drain(..).map(|d| d.message).collect();
    if errors.is_empty() { Ok(()) } else { Err(Diagnostic::new("rule-type", errors.join("\n"))) }
}

fn named(rule: &str, d: Diagnostic) -> Diagnostic {
    Diagnostic::new("rule-type", format!("rule `{rule}`: {d}"))
}

/// A rewrite that was found.
pub enum Step {
    /// The right side of a rule, bound, for this class.
    Build(Id, Match),
    /// A contract on these operands.
    Launch(Kernel, Vec<Id>),
    /// An op, and classes that parts of it are.
    Share(Share),
}

/// One product that several classes are parts of.
#[derive(Clone, Debug)]
pub struct Share {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub args: Vec<Id>,
    /// For each class the pieces of the op's value that it joins, with the names under which it holds them; one piece
    /// without a name is the class itself.
    pub parts: Vec<(Id, Vec<PieceName>)>,
}

/// A piece of a shared product, and the name under which a class that joins pieces holds it.
pub type PieceName = (String, Option<String>);

impl Step {
    /// Whether the e-graph holds the rewrite already; then it costs no fuel.
    fn is_done(&self, g: &Graph) -> bool {
        match self {
            Step::Build(..) => false,
            Step::Launch(kernel, args) => find_fused(g, kernel, args).is_some(),
            Step::Share(s) => lookup(g, &s.op, &s.args).is_some(),
        }
    }

    /// The applications that made what is rewritten.
    fn lines(&self, g: &Graph) -> Vec<u32> {
        match self {
            Step::Build(_, m) => m.lines().to_vec(),
            Step::Launch(kernel, args) => meaning_lines(g, kernel, args),
            // A class is computed by the same op, alone.
            Step::Share(s) => {
                let first = s.args.first().map(|a| g.find(*a));
                let alone = |n: &ENode| {
                    n.op().is_some_and(|o| o.name() == s.op.name()) && n.args.first().map(|a| g.find(*a)) == first
                };
                s.parts.iter().flat_map(|(class, _)| lines(g, *class, alone)).collect()
            }
        }
    }

    /// Makes the rewrite; whether it joined classes.
    fn apply(&self, g: &mut Graph, rule: &Checked) -> Result<bool, Diagnostic> {
        match self {
            Step::Build(root, m) => {
                let Body::Rewrite { right, .. } = &rule.body else { return Ok(false) };
                let made = right.build(g, m)?;
                Ok(join(g, made, *root))
            }
            Step::Launch(kernel, args) => launch(g, kernel, args),
            Step::Share(s) => s.apply(g),
        }
    }
}

/// Merges two classes; whether they were two.
fn join(g: &mut Graph, a: Id, b: Id) -> bool {
    g.find(a) != g.find(b) && g.union(a, b)
}

impl Share {
    fn apply(&self, g: &mut Graph) -> Result<bool, Diagnostic> {
        use glmc_ir::ops::{Join, Piece};
        let whole = add(g, self.op.clone(), self.args.clone())?;
        let mut merged = false;
        for (class, pieces) in &self.parts {
            let mut ids = Vec::new();
            for (piece, _) in pieces {
                let t = ty(g, whole).ok_or_else(|| Diagnostic::new("rule-type", "a shared product is a tuple"))?;
                let op = Piece::of(t, piece)?;
                ids.push(add(g, op, vec![whole])?);
            }
            let names: Vec<String> = pieces.iter().filter_map(|(_, n)| n.clone()).collect();
            let made = if names.is_empty() { ids[0] } else { add(g, Join { names }, ids)? };
            merged |= join(g, made, *class);
        }
        Ok(merged)
    }
}

fn lookup(g: &Graph, op: &Op, args: &[Id]) -> Option<Id> {
    let args = args.iter().map(|a| g.find(*a)).collect();
    g.lookup(ENode::new(Head::Op(Key::new(op.clone())), args))
}

fn fused(g: &Graph, kernel: &Kernel, args: &[Id]) -> Option<Fused> {
    let types: Option<Vec<_>> = args.iter().map(|a| ty(g, *a)).collect();
    Some(Fused::of(kernel.clone(), &types?))
}

fn find_fused(g: &Graph, kernel: &Kernel, args: &[Id]) -> Option<Id> {
    lookup(g, &fused(g, kernel, args)?.into(), args)
}

/// The applications that made the nodes of a contract's meaning on `args`.
fn meaning_lines(g: &Graph, kernel: &Kernel, args: &[Id]) -> Vec<u32> {
    let mut out = Vec::new();
    // Between rebuilds a class holds nodes whose operands have other numbers by now.
    let same = |n: &ENode, node: &ENode| {
        n.head == node.head && n.args.iter().map(|a| g.find(*a)).eq(node.args.iter().copied())
    };
    walk(g, kernel, args, &mut |node, id| out.extend(lines(g, id, |n| same(n, node))));
    out
}

/// The classes of the results of a contract's meaning on `args`, if the e-graph holds all of it. So what is then called
/// equal to the launch is equal by the contract's own definition, whatever pattern proposed it.
pub fn meaning(g: &Graph, kernel: &Kernel, args: &[Id]) -> Option<(Function, Vec<Id>)> {
    walk(g, kernel, args, &mut |_, _| ())
}

/// The same; `see` gets each op of the meaning as a node, with its class.
fn walk(g: &Graph, kernel: &Kernel, args: &[Id], see: &mut dyn FnMut(&ENode, Id)) -> Option<(Function, Vec<Id>)> {
    let types: Vec<_> = args.iter().map(|a| ty(g, *a)).collect::<Option<_>>()?;
    let f = kernel.meaning(&types).ok()?;
    let mut ids: Vec<(Value, Id)> = f.params.iter().copied().zip(args.iter().copied()).collect();
    let at = |ids: &[(Value, Id)], v: Value| ids.iter().find(|(w, _)| *w == v).map(|(_, id)| *id);
    for inst in &f.body {
        let data = &f.insts[*inst];
        let InstKind::Op(op) = &data.kind else { return None };
        let operands: Vec<Id> = data.args.iter().map(|a| at(&ids, *a)).collect::<Option<_>>()?;
        let node = ENode::new(Head::Op(Key::new(op.clone())), operands.iter().map(|a| g.find(*a)).collect());
        let id = g.lookup(node.clone())?;
        see(&node, id);
        match data.results.as_slice() {
            [r] => ids.push((*r, id)),
            many => {
                for (k, r) in many.iter().enumerate() {
                    ids.push((*r, g.lookup(ENode::new(Head::Get(k as u32), vec![g.find(id)]))?));
                }
            }
        }
    }
    debug_assert!(f.values.values().all(|v| !matches!(v.def, ValueDef::Weight(_))));
    let results = f.results.iter().map(|(_, v)| at(&ids, *v)).collect::<Option<_>>()?;
    Some((f, results))
}

fn launch(g: &mut Graph, kernel: &Kernel, args: &[Id]) -> Result<bool, Diagnostic> {
    let (Some((_, results)), Some(op)) = (meaning(g, kernel, args), fused(g, kernel, args)) else { return Ok(false) };
    let made = add(g, op, args.to_vec())?;
    let mut merged = false;
    let single = results.len() == 1;
    for (k, r) in results.into_iter().enumerate() {
        let part = if single { made } else { get(g, made, k) };
        merged |= join(g, part, r);
    }
    Ok(merged)
}
