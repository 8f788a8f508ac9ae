//! Owns extraction: which node computes each class, so that the function as a graph (each value once) costs least.
//!
//! Greedy over the graph cost, bottom up, with the acyclic check at every pick: a node is refused for a class that its
//! operands need. Instructions of the skeleton are classes too, each after the one before it, so that no value is
//! needed before an instruction that gives it. Greedy never sees that a tuple pays only if all its parts are taken;
//! so from its answer a local search goes on: take every part of a tuple at once, or forbid a node. The k cheapest
//! distinct answers that the search met are kept.

use std::collections::BTreeMap;

use egg::{Id, Language};

use super::analysis::{Graph, Source};
use super::cost::Cost;
use super::lang::{ENode, Head};
use super::skeleton::{Operand, Skeleton};

/// Rounds of the local search.
const ROUNDS: usize = 24;
/// Added to each node's cost, in seconds: among equals the fewest nodes win.
const NODE: f64 = 1e-15;

/// A node of the problem.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) class: usize,
    pub(super) args: Vec<usize>,
    pub(super) cost: f64,
    pub(super) enode: Option<ENode>,
}

/// The e-graph as arrays, with the skeleton's order as classes.
#[derive(Debug)]
pub struct Problem {
    pub(super) nodes: Vec<Node>,
    pub(super) of_class: Vec<Vec<usize>>,
    pub(super) root: usize,
    index: BTreeMap<usize, usize>,
    /// Nodes to be taken together: each part of a tuple or of a joined value.
    groups: Vec<Vec<usize>>,
}

/// An answer: a node a class, for classes that the root needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Seconds.
    pub cost: f64,
    pub(super) of: Vec<Option<usize>>,
}

/// The cheapest answers so far, in order.
struct Kept {
    k: usize,
    all: Vec<Found>,
}

/// An answer, what was forbidden for it, and whether the search has gone on from it.
struct Found {
    choice: Choice,
    banned: Vec<bool>,
    tried: bool,
}

impl Kept {
    fn keep(&mut self, choice: Choice, banned: Vec<bool>) {
        let at = self.all.partition_point(|f| f.choice.cost <= choice.cost);
        if at < self.k && !self.all.iter().any(|f| f.choice.of == choice.of) {
            self.all.insert(at, Found { choice, banned, tried: false });
            self.all.truncate(self.k);
        }
    }
}

impl Problem {
    /// The problem of `g` and its skeleton.
    pub fn new(g: &Graph, s: &Skeleton<'_>, cost: &dyn Cost) -> Self {
        let mut ids: Vec<Id> = g.classes().map(|c| c.id).collect();
        ids.sort();
        let index: BTreeMap<usize, usize> = ids.iter().enumerate().map(|(i, id)| (usize::from(*id), i)).collect();
        let at = |id: Id| index[&usize::from(g.find(id))];
        let order = ids.len();
        let mut nodes = Vec::new();
        for id in &ids {
            let results = &g[*id].data.types;
            for n in &g[*id].nodes {
                let mut args: Vec<usize> = n.children().iter().map(|c| at(*c)).collect();
                let price = match &n.head {
                    Head::Op(k) => {
                        let types: Vec<_> = n.args.iter().filter_map(|a| super::analysis::ty(g, *a)).collect();
                        cost.op(&k.op, &types, results)
                    }
                    Head::Get(_) => 0.0,
                    Head::Leaf(i) => {
                        if let Source::Effect(e, _) = g.analysis.leaves[*i as usize].source {
                            args.push(order + e);
                        }
                        0.0
                    }
                };
                nodes.push(Node { class: at(*id), args, cost: price + NODE, enode: Some(n.clone()) });
            }
        }
        let pure = |o: &Operand| match o {
            Operand::Pure(id) => Some(at(*id)),
            Operand::State(_) => None,
        };
        let before = |e: usize| (e > 0).then(|| order + e - 1);
        for (e, effect) in s.effects.iter().enumerate() {
            let args = effect.needs().map(at).chain(before(e)).collect();
            nodes.push(Node { class: order + e, args, cost: 0.0, enode: None });
        }
        let root = order + s.effects.len();
        let args = s.results.iter().filter_map(|(_, o)| pure(o)).chain(before(s.effects.len())).collect();
        nodes.push(Node { class: root, args, cost: 0.0, enode: None });
        let mut of_class = vec![Vec::new(); root + 1];
        nodes.iter().enumerate().for_each(|(i, n)| of_class[n.class].push(i));
        let groups = groups(&nodes, root + 1);
        Problem { nodes, of_class, root, index, groups }
    }

    /// The node of class `id` in `c`.
    pub fn node(&self, g: &Graph, c: &Choice, id: Id) -> Option<ENode> {
        let class = *self.index.get(&usize::from(g.find(id)))?;
        self.nodes[c.of[class]?].enode.clone()
    }

