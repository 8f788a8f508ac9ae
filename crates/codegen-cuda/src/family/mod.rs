//! One file a family: which configurations it has, which of them a request allows (the others with a reason), which is
//! best, and the constants, functors and launch shapes of the chosen one. Device code is in `kernels/`.

mod attention;
mod attention_tiles;
mod cx;
mod elementwise;
mod gather;
mod grouped;
mod indexer;
mod lane;
mod lane_cost;
mod lane_emit;
mod matmul;
mod norm;
mod pieces;
mod product;
mod rope;
mod route;
mod rows;
mod tensor;

use cx::Cx;

use glmc_ir::kernel::{Kernel, RowMaker};

use crate::request::{GenerateError, Generated, Request};

/// The kernel of a launch.
///
/// # Errors
/// [`GenerateError`]: the inputs break the contract's rule, no configuration is possible, or the contract has no
/// family.
pub fn generate(request: &Request<'_>) -> Result<Generated, GenerateError> {
    let cx = Cx::new(request)?;
    let draft = match request.kernel {
        Kernel::Add(_) => elementwise::binary(&cx, "a + b"),
        Kernel::Mul(_) => elementwise::binary(&cx, "a * b"),
        Kernel::Relu(_) => elementwise::unary(&cx, "x > 0.0f ? x : 0.0f"),
        Kernel::Sigmoid(_) => elementwise::unary(&cx, "sigmoid(x)"),
        Kernel::Silu(_) => elementwise::unary(&cx, "silu(x)"),
        Kernel::Scale(k) => elementwise::unary(&cx, &format!("x * {}", cx::float(k.factor))),
        Kernel::Decode(_) => elementwise::unary(&cx, "x"),
        Kernel::Swiglu(k) => elementwise::swiglu(&cx, &k.pieces),
        Kernel::RmsNorm(k) => norm::rms(&cx, k.eps),
        Kernel::LayerNorm(k) => norm::layer(&cx, k.eps),
        Kernel::Matmul(k) => matmul::matmul(&cx, k),
        Kernel::Gather(_) => gather::gather(&cx),
        Kernel::Append(_) => gather::append(&cx),
        Kernel::Split(k) => pieces::split(&cx, &k.names),
        Kernel::Join(_) => pieces::join(&cx),
        Kernel::Rope(k) => rope::rope(&cx, k.theta),
        Kernel::Route(k) => route::route(&cx, &k.0),
        Kernel::Indexer(k) => indexer::scores(&cx, k.scale),
        Kernel::TopK(k) => indexer::topk(&cx, k.k),
        Kernel::Attention(k) => attention::attention(&cx, &k.0),
        Kernel::PagedAttention(k) => attention::paged_attention(&cx, k),
        Kernel::PagedIndexer(k) => indexer::paged_scores(&cx, k.scale),
        Kernel::GroupedMatmul(_) => grouped::grouped(&cx),
        Kernel::AddRmsNorm(k) => norm::add_rms(&cx, k.eps),
        Kernel::GateUp(k) => product::gate_up(&cx, k),
        Kernel::GroupedGateUp(_) => product::grouped_gate_up(&cx),
        Kernel::GroupedDown(_) => product::grouped_down(&cx),
        Kernel::RopeJoin(k) => rows::rows(&cx, &RowMaker::RopeJoin(k.clone())),
        Kernel::LatentRow(k) => rows::rows(&cx, &RowMaker::LatentRow(k.clone())),
        Kernel::IndexRow(k) => rows::rows(&cx, &RowMaker::IndexRow(k.clone())),
        Kernel::AppendRow(k) => rows::append_row(&cx, &k.make),
        // What these mean spans ranks: a launch of one rank cannot compute it.
        Kernel::AllGather(_)
        | Kernel::AllReduce(_)
        | Kernel::AllToAll(_)
        | Kernel::ReduceScatter(_)
        | Kernel::Shard(_) => Err(GenerateError::NoFamily(request.kernel.name().to_owned())),
    }?;
    cx.finish(draft)
}
