//! `dequant`: decodes stored weights to floats, entry by entry; exact, by the quant type's one decoder.

use serde::{Deserialize, Serialize};

use super::rules::{Infer, arity, stateless};
use crate::diag::Diagnostic;
use crate::op::OpDef;
use crate::placement::{DimRule, Role};
use crate::tensor::{Data, EvalError, Tensor};
use crate::ty::{Elem, SymValues, TensorType};

/// Decodes a stored tensor to `f32`. Splits pass through: a rank decodes the part it holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dequant {}

impl OpDef for Dequant {
    const NAME: &'static str = "dequant";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        arity(Self::NAME, args, 1)?;
        stateless(Self::NAME, args, None)?;
        if args[0].elem == Elem::I32 {
            return Err(Diagnostic::new("bad-elem", format!("`dequant` of integers: {}", args[0])));
        }
        Ok(vec![TensorType::new(Elem::F32, args[0].dims.clone())])
    }

    fn dim_rule(&self, args: &[&TensorType], _: &[TensorType]) -> DimRule {
        let mut rule = DimRule::default();
        let labels = rule.labels(args[0], Role::Map);
        rule.args = vec![labels.clone()];
        rule.results = vec![labels];
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let data = match &args[0].data {
            Data::F(v) => v.clone(),
            Data::I(_) => return Err(EvalError::new("dequant of integers")),
            Data::Q(q, bytes) => {
                // Some blocks at a time: large weights in single precision beside the result take half as much again.
                const BLOCKS: usize = 256;
                let mut some = vec![0f32; BLOCKS * q.block_elems()];
                let mut out = Vec::with_capacity(args[0].len());
                for run in bytes.chunks(BLOCKS * q.block_bytes()) {
                    let some = &mut some[..run.len() / q.block_bytes() * q.block_elems()];
                    q.decode(run, some);
                    out.extend(some.iter().map(|x| f64::from(*x)));
                }
                out
            }
        };
        Ok(vec![Tensor::f(args[0].shape.clone(), data)])
    }

    fn flops(&self, _: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64 {
        super::elementwise::flops(&results[0], syms, 2)
    }
}
