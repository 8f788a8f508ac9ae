//! `fused`: one launch of a kernel contract as an op. Its meaning is the contract's meaning graph and nothing else:
//! type rule, evaluation, work and dim rule are read off that graph, so a fused op has exactly one definition.
//!
//! Contracts that update state are no ops (`bad-attribute`): state stays in the function's ordered skeleton.

use serde::{Deserialize, Serialize};

use super::rules::Infer;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::graph::{Function, InstKind, Module};
use crate::interp::Arith;
use crate::interp::global::{Interp, NoWeights};
use crate::kernel::{Access, Kernel};
use crate::op::OpDef;
use crate::placement::{self, DimRule, Role};
use crate::tensor::{Data, EvalError, Tensor};
use crate::ty::{Axis, Dim, Elem, Extent, PendingKind, Piece, SymValues, TensorType};

/// The outputs of `kernel` on its inputs, in the contract's order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fused {
    /// Which contract, with its attributes.
    pub kernel: Kernel,
    /// The pieces of each operand's last dim (empty: not joined): what the numbers are cut by. Empty as a whole where
    /// no operand is joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Vec<(Piece, u64)>>,
}

fn pieces_of(t: &TensorType) -> Vec<(Piece, u64)> {
    match t.last().map(|d| &d.extent) {
        Some(Extent::Joined(p)) => p.clone(),
        _ => Vec::new(),
    }
}

impl Fused {
    /// A launch of `kernel` on operands of these types.
    pub fn of(kernel: impl Into<Kernel>, args: &[&TensorType]) -> Self {
        let pieces: Vec<_> = args.iter().map(|t| pieces_of(t)).collect();
        let pieces = if pieces.iter().all(Vec::is_empty) { Vec::new() } else { pieces };
        Fused { kernel: kernel.into(), pieces }
    }

