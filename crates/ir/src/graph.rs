//! Owns the graph and sharded levels: modules, weight tables, functions of SSA values. Plain data; the builder makes
//! it, verifiers judge it, interpreters run it. Never owns bytes of weights or files.

use cranelift_entity::PrimaryMap;
use indexmap::IndexMap;

use crate::entities::{FuncId, Inst, Value, WeightId};
use crate::op::Op;
use crate::ty::{Axis, Sym, SymValues, TensorType};

/// A module: symbols, mesh, weights and functions.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Module {
    /// A name for people.
    pub name: String,
    /// Mesh axes with their sizes; empty for one rank.
    pub mesh: IndexMap<Axis, u64>,
    /// Symbols with their inclusive upper bounds.
    pub syms: IndexMap<Sym, u64>,
    /// Every stored tensor the functions use.
    pub weights: PrimaryMap<WeightId, Weight>,
    /// Functions; entries are those with `entry` set.
    pub funcs: PrimaryMap<FuncId, Function>,
}

/// A stored tensor: its name in the file, its type, and the bytes it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weight {
    /// Name in the text form, such as `blk.0.ffn_gate`.
    pub name: String,
    /// Name of the tensor in the file.
    pub tensor: String,
    /// Where its bytes are.
    pub span: Span,
    /// Element, dims and placement as used.
    pub ty: TensorType,
}

/// A range of bytes of one part of a file set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// Part, counted from 0.
    pub part: u32,
    /// Offset in the part.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// A function of SSA values. Instructions stand in execution order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Function {
    /// Name in text.
    pub name: String,
    /// Whether a runtime may call it: parameters are step parameters and state, results are the step's results.
    pub entry: bool,
    /// Parameters in order.
    pub params: Vec<Value>,
    /// Instructions in execution order.
    pub body: Vec<Inst>,
    /// Named results, a total map.
    pub results: Vec<(String, Value)>,
    /// All values.
    pub values: PrimaryMap<Value, ValueData>,
    /// All instructions.
    pub insts: PrimaryMap<Inst, InstData>,
}

/// What a value is.
#[derive(Clone, PartialEq, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: TensorType,
    /// Where it comes from.
    pub def: ValueDef,
    /// A name that is unique in the function, for people, dumps and comparisons.
    pub name: Option<String>,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// The function's parameter of this index.
    Param(u32),
    /// A result of an instruction.
    Result(Inst, u32),
    /// A weight of the module, used in place.
    Weight(WeightId),
}

/// An instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct InstData {
    /// What it does.
    pub kind: InstKind,
    /// Operands.
    pub args: Vec<Value>,
    /// Results.
    pub results: Vec<Value>,
}

/// What an instruction does.
#[derive(Clone, PartialEq, Debug)]
pub enum InstKind {
    /// An op of the table.
    Op(Op),
    /// A call. `label` is the provenance of this use, such as `blk.3`.
    Call {
        /// The callee.
        func: FuncId,
        /// Prefix for the names of the callee's values in dumps and steps.
        label: String,
    },
}

impl Module {
    /// The bounds as symbol values: what sizes memory.
    pub fn bounds(&self) -> SymValues {
        SymValues(self.syms.clone())
    }

    /// The function called `name`.
    pub fn func_named(&self, name: &str) -> Option<FuncId> {
        self.funcs.iter().find(|(_, f)| f.name == name).map(|(id, _)| id)
    }

    /// The functions that a runtime may call.
    pub fn entries(&self) -> impl Iterator<Item = (FuncId, &Function)> {
        self.funcs.iter().filter(|(_, f)| f.entry)
    }

    /// The same module with values and instructions of each function renumbered in the order of their text:
    /// `parse(print(m)) == m.compacted()`.
    pub fn compacted(&self) -> Module {
        let mut m = self.clone();
        for f in m.funcs.values_mut() {
            *f = f.compacted();
        }
        m
    }
}

impl Function {
    /// The type of `v`.
    pub fn ty(&self, v: Value) -> &TensorType {
        &self.values[v].ty
    }

    /// The name of `v`, or its number.
    pub fn value_name(&self, v: Value) -> String {
        self.values[v].name.clone().unwrap_or_else(|| v.as_u32().to_string())
    }

    /// The parameter called `name`.
    pub fn param_named(&self, name: &str) -> Option<Value> {
        self.params.iter().copied().find(|p| self.values[*p].name.as_deref() == Some(name))
    }

    /// The result called `name`.
    pub fn result_named(&self, name: &str) -> Option<Value> {
        self.results.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// Whether both take and give the same: names and types of parameters and results.
    pub fn same_boundary(&self, other: &Function) -> bool {
        let params = |f: &Function| f.params.iter().map(|p| (f.value_name(*p), f.ty(*p).clone())).collect::<Vec<_>>();
        let results = |f: &Function| f.results.iter().map(|(n, v)| (n.clone(), f.ty(*v).clone())).collect::<Vec<_>>();
        params(self) == params(other) && results(self) == results(other)
    }

    /// Renumbers values and instructions: parameters, then instructions in body order, each after the weights it
    /// first uses. Values that nothing reaches are dropped.
    pub fn compacted(&self) -> Function {
        let mut out = Function { name: self.name.clone(), entry: self.entry, ..Function::default() };
        let mut map: IndexMap<Value, Value> = IndexMap::new();
        for p in &self.params {
            let v = out.values.push(self.values[*p].clone());
            out.params.push(v);
            map.insert(*p, v);
        }
        for i in &self.body {
            let data = &self.insts[*i];
            let args = data.args.iter().map(|a| self.renumber(*a, &mut out, &mut map)).collect();
            let inst = out.insts.push(InstData { kind: data.kind.clone(), args, results: Vec::new() });
            for (k, r) in data.results.iter().enumerate() {
                let def = ValueDef::Result(inst, k as u32);
                let v = out.values.push(ValueData { def, ..self.values[*r].clone() });
                out.insts[inst].results.push(v);
                map.insert(*r, v);
            }
            out.body.push(inst);
        }
        for (name, v) in &self.results {
            let v = self.renumber(*v, &mut out, &mut map);
            out.results.push((name.clone(), v));
        }
        out
    }

    fn renumber(&self, v: Value, out: &mut Function, map: &mut IndexMap<Value, Value>) -> Value {
        if let Some(n) = map.get(&v) {
            return *n;
        }
        // A weight, or a value without a definition before its use (which the verifier reports).
        let n = out.values.push(self.values[v].clone());
        map.insert(v, n);
        n
    }
}
