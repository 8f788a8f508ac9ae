//! Owns the small stand-in of a lifted module: the same functions, ops and element types at dims that an interpreter can
//! run, with one layer of each kind. Sizes that were equal stay equal, larger ones stay larger, products of a `reshape`
//! stay products, and rows stay whole blocks. Never changes an op.

use std::collections::{BTreeMap, HashMap, HashSet};

use cranelift_entity::PrimaryMap;
use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::{FuncId, Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, Span, ValueDef, Weight};
use glmc_ir::op::Op;
use glmc_ir::shard_map::granule;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

/// Sizes up to this one are kept: they count tokens, chosen experts, groups.
const KEPT: u64 = 8;
/// What the small sizes begin above: the first of these that gives no two sizes one small one.
const STARTS: [u64; 6] = [KEPT, 24, 64, 96, 128, 256];
/// Most elements of a stand-in's weight: more take an interpreter too long.
const MOST: u64 = 1 << 26;

/// Which size stands for which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sizes(pub BTreeMap<u64, u64>);

impl Sizes {
    /// The size that stands for `n`.
    pub fn of(&self, n: u64) -> u64 {
        self.0.get(&n).copied().unwrap_or(n)
    }

    fn extent(&self, e: &Extent) -> Extent {
        match e {
            Extent::Const(n) => Extent::Const(self.of(*n)),
            Extent::Sym(s) => Extent::Sym(s.clone()),
            Extent::Joined(p) => Extent::Joined(p.iter().map(|(name, n)| (name.clone(), self.of(*n))).collect()),
        }
    }

    /// The type at these sizes.
    pub fn ty(&self, t: &TensorType) -> TensorType {
        t.with_dims(t.dims.iter().map(|d| Dim { extent: self.extent(&d.extent), split: d.split.clone() }).collect())
    }

    /// The op at these sizes.
    pub fn op(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::Reshape(r) => r.dims.iter_mut().for_each(|d| d.extent = self.extent(&d.extent)),
            Op::Piece(p) => p.of.iter_mut().for_each(|(_, n)| *n = self.of(*n)),
            Op::TopK(t) => t.k = self.of(t.k),
            Op::Fused(f) => f.pieces.iter_mut().flatten().for_each(|(_, n)| *n = self.of(*n)),
            _ => {}
        }
        op
    }

    /// The sizes that these stand for.
    pub fn inverse(&self) -> Sizes {
        Sizes(self.0.iter().map(|(a, b)| (*b, *a)).collect())
    }
}

/// Sizes for `m`.
fn choose(m: &Module) -> Sizes {
    // Each size with what its small one must be a multiple of.
    let mut all: BTreeMap<u64, u64> = BTreeMap::new();
    let mut see = |t: &TensorType| {
        for (i, d) in t.dims.iter().enumerate() {
            let sizes: Vec<u64> = match &d.extent {
                Extent::Const(n) => vec![*n],
                Extent::Joined(p) => p.iter().map(|(_, n)| *n).collect(),
                Extent::Sym(_) => Vec::new(),
            };
            for n in sizes.into_iter().filter(|n| *n > KEPT) {
                let g = all.entry(n).or_insert(KEPT);
                *g = (*g).max(granule(t, i));
            }
        }
    };
    m.weights.values().for_each(|w| see(&w.ty));
    m.funcs.values().flat_map(|f| f.values.values()).for_each(|v| see(&v.ty));
    for n in m.syms.values().filter(|n| **n > KEPT) {
        all.entry(*n).or_insert(KEPT);
    }
    for op in ops(m) {
        if let Op::TopK(t) = op {
            all.entry(t.k).or_insert(if t.k > KEPT { KEPT } else { 1 });
        }
    }
    let (products, sums) = (products(m), sums(m));
    // Two sizes that share a small one cannot be told apart when costs are asked of what they stand for.
    let told = |s: &Sizes| s.0.values().collect::<std::collections::BTreeSet<_>>().len() == s.0.len();
    let mut from = STARTS.into_iter().map(|start| fitting(&all, &products, &sums, start));
    let first = from.next().unwrap_or_default();
    if told(&first) { first } else { from.find(told).unwrap_or(first) }
}

