//! Cases as jobs, and how their results are judged.

use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, NoWeights};
use glmc_ir::tensor::{Data, Tensor, concrete};
use glmc_ir::ty::{Elem, SymValues, TensorType};

use super::{Case, In};

/// Budget of f32 arithmetic: relative error in L2. One element may be off by 8 times that share of the RMS.
pub const L2: f64 = 1e-5;

/// An output of a job.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Its place among the buffers that come back.
    pub buffer: usize,
    /// Bytes at the symbols' values; what lies behind must keep its poison.
    pub bytes: usize,
    pub(super) elem: Elem,
}

impl Bound {
    /// The entries at the symbols' values.
    ///
    /// # Errors
    /// Fewer bytes than that, or a type that no kernel writes.
    pub fn numbers(&self, bytes: &[u8]) -> Result<Vec<f64>, String> {
        let n = self.bytes / self.elem.block().1 as usize;
        let t = Tensor::from_bytes(self.elem, vec![n], bytes).map_err(|e| e.to_string())?;
        match t.data {
            Data::F(v) => Ok(v),
            Data::I(v) => Ok(v.iter().map(|x| *x as f64).collect()),
            Data::Q(..) => Err("stored blocks as a result".into()),
        }
    }
}

/// The bytes that outputs are poisoned with: NaN as floats, no id as integers.
pub const POISON: [u8; 2] = [0xAA, 0xFF];

/// Bytes behind the current extent were never written.
///
/// # Errors
/// The first byte that was.
pub fn untouched(bytes: &[u8], b: &Bound) -> Result<(), String> {
    let tail = bytes.iter().enumerate().skip(b.bytes);
    let wrong = tail.into_iter().find(|(i, x)| **x != POISON[i % 2]);
    wrong.map_or(Ok(()), |(i, _)| Err(format!("byte {i} is written, the output has {} bytes", b.bytes)))
}

/// What the contract means on these operands, in exact arithmetic.
///
/// # Errors
/// What the interpreter says.
pub fn meaning(case: &Case) -> Result<Vec<Tensor>, String> {
    let types: Vec<&TensorType> = case.inputs.iter().map(In::ty).collect();
    let mut m = Module::default();
    let f = m.funcs.push(case.kernel.meaning(&types).map_err(|e| e.to_string())?);
    let none = SymValues::default();
    let mut args = Vec::new();
    for i in &case.inputs {
        let shape = concrete(i.ty(), &none).map_err(|e| e.to_string())?;
        args.push(match i {
            In::F(_, v) | In::Pool(_, v) => Tensor::f(shape, v.iter().map(|x| f64::from(*x as f32)).collect()),
            In::I(_, v) => Tensor::i(shape, v.clone()),
            In::W(ty, b) => Tensor::from_bytes(ty.elem, shape, b).map_err(|e| e.to_string())?,
        });
    }
    Interp::new(&m, Arith::Real, none, &NoWeights).run(f, args).map_err(|e| e.to_string())
}

/// Within the budget: the relative L2 and the worst element as a share of the RMS. Integers must be equal.
///
/// # Errors
/// What is not; NaN never passes.
pub fn compare(got: &[f64], want: &Tensor, budget: f64) -> Result<(f64, f64), String> {
    let want = match &want.data {
        Data::F(v) => v,
        Data::I(v) => {
            let same = v.iter().map(|x| *x as f64).eq(got.iter().copied());
            return if same { Ok((0.0, 0.0)) } else { Err(format!("chose {got:?} for {v:?}")) };
        }
        Data::Q(..) => return Err("stored blocks as a result".into()),
    };
    if got.len() != want.len() {
        return Err(format!("{} elements for {}", got.len(), want.len()));
    }
    let size = want.iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f64>();
    let rms = (size / want.len() as f64).sqrt();
    let (mut sum, mut worst) = (0.0, 0.0f64);
    for (i, (g, w)) in got.iter().zip(want).enumerate().filter(|(_, (g, w))| g != w) {
        let d = (g - w).abs();
        if !d.is_finite() || rms == 0.0 {
            return Err(format!("element {i} is {g}, expected {w}"));
        }
        sum += d * d;
        worst = worst.max(d / rms);
    }
    let l2 = if sum == 0.0 { 0.0 } else { (sum / size).sqrt() };
    let good = l2 <= budget && worst <= 8.0 * budget;
    if good { Ok((l2, worst)) } else { Err(format!("relative L2 {l2:e}, worst {worst:e}")) }
}
