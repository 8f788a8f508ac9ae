//! Random well-typed modules, by type-directed construction: every op, element type, symbols, joined dims, quantised
//! weights, linear state, calls and an entry. The module is a function of a list of choices, so proptest shrinks it.

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Value, WeightId};
use glmc_ir::graph::{Function, Module, Span, ValueDef, Weight};
use glmc_ir::kernel::{AddRmsNormKernel, GateUpKernel, Kernel, SwigluKernel};
use glmc_ir::ops::*;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, Extent, SymValues, TensorType};

/// The choices: each draw takes one number, zeros after the end.
pub(crate) struct Choices<'a> {
    list: &'a [u32],
    at: usize,
}

impl<'a> Choices<'a> {
    pub(crate) fn new(list: &'a [u32]) -> Self {
        Choices { list, at: 0 }
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let x = self.list.get(self.at).copied().unwrap_or(0) as usize;
        self.at += 1;
        x % n.max(1)
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    pub(crate) fn done(&self) -> bool {
        self.at >= self.list.len()
    }
}

/// Every kind of step: see [`Gen::step`].
const ALL: [usize; 24] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];
/// The kinds that make sums and products only, and calls.
#[allow(dead_code, reason = "not every test binary narrows the kinds")]
pub(crate) const ARITHMETIC: [usize; 10] = [0, 1, 4, 5, 7, 10, 12, 14, 15, 18];

/// A module that every verifier accepts.
pub(crate) fn module(c: &mut Choices<'_>) -> Module {
    module_of(c, &ALL)
}

/// The same with steps of the given kinds only.
pub(crate) fn module_of(c: &mut Choices<'_>, kinds: &[usize]) -> Module {
    let mut m = Module { name: c.pick(&["tiny", "a module", "m.1"]).to_string(), ..Module::default() };
    m.syms.insert("T".into(), 1 + c.below(64) as u64);
    m.syms.insert("S".into(), 128);
    weights(c, &mut m);
    for i in 0..1 + c.below(3) {
        let f = Gen::new(c, &m, &format!("f{i}"), false).function(12, kinds);
        m.funcs.push(f);
    }
    let entry = Gen::new(c, &m, "step 1", true).function(12, kinds);
    m.funcs.push(entry);
    let rest = use_rest(&m);
    m.funcs.push(rest);
    m
}

fn weights(c: &mut Choices<'_>, m: &mut Module) {
    let mut offset = 0;
    for i in 0..2 + c.below(6) {
        let q = *c.pick(QuantType::ALL);
        let last = q.block_elems() as u64 * if q.block_elems() == 1 { 8 } else { 1 };
        let ty = TensorType::new(q, [Dim::new(1 + c.below(4) as u64), Dim::new(last)]);
        let bytes = ty.bytes(&SymValues::default()).expect("whole blocks");
        let part = u32::from(i > 3);
        let tensor = format!("blk.{i}.\"w\" \u{e9}");
        let name = if c.flip() { format!("blk.{i}.w") } else { format!("w {i}") };
        m.weights.push(Weight { name, tensor, span: Span { part, offset, bytes }, ty });
        offset += bytes + c.below(100) as u64;
    }
}

/// A function that returns the weights which no other one uses.
fn use_rest(m: &Module) -> Function {
    // A function may name a weight that none of its instructions came to use.
    let reads = |f: &Function, v: &Value| {
        f.results.iter().any(|(_, r)| r == v) || f.body.iter().any(|i| f.insts[*i].args.contains(v))
    };
    let used = |w: WeightId| {
        m.funcs.values().any(|f| f.values.iter().any(|(v, d)| d.def == ValueDef::Weight(w) && reads(f, &v)))
    };
    let mut b = Builder::new(m, "rest");
    let rest: Vec<Value> = m.weights.keys().filter(|w| !used(*w)).map(|w| b.weight(w)).collect();
    b.finish(rest.into_iter().enumerate().map(|(i, v)| (format!("r{i}"), v)))
}

/// One function under construction.
struct Gen<'c, 'l, 'm> {
    c: &'c mut Choices<'l>,
    m: &'m Module,
    b: Builder<'m>,
    entry: bool,
    pool: Vec<Value>,
    /// Values that something used.
    used: Vec<Value>,
    results: Vec<Value>,
    /// State that is not consumed yet, with the name of its parameter.
    state: Vec<(String, Value)>,
    params: usize,
}

