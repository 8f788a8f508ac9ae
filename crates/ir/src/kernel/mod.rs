//! Owns kernel contracts: what a launch takes, what it means (as a small graph of ops), and so what it must compute.
//! Never owns an implementation: devices do. A contract's type rule is its meaning's type rule, so a signature cannot
//! drift from the semantics.

mod add_norm;
mod attention;
mod cache;
mod collective;
mod elementwise;
mod gate_up;
mod gather;
mod grouped_down;
mod grouped_matmul;
mod indexer;
mod matmul;
mod norm;
mod paged;
mod pieces;
mod rope;
mod rope_join;
mod route;
mod swiglu;

pub use add_norm::AddRmsNormKernel;
pub use attention::AttentionKernel;
pub use cache::{AppendKernel, AppendRowKernel, RowMaker};
pub use collective::{AllGatherKernel, AllReduceKernel, AllToAllKernel, ReduceScatterKernel, ShardKernel};
pub use elementwise::{AddKernel, DecodeKernel, MulKernel, ReluKernel, ScaleKernel, SigmoidKernel, SiluKernel};
pub use gate_up::{GateUpKernel, GroupedGateUpKernel};
pub use gather::GatherKernel;
pub use grouped_down::GroupedDownKernel;
pub use grouped_matmul::GroupedMatmulKernel;
pub use indexer::{IndexerKernel, TopKKernel};
pub use matmul::MatmulKernel;
pub use norm::{LayerNormKernel, RmsNormKernel};
pub use paged::{PagedAttentionKernel, PagedIndexerKernel};
pub use pieces::{JoinKernel, SplitKernel};
pub use rope::RopeKernel;
pub use rope_join::{IndexRowKernel, LatentRowKernel, RopeJoinKernel};
pub use route::RouteKernel;
pub use swiglu::SwigluKernel;

use serde::{Deserialize, Serialize};

use crate::builder::Builder;
use crate::collective::Collective;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::graph::{Function, InstData, InstKind, Module, ValueDef};
use crate::op::{Op, Work};
use crate::ops::Dequant;
use crate::placement::Mesh;
use crate::ty::{Elem, SymValues, TensorType};

/// How a launch touches an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Only read.
    Read,
    /// Created by the launch: every byte of the argument's current extent is written.
    Write,
    /// State that is changed in place.
    Update,
}

/// One parameter of a contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamSpec {
    /// Its name in plans.
    pub name: String,
    /// How it is touched.
    pub access: Access,
}

impl ParamSpec {
    fn new(name: impl Into<String>, access: Access) -> Self {
        ParamSpec { name: name.into(), access }
    }
}

/// `Read` parameters of these names.
pub(crate) fn reads<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Vec<ParamSpec> {
    names.into_iter().map(|n| ParamSpec::new(n, Access::Read)).collect()
}

/// `Write` parameters of these names.
pub(crate) fn writes<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Vec<ParamSpec> {
    names.into_iter().map(|n| ParamSpec::new(n, Access::Write)).collect()
}

/// One kernel family.
pub trait KernelDef: Clone + PartialEq + std::fmt::Debug + Serialize + for<'de> Deserialize<'de> {
    /// The name in plans.
    const NAME: &'static str;

    /// Parameters in order: inputs (reads and updates), then outputs.
    fn params(&self) -> Vec<ParamSpec>;

    /// Builds the meaning over the inputs. Results: the new value of each updated input in order, then each output.
    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic>;
}

macro_rules! kernels {
    ($($variant:ident($ty:ident)),* $(,)?) => {
        /// Any kernel contract with its attributes.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Kernel { $($variant($ty)),* }

        impl Kernel {
            /// Every contract name, in table order.
            pub const NAMES: &'static [&'static str] = &[$(<$ty as KernelDef>::NAME),*];

            /// The name in plans.
            pub fn name(&self) -> &'static str {
                match self { $(Kernel::$variant(_) => <$ty as KernelDef>::NAME),* }
            }

            /// See [`KernelDef::params`].
            pub fn params(&self) -> Vec<ParamSpec> {
                match self { $(Kernel::$variant(k) => k.params()),* }
            }

            /// The attributes as an object; empty if there are none.
            pub fn attrs(&self) -> serde_json::Map<String, serde_json::Value> {
                let v = match self { $(Kernel::$variant(k) => serde_json::to_value(k)),* };
                match v { Ok(serde_json::Value::Object(m)) => m, _ => serde_json::Map::new() }
            }

            /// The contract called `name` with these attributes.
            pub fn from_attrs(name: &str, attrs: serde_json::Map<String, serde_json::Value>) -> Result<Kernel, Diagnostic> {
                match name {
                    $(n if n == <$ty as KernelDef>::NAME => serde_json::from_value(serde_json::Value::Object(attrs))
                        .map(Kernel::$variant)
                        .map_err(|e| Diagnostic::new("bad-attribute", format!("attributes of kernel `{name}`: {e}"))),)*
                    _ => Err(Diagnostic::new("unknown-kernel", format!("there is no kernel `{name}`"))
                        .help(format!("the kernels are {}", Self::NAMES.join(", ")))),
                }
            }

            fn build(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
                match self { $(Kernel::$variant(k) => k.meaning(b, inputs)),* }
            }
        }

        $(impl From<$ty> for Kernel {
            fn from(k: $ty) -> Kernel { Kernel::$variant(k) }
        })*
    };
}

