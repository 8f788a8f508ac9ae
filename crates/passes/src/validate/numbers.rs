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
use glmc_ir::ty::{Elem, Extent, Sym, SymValues};

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

/// How large a step is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Size {
    /// Tokens where their number is a symbol.
    tokens: u64,
    /// Positions that a sequence sees: more than a step adds, so that what is kept of earlier ones counts.
    visible: u64,
}

impl Size {
    /// What `f` may take, at most `tokens` tokens that see `before` positions more.
    pub(super) fn of(m: &Module, f: &Function, tokens: u64, before: u64) -> Self {
        let params = || f.params.iter().map(|p| f.ty(*p));
        let bound = |visible: bool| {
            let syms = params().flat_map(|t| &t.dims).filter_map(|d| match &d.extent {
                Extent::Sym(s) if (s.base().as_str() == param::VISIBLE) == visible => m.syms.get(s).copied(),
                _ => None,
            });
            syms.min().unwrap_or(u64::MAX)
        };
        // Each sequence has rows of its own.
        let rows = params().filter(|t| t.state).filter_map(|t| t.dims.first()?.extent.as_const()).min();
        let sequences = f.param_named(param::TABLE).and_then(|p| f.ty(p).dims[0].extent.as_const()).unwrap_or(1);
        let room = rows.map_or(u64::MAX, |n| n / sequences.max(1)).max(1);
        let visible = (tokens + before).min(bound(true)).min(room);
        Size { tokens: tokens.min(bound(false)).min(visible), visible }
    }

    /// The largest that both admit.
    pub(super) fn min(self, other: Self) -> Self {
        Size { tokens: self.tokens.min(other.tokens), visible: self.visible.min(other.visible) }
    }

    /// The values of a module's symbols.
    pub(super) fn symbols(self, m: &Module) -> SymValues {
        let value = |s: &Sym| if s.base().as_str() == param::VISIBLE { self.visible } else { self.tokens };
        SymValues(m.syms.iter().map(|(s, bound)| (s.clone(), value(s).min(*bound))).collect())
    }
}

/// The rows of a step: how many sequences, and what the last token of each sees.
struct Rows {
    sequences: i64,
    visible: i64,
    tokens: i64,
}

impl Rows {
    fn of(f: &Function, syms: &SymValues) -> Result<Self, EvalError> {
        let shape_of = |name: &str| f.param_named(name).map(|p| concrete(f.ty(p), syms)).transpose();
        let table = shape_of(param::TABLE)?;
        let tokens = shape_of(param::LEN)?.or(shape_of(param::POS)?).map_or(1, |s| s[0]) as i64;
        let (sequences, visible) = table.map_or((1, tokens), |t| (t[0].max(1) as i64, t[1] as i64));
        Ok(Rows { sequences, visible, tokens })
    }

    /// The position of token `i`: one sequence's last ones in order, or the last of each.
    fn position(&self, i: i64) -> i64 {
        if self.sequences > 1 { self.visible - 1 } else { (self.visible - self.tokens).max(0) + i }
    }

    fn sequence(&self, i: i64) -> i64 {
        if self.sequences > 1 { i % self.sequences } else { 0 }
    }

    fn row(&self, i: i64) -> i64 {
        self.sequence(i) * self.visible + self.position(i)
    }

    /// Rows that some token sees.
    fn used(&self) -> usize {
        (self.sequences * self.visible) as usize
    }
}

/// Operands of `f`: step parameters that mean a legal step, random floats. Of an entry's pools the rows that the step sees
/// are random, others poison.
///
/// # Errors
/// A type of unknown size.
pub(super) fn operands(f: &Function, syms: &SymValues, seed: u64) -> Result<Vec<Tensor>, EvalError> {
    let rows = Rows::of(f, syms)?;
    let one = |p: glmc_ir::entities::Value| {
        let ty = f.ty(p);
        let k = named(&f.value_name(p));
        let shape = concrete(ty, syms)?;
        let n: usize = shape.iter().product();
        let ints = |of: &dyn Fn(i64) -> i64| Ok(Tensor::i(shape.clone(), (0..n as i64).map(of).collect()));
        match (f.value_name(p).as_str(), ty.elem) {
            _ if ty.state && f.entry => {
                let mut pool = Tensor::poison(ty, syms)?;
                let used = n / shape.first().copied().unwrap_or(1).max(1) * rows.used();
                if let Data::F(v) = &mut pool.data {
                    v.iter_mut().take(used).zip(0..).for_each(|(x, i)| *x = float(seed ^ k, i));
                }
                Ok(pool)
            }
            (param::SEQ, Elem::I32) => ints(&|i| rows.sequence(i)),
            (param::LEN, Elem::I32) => ints(&|i| rows.position(i) + 1),
            (param::POS, Elem::I32) => ints(&|i| rows.position(i)),
            (param::ROW, Elem::I32) => ints(&|i| rows.row(i)),
            (param::TABLE, Elem::I32) => ints(&|i| i),
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
pub(super) fn apart(a: &[&Tensor], b: &[&Tensor]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let one = |(a, b): (&&Tensor, &&Tensor)| match (&a.data, &b.data) {
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
pub(super) fn has_numbers(all: &[&Tensor]) -> bool {
    let any = |t: &Tensor| match &t.data {
        Data::F(v) => v.iter().any(|x| x.is_finite() && *x != 0.0),
        Data::I(v) => !v.is_empty(),
        Data::Q(..) => false,
    };
    all.iter().any(|t| any(t))
}
