//! Owns the ways to bring the operands of one instruction to where it reads them. Never compares two.

use cranelift_entity::SecondaryMap;
use glmc_ir::entities::Value;

use super::super::table::{CALLEES, Start};
use super::{Move, Problem};

/// One way to run an instruction from a state.
pub(super) struct Way {
    pub(super) config: usize,
    pub(super) seconds: f64,
    pub(super) bytes: u64,
    pub(super) moves: Vec<Move>,
    /// Masks of the operands after the moves.
    pub(super) masks: Vec<(Value, u32)>,
    /// Of the return: the places.
    pub(super) ends: Vec<u8>,
}

pub(super) struct Ways<'p> {
    pub(super) p: &'p Problem,
    pub(super) later: &'p SecondaryMap<Value, u32>,
    pub(super) out: Vec<Way>,
}

impl Ways<'_> {
    /// Brings operand `k` and the following to their places, in every way worth trying.
    #[allow(clippy::too_many_arguments, reason = "one recursion over operands")]
    pub(super) fn bring(
        &mut self,
        config: usize,
        args: &[(Value, u8)],
        k: usize,
        masks: &mut SecondaryMap<Value, u32>,
        seconds: f64,
        bytes: u64,
        moves: &mut Vec<Move>,
    ) {
        let Some((v, to)) = args.get(k).copied() else {
            let own = args.iter().map(|(v, _)| (*v, masks[*v])).collect();
            let ends = args.iter().map(|(_, p)| *p).collect();
            self.out.push(Way { config, seconds, bytes, moves: moves.clone(), masks: own, ends });
            return;
        };
        let mask = masks[v];
        if to == CALLEES || mask & (1 << to) != 0 {
            self.bring(config, args, k + 1, masks, seconds, bytes, moves);
            return;
        }
        let slot = self.p.slots[v].as_ref();
        if slot.is_some_and(|s| s.start == Start::Free) {
            if mask == 0 {
                masks[v] = 1 << to;
                let held = self.p.held[v].get(usize::from(to)).copied().unwrap_or(0);
                self.bring(config, args, k + 1, masks, seconds, bytes.saturating_add(held), moves);
                masks[v] = 0;
            }
            return;
        }
        let cost = &self.p.moves[v];
        let nearest = |mask: u32, to: u8| {
            let from = (0..cost.len()).filter(|p| mask & (1 << p) != 0);
            let by = from.map(|p| (cost[p][usize::from(to)], p as u8));
            by.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(s, _)| s.is_finite())
        };
        if let Some((s, from)) = nearest(mask, to) {
            masks[v] = mask | 1 << to;
            moves.push(Move { value: v, from, to });
            self.bring(config, args, k + 1, masks, seconds + s, bytes, moves);
            moves.pop();
        }
        // By way of a place that is read later anyway.
        for via in (0..cost.len() as u8).filter(|m| *m != to && mask & (1 << m) == 0 && self.later[v] & (1 << m) != 0) {
            let Some((a, from)) = nearest(mask, via) else { continue };
            let b = cost[usize::from(via)][usize::from(to)];
            if b.is_finite() {
                masks[v] = mask | 1 << to | 1 << via;
                moves.extend([Move { value: v, from, to: via }, Move { value: v, from: via, to }]);
                self.bring(config, args, k + 1, masks, seconds + a + b, bytes, moves);
                moves.truncate(moves.len() - 2);
            }
        }
        masks[v] = mask;
    }
}
