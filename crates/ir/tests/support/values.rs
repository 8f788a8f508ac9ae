//! Random numbers for modules: operands, weights in memory, comparisons.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::borrow::Cow;

use glmc_ir::entities::WeightId;
use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::global::WeightSource;
use glmc_ir::quant::synth::synth_blocks;
use glmc_ir::tensor::{Data, EvalError, Tensor, concrete};
use glmc_ir::ty::{Elem, SymValues, TensorType};

/// SplitMix64 (Steele et al., 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Which floats operands and weights hold.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Floats {
    /// In [-1, 1).
    Real,
    /// -2..=2.
    Integers,
}

impl Floats {
    fn one(self, rng: &mut Rng) -> f64 {
        match self {
            Floats::Real => (rng.next() >> 40) as f64 / 8_388_608.0 - 1.0,
            Floats::Integers => rng.below(5) as f64 - 2.0,
        }
    }
}

/// Weights by their place in the file, so that every form of a module reads the same.
pub(crate) struct Weights<'a>(pub(crate) &'a Module, pub(crate) Floats);

impl WeightSource for Weights<'_> {
    fn bytes(&self, w: WeightId) -> Result<Cow<'_, [u8]>, EvalError> {
        let (w, mut rng) = (&self.0.weights[w], Rng(self.0.weights[w].span.offset));
        let mut out = vec![0u8; w.span.bytes as usize];
        match w.ty.elem.in_file().storage() {
            Some(q) if q.is_float() => {
                let n = out.len() / q.block_bytes();
                let data = (0..n).map(|_| self.1.one(&mut rng)).collect();
                out = Tensor::f(vec![n], data).to_bytes(w.ty.elem)?;
            }
            Some(q) => synth_blocks(q, 1, w.span.offset, 0, 0.5, &mut out),
            None => return Err(EvalError::new("a weight of integers")),
        }
        Ok(out.into())
    }
}

/// A random tensor of `ty`; integers in `-1..most`.
pub(crate) fn random(ty: &TensorType, syms: &SymValues, rng: &mut Rng, floats: Floats, most: u64) -> Tensor {
    let shape = concrete(ty, syms).expect("every symbol has a value");
    let n: usize = shape.iter().product();
    match ty.elem {
        Elem::I32 => {
            Tensor::i(shape, (0..n).map(|_| rng.below(most + 1) as i64 - i64::from(rng.below(8) == 0)).collect())
        }
        Elem::Quant(q) => {
            let mut bytes = vec![0; n / q.block_elems() * q.block_bytes()];
            synth_blocks(q, rng.next(), 1, 0, 0.5, &mut bytes);
            Tensor::from_bytes(ty.elem, shape, &bytes).expect("whole blocks")
        }
        _ => Tensor::f(shape, (0..n).map(|_| floats.one(rng)).collect()),
    }
}

/// Random operands of `f`.
pub(crate) fn operands(f: &Function, syms: &SymValues, rng: &mut Rng, floats: Floats, most: u64) -> Vec<Tensor> {
    f.params.iter().map(|p| random(f.ty(*p), syms, rng, floats, most)).collect()
}

/// Where two lists of results part: integers at all, floats by more than `tolerance` of the result's size.
pub(crate) fn differ(a: &[Tensor], b: &[Tensor], tolerance: f64) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} and {} results", a.len(), b.len()));
    }
    a.iter().zip(b).enumerate().find_map(|(i, (a, b))| one_differs(a, b, tolerance).map(|d| format!("result {i}: {d}")))
}

fn one_differs(a: &Tensor, b: &Tensor, tolerance: f64) -> Option<String> {
    if a.shape != b.shape {
        return Some(format!("shapes {:?} and {:?}", a.shape, b.shape));
    }
    match (&a.data, &b.data) {
        (Data::F(x), Data::F(y)) => {
            let finite = y.iter().filter(|v| v.is_finite()).map(|v| v * v);
            let size = (finite.sum::<f64>() / y.len().max(1) as f64).sqrt();
            let far = |(_, (x, y)): &(usize, (&f64, &f64))| {
                let same = x == y || x.is_nan() && y.is_nan();
                let near = (*x - *y).abs() <= tolerance * (y.abs() + size);
                !same && !near
            };
            x.iter().zip(y).enumerate().find(far).map(|(i, (x, y))| format!("element {i}: {x} and {y}"))
        }
        (x, y) if x == y => None,
        _ => Some("other entries".into()),
    }
}
