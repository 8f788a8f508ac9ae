//! Owns the interpreter of the graph and sharded levels: values are whole tensors. Never cuts, never rounds but to a
//! value's element, never reorders.

use std::collections::HashMap;

use crate::entities::{FuncId, Value, WeightId};
use crate::graph::{Function, InstKind, Module, ValueDef};
use crate::op::Op;
use crate::placement::{Mesh, strip};
use crate::shard_map::Shard;
use crate::tensor::{EvalError, Tensor, concrete};
use crate::ty::{SymValues, TensorType};

use super::Arith;

/// Where the interpreters take stored weights from.
pub trait WeightSource {
    /// The bytes of the whole tensor, as stored.
    ///
    /// # Errors
    /// When they cannot be had.
    fn bytes(&self, weight: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError>;
}

/// No weights: for functions that use none.
#[derive(Clone, Copy, Debug)]
pub struct NoWeights;

impl WeightSource for NoWeights {
    fn bytes(&self, weight: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError> {
        Err(EvalError::new(format!("there are no bytes for weight {weight}")))
    }
}

/// Called with each named value: its path (`blk.3.attn_norm`), type and numbers.
pub type Observer<'a> = &'a mut dyn FnMut(&str, &TensorType, &Tensor);

/// Called with each op that makes a named value, its operands and what it made, which may be amended: a reference may
/// have to follow a choice between scores that hardly differ. The path is that of the first result with a name.
pub type Amend<'a> = &'a mut dyn FnMut(&str, &Op, &[&Tensor], &mut Vec<Tensor>) -> Result<(), EvalError>;

/// The interpreter of one module.
pub struct Interp<'a> {
    module: &'a Module,
    arith: Arith,
    syms: SymValues,
    weights: &'a dyn WeightSource,
    observer: Option<Observer<'a>>,
    amend: Option<Amend<'a>>,
}

impl<'a> Interp<'a> {
    /// An interpreter of `module` at the symbol values `syms`.
    pub fn new(module: &'a Module, arith: Arith, syms: SymValues, weights: &'a dyn WeightSource) -> Self {
        Interp { module, arith, syms, weights, observer: None, amend: None }
    }

    /// The same, showing each named value to `f`.
    pub fn observe(mut self, f: Observer<'a>) -> Self {
        self.observer = Some(f);
        self
    }

    /// The same, with `f` amending what named ops make.
    pub fn amended(mut self, f: Amend<'a>) -> Self {
        self.amend = Some(f);
        self
    }

    /// Runs `func` on `args`; results in the function's order.
    ///
    /// # Errors
    /// An argument of another shape than its parameter, a weight that cannot be read, or an op without an answer;
    /// the message names function and value.
    pub fn run(&mut self, func: FuncId, args: Vec<Tensor>) -> Result<Vec<Tensor>, EvalError> {
        self.call(func, "", args)
    }

    fn call(&mut self, func: FuncId, path: &str, args: Vec<Tensor>) -> Result<Vec<Tensor>, EvalError> {
        let module = self.module;
        let f = &module.funcs[func];
        self.check_args(f, &args)?;
        let mut env: HashMap<Value, Tensor> = f.params.iter().copied().zip(args).collect();
        let last = last_uses(f);
        for (at, inst) in f.body.iter().enumerate() {
            let data = &f.insts[*inst];
            for a in &data.args {
                if let ValueDef::Weight(w) = f.values[*a].def {
                    let t = self.weight(w)?;
                    env.insert(*a, t);
                }
            }
            let operand = |env: &HashMap<Value, Tensor>, v: &Value| {
                env.get(v).cloned().ok_or_else(|| {
                    EvalError::new(format!("@{} reads %{} before it is defined", f.name, f.value_name(*v)))
                })
            };
            let outs = match &data.kind {
                InstKind::Op(op) => {
                    let refs = data
                        .args
                        .iter()
                        .map(|a| {
                            env.get(a).ok_or_else(|| operand(&env, a).err().unwrap_or_else(|| EvalError::new("?")))
                        })
                        .collect::<Result<Vec<&Tensor>, EvalError>>()?;
                    let mut outs = op.eval(&refs).map_err(|e| EvalError::new(format!("@{}: {e}", f.name)))?;
                    let name = data.results.iter().find_map(|r| f.values[*r].name.as_ref());
                    if let (Some(name), Some(amend)) = (name, self.amend.as_mut()) {
                        amend(&join_path(path, name), op, &refs, &mut outs)?;
                    }
                    outs
                }
                InstKind::Call { func, label } => {
                    let args = data.args.iter().map(|a| operand(&env, a)).collect::<Result<Vec<_>, _>>()?;
                    self.call(*func, &join_path(path, label), args)?
                }
            };
            for (r, t) in data.results.iter().zip(outs) {
                let ty = f.ty(*r);
                let t = if matches!(data.kind, InstKind::Op(_)) { self.arith.keep(t, ty.elem) } else { t };
                if let (Some(name), Some(see)) = (&f.values[*r].name, self.observer.as_mut()) {
                    see(&join_path(path, name), ty, &t);
                }
                env.insert(*r, t);
            }
            env.retain(|v, _| last.get(v).is_none_or(|l| *l > at));
        }
        let results = f.results.iter().map(|(n, v)| match f.values[*v].def {
            ValueDef::Weight(w) => self.weight(w),
            _ => env.get(v).cloned().ok_or_else(|| EvalError::new(format!("@{} never defines result `{n}`", f.name))),
        });
        results.collect()
    }

    fn check_args(&self, f: &Function, args: &[Tensor]) -> Result<(), EvalError> {
        if args.len() != f.params.len() {
            return Err(EvalError::new(format!(
                "@{} takes {} arguments, found {}",
                f.name,
                f.params.len(),
                args.len()
            )));
        }
        for (p, a) in f.params.iter().zip(args) {
            let want = concrete(f.ty(*p), &self.syms)?;
            if want != a.shape {
                let name = f.value_name(*p);
                return Err(EvalError::new(format!("@{} %{name} has shape {want:?}, found {:?}", f.name, a.shape)));
            }
        }
        Ok(())
    }

    fn weight(&self, w: WeightId) -> Result<Tensor, EvalError> {
        let ty = &self.module.weights[w].ty;
        let bytes = self.weights.bytes(w)?;
        if ty.elem == ty.elem.in_file() {
            return Tensor::from_bytes(ty.elem, concrete(ty, &self.syms)?, &bytes);
        }
        let whole = Shard::of(&strip(ty), &Mesh::new(), 0, &self.syms).map_err(|d| EvalError::new(d.message))?;
        Tensor::from_bytes(ty.elem, concrete(ty, &self.syms)?, &whole.stored(bytes.into_owned()))
    }
}

/// `path.name`, or `name` at the top.
pub fn join_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// For each value the index of the last instruction that reads it; results live to the end.
pub(crate) fn last_uses(f: &Function) -> HashMap<Value, usize> {
    let mut last = HashMap::new();
    for (at, inst) in f.body.iter().enumerate() {
        for a in &f.insts[*inst].args {
            last.insert(*a, at);
        }
    }
    for (_, v) in &f.results {
        last.insert(*v, usize::MAX);
    }
    last
}
