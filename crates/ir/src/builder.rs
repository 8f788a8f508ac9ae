//! Owns the construction of functions: callers state ops and operands, result types are inferred and cannot be stated.
//! Never reorders or simplifies.

use std::collections::HashSet;

use indexmap::IndexMap;

use crate::diag::Diagnostic;
use crate::entities::{FuncId, Value, WeightId};
use crate::graph::{Function, InstData, InstKind, Module, ValueData, ValueDef};
use crate::op::Op;
use crate::ops::Piece;
use crate::placement::infer_on;
use crate::ty::TensorType;

/// Builds one function of a module.
#[derive(Debug)]
pub struct Builder<'m> {
    module: &'m Module,
    func: Function,
    names: HashSet<String>,
    weights: IndexMap<WeightId, Value>,
}

impl<'m> Builder<'m> {
    /// A function called `name`, in `module` (whose functions it may call and whose weights it may use).
    pub fn new(module: &'m Module, name: &str) -> Self {
        let func = Function { name: name.into(), ..Function::default() };
        Builder { module, func, names: HashSet::new(), weights: IndexMap::new() }
    }

    /// Marks the function as one that a runtime may call.
    pub fn entry(mut self) -> Self {
        self.func.entry = true;
        self
    }

    /// Adds a parameter.
    pub fn param(&mut self, name: &str, ty: TensorType) -> Value {
        let index = self.func.params.len() as u32;
        let name = Some(self.unique(name));
        let v = self.func.values.push(ValueData { ty, def: ValueDef::Param(index), name });
        self.func.params.push(v);
        v
    }

    /// A weight of the module as a value (one value a weight and function).
    pub fn weight(&mut self, w: WeightId) -> Value {
        if let Some(v) = self.weights.get(&w) {
            return *v;
        }
        let ty = self.module.weights[w].ty.clone();
        let v = self.func.values.push(ValueData { ty, def: ValueDef::Weight(w), name: None });
        self.weights.insert(w, v);
        v
    }

    /// Adds an op; its result types are inferred.
    pub fn op(&mut self, op: impl Into<Op>, args: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let op = op.into();
        let types: Vec<&TensorType> = args.iter().map(|a| self.func.ty(*a)).collect();
        let at = || format!("@{} `{}`", self.func.name, op.name());
        let results = infer_on(&op, &types, &self.module.mesh);
        let results = results.map_err(|d| if d.at.is_empty() { d.at(at()) } else { d })?;
        Ok(self.push(InstKind::Op(op), args, results))
    }

    /// Adds an op with one result.
    pub fn one(&mut self, op: impl Into<Op>, args: &[Value]) -> Result<Value, Diagnostic> {
        let results = self.op(op, args)?;
        debug_assert_eq!(results.len(), 1);
        Ok(results[0])
    }

    /// Adds an op with one result, called `name`.
    pub fn named(&mut self, name: &str, op: impl Into<Op>, args: &[Value]) -> Result<Value, Diagnostic> {
        let v = self.one(op, args)?;
        self.name(v, name);
        Ok(v)
    }

    /// Takes the piece `piece` of `v`'s joined last dim.
    pub fn piece(&mut self, v: Value, piece: &str) -> Result<Value, Diagnostic> {
        let op = Piece::of(self.func.ty(v), piece)?;
        self.one(op, &[v])
    }

    /// Adds a call; `label` is the provenance of this use.
    pub fn call(&mut self, func: FuncId, label: &str, args: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let types: Vec<&TensorType> = args.iter().map(|a| self.func.ty(*a)).collect();
        let results = call_types(self.module, func, &types)?;
        Ok(self.push(InstKind::Call { func, label: label.into() }, args, results))
    }

    /// Names `v`; a name that is taken gets a number.
    pub fn name(&mut self, v: Value, name: &str) {
        let name = self.unique(name);
        self.func.values[v].name = Some(name);
    }

    /// Names `v` unless it has a name.
    pub fn name_if_unnamed(&mut self, v: Value, name: &str) {
        if self.func.values[v].name.is_none() {
            self.name(v, name);
        }
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &TensorType {
        self.func.ty(v)
    }

    /// Ends the function with its named results.
    pub fn finish<S: Into<String>>(mut self, results: impl IntoIterator<Item = (S, Value)>) -> Function {
        self.func.results = results.into_iter().map(|(n, v)| (n.into(), v)).collect();
        self.func
    }

    fn push(&mut self, kind: InstKind, args: &[Value], types: Vec<TensorType>) -> Vec<Value> {
        let inst = self.func.insts.push(InstData { kind, args: args.to_vec(), results: Vec::new() });
        self.func.body.push(inst);
        let mut results = Vec::with_capacity(types.len());
        for (k, ty) in types.into_iter().enumerate() {
            let def = ValueDef::Result(inst, k as u32);
            results.push(self.func.values.push(ValueData { ty, def, name: None }));
        }
        self.func.insts[inst].results.clone_from(&results);
        results
    }

    fn unique(&mut self, name: &str) -> String {
        let mut n = 1;
        let mut candidate = name.to_owned();
        while !self.names.insert(candidate.clone()) {
            n += 1;
            candidate = format!("{name}_{n}");
        }
        candidate
    }
}

/// The result types of a call, after checking the arguments.
///
/// # Errors
/// `call-mismatch`: another number of arguments, or an argument of another type than the parameter.
pub fn call_types(module: &Module, func: FuncId, args: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic> {
    let callee = &module.funcs[func];
    let bad = |m: String| Diagnostic::new("call-mismatch", format!("call of @{}: {m}", callee.name));
    if args.len() != callee.params.len() {
        return Err(bad(format!("{} arguments for {} parameters", args.len(), callee.params.len())));
    }
    for (a, p) in args.iter().zip(&callee.params) {
        if **a != *callee.ty(*p) {
            return Err(bad(format!("%{} is {}, found {a}", callee.value_name(*p), callee.ty(*p))));
        }
    }
    Ok(callee.results.iter().map(|(_, v)| callee.ty(*v).clone()).collect())
}
