//! The contracts `paged_attention` and `paged_indexer_scores`: attention and scores over rows of a cache pool that a
//! table names. The rows are read where they lie; nothing is gathered.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{Attention, Gather, IndexerScores};

/// [`Attention`] where the keys of each part and the values are pieces of the rows `pool[table[q, s]]`. Every head shares
/// them. Row ids that are negative name rows of zeros, as in [`Gather`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagedAttentionKernel {
    /// The piece of a row that each part's keys are.
    pub keys: Vec<String>,
    /// The piece that the values are.
    pub value: String,
    /// As in [`Attention::scale`].
    pub scale: f64,
    /// As in [`Attention::selected`].
    pub selected: bool,
}

impl KernelDef for PagedAttentionKernel {
    const NAME: &'static str = "paged_attention";

    fn params(&self) -> Vec<ParamSpec> {
        let queries = (0..self.keys.len()).map(|i| format!("q{i}"));
        let sel = if self.selected { reads(["sel"]) } else { Vec::new() };
        [reads(queries), reads(["pool", "table", "seq", "len"]), sel, writes(["o"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let (queries, rest) = inputs.split_at(self.keys.len());
        let rows = b.one(Gather {}, &rest[..2])?;
        let mut operands = queries.to_vec();
        let mut pieces: Vec<(&String, Value)> = Vec::new();
        for name in self.keys.iter().chain([&self.value]) {
            // A piece that is keys and values at once is one value, and read once.
            let piece = match pieces.iter().find(|(n, _)| *n == name) {
                Some((_, v)) => *v,
                None => b.piece(rows, name)?,
            };
            pieces.push((name, piece));
            operands.push(piece);
        }
        operands.extend_from_slice(&rest[2..]);
        b.op(Attention { parts: self.keys.len(), scale: self.scale, selected: self.selected }, &operands)
    }
}

/// [`IndexerScores`] where the keys are the rows `pool[table[q, s]]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagedIndexerKernel {
    /// As in [`IndexerScores::scale`].
    pub scale: f64,
}

impl KernelDef for PagedIndexerKernel {
    const NAME: &'static str = "paged_indexer_scores";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["q", "pool", "table", "w", "seq", "len"]), writes(["scores"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let keys = b.one(Gather {}, &inputs[1..3])?;
        b.op(IndexerScores { scale: self.scale }, &[inputs[0], keys, inputs[3], inputs[4], inputs[5]])
    }
}
