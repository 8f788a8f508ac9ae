//! How far two values are apart, and how far they may be: the one table of `docs/numerics.md`.

use glmc_codegen_cuda::Activations;
use glmc_codegen_cuda::program::FEW_ROWS;
use glmc_ir::kernel::Kernel;
use glmc_ir::plan::{Mem, Step};
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::ty::SymValues;

/// How coarsely a device rounds what enters its products.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rounding {
    F32,
    Bf16,
    Int8,
}

/// Largest errors, as shares of the reference's RMS: of the whole value, and of one element.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub(super) struct Bound {
    pub(super) l2: f64,
    pub(super) max: f64,
}

/// An element may be this much further off than the whole.
const ELEMENT: f64 = 8.0;

impl Rounding {
    /// What a device's products do to activations.
    pub(super) fn of(activations: Activations) -> Rounding {
        match activations {
            Activations::F32 => Rounding::F32,
            Activations::BF16 => Rounding::Bf16,
            Activations::Int8 => Rounding::Int8,
        }
    }

    /// That of a step in a phase of these bounds, on a device whose coarsest is this one.
    pub(super) fn at(self, step: &Step, bounds: &SymValues) -> Rounding {
        let weights = step.args.iter().any(|a| matches!(a.mem, Mem::Weight(_)));
        match step.kernel {
            Kernel::Matmul(_)
            | Kernel::GroupedMatmul(_)
            | Kernel::GateUp(_)
            | Kernel::GroupedGateUp(_)
            | Kernel::GroupedDown(_)
                if weights =>
            {
                // Only few rows are rounded to 8 bits.
                let rows = step.args.first().and_then(|a| a.ty.shape(bounds)?.first().copied());
                if rows.is_some_and(|n| n > FEW_ROWS) { self.min(Rounding::Bf16) } else { self }
            }
            Kernel::Matmul(_)
            | Kernel::Attention(_)
            | Kernel::PagedAttention(_)
            | Kernel::Indexer(_)
            | Kernel::PagedIndexer(_) => self.min(Rounding::Bf16),
            _ => Rounding::F32,
        }
    }

    /// For one launch, given what it read.
    pub(super) fn launch(self) -> Bound {
        let l2 = match self {
            Rounding::F32 => 1e-5,
            Rounding::Bf16 => 2e-3,
            Rounding::Int8 => 1e-2,
        };
        Bound { l2, max: ELEMENT * l2 }
    }

    /// For a step, given what it read: what multiplies one rounded product by another is off by the errors of both.
    pub(super) fn step(self, step: &Step) -> Bound {
        let Bound { l2, max } = self.launch();
        match step.kernel {
            Kernel::GateUp(_) | Kernel::GroupedGateUp(_) => Bound { l2: 2.0 * l2, max: 2.0 * max },
            _ => Bound { l2, max },
        }
    }

    /// For a value, given the tokens.
    pub(super) fn model(self) -> Bound {
        let l2 = match self {
            Rounding::F32 => 1e-4,
            Rounding::Bf16 => 2e-2,
            Rounding::Int8 => 6e-2,
        };
        Bound { l2, max: ELEMENT * l2 }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Rounding::F32 => "f32",
            Rounding::Bf16 => "bf16",
            Rounding::Int8 => "8-bit",
        }
    }
}

/// How far a value is off, as shares of an RMS.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub(super) struct Off {
    #[serde(serialize_with = "finite")]
    pub(super) l2: f64,
    #[serde(serialize_with = "finite")]
    pub(super) max: f64,
}

/// JSON has no infinity.
fn finite<S: serde::Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() { s.serialize_f64(*x) } else { s.serialize_str("no number") }
}

impl Off {
    pub(super) const NONE: Off = Off { l2: 0.0, max: 0.0 };

    /// How many times the bound it is.
    pub(super) fn of(self, b: Bound) -> f64 {
        (self.l2 / b.l2).max(self.max / b.max)
    }

