//! `moe_route`: which experts a token goes to and with what weight (DeepSeek-V3, `noaux_tc`).
//! `g = gate(logits)`; choice scores `c = g + bias` (the bias chooses, it never weighs); with groups, only the
//! `groups_used` groups with the largest sum of their two best `c` stay; the `k` largest `c` are chosen, best first,
//! ties by smaller id; weights are `g` of the chosen, divided by their sum where `norm`, times `scale`.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, float, rank, same_dim, stateless};
use super::topk::largest;
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{Dim, Elem, SymValues, TensorType};

/// How logits become gates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// `g = 1 / (1 + exp(-x))`, expert by expert.
    Sigmoid,
    /// `g = softmax(x)` over the experts.
    Softmax,
}

/// Operands: `logits f32[T, E]` and, with `bias`, `bias f32[E]`. Results: `ids i32[T, k]`, `weights f32[T, k]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoeRoute {
    /// The gate function.
    pub gating: Gating,
    /// Experts chosen a token.
    pub k: u64,
    /// Whether a bias operand follows.
    pub bias: bool,
    /// Groups of experts; 1 means none.
    pub groups: u64,
    /// Groups kept.
    pub groups_used: u64,
    /// Divide the weights by their sum.
    pub norm: bool,
    /// Multiplies the weights.
    pub scale: f64,
}

impl OpDef for MoeRoute {
    const NAME: &'static str = "moe_route";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        const OP: &str = MoeRoute::NAME;
        if args.len() != 1 + usize::from(self.bias) {
            return Err(Diagnostic::new(
                "bad-arity",
                format!("`{OP}` with bias {} and {} operands", self.bias, args.len()),
            ));
        }
        stateless(OP, args, None)?;
        float(OP, args, 0)?;
        rank(OP, args, 0, 2)?;
        let experts = &args[0].dims[1];
        if self.bias {
            float(OP, args, 1)?;
            rank(OP, args, 1, 1)?;
            same_dim(OP, "experts", experts, &args[1].dims[0])?;
        }
        // Router logits in less than f32 flip near ties.
        if let Some(a) = args.iter().find(|a| a.elem != Elem::F32) {
            return Err(Diagnostic::new("bad-elem", format!("`{OP}` needs f32, found {a}")));
        }
        let e = experts.extent.as_const().unwrap_or(0);
        let groups_fit =
            self.groups >= 1 && e.is_multiple_of(self.groups) && (1..=self.groups).contains(&self.groups_used);
        let kept = if groups_fit { e / self.groups * self.groups_used } else { 0 };
        if self.k == 0 || self.k > kept || !self.scale.is_finite() {
            return Err(Diagnostic::new(
                "bad-attribute",
                format!("`{OP}` of {} from {e} experts in {} groups, {} used", self.k, self.groups, self.groups_used),
            ));
        }
        let dims = [args[0].dims[0].clone(), Dim::new(self.k)];
        Ok(vec![TensorType::new(Elem::I32, dims.clone()), TensorType::new(Elem::F32, dims)])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let (t, e, k) = (rule.label(Role::Map), rule.label(Role::Whole), rule.label(Role::Whole));
        rule.args = std::iter::once(vec![t, e]).chain(args[1..].iter().map(|_| vec![e])).collect();
        rule.results = vec![vec![t, k], vec![t, k]];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = args[0].floats()?;
        let bias = args.get(1).map(|b| b.floats()).transpose()?;
        let (tokens, experts) = (args[0].shape[0], args[0].shape[1]);
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for (t, row) in x.chunks_exact(experts.max(1)).enumerate() {
            if row.iter().any(|v| v.is_nan()) {
                return Err(EvalError::new(format!("logits of token {t} hold NaN")));
            }
            let (gates, choice) = self.scores(row, bias);
            let chosen = largest(&choice, self.k as usize);
            if chosen.len() < self.k as usize {
                return Err(EvalError::new(format!("token {t} has fewer than {} experts above -inf", self.k)));
            }
            weights.extend(self.weigh(&gates, &chosen));
            ids.extend(chosen.iter().map(|e| *e as i64));
        }
        let shape = vec![tokens, self.k as usize];
        Ok(vec![Tensor::i(shape.clone(), ids), Tensor::f(shape, weights)])
    }

    fn stored(&self, i: usize) -> bool {
        i == 1
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(args[0], syms, 5)
    }

    fn discrete(&self) -> bool {
        true
    }
}

impl MoeRoute {
    /// The gates of a token's logits, and the scores that its experts are chosen by: `-inf` in groups that are not kept.
    pub fn scores(&self, row: &[f64], bias: Option<&[f64]>) -> (Vec<f64>, Vec<f64>) {
        let gates = self.gates(row);
        let mut choice: Vec<f64> =
            gates.iter().enumerate().map(|(e, g)| g + bias.and_then(|b| b.get(e)).copied().unwrap_or(0.0)).collect();
        self.keep_groups(&mut choice);
        (gates, choice)
    }

    /// The weights of the chosen experts, in their order.
    pub fn weigh(&self, gates: &[f64], chosen: &[usize]) -> Vec<f64> {
        let gate = |e: &usize| gates.get(*e).copied().unwrap_or(f64::NAN);
        let sum: f64 = chosen.iter().map(gate).sum();
        let norm = if self.norm { 1.0 / (sum + 1e-20) } else { 1.0 };
        chosen.iter().map(|e| gate(e) * norm * self.scale).collect()
    }

    fn gates(&self, row: &[f64]) -> Vec<f64> {
        match self.gating {
            Gating::Sigmoid => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
            Gating::Softmax => {
                let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let e: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
                let sum: f64 = e.iter().sum();
                e.into_iter().map(|x| x / sum).collect()
            }
        }
    }

    /// Sets the choice scores of the groups that are not kept to `-inf`.
    fn keep_groups(&self, choice: &mut [f64]) {
        if self.groups <= 1 {
            return;
        }
        let size = choice.len() / self.groups as usize;
        let two_best = |g: &[f64]| largest(g, 2).iter().map(|i| g[*i]).sum::<f64>();
        let scores: Vec<f64> = choice.chunks_exact(size).map(two_best).collect();
        let kept = largest(&scores, self.groups_used as usize);
        for (g, group) in choice.chunks_exact_mut(size).enumerate() {
            if !kept.contains(&g) {
                group.fill(f64::NEG_INFINITY);
            }
        }
    }
}
