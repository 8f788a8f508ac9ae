//! `attention`: softmax attention over gathered keys, `o[t,h] = sum_s p[t,h,s] v[s,h]`,
//! `p[t,h,:] = softmax_s(scale * sum_i q_i[t,h] . k_i[s,h])` (Vaswani et al., 2017).
//!
//! Keys come in parts whose dot products add up (latent and rotary, say), so nothing is concatenated; a key or value
//! without a head dim is shared by all heads (MQA). Key `s` is visible to token `t` iff `s < len[t]` and, where a
//! selection is given, `s` is in `sel[t]` (positions; negative entries are none). The intersection matters: a
//! selection may hold positions that are not visible. A token that sees no key gets zeros. Keys that are not visible
//! never enter the arithmetic, whatever they hold.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, float, int, rank, same_dim, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{PendingKind, SymValues, TensorType};

/// Operands: `q_i [T, H, d_i]` for each part, `k_i [Q, S, H, d_i]` or `[Q, S, d_i]` for each part, `v [Q, S, H, dv]` or
/// `[Q, S, dv]`, `seq i32[T]` (which of the `Q` sequences a token belongs to), `len i32[T]` (visible keys), and with
/// `selected` `sel i32[T, K]`. Result `[T, H, dv]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Number of query and key parts.
    pub parts: usize,
    /// Multiplies the summed dot products.
    pub scale: f64,
    /// Whether a selection operand follows.
    pub selected: bool,
}

impl Attention {
    fn operands(&self) -> usize {
        self.parts.saturating_mul(2).saturating_add(3 + usize::from(self.selected))
    }
}

impl OpDef for Attention {
    const NAME: &'static str = "attention";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        const OP: &str = Attention::NAME;
        if self.parts == 0 || args.len() != self.operands() {
            return Err(Diagnostic::new(
                "bad-arity",
                format!("`{OP}` of {} parts takes {} operands, found {}", self.parts, self.operands(), args.len()),
            ));
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Diagnostic::new("bad-attribute", format!("`{OP}` with scale {}", self.scale)));
        }
        stateless(OP, args, None)?;
        let p = self.parts;
        let (q0, v) = (args[0], args[2 * p]);
        for i in 0..=2 * p {
            float(OP, args, i)?;
        }
        rank(OP, args, 0, 3)?;
        keys(v, v, q0)?;
        for i in 0..p {
            rank(OP, args, i, 3)?;
            let (q, k) = (args[i], args[p + i]);
            same_dim(OP, "tokens", &q0.dims[0], &q.dims[0])?;
            same_dim(OP, "heads", &q0.dims[1], &q.dims[1])?;
            keys(k, v, q0)?;
            same_dim(OP, "key width", &q.dims[2], &k.dims[k.rank() - 1])?;
        }
        for i in 2 * p + 1..args.len() {
            int(OP, args, i)?;
            rank(OP, args, i, if i == 2 * p + 3 { 2 } else { 1 })?;
            same_dim(OP, "tokens", &q0.dims[0], &args[i].dims[0])?;
        }
        Ok(vec![TensorType::new(q0.elem, [q0.dims[0].clone(), q0.dims[1].clone(), v.dims[v.rank() - 1].clone()])])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        // Each token and head is computed alone; keys split over context leave a softmax merge pending.
        let (t, h, dv) = (rule.label(Role::Map), rule.label(Role::Map), rule.label(Role::Map));
        let (q, s) = (rule.label(Role::Whole), rule.label(Role::Reduce(PendingKind::Softmax)));
        let p = self.parts;
        let widths: Vec<usize> = (0..p).map(|_| rule.label(Role::Whole)).collect();
        let key = |a: &TensorType, d: usize| if a.rank() == 4 { vec![q, s, h, d] } else { vec![q, s, d] };
        rule.args = (0..p).map(|i| vec![t, h, widths[i]]).collect();
        rule.args.extend((0..p).map(|i| key(args[p + i], widths[i])));
        rule.args.push(key(args[2 * p], dv));
        rule.args.extend([vec![t], vec![t]]);
        rule.counts = vec![(2 * p + 2, s)];
        if self.selected {
            let k = rule.label(Role::Whole);
            rule.args.push(vec![t, k]);
            rule.positions = vec![(2 * p + 3, s)];
        }
        rule.results = vec![vec![t, h, dv]];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let part = self.eval_part(args)?;
        let shape = vec![args[0].shape[0], args[0].shape[1], part.width];
        Ok(vec![Tensor::f(shape, part.rows.into_iter().flat_map(|r| r.value).collect())])
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        let p = self.parts;
        let tokens_heads = |a: &TensorType| a.elems(syms).unwrap_or(u64::MAX);
        let keys = args[2 * p].shape(syms).map_or(u64::MAX, |s| s[1]);
        let seen = args.get(2 * p + 3).and_then(|s| s.dims[1].extent.as_const()).map_or(keys, |k| keys.min(k));
        let heads = args[0].dims[1].extent.as_const().unwrap_or(1);
        let value = args[2 * p].last().and_then(|d| d.extent.as_const()).unwrap_or(0);
        let rows = args[0].shape(syms).map_or(0, |s| s[0]);
        let scores: u64 = (0..p).map(|i| tokens_heads(args[i])).fold(0, u64::saturating_add);
        2u64.saturating_mul(seen).saturating_mul(scores.saturating_add(rows * heads * value))
    }

    /// Of keys and values only the rows that can be selected.
    fn bytes_read(&self, args: &[&TensorType], _: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        let all = args[i].bytes(syms).unwrap_or(u64::MAX);
        let (Some(sel), true) = (args.get(2 * self.parts + 3), (self.parts..=2 * self.parts).contains(&i)) else {
            return all;
        };
        let (Some(chosen), Some(shape)) = (sel.elems(syms), args[i].shape(syms)) else { return all };
        let rows = shape[0].saturating_mul(shape[1]);
        let read = u128::from(all) * u128::from(chosen.min(rows)) / u128::from(rows.max(1));
        u64::try_from(read).unwrap_or(all)
    }

    fn linear_in(&self, i: usize) -> bool {
        i == 2 * self.parts
    }
}

