//! Owns runs of a module's functions in Real arithmetic, each made once, and what tells whether two functions are one
//! program. Never compares numbers.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::Interp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::text::print_function;

use super::numbers::{self, In, Size, Stored};

/// Named results of a function.
pub(super) type Named = Vec<(String, Tensor)>;

/// What functions of one module gave, by name, size of the step and seed. Numbers of weights depend on their places alone, so what a
/// function gave after a pass is what it gives before the next.
#[derive(Default)]
pub(super) struct Ran(HashMap<(String, Size, u64), Named>);

impl Ran {
    /// What the function called `name` of `m` gives, in a step of size `n`.
    ///
    /// # Errors
    /// There is no such function, or the interpreter refuses it.
    pub(super) fn run(
        &mut self,
        m: &Module,
        name: &str,
        stored: &Stored,
        n: Size,
        seed: u64,
    ) -> Result<&Named, EvalError> {
        let key = (name.to_owned(), n, seed);
        if !self.0.contains_key(&key) {
            let results = run(m, name, stored, n, seed)?;
            self.0.insert(key.clone(), results);
        }
        self.0.get(&key).ok_or_else(|| EvalError::new("it was not run"))
    }

    /// Takes over what `from` has of the function called `name`, which is the same program here.
    pub(super) fn keep(&mut self, from: &mut Ran, name: &str) {
        self.0.extend(from.0.extract_if(|(n, ..), _| n == name));
    }
}

fn run(m: &Module, name: &str, stored: &Stored, n: Size, seed: u64) -> Result<Named, EvalError> {
    let id = m.func_named(name).ok_or_else(|| EvalError::new("it is gone"))?;
    let f = &m.funcs[id];
    let syms = n.symbols(m);
    let args = numbers::operands(f, &syms, seed)?;
    let weights = In(m, stored);
    let results = if m.mesh.is_empty() {
        Interp::new(m, Arith::Real, syms, &weights).run(id, args)
    } else {
        RankInterp::new(m, Arith::Real, syms, &weights).run(id, args)
    };
    Ok(f.results.iter().map(|(name, _)| name.clone()).zip(results?).collect())
}

/// All that a function's results depend on, as text: itself and what it calls, the weights that they name with their
/// places, the mesh and the symbols' bounds.
pub(super) fn meaning(m: &Module, f: &Function) -> String {
    let mut out = format!("{:?} {:?}", m.mesh, m.syms);
    let mut seen = HashSet::new();
    let mut todo = vec![f];
    while let Some(f) = todo.pop() {
        if !seen.insert(f.name.clone()) {
            continue;
        }
        out.push_str(&print_function(m, f));
        for v in f.values.values() {
            if let ValueDef::Weight(w) = v.def {
                let w = &m.weights[w];
                // Writing to a string does not fail.
                let _ = writeln!(out, "{} {} {:?}", w.name, w.ty, w.span);
            }
        }
        todo.extend(f.body.iter().filter_map(|i| match f.insts[*i].kind {
            InstKind::Call { func, .. } => Some(&m.funcs[func]),
            InstKind::Op(_) => None,
        }));
    }
    out
}
