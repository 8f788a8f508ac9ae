//! The contracts `append` and `append_row`: write rows into a cache pool in place.

use serde::{Deserialize, Serialize};

use super::{Access, IndexRowKernel, Kernel, KernelDef, LatentRowKernel, ParamSpec, RopeJoinKernel, reads};
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

/// What makes a row where the pool keeps it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "name", content = "attrs", rename_all = "snake_case", deny_unknown_fields)]
pub enum RowMaker {
    /// See [`IndexRowKernel`].
    IndexRow(IndexRowKernel),
    /// See [`LatentRowKernel`].
    LatentRow(LatentRowKernel),
    /// See [`RopeJoinKernel`].
    RopeJoin(RopeJoinKernel),
}

impl RowMaker {
    /// The maker of the rows that `kernel` computes, if it is one.
    pub fn of(kernel: &Kernel) -> Option<Self> {
        match kernel {
            Kernel::IndexRow(k) => Some(RowMaker::IndexRow(k.clone())),
            Kernel::LatentRow(k) => Some(RowMaker::LatentRow(k.clone())),
            Kernel::RopeJoin(k) => Some(RowMaker::RopeJoin(k.clone())),
            _ => None,
        }
    }

    /// The contract that writes the rows to a buffer.
    pub fn kernel(&self) -> Kernel {
        match self {
            RowMaker::IndexRow(k) => k.clone().into(),
            RowMaker::LatentRow(k) => k.clone().into(),
            RowMaker::RopeJoin(k) => k.clone().into(),
        }
    }
}

/// `pool[rows[t]] = make(..)[t]`, negative rows left out: rows go from the launch that makes them into the pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendRowKernel {
    /// What makes the rows.
    pub make: RowMaker,
}

impl KernelDef for AppendRowKernel {
    const NAME: &'static str = "append_row";

    fn params(&self) -> Vec<ParamSpec> {
        let makers = self.make.kernel().params().into_iter().filter(|p| p.access == Access::Read);
        [vec![ParamSpec::new("pool", Access::Update)], reads(["rows"]), makers.collect()].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let made = self.make.kernel().build(b, &inputs[2..])?;
        b.op(Append {}, &[inputs[0], inputs[1], made[0]])
    }
}
