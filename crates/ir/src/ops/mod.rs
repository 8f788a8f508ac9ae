//! Owns the ops, one file each: formula, attributes, type rule, dim rule, evaluation, work.
//! Never owns dispatch; the table in [`crate::op`] does.

mod add;
mod append;
mod attention;
mod dequant;
mod elementwise;
mod gather;
mod grouped_matmul;
mod indexer_scores;
mod join;
mod layer_norm;
mod matmul;
mod moe_route;
mod mul;
mod piece;
mod relu;
mod reshape;
mod rms_norm;
mod rope;
mod rules;
mod scale;
mod sigmoid;
mod silu;
mod topk;

pub use add::Add;
pub use append::Append;
pub use attention::Attention;
pub use dequant::Dequant;
pub use gather::Gather;
pub use grouped_matmul::GroupedMatmul;
pub use indexer_scores::IndexerScores;
pub use join::Join;
pub use layer_norm::LayerNorm;
pub use matmul::{Einsum, Matmul};
pub use moe_route::{Gating, MoeRoute};
pub use mul::Mul;
pub use piece::Piece;
pub use relu::Relu;
pub use reshape::Reshape;
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use scale::Scale;
pub use sigmoid::Sigmoid;
pub use silu::Silu;
pub use topk::TopK;