kernels! {
    Add(AddKernel), AddRmsNorm(AddRmsNormKernel), AllGather(AllGatherKernel), AllReduce(AllReduceKernel),
    AllToAll(AllToAllKernel), Append(AppendKernel), AppendRow(AppendRowKernel), Attention(AttentionKernel),
    Decode(DecodeKernel),
    GateUp(GateUpKernel), Gather(GatherKernel), GroupedDown(GroupedDownKernel), GroupedGateUp(GroupedGateUpKernel),
    GroupedMatmul(GroupedMatmulKernel), IndexRow(IndexRowKernel), Indexer(IndexerKernel), Join(JoinKernel), LatentRow(LatentRowKernel),
    LayerNorm(LayerNormKernel), Matmul(MatmulKernel), Mul(MulKernel), PagedAttention(PagedAttentionKernel),
    PagedIndexer(PagedIndexerKernel), ReduceScatter(ReduceScatterKernel), Relu(ReluKernel), RmsNorm(RmsNormKernel), Rope(RopeKernel), RopeJoin(RopeJoinKernel), Route(RouteKernel),
    Scale(ScaleKernel), Shard(ShardKernel), Sigmoid(SigmoidKernel), Silu(SiluKernel), Split(SplitKernel),
    Swiglu(SwigluKernel), TopK(TopKKernel),
}

crate::op::named_serde!(Kernel);

impl Kernel {
    /// What ranks do together in a launch of it, if they meet.
    pub fn collective(&self) -> Option<Collective> {
        let op: Op = match self {
            Kernel::AllGather(k) => k.0.clone().into(),
            Kernel::AllReduce(k) => k.0.clone().into(),
            Kernel::AllToAll(k) => k.0.clone().into(),
            Kernel::ReduceScatter(k) => k.0.clone().into(),
            Kernel::Shard(k) => k.0.clone().into(),
            _ => return None,
        };
        op.collective()
    }

    /// The meaning as a function over inputs of the given types (reads and updates, in parameter order).
    ///
    /// # Errors
    /// The type rule that the inputs break; `kernel-arity` for another number of inputs.
    pub fn meaning(&self, inputs: &[&TensorType]) -> Result<Function, Diagnostic> {
        self.meaning_on(inputs, &Mesh::new())
    }

    /// The same for inputs placed on `mesh`.
    ///
    /// # Errors
    /// As [`Kernel::meaning`].
    pub fn meaning_on(&self, inputs: &[&TensorType], mesh: &Mesh) -> Result<Function, Diagnostic> {
        let params = self.params();
        let ins: Vec<&ParamSpec> = params.iter().filter(|p| p.access != Access::Write).collect();
        if ins.len() != inputs.len() {
            let m = format!("kernel `{}` takes {} inputs, found {}", self.name(), ins.len(), inputs.len());
            return Err(Diagnostic::new("kernel-arity", m));
        }
        let module = Module { mesh: mesh.clone(), ..Module::default() };
        let mut b = Builder::new(&module, self.name());
        let values: Vec<Value> = ins.iter().zip(inputs).map(|(p, t)| b.param(&p.name, (*t).clone())).collect();
        let results = self.build(&mut b, &values)?;
        let of = |access| params.iter().filter(move |p| p.access == access).map(|p| p.name.clone());
        Ok(b.finish(of(Access::Update).chain(of(Access::Write)).zip(results)))
    }