    /// The meaning on placed operands: every value's type, or the rule that the placements break.
    pub(crate) fn placed(&self, args: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic> {
        let global: Vec<TensorType> = args.iter().map(|t| placement::strip(t)).collect();
        let f = self.kernel.meaning(&global.iter().collect::<Vec<_>>())?;
        let mut types: Vec<TensorType> = f.values.values().map(|v| v.ty.clone()).collect();
        for (p, t) in f.params.iter().zip(args) {
            types[p.as_u32() as usize] = (*t).clone();
        }
        for inst in &f.body {
            let data = &f.insts[*inst];
            let InstKind::Op(op) = &data.kind else { continue };
            let ins: Vec<&TensorType> = data.args.iter().map(|a| &types[a.as_u32() as usize]).collect();
            let outs = op.infer(&ins)?;
            for (r, t) in data.results.iter().zip(outs) {
                types[r.as_u32() as usize] = t;
            }
        }
        Ok(f.results.iter().map(|(_, v)| types[v.as_u32() as usize].clone()).collect())
    }

    /// Classes of dims that the meaning's rules make one: `(label a dim of each argument, of each result)`.
    /// Also which integer arguments and results hold positions or counts along which label; where such a value is made on
    /// the way, the label is returned as one that must stay whole.
    fn labels(f: &Function, rule: &mut DimRule) -> Vec<usize> {
        let mut first = Vec::new();
        let mut dims = 0;
        for v in f.values.values() {
            first.push(dims);
            dims += v.ty.rank();
        }
        let mut parent: Vec<usize> = (0..dims).collect();
        let (mut positions, mut counts, mut found) = (Vec::new(), Vec::new(), Vec::new());
        fn root(parent: &mut [usize], mut i: usize) -> usize {
            while parent[i] != i {
                parent[i] = parent[parent[i]];
                i = parent[i];
            }
            i
        }
        for inst in &f.body {
            let data = &f.insts[*inst];
            let InstKind::Op(op) = &data.kind else { continue };
            let args: Vec<&TensorType> = data.args.iter().map(|a| f.ty(*a)).collect();
            let results: Vec<TensorType> = data.results.iter().map(|r| f.ty(*r).clone()).collect();
            let of = op.dim_rule(&args, &results);
            let mut holder: Vec<Option<usize>> = vec![None; of.roles.len()];
            let all = data.args.iter().zip(&of.args).chain(data.results.iter().zip(&of.results));
            for (v, labels) in all {
                for (d, label) in labels.iter().enumerate() {
                    let at = root(&mut parent, first[v.as_u32() as usize] + d);
                    match holder[*label] {
                        Some(other) => {
                            let other = root(&mut parent, other);
                            parent[at] = other;
                        }
                        None => holder[*label] = Some(at),
                    }
                }
            }
            let held = |list: &[(usize, usize)], values: &[Value]| -> Vec<(Value, usize)> {
                list.iter().filter_map(|(i, l)| Some((values[*i], holder[*l]?))).collect()
            };
            positions.extend(held(&of.positions, &data.args));
            counts.extend(held(&of.counts, &data.args));
            found.extend(held(&of.found, &data.results));
        }
        // Dims that one value holds positions of are one dim: a rank sees the positions in its part in one way.
        for (i, (v, class)) in positions.iter().enumerate() {
            if let Some((_, other)) = positions[..i].iter().find(|(w, _)| w == v) {
                let (a, b) = (root(&mut parent, *class), root(&mut parent, *other));
                parent[a] = b;
            }
        }
        let mut label_of: Vec<Option<usize>> = vec![None; dims];
        let mut of = |v: Value| -> Vec<usize> {
            (0..f.ty(v).rank())
                .map(|d| {
                    let r = root(&mut parent, first[v.as_u32() as usize] + d);
                    *label_of[r].get_or_insert_with(|| rule.label(Role::Whole))
                })
                .collect()
        };
        let args = f.params.iter().map(|p| of(*p)).collect();
        let results: Vec<Vec<usize>> = f.results.iter().map(|(_, v)| of(*v)).collect();
        (rule.args, rule.results) = (args, results);
        let mut whole = Vec::new();
        let mut outside = |list: Vec<(Value, usize)>, of: &[Value]| -> Vec<(usize, usize)> {
            let mut out: Vec<(usize, usize)> = Vec::new();
            for (v, class) in list {
                let Some(label) = label_of[root(&mut parent, class)] else { continue };
                match of.iter().position(|o| *o == v) {
                    Some(i) if out.contains(&(i, label)) => {}
                    Some(i) => out.push((i, label)),
                    None => whole.push(label),
                }
            }
            out
        };
        let made: Vec<Value> = f.results.iter().map(|(_, v)| *v).collect();
        rule.positions = outside(positions, &f.params);
        rule.counts = outside(counts, &f.params);
        rule.found = outside(found, &made);
        whole
    }

    /// What a split of `label` alone does: tried on the meaning.
    fn role(&self, args: &[&TensorType], rule: &DimRule, label: usize) -> Role {
        let axis = Axis::from("a");
        let mut held = false;
        let parts: Vec<TensorType> = args
            .iter()
            .zip(&rule.args)
            .map(|(t, labels)| {
                let mut t = placement::strip(t);
                for (d, _) in t.dims.iter_mut().zip(labels).filter(|(_, l)| **l == label) {
                    d.split = Some(axis.clone().into());
                    held = true;
                }
                t
            })
            .collect();
        let Ok(results) = self.placed(&parts.iter().collect::<Vec<_>>()) else { return Role::Whole };
        if !held {
            return Role::Whole;
        }
        let pending: Vec<Option<PendingKind>> = results.iter().map(|r| r.pending.as_ref().map(|(k, _)| *k)).collect();
        let split = |r: &TensorType, labels: &[usize]| {
            r.dims.iter().zip(labels).all(|(d, l)| d.split.is_some() == (*l == label))
        };
        let whole = |r: &TensorType| r.dims.iter().all(|d| d.split.is_none());
        match pending.first().copied().flatten() {
            None if pending.iter().all(Option::is_none)
                && results.iter().zip(&rule.results).all(|(r, l)| l.contains(&label) && split(r, l)) =>
            {
                Role::Map
            }
            Some(kind) if pending.iter().all(|p| *p == Some(kind)) && results.iter().all(whole) => Role::Reduce(kind),
            _ => Role::Whole,
        }
    }
}

impl OpDef for Fused {
    const NAME: &'static str = "fused";

