//! Owns who owns the entries of a value that is pending `own`, which types do not say: the positions that were named for
//! the entries, and the split dim that they are positions of. Two values may be put together entry by entry, and an owned
//! value may meet split experts, only where the owners are the same; else one rank's entries would meet another's zeros.

use std::collections::HashMap;

use super::{DimRule, Mesh, Role, is_owned};
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::graph::{Function, InstKind};
use crate::kernel::Kernel;
use crate::op::Op;
use crate::ty::{Dim, PendingKind, TensorType};

/// The owner of an entry: the rank that holds entry `positions` of `dim`. `K` names values: equal ones have equal names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner<K> {
    /// The value that names a position for each entry; of a value whose making is not seen, the value itself.
    pub positions: K,
    /// The dim, with its cut.
    pub dim: Option<Dim>,
}

/// An operand as [`owner`] needs it.
type Operand<'a, K> = (&'a TensorType, K, Option<Owner<K>>);
/// One whose name is not known, since it is made on the way.
type Inner<'a, K> = (&'a TensorType, Option<K>, Option<Owner<K>>);

/// The owner of the results of `op`; `None` if they are not pending `own`, or the types do not fit.
///
/// # Errors
/// `owner-mismatch`: operands with different owners.
pub fn owner<K: Clone + PartialEq>(
    op: &Op,
    args: &[Operand<'_, K>],
    mesh: &Mesh,
) -> Result<Option<Owner<K>>, Diagnostic> {
    if let Op::Fused(f) = op {
        return owner_of_step(&f.kernel, args, mesh);
    }
    let args: Vec<_> = args.iter().map(|(t, k, o)| (*t, Some(k.clone()), o.clone())).collect();
    of_op(op, &args)
}

/// The same for a launch of `kernel`: its meaning decides.
///
/// # Errors
/// As [`owner`].
pub fn owner_of_step<K: Clone + PartialEq>(
    kernel: &Kernel,
    inputs: &[Operand<'_, K>],
    mesh: &Mesh,
) -> Result<Option<Owner<K>>, Diagnostic> {
    let types: Vec<&TensorType> = inputs.iter().map(|(t, ..)| *t).collect();
    let Ok(f) = kernel.meaning_on(&types, mesh) else { return Ok(None) };
    if f.values.values().all(|v| !is_owned(&v.ty)) {
        return Ok(None);
    }
    through(&f, inputs)
}

/// Through a meaning: the owner of its first result that has one.
fn through<K: Clone + PartialEq>(f: &Function, inputs: &[Operand<'_, K>]) -> Result<Option<Owner<K>>, Diagnostic> {
    let mut owners: HashMap<Value, Owner<K>> = HashMap::new();
    for (p, (_, _, owner)) in f.params.iter().zip(inputs) {
        owner.iter().for_each(|o| drop(owners.insert(*p, o.clone())));
    }
    let key = |v: &Value| f.params.iter().position(|p| p == v).and_then(|i| inputs.get(i)).map(|(_, k, _)| k.clone());
    for inst in &f.body {
        let data = &f.insts[*inst];
        let InstKind::Op(op) = &data.kind else { continue };
        let args: Vec<_> = data.args.iter().map(|a| (f.ty(*a), key(a), owners.get(a).cloned())).collect();
        if let Some(o) = of_op(op, &args)? {
            data.results.iter().for_each(|r| drop(owners.insert(*r, o.clone())));
        }
    }
    Ok(f.results.iter().find_map(|(_, v)| owners.get(v).cloned()))
}

fn of_op<K: Clone + PartialEq>(op: &Op, args: &[Inner<'_, K>]) -> Result<Option<Owner<K>>, Diagnostic> {
    let types: Vec<&TensorType> = args.iter().map(|(t, ..)| *t).collect();
    let results = match op.infer(&types) {
        Ok(r) if r.iter().any(is_owned) => r,
        // Nobody's, a sum by now, or an error that the type rules report.
        _ => return Ok(None),
    };
    let rule = op.dim_rule(&types, &results);
    let mut all: Vec<Owner<K>> = Vec::new();
    for (t, _, o) in args.iter().filter(|(t, ..)| is_owned(t)) {
        let unknown = || mismatch(op, format!("nobody knows who owns the entries of {t}"));
        all.push(o.clone().ok_or_else(unknown)?);
    }
    for (a, label) in &rule.positions {
        if let (Role::Reduce(PendingKind::Owned), Some(dim)) = (rule.roles[*label], split_dim(&rule, &types, *label)) {
            let inner = || mismatch(op, "the positions are made on the way".into());
            let positions = args.get(*a).and_then(|(_, k, _)| k.clone()).ok_or_else(inner)?;
            all.push(Owner { positions, dim: Some(dim.clone()) });
        }
    }
    match all.split_first() {
        Some((first, rest)) if rest.iter().any(|o| o != first) => {
            Err(mismatch(op, "its operands have entries of different owners".into()))
        }
        first => Ok(first.map(|(o, _)| o.clone())),
    }
}

fn split_dim<'t>(rule: &DimRule, args: &[&'t TensorType], label: usize) -> Option<&'t Dim> {
    let dims = rule.args.iter().zip(args).flat_map(|(labels, t)| labels.iter().zip(&t.dims));
    dims.filter(|(l, d)| **l == label && d.split.is_some()).map(|(_, d)| d).next()
}

fn mismatch(op: &Op, what: String) -> Diagnostic {
    Diagnostic::new("owner-mismatch", format!("`{}`: {what}", op.name())).help("all_reduce them first")
}
