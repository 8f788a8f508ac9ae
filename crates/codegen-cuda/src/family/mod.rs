//! One file a family: which configurations it has, which of them a request allows (the others with a reason), which is
//! best, and the constants, functors and launch shapes of the chosen one. Device code is in `kernels/`.

mod attention;
mod cx;
mod elementwise;
mod gather;
mod grouped;
mod indexer;
mod lane;
mod matmul;
mod norm;
mod pieces;
mod rope;
mod route;
mod tile;

use cx::Cx;

use glmc_ir::kernel::Kernel;

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
        Kernel::GroupedMatmul(_) => grouped::grouped(&cx),
        #[allow(unreachable_patterns, reason = "contracts are added before their families")]
        k => Err(GenerateError::NoFamily(k.name().to_owned())),
    }?;
    cx.finish(draft)
}