/// Small sizes above `start` that keep `products` and `sums`.
fn fitting(
    all: &BTreeMap<u64, u64>,
    products: &BTreeMap<u64, Vec<u64>>,
    sums: &BTreeMap<u64, Vec<u64>>,
    start: u64,
) -> Sizes {
    let mut small = Small { all, sums, of: Sizes::default() };
    let mut last = start;
    for (n, g) in all {
        // No size grows: what is small already stays.
        let chosen = if *n <= KEPT { *n } else { (last + 1).next_multiple_of(*g).min(*n) };
        last = last.max(chosen);
        small.of.0.insert(*n, chosen);
    }
    // Products may be parts of sums, and sums of products.
    for _ in 0..4 {
        for whole in sums.keys() {
            small.sum(*whole, small.granule(*whole));
        }
        for (whole, factors) in products {
            small.product(*whole, factors);
        }
    }
    small.of
}

/// Small sizes on their way to fit each other.
struct Small<'a> {
    /// What the small size of each must be a multiple of.
    all: &'a BTreeMap<u64, u64>,
    sums: &'a BTreeMap<u64, Vec<u64>>,
    of: Sizes,
}

impl Small<'_> {
    fn granule(&self, n: u64) -> u64 {
        self.all.get(&n).copied().unwrap_or(1)
    }

    /// Sets a joined dim to the sum of its pieces, the largest of which grows until the sum is a multiple of `g`.
    fn sum(&mut self, whole: u64, g: u64) {
        let Some(pieces) = self.sums.get(&whole) else { return };
        let largest = pieces.iter().copied().max().unwrap_or(1);
        let times = pieces.iter().filter(|p| **p == largest).count() as u64;
        let now: u64 = pieces.iter().map(|p| self.of.of(*p)).sum();
        let step = self.granule(largest).clamp(1, KEPT);
        if let Some(more) = (0..=g).map(|k| k * step).find(|k| (now + times * k).is_multiple_of(g)) {
            let grown = self.of.of(largest) + more;
            self.of.0.insert(largest, grown);
            self.of.0.insert(whole, now + times * more);
        }
    }

    /// Sets a size to the product of others, the largest of which grows until the product has whole blocks.
    fn product(&mut self, whole: u64, factors: &[u64]) {
        let product = |of: &Sizes| factors.iter().map(|f| of.of(*f)).product::<u64>();
        let largest = factors.iter().copied().max().unwrap_or(1);
        let rest = product(&self.of) / self.of.of(largest).max(1);
        let need = self.granule(whole) / gcd(self.granule(whole), rest);
        if self.sums.contains_key(&largest) {
            self.sum(largest, lcm(need, self.granule(largest)));
        } else {
            let grown = self.of.of(largest).next_multiple_of(lcm(need, self.granule(largest)));
            self.of.0.insert(largest, grown);
        }
        let now = product(&self.of);
        self.of.0.insert(whole, now);
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
}

/// Sizes of dims that are joined from pieces somewhere.
fn sums(m: &Module) -> BTreeMap<u64, Vec<u64>> {
    let types =
        m.weights.values().map(|w| &w.ty).chain(m.funcs.values().flat_map(|f| f.values.values()).map(|v| &v.ty));
    let mut out = BTreeMap::new();
    for d in types.flat_map(|t| &t.dims) {
        if let (Extent::Joined(p), Some(n)) = (&d.extent, d.extent.as_const()) {
            out.insert(n, p.iter().map(|(_, n)| *n).collect());
        }
    }
    out
}

fn ops(m: &Module) -> impl Iterator<Item = &Op> {
    m.funcs.values().flat_map(|f| f.body.iter().map(|i| &f.insts[*i].kind)).filter_map(|k| match k {
        InstKind::Op(op) => Some(op),
        InstKind::Call { .. } => None,
    })
}