impl<'c, 'l, 'm> Gen<'c, 'l, 'm> {
    fn new(c: &'c mut Choices<'l>, m: &'m Module, name: &str, entry: bool) -> Self {
        let b = Builder::new(m, name);
        let b = if entry { b.entry() } else { b };
        let (pool, used, results, state) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Gen { c, m, b, entry, pool, used, results, state, params: 0 }
    }

    fn function(mut self, steps: usize, kinds: &[usize]) -> Function {
        for _ in 0..steps {
            if self.c.done() {
                break;
            }
            let kind = *self.c.pick(kinds);
            self.step(kind).expect("the generator makes well-typed operands");
        }
        let unused = self.results.iter().filter(|v| !self.used.contains(v)).copied().enumerate();
        let mut out: Vec<(String, Value)> = unused.map(|(i, v)| (format!("r{i}"), v)).collect();
        out.extend(self.state);
        self.b.finish(out)
    }

    fn push(&mut self, made: Vec<Value>) {
        for v in made {
            if self.c.flip() {
                self.b.name(v, ["x", "y.1", "long name", "3", "return"][self.c.below(5)]);
            }
            self.pool.push(v);
            self.results.push(v);
        }
    }

    fn op(&mut self, op: impl Into<glmc_ir::op::Op>, args: &[Value]) -> Result<(), Diagnostic> {
        let made = self.b.op(op, args)?;
        self.used.extend(args);
        self.push(made);
        Ok(())
    }

    /// A value of type `t`: one that is there, a weight, or a new parameter where that is allowed.
    fn want(&mut self, t: TensorType) -> Option<Value> {
        let there: Vec<Value> = self.pool.iter().copied().filter(|v| *self.b.ty(*v) == t).collect();
        if !there.is_empty() && self.c.below(4) > 0 {
            return Some(*self.c.pick(&there));
        }
        let weight = self.m.weights.iter().find(|(_, w)| w.ty == t).map(|(id, _)| id);
        if let Some(w) = weight.filter(|_| self.entry || self.c.flip()) {
            return Some(self.b.weight(w));
        }
        if self.entry && t.elem != Elem::I32 {
            return there.first().copied();
        }
        self.params += 1;
        let v = self.b.param(&format!("p{}", self.params), t);
        self.pool.push(v);
        Some(v)
    }

    fn wants(&mut self, types: impl IntoIterator<Item = TensorType>) -> Option<Vec<Value>> {
        let types: Vec<TensorType> = types.into_iter().collect();
        types.into_iter().map(|t| self.want(t)).collect()
    }

    fn size(&mut self) -> u64 {
        1 + self.c.below(5) as u64
    }

    fn tokens(&mut self) -> Dim {
        if self.c.flip() { Dim::sym("T") } else { Dim::new(self.size()) }
    }

    fn float(&mut self) -> Elem {
        *self.c.pick(&[Elem::F32, Elem::F32, Elem::F16, Elem::BF16])
    }

    fn joined(&mut self) -> Dim {
        Dim::joined(&[("gate", self.size()), ("up", self.size()), ("p.3", self.size())][..1 + self.c.below(3)])
    }

    /// The type of a value that is there, or a new one: floats.
    fn any(&mut self) -> TensorType {
        let floats: Vec<TensorType> =
            self.pool.iter().map(|v| self.b.ty(*v).clone()).filter(|t| t.elem.is_float()).collect();
        if !floats.is_empty() && self.c.below(3) > 0 {
            return self.c.pick(&floats).clone();
        }
        let last = if self.c.flip() { Dim::new(self.size()) } else { self.joined() };
        let dims = [self.tokens(), Dim::new(self.size()), last];
        TensorType::new(self.float(), dims[self.c.below(3)..].to_vec())
    }

    fn step(&mut self, kind: usize) -> Result<(), Diagnostic> {
        match kind {
            0 => self.elementwise(),
            1 => self.state_op(),
            2 => self.attention(),
            3 => self.dequant(),
            4 => self.gather(),
            5 => self.grouped_matmul(),
            6 => self.indexer(),
            7 => self.join(),
            8 | 9 => self.norm(kind == 8),
            10..=12 => self.matmul(),
            13 => self.route(),
            14 => self.piece(),
            15 => self.reshape(),
            16 => self.rope(),
            17 => self.topk(),
            18 | 19 => self.call(),
            23 => self.fused(),
            _ => self.unary(kind),
        }
    }