    /// The types of updated inputs and outputs, in that order.
    pub fn result_types(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic> {
        self.result_types_on(inputs, &Mesh::new())
    }

    /// The same for inputs placed on `mesh`.
    pub fn result_types_on(&self, inputs: &[&TensorType], mesh: &Mesh) -> Result<Vec<TensorType>, Diagnostic> {
        let f = self.meaning_on(inputs, mesh)?;
        Ok(f.results.iter().map(|(_, v)| f.ty(*v).clone()).collect())
    }

    /// The cost of one launch at `syms`: inputs once as stored, outputs once, the flops of the meaning. What is
    /// decoded or split on the way stays in registers.
    pub fn work(&self, inputs: &[&TensorType], syms: &SymValues) -> Result<Work, Diagnostic> {
        let f = self.meaning(inputs)?;
        let read = reads_of(&f, syms).into_iter().fold(0, u64::saturating_add);
        let mut work = Work { read, ..Work::default() };
        for_each_op(&f, |data, op, args, results| {
            if !matches!(op, Op::Dequant(_)) {
                work.flops = work.flops.saturating_add(op.work(args, results, syms).flops);
            }
            for (i, r) in data.results.iter().enumerate() {
                if f.results.iter().any(|(_, v)| v == r) {
                    work.write = work.write.saturating_add(op.bytes_written(args, results, i, syms));
                }
            }
        });
        Ok(work)
    }

    /// Bytes that one launch at `syms` reads of each input, as it is stored: of a table only the rows that are named,
    /// of experts only those that can be chosen.
    pub fn input_reads(&self, inputs: &[&TensorType], syms: &SymValues) -> Result<Vec<u64>, Diagnostic> {
        self.meaning(inputs).map(|f| reads_of(&f, syms))
    }
}

/// What a meaning moves between ranks, if it is that of a collective.
pub(crate) fn collective_of(f: &Function) -> Option<Collective> {
    match f.body.as_slice() {
        [only] => match &f.insts[*only].kind {
            InstKind::Op(op) => op.collective(),
            InstKind::Call { .. } => None,
        },
        _ => None,
    }
}

/// Calls `see` with each op of a meaning and its types.
fn for_each_op(f: &Function, mut see: impl FnMut(&InstData, &Op, &[&TensorType], &[TensorType])) {
    for inst in &f.body {
        let data = &f.insts[*inst];
        if let InstKind::Op(op) = &data.kind {
            let args: Vec<&TensorType> = data.args.iter().map(|a| f.ty(*a)).collect();
            let results: Vec<TensorType> = data.results.iter().map(|r| f.ty(*r).clone()).collect();
            see(data, op, &args, &results);
        }
    }
}

fn reads_of(f: &Function, syms: &SymValues) -> Vec<u64> {
    let mut reads = vec![0u64; f.params.len()];
    // What is read of each value behind which a parameter's bytes stand: twice of one is read once.
    let mut of: Vec<(Value, usize, u64)> = Vec::new();
    for_each_op(f, |data, op, args, results| {
        let result = data.results.iter().any(|r| f.results.iter().any(|(_, v)| v == r));
        for (i, arg) in data.args.iter().enumerate() {
            // A decode, and a gather or piece of rows on the way, reads what its consumer asks for.
            if i == 0 && !result && forwards(f, data, op) {
                continue;
            }
            let stored = stored_param(f, *arg);
            let Some(at) = f.params.iter().position(|p| *p == stored) else { continue };
            let read = op.bytes_read(args, results, i, syms);
            // What is stored in another type has other bytes.
            let bytes = |elem: Elem| f.ty(*arg).with_elem(elem).bytes(syms).unwrap_or(0);
            let (own, behind) = (bytes(f.ty(*arg).elem), bytes(f.ty(stored).elem));
            let share = u128::from(read) * u128::from(behind) / u128::from(own.max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            match of.iter_mut().find(|(v, p, _)| (*v, *p) == (*arg, at)) {
                Some((_, _, most)) => *most = share.max(*most),
                None => of.push((*arg, at, share)),
            }
        }
    });
    of.into_iter().for_each(|(_, at, n)| reads[at] = reads[at].saturating_add(n));
    reads
}

/// Whether an op on the way only hands on what it reads: a decode, a gather of a pool's rows, a piece of those.
fn forwards(f: &Function, data: &InstData, op: &Op) -> bool {
    match op {
        Op::Dequant(_) => true,
        Op::Gather(_) => f.ty(data.args[0]).state,
        Op::Piece(_) => stored_param(f, data.args[0]) != data.args[0],
        _ => false,
    }
}

/// The value whose bytes stand behind `v`: the operand of its decode, the pool of its rows, or itself.
fn stored_param(f: &Function, v: Value) -> Value {
    match f.values[v].def {
        ValueDef::Result(inst, _) => match &f.insts[inst].kind {
            InstKind::Op(op) if forwards(f, &f.insts[inst], op) => stored_param(f, f.insts[inst].args[0]),
            _ => v,
        },
        _ => v,
    }
}

/// `v` decoded to floats, if it is stored as anything else than `f32`.
pub(crate) fn decoded(b: &mut Builder<'_>, v: Value) -> Result<Value, Diagnostic> {
    if b.ty(v).elem == Elem::F32 { Ok(v) } else { b.one(Dequant {}, &[v]) }
}
