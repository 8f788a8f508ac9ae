//! Owns the rule on values of which each entry lies on one rank (`own`): those that meet have the same owners.

use std::collections::HashMap;

use super::graph::Scope;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::graph::InstKind;
use crate::placement::{Owner, owner};
use crate::ty::{PendingKind, TensorType};

/// `owner-mismatch`: a function puts entries of different owners together. Of a parameter, and of what a call gives,
/// nothing is known but that it is the same wherever it is used.
pub(super) fn same_owners(s: &Scope<'_>, found: &mut Vec<Diagnostic>) {
    let is_owned = |t: &TensorType| matches!(t.pending, Some((PendingKind::Owned, _)));
    if s.f.values.values().all(|v| !is_owned(&v.ty)) {
        return;
    }
    let mut owners: HashMap<Value, Owner<Value>> = HashMap::new();
    let unknown = |v: Value| Owner { positions: v, dim: None };
    for v in s.f.params.iter().copied().filter(|v| is_owned(s.f.ty(*v))) {
        owners.insert(v, unknown(v));
    }
    for i in &s.f.body {
        let inst = &s.f.insts[*i];
        let own = inst.results.iter().copied().filter(|v| is_owned(s.f.ty(*v)));
        let InstKind::Op(op) = &inst.kind else {
            own.for_each(|v| drop(owners.insert(v, unknown(v))));
            continue;
        };
        let args: Vec<_> = inst.args.iter().map(|a| (s.f.ty(*a), *a, owners.get(a).cloned())).collect();
        match owner(op, &args, &s.m.mesh) {
            // A stated type that is not the inferred one is another rule's finding.
            Ok(o) => own.for_each(|v| drop(owners.insert(v, o.clone().unwrap_or_else(|| unknown(v))))),
            Err(d) => {
                found.push(d.at(s.names.inst_place(*i)));
                own.for_each(|v| drop(owners.insert(v, unknown(v))));
            }
        }
    }
}
