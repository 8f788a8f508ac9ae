//! The contract `append`: writes rows into a cache pool in place.

use serde::{Deserialize, Serialize};

use super::{Access, KernelDef, ParamSpec, reads};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::Append;

/// `pool[rows[t]] = x[t]`, negative rows left out; see [`Append`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendKernel {}

impl KernelDef for AppendKernel {
    const NAME: &'static str = "append";

    fn params(&self) -> Vec<ParamSpec> {
        [vec![ParamSpec::new("pool", Access::Update)], reads(["rows", "x"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(Append {}, inputs)
    }
}
