//! Owns the order of launches: a topological order of their dependences, as near to program order as it can be. Never
//! changes a launch.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use glmc_ir::kernel::Access;
use glmc_ir::plan::{Mem, Phase};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

/// The dependences of a phase's launches: each reader after its writer, and accesses of one pool in program order
/// around each update.
pub(super) fn dependences(phase: &Phase) -> DiGraph<usize, ()> {
    let mut g = DiGraph::with_capacity(phase.steps.len(), phase.steps.len() * 4);
    let nodes: Vec<NodeIndex> = (0..phase.steps.len()).map(|i| g.add_node(i)).collect();
    let mut writer: HashMap<Mem, NodeIndex> = HashMap::new();
    let mut readers: HashMap<Mem, Vec<NodeIndex>> = HashMap::new();
    for (step, node) in phase.steps.iter().zip(&nodes) {
        for arg in &step.args {
            if matches!(arg.mem, Mem::Weight(_) | Mem::Param(_)) {
                continue;
            }
            if let Some(w) = writer.get(&arg.mem).filter(|w| *w != node) {
                g.update_edge(*w, *node, ());
            }
            if arg.access == Access::Read {
                readers.entry(arg.mem).or_default().push(*node);
            } else {
                for r in readers.remove(&arg.mem).unwrap_or_default().iter().filter(|r| *r != node) {
                    g.update_edge(*r, *node, ());
                }
                writer.insert(arg.mem, *node);
            }
        }
    }
    g
}

/// Orders the steps: of those whose inputs are made, always the first in program order.
pub(super) fn order(phase: &mut Phase) {
    let g = dependences(phase);
    let mut waiting: Vec<usize> =
        g.node_indices().map(|n| g.neighbors_directed(n, Direction::Incoming).count()).collect();
    let mut ready: BinaryHeap<Reverse<usize>> = (0..waiting.len()).filter(|i| waiting[*i] == 0).map(Reverse).collect();
    let mut steps: Vec<Option<glmc_ir::plan::Step>> = std::mem::take(&mut phase.steps).into_iter().map(Some).collect();
    while let Some(Reverse(i)) = ready.pop() {
        phase.steps.extend(steps[i].take());
        for next in g.neighbors(NodeIndex::new(i)) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(Reverse(next.index()));
            }
        }
    }
}