/// What attention over some of the keys gives for one token and head.
pub(super) struct PartRow {
    /// The weighted mean of the values; zeros without keys.
    pub(super) value: Vec<f64>,
    /// The largest score; `-inf` without keys.
    pub(super) max: f64,
    /// The sum of `exp(score - max)`; 0 without keys.
    pub(super) sum: f64,
}

/// [`PartRow`] of each token and head, in order.
pub(super) struct Part {
    pub(super) rows: Vec<PartRow>,
    pub(super) width: usize,
}

impl Attention {
    /// The softmax over the keys that are there, with what a merge with other keys needs.
    pub(super) fn eval_part(&self, args: &[&Tensor]) -> Result<Part, EvalError> {
        let p = self.parts;
        let (tokens, heads) = (args[0].shape[0], args[0].shape[1]);
        let v = Keys::new(args[2 * p])?;
        let qs: Vec<(&[f64], usize)> =
            args[..p].iter().map(|a| Ok((a.floats()?, a.shape[2]))).collect::<Result<_, EvalError>>()?;
        let ks: Vec<Keys<'_>> = args[p..2 * p].iter().map(|a| Keys::new(a)).collect::<Result<_, _>>()?;
        let visible = visible_keys(args[2 * p + 1], args[2 * p + 2], args.get(2 * p + 3).copied(), v.seqs, v.keys)?;
        let mut rows = Vec::with_capacity(tokens * heads);
        for (t, (seq, seen)) in visible.iter().enumerate() {
            for h in 0..heads {
                let score = |s: usize| -> f64 {
                    let dot = |(q, d): &(&[f64], usize), k: &Keys<'_>| -> f64 {
                        let q = &q[(t * heads + h) * d..(t * heads + h + 1) * d];
                        q.iter().zip(k.row(*seq, s, h)).map(|(a, b)| a * b).sum()
                    };
                    self.scale * qs.iter().zip(&ks).map(|(q, k)| dot(q, k)).sum::<f64>()
                };
                let scores: Vec<f64> = seen.iter().map(|s| score(*s)).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mut value = vec![0.0; v.width];
                for (s, w) in seen.iter().zip(&weights) {
                    value.iter_mut().zip(v.row(*seq, *s, h)).for_each(|(o, x)| *o += w / sum * x);
                }
                rows.push(PartRow { value, max, sum });
            }
        }
        Ok(Part { rows, width: v.width })
    }
}

/// Checks the leading dims of a key or value operand against the value's and the query's.
fn keys(k: &TensorType, v: &TensorType, q: &TensorType) -> Result<(), Diagnostic> {
    if !(3..=4).contains(&k.rank()) {
        return Err(Diagnostic::new("bad-rank", format!("`attention` needs keys [Q, S, (H,) d], found {k}")));
    }
    same_dim("attention", "sequences", &k.dims[0], &v.dims[0])?;
    same_dim("attention", "keys", &k.dims[1], &v.dims[1])?;
    if k.rank() == 4 { same_dim("attention", "heads", &k.dims[2], &q.dims[1]) } else { Ok(()) }
}

/// A key or value operand, with or without a head dim.
struct Keys<'a> {
    data: &'a [f64],
    seqs: usize,
    keys: usize,
    heads: usize,
    width: usize,
}

impl<'a> Keys<'a> {
    fn new(t: &'a Tensor) -> Result<Self, EvalError> {
        let heads = if t.shape.len() == 4 { t.shape[2] } else { 1 };
        let width = t.shape[t.shape.len() - 1];
        Ok(Keys { data: t.floats()?, seqs: t.shape[0], keys: t.shape[1], heads, width })
    }

    fn row(&self, seq: usize, s: usize, h: usize) -> &[f64] {
        let at = ((seq * self.keys + s) * self.heads + h % self.heads) * self.width;
        &self.data[at..at + self.width]
    }
}

/// For each token its sequence and the positions it sees, ascending.
pub(super) fn visible_keys(
    seq: &Tensor,
    len: &Tensor,
    sel: Option<&Tensor>,
    seqs: usize,
    keys: usize,
) -> Result<Vec<(usize, Vec<usize>)>, EvalError> {
    let (seq, len) = (seq.ints()?, len.ints()?);
    let mut out = Vec::with_capacity(seq.len());
    for t in 0..seq.len() {
        let n = usize::try_from(len[t]).unwrap_or(0);
        if n == 0 {
            out.push((0, Vec::new()));
            continue;
        }
        let q = usize::try_from(seq[t]).ok().filter(|q| *q < seqs);
        let q = q.ok_or_else(|| EvalError::new(format!("token {t} belongs to sequence {} of {seqs}", seq[t])))?;
        if n > keys {
            return Err(EvalError::new(format!("token {t} sees {n} keys of {keys}")));
        }
        let mut seen: Vec<usize> = match sel {
            None => (0..n).collect(),
            Some(sel) => {
                let k = sel.shape[1];
                sel.ints()?[t * k..(t + 1) * k]
                    .iter()
                    .filter_map(|s| usize::try_from(*s).ok())
                    .filter(|s| *s < n)
                    .collect()
            }
        };
        seen.sort_unstable();
        seen.dedup();
        out.push((q, seen));
    }
    Ok(out)
}
