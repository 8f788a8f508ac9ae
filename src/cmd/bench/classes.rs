//! A step by class: what each launch of it is for, and where its time goes.

use glmc_ir::collective::CollectiveKind;
use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Mem, Step};
use glmc_passes::cost::StepCost;
use serde_json::{Value, json};

/// Launches that read fewer weight bytes are not for their weights.
const SMALL: u64 = 64 << 10;

/// What a launch is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// Products with weights.
    Weights,
    /// Reading or writing cache pools, and attending to what was read.
    Caches,
    /// Meeting other ranks.
    Collectives,
    /// All else: norms, routing, rope, glue.
    Small,
}

impl Class {
    pub(super) const ALL: [Class; 4] = [Class::Weights, Class::Caches, Class::Collectives, Class::Small];

    pub(super) fn of(step: &Step, cost: &StepCost) -> Class {
        let meets = step.kernel.collective().is_some_and(|c| !matches!(c.kind, CollectiveKind::Shard { .. }));
        if meets {
            Class::Collectives
        } else if attends(&step.kernel) || step.args.iter().any(|a| matches!(a.mem, Mem::State(_))) {
            Class::Caches
        } else if cost.bytes.weights >= SMALL {
            Class::Weights
        } else {
            Class::Small
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Weights => "weights",
            Class::Caches => "caches",
            Class::Collectives => "collectives",
            Class::Small => "small ops",
        }
    }
}

/// Whether a contract goes over cached positions.
fn attends(kernel: &Kernel) -> bool {
    use Kernel as K;
    matches!(kernel, K::Attention(_) | K::Indexer(_) | K::PagedAttention(_) | K::PagedIndexer(_))
}

/// A piece of a step's time: from the end of the launch before it to its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The step of the plan.
    pub(super) step: usize,
    /// The kernel's number, on a GPU.
    pub(super) kernel: Option<usize>,
    /// When its first block began, or the launch before it ended.
    pub(super) start: f64,
    pub(super) end: f64,
}

/// Seconds of a step by class.
#[derive(Clone, Default, Debug)]
pub(super) struct Split {
    classes: [f64; 4],
    launches: [u64; 4],
    gaps: f64,
    pub(super) host: f64,
    /// The step.
    wall: f64,
}

impl Split {
    /// Pieces of a step that takes `device` seconds on its device and `wall` with the host; `gap` is what a launch costs
    /// that does nothing. What was measured with stamps is longer and is scaled by `scale`.
    pub(super) fn of(pieces: &[(Class, Piece)], gap: f64, scale: f64, device: f64, wall: f64) -> Split {
        let mut out = Split { wall, host: (wall - device).max(0.0), ..Split::default() };
        let mut before = 0.0f64;
        for (class, p) in pieces {
            let took = (p.end - before).max(0.0) * scale;
            before = before.max(p.end);
            let idle = took.min(gap);
            out.gaps += idle;
            out.classes[*class as usize] += took - idle;
            out.launches[*class as usize] += 1;
        }
        out
    }

    /// Share of the step that the parts add up to.
    pub(super) fn accounted(&self) -> f64 {
        (self.classes.iter().sum::<f64>() + self.gaps + self.host) / self.wall.max(f64::MIN_POSITIVE)
    }

    /// Each part with its name, its seconds, and its launches.
    pub(super) fn parts(&self) -> Vec<(&'static str, f64, Option<u64>)> {
        let class = |c: &Class| (c.name(), self.classes[*c as usize], Some(self.launches[*c as usize]));
        let mut parts: Vec<_> = Class::ALL.iter().map(class).collect();
        parts.extend([("gaps", self.gaps, None), ("host", self.host, None)]);
        parts
    }

    pub(super) fn json(&self) -> Value {
        let parts =
            self.parts().into_iter().map(|(name, s, n)| (name.to_owned(), json!({ "seconds": s, "launches": n })));
        json!({ "parts": parts.collect::<serde_json::Map<_, _>>(), "accounted": self.accounted() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_gaps_come_out_of_their_launches() {
        let piece = |end: f64| Piece { step: 0, kernel: None, start: 0.0, end };
        let pieces = [
            (Class::Weights, piece(3.0)),
            (Class::Small, piece(3.5)),
            (Class::Weights, piece(6.0)),
            (Class::Caches, piece(7.0)),
        ];
        let s = Split::of(&pieces, 1.0, 1.0, 7.0, 8.0);
        assert_eq!(s.classes, [2.0 + 1.5, 0.0, 0.0, 0.0]);
        assert_eq!((s.gaps, s.host, s.launches), (3.5, 1.0, [2, 1, 0, 1]));
        assert!((s.accounted() - 1.0).abs() < 1e-12);
        // A step whose pieces are not all seen says so.
        assert!(Split::of(&pieces[..2], 1.0, 1.0, 7.0, 8.0).accounted() < 0.6);
    }
}
