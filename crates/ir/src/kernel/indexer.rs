//! The contracts `indexer_scores` and `topk`.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{IndexerScores, TopK};

/// See [`IndexerScores`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexerKernel {
    /// As in [`IndexerScores::scale`].
    pub scale: f64,
}

impl KernelDef for IndexerKernel {
    const NAME: &'static str = "indexer_scores";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["q", "k", "w", "seq", "len"]), writes(["scores"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(IndexerScores { scale: self.scale }, inputs)
    }
}

/// See [`TopK`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopKKernel {
    /// As in [`TopK::k`].
    pub k: u64,
}

impl KernelDef for TopKKernel {
    const NAME: &'static str = "topk";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x"]), writes(["ids"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(TopK { k: self.k }, inputs)
    }
}
