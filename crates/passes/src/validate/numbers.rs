//! Owns the numbers that a validation runs on: operands by the names of step parameters, weights by their place, and
//! the comparison. Never decides what is compared.

use std::borrow::Cow;

use glmc_ir::entities::WeightId;
use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::global::WeightSource;
use glmc_ir::interp::plan::SliceSource;
use glmc_ir::plan::{Slice, param};
use glmc_ir::quant::synth::synth_blocks;
use glmc_ir::tensor::{Data, EvalError, Tensor, concrete};
use glmc_ir::ty::{Elem, Extent, SymValues};

/// Stored bytes of every weight of a module, random by place.
pub(super) struct Stored {
    bytes: Vec<u8>,
}

/// The weights of a module among them: passes keep spans, not numbers of weights.
pub(super) struct In<'a>(pub(super) &'a Module, pub(super) &'a Stored);

impl Stored {
    pub(super) fn of(m: &Module) -> Self {
        let end = m.weights.values().map(|w| w.span.offset + w.span.bytes).max().unwrap_or(0);
        let mut bytes = vec![0u8; end as usize];
        for w in m.weights.values() {
            let part = &mut bytes[w.span.offset as usize..][..w.span.bytes as usize];
            if let Some(q) = w.ty.elem.in_file().storage() {
                synth_blocks(q, 1, w.span.offset, 0, 0.5, part);
            }
        }
        Stored { bytes }
    }

    fn run(&self, offset: u64, bytes: u64) -> Result<&[u8], EvalError> {
        let run = self.bytes.get(offset as usize..(offset + bytes) as usize);
        run.ok_or_else(|| EvalError::new("outside the weights"))
    }
}

impl WeightSource for In<'_> {
    fn bytes(&self, w: WeightId) -> Result<Cow<'_, [u8]>, EvalError> {
        let w = self.0.weights.get(w).ok_or_else(|| EvalError::new(format!("there is no {w}")))?;
        self.1.run(w.span.offset, w.span.bytes).map(Cow::Borrowed)
    }
}

impl SliceSource for Stored {
    fn read(&self, s: &Slice, out: &mut Vec<u8>) -> Result<(), EvalError> {
        for i in 0..s.count {
            out.extend_from_slice(self.run(s.offset + i * s.stride, s.bytes)?);
        }
        Ok(())
    }
}

/// A random float in [-1, 1), a function of where it stands.
fn float(seed: u64, i: u64) -> f64 {
    let mut z = (seed << 32 ^ i).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f64 / 8_388_608.0 - 1.0
}

/// How many tokens a run of `f` takes: at most `most`, and as its symbols allow.
pub(super) fn tokens(m: &Module, f: &Function, most: u64) -> u64 {
    let dims = f.params.iter().flat_map(|p| &f.ty(*p).dims);
    let bounds = dims.filter_map(|d| if let Extent::Sym(s) = &d.extent { m.syms.get(s).copied() } else { None });
    bounds.fold(most, u64::min)
}

/// Symbol values: `tokens` tokens of one sequence that sees as many positions.
pub(super) fn symbols(m: &Module, tokens: u64) -> SymValues {
    SymValues(m.syms.iter().map(|(s, bound)| (s.clone(), tokens.min(*bound))).collect())
}

/// Operands of `f`: step parameters that mean a legal step, random floats, pools of poison or of random floats.
///
/// # Errors
/// A type of unknown size.
pub(super) fn operands(f: &Function, syms: &SymValues, seed: u64) -> Result<Vec<Tensor>, EvalError> {
    let shape_of = |name: &str| f.param_named(name).map(|p| concrete(f.ty(p), syms)).transpose();
    let sequences = shape_of(param::TABLE)?.map_or(1, |s| s[0].max(1)) as i64;
    let one = |p: glmc_ir::entities::Value| {
        let ty = f.ty(p);
        let k = named(&f.value_name(p));
        let shape = concrete(ty, syms)?;
        let n: usize = shape.iter().product();
        // One sequence: its tokens in order. Several: a first token of each.
        let ints = |of: &dyn Fn(i64) -> i64| Ok(Tensor::i(shape.clone(), (0..n as i64).map(of).collect()));
        match (f.value_name(p).as_str(), ty.elem) {
            _ if ty.state && f.entry => Tensor::poison(ty, syms),
            (param::SEQ, Elem::I32) => ints(&|i| if sequences > 1 { i % sequences } else { 0 }),
            (param::LEN, Elem::I32) => ints(&|i| if sequences > 1 { 1 } else { i + 1 }),
            (param::TABLE, Elem::I32) => {
                let width = (n as i64 / sequences).max(1);
                ints(&|i| if sequences > 1 { i / width } else { i })
            }
            (param::TOKENS, Elem::I32) => ints(&|i| (i * 5 + seed as i64 * 3) % 16),
            (param::OUT, Elem::I32) => ints(&|_| 0),
            (_, Elem::I32) => ints(&|i| i % (shape.last().copied().unwrap_or(1).max(1) as i64)),
            (_, Elem::Quant(q)) => {
                let mut bytes = vec![0; n / q.block_elems() * q.block_bytes()];
                synth_blocks(q, seed, k, 0, 0.5, &mut bytes);
                Tensor::from_bytes(ty.elem, shape, &bytes)
            }
            _ => Ok(Tensor::f(shape, (0..n as u64).map(|i| float(seed ^ k, i)).collect())),
        }
    };
    f.params.iter().map(|p| one(*p)).collect()
}

/// A number for a name: a parameter gets the same entries whatever others stand before it.
fn named(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    hash >> 40 << 8
}

/// The largest difference of two lists of results as a share of each result's size. Poison equals poison; integers
/// differ infinitely.
pub(super) fn apart(a: &[Tensor], b: &[Tensor]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let one = |(a, b): (&Tensor, &Tensor)| match (&a.data, &b.data) {
        (Data::F(x), Data::F(y)) if a.shape == b.shape => {
            let size = y.iter().filter(|y| y.is_finite()).fold(1e-30, |m: f64, y| m.max(y.abs()));
            let far = |(x, y): (&f64, &f64)| match (x == y || x.is_nan() && y.is_nan(), (x - y).abs() / size) {
                (true, _) => 0.0,
                (_, d) if d.is_nan() => f64::INFINITY,
                (_, d) => d,
            };
            x.iter().zip(y).map(far).fold(0.0, f64::max)
        }
        (x, y) if x == y && a.shape == b.shape => 0.0,
        _ => f64::INFINITY,
    };
    a.iter().zip(b).map(one).fold(0.0, f64::max)
}

/// Whether any number of a result is one.
pub(super) fn has_numbers(all: &[Tensor]) -> bool {
    let any = |t: &Tensor| match &t.data {
        Data::F(v) => v.iter().any(|x| x.is_finite() && *x != 0.0),
        Data::I(v) => !v.is_empty(),
        Data::Q(..) => false,
    };
    all.iter().any(any)
}
