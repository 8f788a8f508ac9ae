//! Owns the inlining of calls: one flat list of launches a phase, each operand bound to memory, each value to a buffer
//! with its provenance. Never places a buffer.

use std::collections::HashMap;

use cranelift_entity::PrimaryMap;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{BufId, FuncId, StateId, Value, WeightId};
use glmc_ir::graph::{Function, Module, ValueDef};
use glmc_ir::interp::global::join_path;
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::{Arg, Buffer, Mem, Param, Phase, PhaseResult, Recipe, State, Step};
use glmc_ir::ty::Extent;
use indexmap::IndexMap;

use super::EntryInfo;
use crate::lower::{Lowered, LoweredStep};

/// The weight and state tables of a plan.
type Tables = (PrimaryMap<WeightId, Recipe>, PrimaryMap<StateId, State>);

/// What the phases of a plan share.
#[derive(Default)]
pub(super) struct Shared {
    states: PrimaryMap<StateId, State>,
    used: Vec<bool>,
}

impl Shared {
    fn state(&mut self, name: &str, ty: &glmc_ir::ty::TensorType) -> Result<StateId, Diagnostic> {
        if let Some((id, s)) = self.states.iter().find(|(_, s)| s.name == name) {
            if s.ty == *ty {
                return Ok(id);
            }
            return Err(Diagnostic::new(
                "state-mismatch",
                format!("pool `{name}` is {} in one entry and {ty} in another", s.ty),
            ));
        }
        Ok(self.states.push(State { name: name.into(), ty: ty.clone() }))
    }

    fn weight(&mut self, w: WeightId) {
        let i = w.as_u32() as usize;
        if self.used.len() <= i {
            self.used.resize(i + 1, false);
        }
        self.used[i] = true;
    }

    /// Recipes of the weights in use; renumbers the phases' references to them.
    pub(super) fn finish(self, m: &Module, phases: &mut [Phase]) -> Result<Tables, Diagnostic> {
        let mut recipes = PrimaryMap::new();
        let mut map = HashMap::new();
        for (id, w) in m.weights.iter() {
            if self.used.get(id.as_u32() as usize) == Some(&true) {
                map.insert(id, recipes.push(super::recipe(w, m)?));
            }
        }
        for phase in phases {
            let args = phase.steps.iter_mut().flat_map(|s| &mut s.args).map(|a| &mut a.mem);
            for mem in args.chain(phase.results.iter_mut().map(|r| &mut r.mem)) {
                if let Mem::Weight(w) = mem {
                    *w = map[w];
                }
            }
        }
        Ok((recipes, self.states))
    }
}

/// The launches of entry `id`, its buffers not yet placed.
pub(super) fn flatten(
    m: &Module,
    lowered: &[Lowered],
    id: FuncId,
    info: &EntryInfo,
    shared: &mut Shared,
) -> Result<Phase, Diagnostic> {
    let f = &m.funcs[id];
    let mut phase = Phase {
        name: info.func.clone(),
        kind: info.kind,
        tokens: info.tokens,
        syms: m.syms.clone(),
        params: PrimaryMap::new(),
        buffers: PrimaryMap::new(),
        arena_bytes: 0,
        steps: Vec::new(),
        segments: Vec::new(),
        overlaps: Vec::new(),
        results: Vec::new(),
    };
    let mut args = Vec::new();
    for p in &f.params {
        let (name, ty) = (f.value_name(*p), f.ty(*p).clone());
        args.push(if ty.state {
            Mem::State(shared.state(&name, &ty)?)
        } else {
            Mem::Param(phase.params.push(Param { name, ty }))
        });
    }
    let results = Flattener { m, lowered, phase: &mut phase, shared }.call(id, "", &args)?;
    for ((name, v), mem) in f.results.iter().zip(results) {
        // State stays where it is; a result is what the host reads.
        if !f.ty(*v).state {
            phase.results.push(PhaseResult { name: name.clone(), mem, ty: f.ty(*v).clone() });
        }
    }
    // Only the symbols that the phase uses.
    let used = used_symbols(&phase);
    phase.syms.retain(|s, _| used.contains(s));
    own_symbols(&mut phase)?;
    Ok(phase)
}

/// Calls each symbol by what it counts: a phase has bounds of its own.
fn own_symbols(phase: &mut Phase) -> Result<(), Diagnostic> {
    if phase.syms.keys().all(|s| s.base() == *s) {
        return Ok(());
    }
    let mut own = IndexMap::new();
    for (s, bound) in &phase.syms {
        if own.insert(s.base(), *bound).is_some() {
            let m = format!("@{} uses two symbols that count {}", phase.name, s.base());
            return Err(Diagnostic::new("symbol-twice", m));
        }
    }
    phase.syms = own;
    let args = phase.steps.iter_mut().flat_map(|s| &mut s.args).map(|a| &mut a.ty);
    let params = phase.params.values_mut().map(|p| &mut p.ty);
    let buffers = phase.buffers.values_mut().map(|b| &mut b.ty);
    let results = phase.results.iter_mut().map(|r| &mut r.ty);
    for d in args.chain(params).chain(buffers).chain(results).flat_map(|t| &mut t.dims) {
        if let Extent::Sym(s) = &mut d.extent {
            *s = s.base();
        }
    }
    Ok(())
}