/// Sizes that a `reshape` takes for the product of others.
fn products(m: &Module) -> BTreeMap<u64, Vec<u64>> {
    let mut out = BTreeMap::new();
    for f in m.funcs.values() {
        for i in &f.body {
            let data = &f.insts[*i];
            if !matches!(&data.kind, InstKind::Op(Op::Reshape(_))) {
                continue;
            }
            let sizes = |v: Value| f.ty(v).dims.iter().map(|d| d.extent.as_const()).collect::<Vec<_>>();
            let (mut a, mut b) = (sizes(data.args[0]), sizes(data.results[0]));
            while let (Some(x), Some(y)) = (a.first(), b.first())
                && x == y
            {
                a.remove(0);
                b.remove(0);
            }
            for (one, many) in [(&a, &b), (&b, &a)] {
                if let ([Some(n)], Some(factors)) = (one.as_slice(), many.iter().copied().collect::<Option<Vec<u64>>>())
                    && factors.len() > 1
                    && *n > KEPT
                {
                    out.insert(*n, factors);
                }
            }
        }
    }
    out
}

/// `m` with one call of each function in each entry, and without the weights and pools of the others.
fn thinned(m: &Module) -> Module {
    let mut out = m.clone();
    let ids: Vec<FuncId> = m.entries().map(|(id, _)| id).collect();
    for id in ids {
        thin(m, &mut out.funcs[id]);
    }
    let mut kept = PrimaryMap::new();
    let mut new: HashMap<WeightId, WeightId> = HashMap::new();
    let used: HashSet<WeightId> = out.funcs.values().flat_map(weights_of).collect();
    for (w, weight) in m.weights.iter().filter(|(w, _)| used.contains(w)) {
        new.insert(w, kept.push(weight.clone()));
    }
    out.weights = kept;
    for f in out.funcs.values_mut() {
        *f = f.compacted();
        for v in f.values.values_mut() {
            if let ValueDef::Weight(w) = &mut v.def {
                *w = new[w];
            }
        }
    }
    out
}

fn weights_of(f: &Function) -> Vec<WeightId> {
    let read = f.body.iter().flat_map(|i| &f.insts[*i].args).chain(f.results.iter().map(|(_, v)| v));
    let of = |v: &Value| match f.values[*v].def {
        ValueDef::Weight(w) => Some(w),
        _ => None,
    };
    read.filter_map(of).collect()
}

/// Takes calls of functions that were called before out of `f`, where each result has an operand that it renews.
fn thin(m: &Module, f: &mut Function) {
    let mut seen = HashSet::new();
    let mut instead: HashMap<Value, Value> = HashMap::new();
    let mut gone = HashSet::new();
    for i in f.body.clone() {
        let InstKind::Call { func, .. } = f.insts[i].kind else { continue };
        if seen.insert(func) {
            continue;
        }
        let callee = &m.funcs[func];
        let renewed = callee.results.iter().zip(&f.insts[i].results).map(|((name, _), r)| {
            let p = callee.params.iter().position(|p| callee.values[*p].name.as_ref() == Some(name))?;
            (f.ty(f.insts[i].args[p]) == f.ty(*r)).then_some((*r, f.insts[i].args[p]))
        });
        if let Some(pairs) = renewed.collect::<Option<Vec<_>>>() {
            instead.extend(pairs);
            gone.insert(i);
        }
    }
    let last = |mut v: Value| {
        while let Some(w) = instead.get(&v) {
            v = *w;
        }
        v
    };
    f.body.retain(|i| !gone.contains(i));
    for i in f.body.clone() {
        f.insts[i].args.iter_mut().for_each(|a| *a = last(*a));
    }
    f.results.iter_mut().for_each(|(_, v)| *v = last(*v));
    // Pools that no layer has any more.
    let untouched = |f: &Function, v: Value| f.ty(v).state && matches!(f.values[v].def, ValueDef::Param(_));
    let results = std::mem::take(&mut f.results);
    f.results = results.into_iter().filter(|(_, v)| !untouched(f, *v)).collect();
    let read: HashSet<Value> = f.body.iter().flat_map(|i| &f.insts[*i].args).copied().collect();
    let params = std::mem::take(&mut f.params);
    f.params = params.into_iter().filter(|p| !f.ty(*p).state || read.contains(p)).collect();
    for (i, p) in f.params.clone().into_iter().enumerate() {
        f.values[p].def = ValueDef::Param(i as u32);
    }
}

