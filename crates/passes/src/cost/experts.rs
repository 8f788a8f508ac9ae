//! Owns how chosen experts fall on ranks that hold some of them each. Nobody knows which are chosen: they are taken to be
//! chosen at random, and a step waits for the rank with most.

use glmc_ir::kernel::Kernel;
use glmc_ir::placement::Mesh;
use glmc_ir::ty::{Elem, SymValues, TensorType};

/// Of `choices` that fall on `ranks` at random, how many the fullest rank is expected to get: `m + sqrt(2 m ln ranks)` for
/// `m = choices / ranks`, and at most all. Exact in the limit of many; for 8 on 8 it says 3.0, where 2.6 is right.
pub fn fullest(choices: u64, ranks: u64) -> f64 {
    let mean = choices as f64 / ranks.max(1) as f64;
    (mean + (2.0 * mean * (ranks.max(1) as f64).ln()).sqrt()).min(choices as f64)
}

/// What falls to the fullest rank of a launch whose experts are split, as shares of the whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    bytes: f64,
    flops: f64,
}

impl Spread {
    /// That of a launch of `kernel` on inputs with these placements; `None` if its experts are not split.
    pub fn of(kernel: &Kernel, inputs: &[&TensorType], mesh: &Mesh, syms: &SymValues) -> Option<Self> {
        let cut = inputs.iter().enumerate().find(|(i, t)| Spread::cuts(kernel, *i, t))?.1;
        let ranks = mesh.get(cut.dims[0].axis()?).copied()?;
        let experts = cut.dims[0].extent.as_const()?;
        let ids = inputs.iter().find(|t| t.elem == Elem::I32)?;
        let choices = ids.elems(syms)?.max(1);
        let own = fullest(choices, ranks);
        // Experts are read once however often they are chosen.
        let read = own.min(experts.div_ceil(ranks) as f64) / choices.min(experts) as f64;
        Some(Spread { bytes: read, flops: own / choices as f64 })
    }

    /// Whether input `i` of `kernel`, of type `t`, is experts of which each rank holds some.
    pub fn cuts(kernel: &Kernel, i: usize, t: &TensorType) -> bool {
        let experts = match kernel {
            Kernel::GroupedMatmul(_) | Kernel::GroupedDown(_) => i == 1,
            Kernel::GroupedGateUp(_) => i == 1 || i == 2,
            _ => false,
        };
        experts && t.dims.first().is_some_and(|d| d.split.is_some() && d.extent.as_const().is_some())
    }

    /// Of the expert bytes that all ranks read, those of the fullest.
    pub fn bytes(self, all: u64) -> u64 {
        (all as f64 * self.bytes).ceil() as u64
    }

    /// The same of arithmetic.
    pub fn flops(self, all: u64) -> u64 {
        (all as f64 * self.flops).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_choices_crowd_and_many_even_out() {
        assert!((fullest(8, 8) - 3.04).abs() < 0.01, "{}", fullest(8, 8));
        assert_eq!(fullest(1, 8), 0.125 + (0.25f64 * 8f64.ln()).sqrt());
        assert_eq!((fullest(0, 8), fullest(5, 1)), (0.0, 5.0));
        let many = fullest(16_384, 8) / 2048.0;
        assert!((1.04..1.05).contains(&many), "{many}");
        // Beside chance itself, from a fixed start: never less than 5 % below the mean of 2000 throws.
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for (choices, ranks) in [(8, 8), (8, 4), (64, 8), (512, 16)] {
            let mut sum = 0;
            for _ in 0..2000 {
                let mut held = vec![0u64; ranks as usize];
                (0..choices).for_each(|_| held[below(ranks) as usize] += 1);
                sum += held.into_iter().max().unwrap_or(0);
            }
            let (thrown, said) = (sum as f64 / 2000.0, fullest(choices, ranks));
            assert!(said > thrown * 0.95 && said < thrown * 1.25, "{choices} on {ranks}: {said}, thrown {thrown}");
        }
    }
}
