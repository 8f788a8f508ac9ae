//! One launch of a plan by its contract's meaning, on the parts of ranks: what a step must have written, given what it
//! read. Owns no memory and no order of steps; [`super::plan`] does.

use std::collections::HashMap;

use crate::entities::Value;
use crate::graph::{Function, InstKind, Module};
use crate::kernel::{Access, collective_of};
use crate::placement::Mesh;
use crate::plan::{Arg, Step};
use crate::tensor::{EvalError, Tensor};
use crate::ty::{SymValues, TensorType};

use super::Arith;
use super::global::{Interp, NoWeights};
use super::ranks::{Rules, World, eval_on, exchange};

/// A launch at the values of a step's symbols.
pub struct Launch<'a> {
    world: World<'a>,
    meaning: Function,
    arith: Arith,
}

impl<'a> Launch<'a> {
    /// The launch of a step that the verifier has accepted.
    ///
    /// # Errors
    /// Inputs of other types than the contract takes.
    pub fn new(step: &Step, mesh: &'a Mesh, syms: &'a SymValues, arith: Arith) -> Result<Self, EvalError> {
        let types: Vec<&TensorType> = step.args.iter().filter(|a| a.access != Access::Write).map(|a| &a.ty).collect();
        let meaning = step.kernel.meaning_on(&types, mesh).map_err(|d| EvalError::new(d.message))?;
        Ok(Launch { world: World { mesh, syms, rules: Rules::Kept }, meaning, arith })
    }

    /// What a step reads, in the order of the contract's parameters.
    pub fn inputs(step: &Step) -> impl Iterator<Item = &Arg> {
        step.args.iter().filter(|a| a.access != Access::Write)
    }

    /// Whether ranks meet in it: then [`Launch::together`] has its results, else [`Launch::on_rank`].
    pub fn meets(&self) -> bool {
        collective_of(&self.meaning).is_some()
    }

    /// A rank's parts of the new value of each updated argument, then of each output, from its parts of the inputs.
    ///
    /// # Errors
    /// Parts of other shapes than their types mean, or an op without an answer.
    pub fn on_rank(&self, rank: u64, own: Vec<Tensor>) -> Result<Vec<Tensor>, EvalError> {
        on_rank(&self.world, self.arith, rank, &self.meaning, own)
    }

    /// Every rank's part of the result of a collective, from every rank's operand.
    ///
    /// # Errors
    /// A launch in which ranks do not meet, or parts of other shapes than their types mean.
    pub fn together(&self, parts: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let found = (collective_of(&self.meaning), self.meaning.params.first(), self.meaning.results.first());
        let (Some(c), Some(x), Some(r)) = found else { return Err(EvalError::new("ranks do not meet in it")) };
        let elem = self.meaning.ty(r.1).elem;
        let made = exchange(&c, self.meaning.ty(*x), self.meaning.ty(r.1), &self.world, parts)?;
        Ok(made.into_iter().map(|t| self.arith.keep(t, elem)).collect())
    }
}

/// Each rank's part of a whole value that awaits no merge.
///
/// # Errors
/// A type that cannot be cut, or one that is pending.
pub fn cut(t: &Tensor, ty: &TensorType, mesh: &Mesh, syms: &SymValues) -> Result<Vec<Tensor>, EvalError> {
    if ty.pending.is_some() {
        return Err(EvalError::new(format!("a whole value has no parts as {ty}")));
    }
    World { mesh, syms, rules: Rules::Kept }.cut(t, ty)
}

/// A meaning on one rank's parts.
pub(super) fn on_rank(
    world: &World<'_>,
    arith: Arith,
    rank: u64,
    f: &Function,
    own: Vec<Tensor>,
) -> Result<Vec<Tensor>, EvalError> {
    // Without a mesh nothing is placed, and parts are values.
    if world.mesh.is_empty() {
        let mut module = Module::default();
        let func = module.funcs.push(f.clone());
        return Interp::new(&module, arith, world.syms.clone(), &NoWeights).run(func, own);
    }
    let mut env: HashMap<Value, Tensor> = f.params.iter().copied().zip(own).collect();
    let lost = || EvalError::new("a meaning reads a value that it does not make");
    for inst in &f.body {
        let data = &f.insts[*inst];
        let InstKind::Op(op) = &data.kind else { return Err(EvalError::new("a meaning calls")) };
        let types: Vec<&TensorType> = data.args.iter().map(|a| f.ty(*a)).collect();
        let args = data.args.iter().map(|a| env.get(a).ok_or_else(lost)).collect::<Result<Vec<_>, _>>()?;
        let made = eval_on(op, &types, world, rank, &args)?;
        for (r, t) in data.results.iter().zip(made) {
            let elem = world.local(f.ty(*r), rank)?.elem;
            env.insert(*r, arith.keep(t, elem));
        }
    }
    f.results.iter().map(|(_, v)| env.get(v).cloned().ok_or_else(lost)).collect()
}
