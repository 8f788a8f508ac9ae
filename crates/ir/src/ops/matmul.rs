//! `matmul`: contraction in named-axis form. The spec `tk,nk->tn` reads as in einsum: a letter is a dim; letters of
//! both sides are batch dims, letters that vanish are summed, the rest are free. Several right-hand sides may share
//! the left one (`names`): each has its own type, and the last result dim joins their last free dims by name.
//! Weights are never concatenated; the join exists only on the activation.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, float, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Extent, PendingKind, Piece, SymValues, TensorType};

/// `y = x * w` by `spec`, or `y = {name: x * w, ..}` over several `w`. A `w` whose joined dim has pieces of its own gives
/// `name.piece` for each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matmul {
    /// `LHS,RHS->OUT`, one lower-case letter a dim.
    pub spec: String,
    /// Names of the right-hand sides, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// A parsed spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Einsum {
    /// Letters of the left operand's dims.
    pub lhs: Vec<u8>,
    /// Letters of the right operand's dims.
    pub rhs: Vec<u8>,
    /// Letters of the result's dims.
    pub out: Vec<u8>,
}

impl Einsum {
    /// Parses `LHS,RHS->OUT`: letters distinct within a side, each result letter on a side, none only on one side
    /// and not in the result.
    pub fn parse(spec: &str) -> Result<Self, Diagnostic> {
        let bad = |why: &str| Diagnostic::new("bad-attribute", format!("`matmul` spec `{spec}`: {why}"));
        let (ins, out) = spec.split_once("->").ok_or_else(|| bad("no `->`"))?;
        let (l, r) = ins.split_once(',').ok_or_else(|| bad("needs two operands"))?;
        let side = |s: &str| -> Result<Vec<u8>, Diagnostic> {
            let b = s.as_bytes().to_vec();
            let distinct = b.iter().enumerate().all(|(i, c)| c.is_ascii_lowercase() && !b[..i].contains(c));
            if distinct { Ok(b) } else { Err(bad("letters are lower-case and distinct within an operand")) }
        };
        let e = Einsum { lhs: side(l)?, rhs: side(r)?, out: side(out)? };
        if !e.out.iter().all(|c| e.lhs.contains(c) || e.rhs.contains(c)) {
            return Err(bad("a result letter is on neither side"));
        }
        let lost = |a: &[u8], b: &[u8]| a.iter().any(|c| !b.contains(c) && !e.out.contains(c));
        if lost(&e.lhs, &e.rhs) || lost(&e.rhs, &e.lhs) {
            return Err(bad("a letter of one side alone must be in the result"));
        }
        Ok(e)
    }

    /// Letters summed over, in left order.
    pub fn contracted(&self) -> Vec<u8> {
        self.lhs.iter().copied().filter(|c| !self.out.contains(c)).collect()
    }
}

impl Matmul {
    /// One right-hand side.
    pub fn new(spec: &str) -> Self {
        Matmul { spec: spec.into(), names: Vec::new() }
    }

    fn result_dim(&self, e: &Einsum, letter: u8, args: &[&TensorType]) -> Dim {
        let at = |side: &[u8], t: &TensorType| side.iter().position(|c| *c == letter).map(|i| t.dims[i].clone());
        at(&e.lhs, args[0]).or_else(|| at(&e.rhs, args[1])).unwrap_or_else(|| Dim::new(1))
    }

    /// The joined last dim of several right-hand sides.
    fn joined(&self, e: &Einsum, args: &[&TensorType]) -> Result<Dim, Diagnostic> {
        let last = e.out.last().copied().unwrap_or(b'?');
        let at = e.rhs.iter().position(|c| *c == last).filter(|_| !e.lhs.contains(&last)).ok_or_else(|| {
            Diagnostic::new(
                "bad-attribute",
                "the last result letter of a shared-input matmul must be free on the right",
            )
        })?;
        let mut pieces = Vec::new();
        for (name, w) in self.names.iter().zip(&args[1..]) {
            let parts = match &w.dims[at].extent {
                Extent::Const(n) => vec![(Piece::from(name.as_str()), *n)],
                // A dim that is joined already keeps its pieces, so that a split of the result stays piecewise.
                Extent::Joined(p) => p.iter().map(|(q, n)| (Piece::from(format!("{name}.{q}").as_str()), *n)).collect(),
                Extent::Sym(_) => {
                    return Err(Diagnostic::new("shape-mismatch", format!("`matmul` joins plain dims, found {w}")));
                }
            };
            for (piece, n) in parts {
                if pieces.iter().any(|(p, _): &(Piece, u64)| *p == piece) {
                    return Err(Diagnostic::new("piece-order", format!("`matmul` names `{piece}` twice")));
                }
                pieces.push((piece, n));
            }
        }
        Ok(Dim { extent: Extent::Joined(pieces), split: None })
    }
}