    fn unary(&mut self, kind: usize) -> Result<(), Diagnostic> {
        let t = self.any();
        let Some(v) = self.want(t) else { return Ok(()) };
        match (kind, self.c.flip()) {
            (20, true) => self.op(Silu {}, &[v]),
            (20, false) => self.op(Relu {}, &[v]),
            (21, _) => self.op(Sigmoid {}, &[v]),
            _ => {
                let factor = f64::from(self.c.below(1000) as u32) / 7.0 - 50.0;
                self.op(Scale { factor }, &[v])
            }
        }
    }

    fn fused(&mut self) -> Result<(), Diagnostic> {
        let (e, t, n) = (self.float(), self.tokens(), self.size());
        let row = TensorType::new(e, [t.clone(), n.into()]);
        let (kernel, types): (Kernel, Vec<TensorType>) = match self.c.below(3) {
            0 => {
                let w = TensorType::new(self.float(), [n]);
                (AddRmsNormKernel { eps: 1e-5 }.into(), vec![row.clone(), row, w])
            }
            1 => {
                let w = TensorType::new(self.float(), [self.size(), n]);
                (GateUpKernel { spec: "tk,nk->tn".into() }.into(), vec![row, w.clone(), w])
            }
            _ => {
                let x = TensorType::new(e, [t, Dim::joined(&[("gate", n), ("up", n)])]);
                (SwigluKernel { pieces: vec!["gate".into(), "up".into()] }.into(), vec![x])
            }
        };
        let op = Fused::of(kernel, &types.iter().collect::<Vec<_>>());
        let Some(args) = self.wants(types) else { return Ok(()) };
        self.op(op, &args)
    }

    fn elementwise(&mut self) -> Result<(), Diagnostic> {
        let a = self.any();
        let mut b = a.clone();
        let flat = self.c.below(b.rank() + 1);
        if let Some(d) = b.dims.get_mut(flat) {
            *d = Dim::new(1);
        }
        let Some(args) = self.wants([a, b]) else { return Ok(()) };
        if self.c.flip() { self.op(Add {}, &args) } else { self.op(Mul {}, &args) }
    }

    fn state_op(&mut self) -> Result<(), Diagnostic> {
        if self.state.is_empty() || self.c.below(4) == 0 {
            let t = TensorType::new(Elem::F32, [Dim::new(8), Dim::new(self.size())]).as_state();
            self.new_state(t);
            return Ok(());
        }
        let at = self.c.below(self.state.len());
        let (name, pool) = self.state[at].clone();
        let t = self.b.ty(pool).clone();
        let tokens = self.tokens();
        let rows = self.want(TensorType::new(Elem::I32, [tokens.clone()]));
        let x = self.want(TensorType::new(t.elem, [tokens, t.dims[1].clone()]));
        let (Some(rows), Some(x)) = (rows, x) else { return Ok(()) };
        if self.c.flip() {
            return self.op(Gather {}, &[pool, rows]);
        }
        let next = self.b.one(Append {}, &[pool, rows, x])?;
        self.used.extend([rows, x]);
        self.state[at] = (name, next);
        Ok(())
    }

    fn new_state(&mut self, t: TensorType) -> usize {
        self.params += 1;
        let name = format!("pool{}", self.params);
        let v = self.b.param(&name, t);
        self.state.push((name, v));
        self.state.len() - 1
    }

    fn attention(&mut self) -> Result<(), Diagnostic> {
        let (e, t, h, s, q) =
            (self.float(), self.tokens(), Dim::new(self.size()), self.tokens(), Dim::new(self.size()));
        let parts = 1 + self.c.below(2);
        let mut types = Vec::new();
        let widths: Vec<Dim> = (0..=parts).map(|_| Dim::new(self.size())).collect();
        types.extend(widths[..parts].iter().map(|w| TensorType::new(e, [t.clone(), h.clone(), w.clone()])));
        for w in &widths {
            let mut dims = vec![q.clone(), s.clone(), w.clone()];
            if self.c.flip() {
                dims.insert(2, h.clone());
            }
            types.push(TensorType::new(e, dims));
        }
        types.extend((0..2).map(|_| TensorType::new(Elem::I32, [t.clone()])));
        let selected = self.c.flip();
        if selected {
            types.push(TensorType::new(Elem::I32, [t, Dim::new(3)]));
        }
        let Some(args) = self.wants(types) else { return Ok(()) };
        let scale = 0.1 + self.c.below(9) as f64;
        self.op(Attention { parts, scale, selected }, &args)
    }

