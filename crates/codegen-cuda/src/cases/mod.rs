//! What kernels are checked on: contract cases (shapes with ones, tails and odd sizes, extreme numbers, every stored type
//! where an operand may be a weight), each kernel that a case is made for ([`Check`]), and how a result is judged
//! against the contract's meaning. Never runs a kernel: the self-test does on a GPU, tests do in the host emulation.

mod check;
mod choices;
pub mod faults;
mod judge;
mod lane;
mod paged;
mod plain;
mod products;
mod rng;

pub use check::{Check, checks};
pub use judge::{Bound, L2, POISON, compare, meaning, untouched};
pub use lane::{large, matrices};
pub use rng::{Rng, blocks};

use glmc_ir::kernel::{AddKernel, DecodeKernel, Kernel, MulKernel, ReluKernel, ScaleKernel, SigmoidKernel, SiluKernel};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, TensorType};

use choices::{attention, indexer, route, topk};
use plain::{add_norm, append, append_row, binary, cached_rows, gather, index_row, norm, pieces, rope, swiglu, unary};
use products::{experts, gate_up, grouped, matmul};

/// An operand with its numbers.
#[derive(Clone, Debug)]
pub enum In {
    /// Floats in a buffer.
    F(TensorType, Vec<f64>),
    /// A stored weight.
    W(TensorType, Vec<u8>),
    /// A step parameter.
    I(TensorType, Vec<i64>),
    /// A cache pool with its rows.
    Pool(TensorType, Vec<f64>),
}

impl In {
    /// Its type.
    pub fn ty(&self) -> &TensorType {
        match self {
            In::F(t, _) | In::W(t, _) | In::I(t, _) | In::Pool(t, _) => t,
        }
    }
}

/// One launch.
#[derive(Debug)]
pub struct Case {
    /// For messages.
    pub what: String,
    /// The contract.
    pub kernel: Kernel,
    /// Its operands.
    pub inputs: Vec<In>,
}

fn f32s<D: Into<Dim>>(dims: impl IntoIterator<Item = D>) -> TensorType {
    TensorType::new(Elem::F32, dims)
}

fn count(t: &TensorType) -> usize {
    t.elems(&Default::default()).unwrap_or(0) as usize
}

/// The cases of one contract under construction.
struct Table {
    rng: Rng,
    out: Vec<Case>,
}

impl Table {
    fn add(&mut self, what: impl Into<String>, kernel: impl Into<Kernel>, inputs: Vec<In>) {
        self.out.push(Case { what: what.into(), kernel: kernel.into(), inputs });
    }

    fn of(&mut self, t: TensorType, scale: f64) -> In {
        let v = (0..count(&t)).map(|_| self.rng.float() * scale).collect();
        In::F(t, v)
    }

    fn f(&mut self, dims: &[u64]) -> In {
        self.of(f32s(dims.iter().copied()), 1.0)
    }

    fn w(&mut self, q: QuantType, dims: &[u64]) -> In {
        let t = TensorType::new(q, dims.iter().copied());
        let bytes = blocks(q, count(&t), self.rng.next(), 0.5);
        In::W(t, bytes)
    }

    /// Random ids below `n`, of which some are -1 if `gaps`.
    fn ids(&mut self, dims: &[u64], n: usize, gaps: bool) -> In {
        let t = TensorType::new(Elem::I32, dims.iter().copied());
        let v = (0..count(&t))
            .map(|_| if gaps && self.rng.below(4) == 0 { -1 } else { self.rng.below(n) as i64 })
            .collect();
        In::I(t, v)
    }

    fn ints(&self, dims: &[u64], v: &[i64]) -> In {
        In::I(TensorType::new(Elem::I32, dims.iter().copied()), v.to_vec())
    }

    fn pool(&mut self, dims: [u64; 2]) -> In {
        let t = f32s(dims).as_state();
        let v = (0..count(&t)).map(|_| self.rng.float()).collect();
        In::Pool(t, v)
    }
}

/// Row length of a stored type that is one or a few blocks, with a tail for floats.
fn row(q: QuantType) -> u64 {
    if q.block_elems() == 1 { 37 } else { (q.block_elems() as u64).max(64) }
}

/// All cases of the contract called `name`, their numbers from `seed`; none for a contract without a family.
pub fn cases(name: &str, seed: u64) -> Vec<Case> {
    let mut t = Table { rng: Rng(seed.wrapping_add(name.len() as u64)), out: Vec::new() };
    match name {
        "add" => binary(&mut t, || AddKernel {}.into()),
        "mul" => binary(&mut t, || MulKernel {}.into()),
        "relu" => unary(&mut t, true, || ReluKernel {}.into()),
        "sigmoid" => unary(&mut t, true, || SigmoidKernel {}.into()),
        "silu" => unary(&mut t, true, || SiluKernel {}.into()),
        "scale" => {
            for factor in [1.0, -0.37, 1e6, 1e-6] {
                unary(&mut t, false, || ScaleKernel { factor }.into());
            }
        }
        "swiglu" => swiglu(&mut t),
        "decode" => each_type(&mut t, |t, q| {
            for dims in [vec![1, row(q)], vec![3, 2, row(q)], vec![q.block_elems() as u64]] {
                let w = t.w(q, &dims);
                t.add(format!("{q} {dims:?}"), DecodeKernel {}, vec![w]);
            }
        }),
        "append_row" => append_row(&mut t),
        "index_row" => index_row(&mut t),
        "paged_attention" => paged::attention(&mut t),
        "paged_indexer_scores" => paged::scores(&mut t),
        "add_rms_norm" => add_norm(&mut t),
        "gate_up" => gate_up(&mut t),
        "grouped_gate_up" | "grouped_down" => experts(&mut t, name == "grouped_down"),
        "rope_join" | "latent_row" => cached_rows(&mut t, name == "latent_row"),
        "append" => append(&mut t),
        "gather" => gather(&mut t),
        "grouped_matmul" => grouped(&mut t),
        "matmul" => matmul(&mut t),
        "rms_norm" | "layer_norm" => norm(&mut t, name == "rms_norm"),
        "rope" => rope(&mut t),
        "split" | "join" => pieces(&mut t, name == "split"),
        "attention" => attention(&mut t),
        "indexer_scores" => indexer(&mut t),
        "topk" => topk(&mut t),
        "moe_route" => route(&mut t),
        _ => {}
    }
    t.out
}

/// Every type of files, and the forms that ranks keep of rows cut inside blocks.
fn each_type(t: &mut Table, mut f: impl FnMut(&mut Table, QuantType)) {
    QuantType::ALL.iter().chain(QuantType::SUB).for_each(|q| f(t, *q));
}