impl OpDef for Matmul {
    const NAME: &'static str = "matmul";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        let e = Einsum::parse(&self.spec)?;
        let rhs = self.names.len().max(1);
        if args.len() != 1 + rhs || self.names.len() == 1 {
            return Err(Diagnostic::new(
                "bad-arity",
                format!("`matmul` of {} operands with {} names", args.len(), self.names.len()),
            )
            .help("a left operand, and one right operand, or two and more with a name each"));
        }
        stateless(Self::NAME, args, None)?;
        for (i, a) in args.iter().enumerate() {
            float(Self::NAME, args, i)?;
            let letters = if i == 0 { &e.lhs } else { &e.rhs };
            if a.rank() != letters.len() {
                return Err(Diagnostic::new("bad-rank", format!("`matmul` {}: operand {i} is {a}", self.spec)));
            }
        }
        for w in &args[1..] {
            for (i, c) in e.rhs.iter().enumerate() {
                if let Some(j) = e.lhs.iter().position(|d| d == c) {
                    same_dim(Self::NAME, &format!("dim `{}`", *c as char), &args[0].dims[j], &w.dims[i])?;
                }
            }
        }
        for (i, c) in e.rhs.iter().enumerate() {
            for w in &args[2..] {
                if Some(c) != e.out.last() {
                    same_dim(Self::NAME, &format!("dim `{}`", *c as char), &args[1].dims[i], &w.dims[i])?;
                }
            }
        }
        let mut dims: Vec<Dim> = e.out.iter().map(|c| self.result_dim(&e, *c, args)).collect();
        if !self.names.is_empty() {
            let joined = self.joined(&e, args)?;
            if let Some(d) = dims.last_mut() {
                *d = joined;
            }
        }
        Ok(vec![TensorType::new(args[0].elem, dims)])
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        let Ok(e) = Einsum::parse(&self.spec) else { return DimRule::whole(args, results) };
        let mut rule = DimRule::default();
        let mut letters: Vec<(u8, usize)> = Vec::new();
        for c in e.lhs.iter().chain(&e.rhs) {
            if !letters.iter().any(|(l, _)| l == c) {
                let role = if e.out.contains(c) { Role::Map } else { Role::Reduce(PendingKind::Sum) };
                letters.push((*c, rule.label(role)));
            }
        }
        let of = |side: &[u8]| -> Vec<usize> {
            side.iter().map(|c| letters.iter().find(|(l, _)| l == c).map_or(0, |(_, i)| *i)).collect()
        };
        rule.args = args.iter().enumerate().map(|(i, _)| of(if i == 0 { &e.lhs } else { &e.rhs })).collect();
        rule.results = vec![of(&e.out)];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let e = Einsum::parse(&self.spec).map_err(|d| EvalError::new(d.message))?;
        let parts: Vec<Tensor> = args[1..].iter().map(|w| contract(&e, args[0], w)).collect::<Result<_, _>>()?;
        if parts.len() == 1 {
            return Ok(parts);
        }
        super::join::concat_last(&parts.iter().collect::<Vec<_>>()).map(|t| vec![t])
    }

    fn stored(&self, _: usize) -> bool {
        true
    }

    fn flops(&self, args: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        let Ok(e) = Einsum::parse(&self.spec) else { return u64::MAX };
        let shape = args[0].shape(syms).unwrap_or_default();
        let k: u64 =
            e.contracted().iter().filter_map(|c| e.lhs.iter().position(|l| l == c)).map(|i| shape[i]).product();
        results[0].elems(syms).unwrap_or(u64::MAX).saturating_mul(2 * k)
    }

    fn linear_in(&self, _: usize) -> bool {
        true
    }
}

/// One contraction, as nested loops over result entries and summed entries.
fn contract(e: &Einsum, x: &Tensor, w: &Tensor) -> Result<Tensor, EvalError> {
    let (xd, wd) = (x.floats()?, w.floats()?);
    let extent = |c: u8| {
        let on = |side: &[u8], t: &Tensor| side.iter().position(|l| *l == c).map(|i| t.shape[i]);
        on(&e.lhs, x).or_else(|| on(&e.rhs, w)).unwrap_or(1)
    };
    let sum = e.contracted();
    let out_shape: Vec<usize> = e.out.iter().map(|c| extent(*c)).collect();
    let sum_shape: Vec<usize> = sum.iter().map(|c| extent(*c)).collect();
    let (xo, wo) = (strides(&e.lhs, &x.shape, &e.out), strides(&e.rhs, &w.shape, &e.out));
    let (xs, ws) = (strides(&e.lhs, &x.shape, &sum), strides(&e.rhs, &w.shape, &sum));
    let inner = sum_shape.last().copied().unwrap_or(1);
    let (xi, wi) = (xs.last().copied().unwrap_or(0), ws.last().copied().unwrap_or(0));
    let outer_sum = &sum_shape[..sum_shape.len().saturating_sub(1)];
    let mut out = Vec::with_capacity(out_shape.iter().product());
    for_each_index(&out_shape, |index| {
        let (xb, wb) = (dot_index(index, &xo), dot_index(index, &wo));
        let mut acc = 0.0;
        for_each_index(outer_sum, |s| {
            let (mut a, mut b) = (xb + dot_index(s, &xs), wb + dot_index(s, &ws));
            for _ in 0..inner {
                acc += xd[a] * wd[b];
                a += xi;
                b += wi;
            }
        });
        out.push(acc);
    });
    Ok(Tensor::f(out_shape, out))
}

/// The stride in `side`'s tensor of each letter of `letters` (0 where the side lacks it).
fn strides(side: &[u8], shape: &[usize], letters: &[u8]) -> Vec<usize> {
    letters.iter().map(|c| side.iter().position(|l| l == c).map_or(0, |i| shape[i + 1..].iter().product())).collect()
}

fn dot_index(index: &[usize], strides: &[usize]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum()
}

/// Calls `f` with every index of `shape` in row-major order.
fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(d) = (0..shape.len()).rev().find(|&d| index[d] + 1 < shape[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}
