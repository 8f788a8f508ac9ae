//! Pass `lower`. Owns the choice of kernel contracts: one op or one obvious group of ops to one launch. Never places a
//! launch in time or memory; `schedule` does.
//!
//! Groups: a decode into its consumers; every piece of a value into one `split`; `silu(gate) * up` into `swiglu`;
//! reshapes into views; a gather of a pool's rows into the attention or the scores that read them; the making of a row into its `append`. Before: `%d = dequant %w`, `%y = matmul %x, %d`. After: `matmul { x: %x, w: %w } -> %y`.

mod groups;
mod print;

use std::collections::HashMap;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value};
use glmc_ir::graph::{Function, InstKind, Module};
use glmc_ir::kernel::{
    AddKernel, AppendKernel, AttentionKernel, DecodeKernel, GatherKernel, GroupedMatmulKernel, IndexerKernel,
    JoinKernel, Kernel, LayerNormKernel, MatmulKernel, MulKernel, ReluKernel, RmsNormKernel, RopeKernel, RouteKernel,
    ScaleKernel, SigmoidKernel, SiluKernel, TopKKernel,
};
use glmc_ir::kernel::{AllGatherKernel, AllReduceKernel, AllToAllKernel, ReduceScatterKernel, ShardKernel};
use glmc_ir::op::Op;

use crate::pass::PassCx;
use groups::Groups;

pub use print::print_lowered;

/// A function as launches over its values.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// In execution order.
    pub steps: Vec<LoweredStep>,
    /// Values that are views of other values: the same bytes under other dims.
    pub views: HashMap<Value, Value>,
}

/// One step of a lowered function.
#[derive(Clone, Debug)]
pub enum LoweredStep {
    /// A launch: reads and updates, then outputs (updated state values first, as the contract's results).
    Launch {
        /// The contract.
        kernel: Kernel,
        /// Inputs in parameter order.
        inputs: Vec<Value>,
        /// Results in the contract's result order.
        outputs: Vec<Value>,
    },
    /// A call of another lowered function.
    Call {
        /// The callee.
        func: FuncId,
        /// Provenance.
        label: String,
        /// Operands.
        args: Vec<Value>,
        /// Results.
        results: Vec<Value>,
    },
}

/// Lowers every function of `m`.
///
/// # Errors
/// `no-contract`: an op that no contract implements.
pub fn lower(m: &Module, cx: &mut PassCx) -> Result<Vec<Lowered>, Diagnostic> {
    m.funcs.values().map(|f| lower_function(f, cx)).collect()
}

fn lower_function(f: &Function, cx: &mut PassCx) -> Result<Lowered, Diagnostic> {
    let mut groups = Groups::find(f, cx);
    let mut out = Lowered::default();
    for inst in &f.body {
        let data = &f.insts[*inst];
        match &data.kind {
            InstKind::Call { func, label } => out.steps.push(LoweredStep::Call {
                func: *func,
                label: label.clone(),
                args: data.args.clone(),
                results: data.results.clone(),
            }),
            InstKind::Op(Op::Reshape(_)) => {
                out.views.insert(data.results[0], data.args[0]);
            }
            InstKind::Op(op) => {
                if let Some(step) = groups.take(f, *inst) {
                    out.steps.extend(step);
                } else {
                    let inputs = data.args.iter().map(|a| groups.stored(*a)).collect();
                    out.steps.push(LoweredStep::Launch { kernel: single(op)?, inputs, outputs: data.results.clone() });
                }
            }
        }
    }
    Ok(out)
}

/// The contract of one op alone.
pub(crate) fn single(op: &Op) -> Result<Kernel, Diagnostic> {
    Ok(match op.clone() {
        Op::Add(_) => AddKernel {}.into(),
        Op::Append(_) => AppendKernel {}.into(),
        Op::Attention(a) => AttentionKernel(a).into(),
        Op::Dequant(_) => DecodeKernel {}.into(),
        Op::Fused(f) => f.kernel,
        Op::Gather(_) => GatherKernel {}.into(),
        Op::GroupedMatmul(_) => GroupedMatmulKernel {}.into(),
        Op::IndexerScores(s) => IndexerKernel { scale: s.scale }.into(),
        Op::Join(j) => JoinKernel { names: j.names }.into(),
        Op::LayerNorm(n) => LayerNormKernel { eps: n.eps }.into(),
        Op::Matmul(m) => MatmulKernel { spec: m.spec, names: m.names }.into(),
        Op::MoeRoute(r) => RouteKernel(r).into(),
        Op::Mul(_) => MulKernel {}.into(),
        Op::Piece(p) => glmc_ir::kernel::SplitKernel { names: vec![p.name] }.into(),
        Op::Relu(_) => ReluKernel {}.into(),
        // A reshape is a view; as a launch it would be the identity, which `scale` by one is.
        Op::Reshape(_) => ScaleKernel { factor: 1.0 }.into(),
        Op::RmsNorm(n) => RmsNormKernel { eps: n.eps }.into(),
        Op::Rope(r) => RopeKernel { theta: r.theta }.into(),
        Op::Scale(s) => ScaleKernel { factor: s.factor }.into(),
        Op::Sigmoid(_) => SigmoidKernel {}.into(),
        Op::Silu(_) => SiluKernel {}.into(),
        Op::TopK(t) => TopKKernel { k: t.k }.into(),
        Op::AllGather(o) => AllGatherKernel(o).into(),
        Op::AllReduce(o) => AllReduceKernel(o).into(),
        Op::AllToAll(o) => AllToAllKernel(o).into(),
        Op::ReduceScatter(o) => ReduceScatterKernel(o).into(),
        Op::Shard(o) => ShardKernel(o).into(),
        // What ranks hold of pending values; no lift and no pass writes them.
        Op::AttentionPart(_) | Op::TopKPart(_) => {
            return Err(Diagnostic::new("no-contract", format!("no contract implements `{}`", op.name())));
        }
    })
}

/// The inst that defines `v`, if an op does.
fn def_of(f: &Function, v: Value) -> Option<(Inst, &Op)> {
    let glmc_ir::graph::ValueDef::Result(inst, _) = f.values[v].def else { return None };
    match &f.insts[inst].kind {
        InstKind::Op(op) => Some((inst, op)),
        InstKind::Call { .. } => None,
    }
}