/// The stand-in of `m`, and its sizes.
///
/// # Errors
/// An op whose small operands do not fit each other: a relation between sizes that is not known here. `no-stand-in`: a
/// weight that stays too large, or has no whole blocks.
pub fn shrink(m: &Module) -> Result<(Module, Sizes), Diagnostic> {
    let thin = thinned(m);
    let sizes = choose(&thin);
    let mut out = Module { name: thin.name.clone(), mesh: thin.mesh.clone(), ..Module::default() };
    out.syms = thin.syms.iter().map(|(s, n)| (s.clone(), sizes.of(*n))).collect();
    let mut offset = 0;
    let refused = |m: String| Diagnostic::new("no-stand-in", m);
    for w in thin.weights.values() {
        let ty = sizes.ty(&w.ty);
        if ty.elems(&SymValues::default()).is_none_or(|n| n > MOST) {
            return Err(refused(format!("{ty}, which stands for {}, has more than {MOST} elements", w.ty)));
        }
        let bytes = ty.bytes(&SymValues::default());
        let bytes =
            bytes.ok_or_else(|| Diagnostic::new("no-stand-in", format!("{ty} is no whole number of blocks")))?;
        let span = Span { part: 0, offset, bytes };
        offset += bytes.next_multiple_of(32);
        out.weights.push(Weight { name: w.name.clone(), tensor: w.tensor.clone(), span, ty });
    }
    for f in thin.funcs.values() {
        let small = rebuilt(&out, f, &sizes)?;
        out.funcs.push(small);
    }
    Ok((out, sizes))
}

fn rebuilt(m: &Module, f: &Function, sizes: &Sizes) -> Result<Function, Diagnostic> {
    let mut b = Builder::new(m, &f.name);
    if f.entry {
        b = b.entry();
    }
    let mut env: HashMap<Value, Value> = HashMap::new();
    for p in &f.params {
        env.insert(*p, b.param(&f.value_name(*p), sizes.ty(f.ty(*p))));
    }
    for i in &f.body {
        let data = &f.insts[*i];
        let args: Vec<Value> = data.args.iter().map(|a| operand(f, &mut b, &env, *a)).collect::<Result<_, _>>()?;
        let made = match &data.kind {
            InstKind::Op(op) => b.op(sizes.op(op), &args)?,
            InstKind::Call { func, label } => b.call(*func, label, &args)?,
        };
        for (old, new) in data.results.iter().zip(made) {
            if let Some(name) = &f.values[*old].name {
                b.name(new, name);
            }
            env.insert(*old, new);
        }
    }
    let results = f.results.iter().map(|(n, v)| Ok((n.clone(), operand(f, &mut b, &env, *v)?)));
    let results = results.collect::<Result<Vec<_>, Diagnostic>>()?;
    Ok(b.finish(results))
}

fn operand(f: &Function, b: &mut Builder<'_>, env: &HashMap<Value, Value>, v: Value) -> Result<Value, Diagnostic> {
    match f.values[v].def {
        ValueDef::Weight(w) => Ok(b.weight(w)),
        _ => env.get(&v).copied().ok_or_else(|| {
            Diagnostic::new("use-before-def", format!("@{} reads %{} before it is made", f.name, f.value_name(v)))
        }),
    }
}