    fn infer(&self, args: &[&TensorType]) -> Infer {
        // Before the list of parameters is made: its length is the attribute's.
        if let Kernel::Attention(a) = &self.kernel
            && a.0.parts > args.len()
        {
            let what = format!("`fused` attention of {} parts on {} operands", a.0.parts, args.len());
            return Err(Diagnostic::new("bad-arity", what));
        }
        let params = self.kernel.params();
        let inputs = params.iter().filter(|p| p.access != Access::Write).count();
        if inputs != args.len() {
            let what = format!("`fused` of `{}` takes {inputs} operands, found {}", self.kernel.name(), args.len());
            return Err(Diagnostic::new("bad-arity", what));
        }
        if params.iter().any(|p| p.access == Access::Update) {
            return Err(Diagnostic::new(
                "bad-attribute",
                format!("`fused` of `{}`, which updates", self.kernel.name()),
            )
            .help("changes of state are ops of their own"));
        }
        let found = Fused::of(self.kernel.clone(), args);
        if found.pieces != self.pieces {
            return Err(Diagnostic::new(
                "piece-order",
                format!("`fused` is cut by {:?}, its operands by {:?}", self.pieces, found.pieces),
            )
            .help("producer and consumer name the same pieces in the same order"));
        }
        if let Some(a) = args.iter().find(|a| a.state) {
            return Err(Diagnostic::new("bad-state", format!("`fused` cannot take state: {a}"))
                .help("gather the rows it needs"));
        }
        self.kernel.result_types(args)
    }

    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
        let global: Vec<TensorType> = args.iter().map(|t| placement::strip(t)).collect();
        let Ok(f) = self.kernel.meaning(&global.iter().collect::<Vec<_>>()) else {
            return DimRule::whole(args, results);
        };
        let mut rule = DimRule::default();
        let whole = Fused::labels(&f, &mut rule);
        for label in (0..rule.roles.len()).filter(|l| !whole.contains(l)) {
            rule.roles[label] = self.role(args, &rule, label);
        }
        rule
    }

    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let none = Vec::new();
        let types: Vec<TensorType> = args
            .iter()
            .enumerate()
            .map(|(i, t)| {
                let elem = match &t.data {
                    Data::F(_) => Elem::F32,
                    Data::I(_) => Elem::I32,
                    Data::Q(q, _) => Elem::from(*q),
                };
                let mut dims: Vec<Dim> = t.shape.iter().map(|n| Dim::new(*n as u64)).collect();
                let pieces = self.pieces.get(i).unwrap_or(&none);
                if let (Some(d), false) = (dims.last_mut(), pieces.is_empty()) {
                    *d = Dim::from(pieces.clone());
                }
                TensorType::new(elem, dims)
            })
            .collect();
        let text = |d: Diagnostic| EvalError::new(d.message);
        let meaning = self.kernel.meaning(&types.iter().collect::<Vec<_>>()).map_err(text)?;
        let mut module = Module::default();
        let f = module.funcs.push(meaning);
        let values = args.iter().map(|t| (*t).clone()).collect();
        Interp::new(&module, Arith::Real, SymValues::default(), &NoWeights).run(f, values)
    }

    fn flops(&self, args: &[&TensorType], _: &[TensorType], syms: &SymValues) -> u64 {
        self.kernel.work(args, syms).map_or(u64::MAX, |w| w.flops)
    }

    fn bytes_read(&self, args: &[&TensorType], _: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        self.kernel.input_reads(args, syms).ok().and_then(|r| r.get(i).copied()).unwrap_or(u64::MAX)
    }

    fn linear_at(&self, i: usize, args: &[&TensorType]) -> bool {
        let axis = Axis::from("a");
        let mut parts: Vec<TensorType> = args.iter().map(|t| placement::strip(t)).collect();
        let Some(t) = parts.get_mut(i) else { return false };
        t.pending = Some((PendingKind::Sum, axis.clone()));
        let results = self.placed(&parts.iter().collect::<Vec<_>>());
        results.is_ok_and(|r| r.iter().all(|t| t.pending == Some((PendingKind::Sum, axis.clone()))))
    }

    fn discrete(&self) -> bool {
        matches!(self.kernel, Kernel::TopK(_) | Kernel::Route(_))
    }
}
