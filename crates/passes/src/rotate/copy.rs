//! Owns the copying of a function into another module, instruction by instruction, with names. Never decides what to
//! leave out.

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Inst, Value};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};

/// A function on its way into another module.
pub(super) struct Copy<'a> {
    pub(super) b: Builder<'a>,
    old: &'a Function,
    /// The new value of each old one so far.
    pub(super) map: HashMap<Value, Value>,
}

impl<'a> Copy<'a> {
    /// Of `old` as `name`, in `out`.
    pub(super) fn new(out: &'a Module, old: &'a Function, name: &str) -> Self {
        let mut b = Builder::new(out, name);
        if old.entry {
            b = b.entry();
        }
        Copy { b, old, map: HashMap::new() }
    }

    /// The same parameter.
    pub(super) fn param(&mut self, p: Value) {
        let v = self.b.param(&self.old.value_name(p), self.old.ty(p).clone());
        self.map.insert(p, v);
    }

    /// The new value of `v`.
    pub(super) fn value(&mut self, v: Value) -> Result<Value, Diagnostic> {
        if let ValueDef::Weight(w) = self.old.values[v].def {
            return Ok(self.b.weight(w));
        }
        self.map.get(&v).copied().ok_or_else(|| {
            let m = format!("@{} reads %{} before it is made", self.old.name, self.old.value_name(v));
            Diagnostic::new("use-before-def", m)
        })
    }

    /// The new values of an instruction's operands.
    pub(super) fn args(&mut self, inst: Inst) -> Result<Vec<Value>, Diagnostic> {
        let old = self.old;
        old.insts[inst].args.iter().map(|a| self.value(*a)).collect()
    }

    /// The same instruction.
    pub(super) fn inst(&mut self, inst: Inst) -> Result<(), Diagnostic> {
        let args = self.args(inst)?;
        match &self.old.insts[inst].kind {
            InstKind::Op(op) => {
                let made = self.b.op(op.clone(), &args)?;
                self.made(inst, &made);
            }
            InstKind::Call { func, .. } => drop(self.call(inst, *func, &args)?),
        }
        Ok(())
    }

    /// The call `inst`, of `func` with these operands; results past the old ones are new.
    pub(super) fn call(&mut self, inst: Inst, func: FuncId, args: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let label = match &self.old.insts[inst].kind {
            InstKind::Call { label, .. } => label.as_str(),
            InstKind::Op(_) => "",
        };
        let made = self.b.call(func, label, args)?;
        self.made(inst, &made);
        Ok(made)
    }

    fn made(&mut self, inst: Inst, made: &[Value]) {
        for (old, new) in self.old.insts[inst].results.iter().zip(made) {
            if let Some(name) = &self.old.values[*old].name {
                self.b.name(*new, name);
            }
            self.map.insert(*old, *new);
        }
    }

    /// The function, with more results.
    pub(super) fn finish(mut self, more: Vec<(String, Value)>) -> Result<Function, Diagnostic> {
        let old = self.old;
        let results = old.results.iter().map(|(n, v)| Ok((n.clone(), self.value(*v)?)));
        let mut results = results.collect::<Result<Vec<_>, Diagnostic>>()?;
        results.extend(more);
        Ok(self.b.finish(results))
    }
}