    /// `have` beside `want`, in units of `rms`. What only one of them has as a number, or other integers, is infinitely
    /// far off.
    pub(super) fn between(have: &Tensor, want: &Tensor, rms: f64) -> Off {
        const FAR: Off = Off { l2: f64::INFINITY, max: f64::INFINITY };
        match (&have.data, &want.data) {
            (Data::F(a), Data::F(b)) if a.len() == b.len() => {
                let (mut sum, mut max) = (0.0f64, 0.0f64);
                for (a, b) in a.iter().zip(b) {
                    // Equal infinities say the same.
                    if a == b {
                        continue;
                    }
                    let d = (a - b).abs();
                    if !d.is_finite() {
                        return FAR;
                    }
                    sum += d * d;
                    max = max.max(d);
                }
                let unit = rms.max(f64::MIN_POSITIVE);
                Off { l2: (sum / a.len().max(1) as f64).sqrt() / unit, max: max / unit }
            }
            // Choices: their order says nothing.
            (Data::I(a), Data::I(b)) if a.len() == b.len() && sorted(have, a) == sorted(want, b) => Off::NONE,
            _ => FAR,
        }
    }
}

/// Integers with each row sorted.
fn sorted(t: &Tensor, v: &[i64]) -> Vec<i64> {
    let mut v = v.to_vec();
    v.chunks_mut(t.shape.last().copied().unwrap_or(1).max(1)).for_each(<[i64]>::sort_unstable);
    v
}

/// The root of the mean square of the finite entries.
pub(super) fn rms<'t>(all: impl IntoIterator<Item = &'t Tensor>) -> f64 {
    let (mut sum, mut n) = (0.0, 0usize);
    for t in all {
        if let Data::F(v) = &t.data {
            for x in v.iter().filter(|x| x.is_finite()) {
                sum += x * x;
                n += 1;
            }
        }
    }
    (sum / n.max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_never_passes() {
        let t = |v: &[f64]| Tensor::f(vec![v.len()], v.to_vec());
        let far = |a: &[f64], b: &[f64]| Off::between(&t(a), &t(b), 1.0).of(Rounding::Int8.model());
        assert_eq!(far(&[1.0, f64::NEG_INFINITY], &[1.0, f64::NEG_INFINITY]), 0.0);
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::NAN), (f64::INFINITY, 1.0)] {
            assert_eq!(far(&[a], &[b]), f64::INFINITY, "{a} {b}");
        }
        assert_eq!(far(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        let ids = |v: &[i64]| Tensor::i(vec![2, v.len() / 2], v.to_vec());
        assert_eq!(Off::between(&ids(&[1, 2, 3, 4]), &ids(&[2, 1, 3, 4]), 1.0), Off::NONE);
        assert!(Off::between(&ids(&[1, 2, 3, 4]), &ids(&[3, 4, 1, 2]), 1.0).max.is_infinite());
    }

    #[test]
    fn the_documented_table_is_this_one() {
        let doc = include_str!("../../../docs/numerics.md");
        for r in [Rounding::F32, Rounding::Bf16, Rounding::Int8] {
            let cell = |b: Bound| format!("{:e} / {:e}", b.l2, b.max);
            let row = format!("| {} | {} | {} |", r.name(), cell(r.launch()), cell(r.model()));
            assert!(doc.contains(&row), "docs/numerics.md lacks `{row}`");
        }
    }

    #[test]
    fn errors_are_shares_of_the_rms() {
        let t = |v: &[f64]| Tensor::f(vec![v.len()], v.to_vec());
        let off = Off::between(&t(&[2.0, 2.0, 2.0, 3.0]), &t(&[2.0; 4]), 2.0);
        assert_eq!(off, Off { l2: 0.25, max: 0.5 });
        assert_eq!(rms([&t(&[3.0, f64::NEG_INFINITY]), &t(&[3.0])]), 3.0);
    }
}