    fn dequant(&mut self) -> Result<(), Diagnostic> {
        let all: Vec<WeightId> = self.m.weights.keys().collect();
        let v = if self.c.flip() {
            let w = *self.c.pick(&all);
            self.b.weight(w)
        } else {
            let q = *self.c.pick(QuantType::ALL);
            let t = TensorType::new(q, [Dim::new(2), Dim::new(q.block_elems() as u64)]);
            let Some(v) = self.want(t) else { return Ok(()) };
            v
        };
        self.op(Dequant {}, &[v])
    }

    fn gather(&mut self) -> Result<(), Diagnostic> {
        let (e, t) = (self.float(), self.tokens());
        let mut table = vec![Dim::new(8)];
        table.extend((0..self.c.below(3)).map(|_| Dim::new(self.size())));
        let ids = [t, Dim::new(self.size())][self.c.below(3).min(2)..].to_vec();
        let Some(args) = self.wants([TensorType::new(e, table), TensorType::new(Elem::I32, ids)]) else {
            return Ok(());
        };
        self.op(Gather {}, &args)
    }

    fn grouped_matmul(&mut self) -> Result<(), Diagnostic> {
        let (e, t, j) = (self.float(), self.tokens(), Dim::new(self.size()));
        let (n, k) = (self.size(), self.size());
        let mut x = vec![t.clone(), Dim::new(k)];
        if self.c.flip() {
            x.insert(1, j.clone());
        }
        let w = TensorType::new(e, [6, n, k]);
        let Some(args) = self.wants([TensorType::new(e, x), w, TensorType::new(Elem::I32, [t, j])]) else {
            return Ok(());
        };
        self.op(GroupedMatmul {}, &args)
    }

    fn indexer(&mut self) -> Result<(), Diagnostic> {
        let (e, t, h, d, s) =
            (self.float(), self.tokens(), Dim::new(self.size()), Dim::new(self.size()), self.tokens());
        let ints = TensorType::new(Elem::I32, [t.clone()]);
        let types = [
            TensorType::new(e, [t.clone(), h.clone(), d.clone()]),
            TensorType::new(e, [Dim::new(2), s, d]),
            TensorType::new(e, [t, h]),
            ints.clone(),
            ints,
        ];
        let Some(args) = self.wants(types) else { return Ok(()) };
        self.op(IndexerScores { scale: 0.125 }, &args)
    }

    fn join(&mut self) -> Result<(), Diagnostic> {
        let (e, t) = (self.float(), self.tokens());
        let n = 1 + self.c.below(3);
        let types: Vec<TensorType> = (0..n).map(|_| TensorType::new(e, [t.clone(), Dim::new(self.size())])).collect();
        let Some(args) = self.wants(types) else { return Ok(()) };
        let names = ["a", "b.2", "rows"][..n].iter().map(|s| (*s).to_owned()).collect();
        self.op(Join { names }, &args)
    }

    fn norm(&mut self, rms: bool) -> Result<(), Diagnostic> {
        let t = self.any();
        let Some(last) = t.last().cloned() else { return Ok(()) };
        let w = TensorType::new(self.float(), [last]);
        let Some(args) = self.wants([t, w.clone(), w]) else { return Ok(()) };
        let eps = [0.0, 1e-5, 1e-6][self.c.below(3)];
        if rms { self.op(RmsNorm { eps }, &args[..2]) } else { self.op(LayerNorm { eps }, &args) }
    }

    fn matmul(&mut self) -> Result<(), Diagnostic> {
        let (e, t, k) = (self.float(), self.tokens(), self.size());
        let n = 1 + self.c.below(3);
        let batched = n == 1 && self.c.flip();
        let (spec, x, w): (&str, Vec<Dim>, Vec<Dim>) = if batched {
            let h = self.size();
            ("thk,hnk->thn", vec![t, h.into(), k.into()], vec![h.into(), self.size().into(), k.into()])
        } else {
            ("tk,nk->tn", vec![t, k.into()], vec![self.size().into(), k.into()])
        };
        let mut types = vec![TensorType::new(e, x)];
        for _ in 0..n {
            let mut w = w.clone();
            if n > 1 && self.c.flip() {
                // Rows with pieces of their own, beside others without: each is cut by its own.
                let (a, b) = (self.size(), self.size());
                w[0] = vec![("latent".into(), a), ("rope".into(), b)].into();
            } else if n > 1 {
                w[0] = self.size().into();
            }
            types.push(TensorType::new(self.float(), w));
        }
        let Some(args) = self.wants(types) else { return Ok(()) };
        let names = if n > 1 { ["gate", "up", "q.3"][..n].iter().map(|s| (*s).to_owned()).collect() } else { vec![] };
        self.op(Matmul { spec: spec.into(), names }, &args)
    }