    /// The rules that made the nodes of `c`, with how many each.
    pub fn rules(&self, c: &Choice) -> BTreeMap<&'static str, usize> {
        let mut out = BTreeMap::new();
        for n in c.of.iter().flatten() {
            let rule = self.nodes[*n].enode.as_ref().map_or("", |e| e.rule);
            if !rule.is_empty() {
                *out.entry(rule).or_insert(0) += 1;
            }
        }
        out
    }

    /// The `k` cheapest distinct answers that the search meets, the best first.
    pub fn best(&self, k: usize) -> Vec<Choice> {
        let mut kept = Kept { k, all: Vec::new() };
        // What must not be taken; forbidding is how both moves are said.
        let none = vec![false; self.nodes.len()];
        let Some(first) = self.solve(&|i| none[i]) else { return Vec::new() };
        kept.keep(first, none);
        // Always from the cheapest that was not tried from yet: down to where no move helps, then round about.
        for _ in 0..ROUNDS {
            let Some(from) = kept.all.iter_mut().find(|f| !f.tried) else { break };
            from.tried = true;
            let (now, banned) = (from.choice.clone(), from.banned.clone());
            for ban in self.moves(&now, &banned) {
                if let Some(c) = self.solve(&|i| ban[i]) {
                    kept.keep(c, ban);
                }
            }
        }
        kept.all.into_iter().map(|f| f.choice).collect()
    }

    /// Other sets of forbidden nodes to try from `now`.
    fn moves(&self, now: &Choice, banned: &[bool]) -> Vec<Vec<bool>> {
        let mut out = Vec::new();
        for group in &self.groups {
            let taken = |n: &&usize| now.of[self.nodes[**n].class].is_some();
            if group.iter().filter(taken).count() < 2
                || group.iter().filter(taken).all(|n| now.of[self.nodes[*n].class] == Some(*n))
            {
                continue;
            }
            let mut ban = banned.to_vec();
            for n in group {
                for other in &self.of_class[self.nodes[*n].class] {
                    ban[*other] = other != n;
                }
            }
            out.push(ban);
        }
        for n in now.of.iter().flatten() {
            if self.of_class[self.nodes[*n].class].iter().any(|o| o != n && !banned[*o]) {
                let mut ban = banned.to_vec();
                ban[*n] = true;
                out.push(ban);
            }
        }
        out
    }

    /// Greedy over the graph cost, without the nodes that `banned` names.
    fn solve(&self, banned: &dyn Fn(usize) -> bool) -> Option<Choice> {
        let words = self.nodes.len().div_ceil(64);
        let classes = self.of_class.len();
        let mut best: Vec<Option<usize>> = vec![None; classes];
        let mut cost = vec![f64::INFINITY; classes];
        // The nodes under each class's choice, as bits.
        let mut under = vec![vec![0u64; words]; classes];
        let allowed: Vec<usize> = (0..self.nodes.len()).filter(|i| !banned(*i)).collect();
        let mut scratch = vec![0u64; words];
        let mut changed = true;
        while changed {
            changed = false;
            for &i in &allowed {
                let n = &self.nodes[i];
                if n.args.iter().any(|a| best[*a].is_none()) {
                    continue;
                }
                // Operands alone cost no less than the dearest of them.
                if n.args.iter().any(|a| cost[*a] + n.cost >= cost[n.class]) {
                    continue;
                }
                scratch.fill(0);
                for a in &n.args {
                    scratch.iter_mut().zip(&under[*a]).for_each(|(s, u)| *s |= u);
                }
                // A class that its own operands need.
                if self.of_class[n.class].iter().any(|o| scratch[o / 64] >> (o % 64) & 1 == 1) {
                    continue;
                }
                scratch[i / 64] |= 1 << (i % 64);
                let total = self.total(&scratch);
                if total < cost[n.class] {
                    cost[n.class] = total;
                    best[n.class] = Some(i);
                    under[n.class].copy_from_slice(&scratch);
                    changed = true;
                }
            }
        }
        self.reach(&best)
    }

    fn total(&self, set: &[u64]) -> f64 {
        let mut sum = 0.0;
        for (w, word) in set.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                sum += self.nodes[w * 64 + word.trailing_zeros() as usize].cost;
                word &= word - 1;
            }
        }
        sum
    }

    /// The part of `best` that the root needs, with its cost; nothing if it needs itself.
    fn reach(&self, best: &[Option<usize>]) -> Option<Choice> {
        // 0: not seen, 1: open, 2: done.
        let mut mark = vec![0u8; best.len()];
        let mut of = vec![None; best.len()];
        let mut cost = 0.0;
        let mut open = vec![self.root];
        while let Some(c) = open.last().copied() {
            if mark[c] != 0 {
                open.pop();
                mark[c] = 2;
                continue;
            }
            mark[c] = 1;
            let n = best[c]?;
            of[c] = Some(n);
            cost += self.nodes[n].cost;
            for a in &self.nodes[n].args {
                match mark[*a] {
                    0 => open.push(*a),
                    1 => return None,
                    _ => {}
                }
            }
        }
        Some(Choice { cost, of })
    }
}

/// Nodes that take a part of one value, by that value, and joins of such parts alone.
fn groups(nodes: &[Node], classes: usize) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new(); classes];
    for (i, n) in nodes.iter().enumerate() {
        let Some(e) = &n.enode else { continue };
        let part = match &e.head {
            Head::Get(_) => true,
            Head::Op(k) => matches!(*k.op, glmc_ir::op::Op::Piece(_)),
            Head::Leaf(_) => false,
        };
        // One node a class: two parts of one class would exclude each other.
        if part && parts[n.args[0]].iter().all(|o| nodes[*o].class != n.class) {
            parts[n.args[0]].push(i);
        }
    }
    for group in &mut parts {
        let held: Vec<usize> = group.iter().map(|n| nodes[*n].class).collect();
        for (i, n) in nodes.iter().enumerate() {
            let join = n.enode.as_ref().and_then(ENode::op).is_some_and(|o| matches!(o, glmc_ir::op::Op::Join(_)));
            let of_parts = join && n.args.len() > 1 && n.args.iter().all(|a| held.contains(a));
            if of_parts && !held.contains(&n.class) && group.iter().all(|o| nodes[*o].class != n.class) {
                group.push(i);
            }
        }
    }
    parts.into_iter().filter(|p| p.len() > 1).collect()
}