fn used_symbols(phase: &Phase) -> Vec<glmc_ir::ty::Sym> {
    let types = phase.steps.iter().flat_map(|s| &s.args).map(|a| &a.ty);
    let types = types.chain(phase.params.values().map(|p| &p.ty)).chain(phase.results.iter().map(|r| &r.ty));
    let dims = types.flat_map(|t| &t.dims);
    dims.filter_map(|d| if let Extent::Sym(s) = &d.extent { Some(s.clone()) } else { None }).collect()
}

struct Flattener<'a> {
    m: &'a Module,
    lowered: &'a [Lowered],
    phase: &'a mut Phase,
    shared: &'a mut Shared,
}

impl Flattener<'_> {
    fn call(&mut self, id: FuncId, path: &str, args: &[Mem]) -> Result<Vec<Mem>, Diagnostic> {
        let (m, lowered) = (self.m, self.lowered);
        let f = &m.funcs[id];
        let low = &lowered[id.as_u32() as usize];
        let mut env: HashMap<Value, Mem> = f.params.iter().copied().zip(args.iter().copied()).collect();
        for step in &low.steps {
            match step {
                LoweredStep::Call { func, label, args, results } => {
                    let args = args.iter().map(|a| self.mem(f, low, &env, *a)).collect::<Result<Vec<_>, _>>()?;
                    let before = self.phase.buffers.len();
                    let mems = self.call(*func, &join_path(path, label), &args)?;
                    for (v, mem) in results.iter().zip(&mems) {
                        self.rename(f, path, *v, *mem, before);
                    }
                    env.extend(results.iter().copied().zip(mems));
                }
                LoweredStep::Launch { kernel, inputs, outputs } => {
                    self.launch(f, low, &mut env, path, kernel, inputs, outputs)?;
                }
            }
        }
        f.results.iter().map(|(_, v)| self.mem(f, low, &env, *v)).collect()
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one launch in one function's environment")]
    fn launch(
        &mut self,
        f: &Function,
        low: &Lowered,
        env: &mut HashMap<Value, Mem>,
        path: &str,
        kernel: &Kernel,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<(), Diagnostic> {
        let mut ins = inputs.iter();
        let mut outs = outputs.iter();
        let mut args = Vec::new();
        let params = kernel.params();
        // The contract's results are updated inputs first, then outputs, which is the order of the parameters too.
        for p in &params {
            let (v, mem) = match p.access {
                Access::Read | Access::Update => {
                    let v = *ins.next().ok_or_else(|| arity(kernel))?;
                    (v, self.mem(f, low, env, v)?)
                }
                Access::Write => {
                    let v = *outs.next().ok_or_else(|| arity(kernel))?;
                    let b = self.buffer(f, path, v);
                    env.insert(v, Mem::Buf(b));
                    (v, Mem::Buf(b))
                }
            };
            if p.access == Access::Update {
                let changed = *outs.next().ok_or_else(|| arity(kernel))?;
                env.insert(changed, mem);
            }
            args.push(Arg { name: p.name.clone(), access: p.access, mem, ty: f.ty(v).clone() });
        }
        let made = outputs.iter().find(|o| f.values[**o].name.is_some()).or(outputs.first());
        let name = made.map_or_else(|| kernel.name().to_owned(), |v| provenance(f, path, *v));
        self.phase.steps.push(Step { name, kernel: kernel.clone(), args });
        Ok(())
    }

    /// What a call made takes the name that the caller has for it if that says where it belongs (`blk.4.attn_norm` made
    /// by `blk.3`), or that nobody reads it (`_x`). `before` buffers were there before the call.
    fn rename(&mut self, f: &Function, path: &str, v: Value, mem: Mem, before: usize) {
        let (Mem::Buf(b), Some(name)) = (mem, &f.values[v].name) else { return };
        if (b.as_u32() as usize) < before {
            return;
        }
        let now = &mut self.phase.buffers[b].name;
        if name.starts_with('_') {
            *now = format!("_{}", now.trim_start_matches('_'));
        } else if name.contains('.') {
            *now = join_path(path, name);
        }
    }

    fn buffer(&mut self, f: &Function, path: &str, v: Value) -> BufId {
        let name = provenance(f, path, v);
        self.phase.buffers.push(Buffer { name, ty: f.ty(v).clone(), offset: 0, bytes: 0 })
    }

    fn mem(&mut self, f: &Function, low: &Lowered, env: &HashMap<Value, Mem>, v: Value) -> Result<Mem, Diagnostic> {
        let mut v = v;
        while let Some(source) = low.views.get(&v) {
            v = *source;
        }
        if let Some(mem) = env.get(&v) {
            return Ok(*mem);
        }
        match f.values[v].def {
            ValueDef::Weight(w) => {
                self.shared.weight(w);
                Ok(Mem::Weight(w))
            }
            _ => Err(Diagnostic::new(
                "use-before-def",
                format!("@{} reads %{} before it is made", f.name, f.value_name(v)),
            )),
        }
    }
}

/// `blk.3.attn_norm`; a value without a name takes its number.
fn provenance(f: &Function, path: &str, v: Value) -> String {
    let name = f.values[v].name.clone().unwrap_or_else(|| format!("v{}", v.as_u32()));
    // What is discarded says so at the front, wherever it is made.
    match name.strip_prefix('_') {
        Some(rest) => format!("_{}", join_path(path, rest)),
        None => join_path(path, &name),
    }
}

fn arity(kernel: &Kernel) -> Diagnostic {
    Diagnostic::new("kernel-arity", format!("a launch of `{}` lacks an operand", kernel.name()))
}