    fn route(&mut self) -> Result<(), Diagnostic> {
        let (t, bias) = (self.tokens(), self.c.flip());
        let types = [TensorType::new(Elem::F32, [t, Dim::new(8)]), TensorType::new(Elem::F32, [8u64])];
        let Some(args) = self.wants(types) else { return Ok(()) };
        let (groups, groups_used) = *self.c.pick(&[(1, 1), (2, 1), (4, 2)]);
        let gating = if self.c.flip() { Gating::Softmax } else { Gating::Sigmoid };
        let (k, norm) = (1 + self.c.below(4) as u64, self.c.flip());
        self.op(MoeRoute { gating, k, bias, groups, groups_used, norm, scale: 2.5 }, &args[..1 + usize::from(bias)])
    }

    fn piece(&mut self) -> Result<(), Diagnostic> {
        let dims = [self.tokens(), self.joined()];
        let t = TensorType::new(self.float(), dims);
        let Some(v) = self.want(t) else { return Ok(()) };
        let Some(Extent::Joined(of)) = self.b.ty(v).last().map(|d| d.extent.clone()) else { return Ok(()) };
        let name = self.c.pick(&of).0.to_string();
        self.op(Piece { name, of }, &[v])
    }

    fn reshape(&mut self) -> Result<(), Diagnostic> {
        let t = self.any();
        let Some(v) = self.want(t.clone()) else { return Ok(()) };
        let syms: Vec<Dim> = t.dims.iter().filter(|d| d.extent.as_const().is_none()).cloned().collect();
        if syms.len() > 1 {
            return Ok(());
        }
        let n: u64 = t.dims.iter().filter_map(|d| d.extent.as_const()).product();
        let half =
            if n.is_multiple_of(2) { vec![Dim::new(2), Dim::new(n / 2)] } else { vec![Dim::joined(&[("all", n)])] };
        let dims = syms.into_iter().chain(half).collect();
        self.op(Reshape { dims }, &[v])
    }

    fn rope(&mut self) -> Result<(), Diagnostic> {
        let (e, t) = (self.float(), self.tokens());
        let mut dims = vec![t.clone(), Dim::new(2 * self.size())];
        if self.c.flip() {
            dims.insert(1, Dim::new(self.size()));
        }
        let Some(args) = self.wants([TensorType::new(e, dims), TensorType::new(Elem::I32, [t])]) else { return Ok(()) };
        let theta = *self.c.pick(&[1e4, 1e6, 12345.678]);
        self.op(Rope { theta }, &args)
    }

    fn topk(&mut self) -> Result<(), Diagnostic> {
        let dims = [self.tokens(), if self.c.flip() { Dim::sym("S") } else { Dim::new(self.size()) }];
        let t = TensorType::new(self.float(), dims);
        let Some(v) = self.want(t) else { return Ok(()) };
        let k = self.size();
        self.op(TopK { k }, &[v])
    }

    fn call(&mut self) -> Result<(), Diagnostic> {
        let callees: Vec<FuncId> = self.m.funcs.iter().filter(|(_, f)| !f.entry).map(|(id, _)| id).collect();
        if callees.is_empty() {
            return Ok(());
        }
        let id = *self.c.pick(&callees);
        let callee = &self.m.funcs[id];
        let plain = callee.params.iter().map(|p| callee.ty(*p)).filter(|t| !t.state).cloned();
        let Some(plain) = self.wants(plain) else { return Ok(()) };
        let mut plain = plain.into_iter();
        // Each state operand is one that is not consumed yet; its successor is the result that stands for it.
        let mut taken: Vec<(String, String)> = Vec::new();
        let mut args = Vec::new();
        for p in &callee.params {
            let t = callee.ty(*p).clone();
            if !t.state {
                args.extend(plain.next());
                continue;
            }
            let free = self.state.iter().position(|(_, v)| *self.b.ty(*v) == t);
            let at = free.unwrap_or_else(|| self.new_state(t));
            let (name, v) = self.state.remove(at);
            taken.push((callee.value_name(*p), name));
            args.push(v);
        }
        let made = self.b.call(id, ["blk.0", "", "a \"b\""][self.c.below(3)], &args)?;
        self.used.extend(&args);
        for (v, (result, _)) in made.into_iter().zip(&callee.results) {
            match taken.iter().find(|(param, _)| param == result) {
                Some((_, name)) => self.state.push((name.clone(), v)),
                None => self.push(vec![v]),
            }
        }
        Ok(())
    }
}
