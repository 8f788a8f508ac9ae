//! Owns what a split or a pending merge of an argument means for an op's results, from the op's one dim rule.
//! Never chooses a placement; passes do.

use indexmap::IndexMap;

use crate::diag::Diagnostic;
use crate::op::Op;
use crate::ops::Reshape;
use crate::shard_map::canonical;
use crate::ty::{Axis, Extent, PendingKind, Split, TensorType};

mod local;
mod owner;

pub(crate) use local::type_of;
pub use local::{local_op, local_type, softmax_part, topk_part};
pub use owner::{Owner, owner, owner_of_step};

/// Mesh axes with their sizes.
pub type Mesh = IndexMap<Axis, u64>;

/// What a label of a [`DimRule`] is to the op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Each entry along it is computed alone: a split of it passes from arguments to results.
    Map,
    /// It is summed or merged away: a split of it makes the results pending.
    Reduce(PendingKind),
    /// The op needs it whole on each rank.
    Whole,
}

/// Labels for the dims of an op's arguments and results; equal labels are the same dim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DimRule {
    /// The role of each label; a label is an index into this list.
    pub roles: Vec<Role>,
    /// A label a dim, for each argument.
    pub args: Vec<Vec<usize>>,
    /// A label a dim, for each result.
    pub results: Vec<Vec<usize>>,
    /// Integer arguments that hold positions along a label, as `(argument, label)`; negative ones are none. A rank that
    /// holds a part of the dim takes those outside it as none.
    pub positions: Vec<(usize, usize)>,
    /// Integer arguments that count how many first entries along a label take part, as `(argument, label)`.
    pub counts: Vec<(usize, usize)>,
    /// Integer results that hold positions along a label, as `(result, label)`.
    pub found: Vec<(usize, usize)>,
}

impl DimRule {
    /// A new label.
    pub fn label(&mut self, role: Role) -> usize {
        self.roles.push(role);
        self.roles.len() - 1
    }

    /// A new label for each dim of `t`.
    pub fn labels(&mut self, t: &TensorType, role: Role) -> Vec<usize> {
        t.dims.iter().map(|_| self.label(role)).collect()
    }

    /// Argument and result dims pair off one to one: elementwise ops.
    pub fn elementwise(args: &[&TensorType], results: &[TensorType]) -> Self {
        let mut rule = DimRule::default();
        let out = rule.labels(&results[0], Role::Map);
        rule.args = args.iter().map(|a| rule.broadcast(a, &results[0], &out)).collect();
        rule.results = results.iter().map(|_| out.clone()).collect();
        rule
    }

    /// Labels of an argument that may have extent 1 where the result is larger.
    fn broadcast(&mut self, a: &TensorType, r: &TensorType, out: &[usize]) -> Vec<usize> {
        (0..a.rank())
            .map(|i| if a.dims[i].extent.same_size(&r.dims[i].extent) { out[i] } else { self.label(Role::Whole) })
            .collect()
    }

    /// Every dim whole: the rule of an op that no rank can do a part of.
    pub fn whole(args: &[&TensorType], results: &[TensorType]) -> Self {
        let mut rule = DimRule::default();
        rule.args = args.iter().map(|a| rule.labels(a, Role::Whole)).collect();
        rule.results = results.iter().map(|r| rule.labels(r, Role::Whole)).collect();
        rule
    }
}

/// The type without its placement.
pub fn strip(t: &TensorType) -> TensorType {
    let mut t = t.clone();
    t.pending = None;
    for d in &mut t.dims {
        d.split = None;
    }
    t
}

/// Result types on a mesh: global shapes by the op's type rule, placements by its dim rule, units as [`canonical`].
///
/// # Errors
/// As [`Op::infer`], and `split-mismatch`: a `reshape` whose operand and result are cut at other entries.
pub fn infer_on(op: &Op, args: &[&TensorType], mesh: &Mesh) -> Result<Vec<TensorType>, Diagnostic> {
    let mut results = op.infer(args)?;
    results.iter_mut().for_each(|r| *r = canonical(r, mesh));
    if let Op::Reshape(_) = op {
        Reshape::cuts_agree(args[0], &results[0], mesh)?;
    }
    Ok(results)
}

/// Sets the placements of `results` from those of `args`.
///
/// # Errors
/// `split-mismatch` (one dim split in two ways or on some arguments only), `split-whole-dim` (a dim that the op needs
/// whole), `pending-nonlinear` (a pending value meets an op that is not linear in it).
pub fn propagate(op: &Op, args: &[&TensorType], results: &mut [TensorType]) -> Result<(), Diagnostic> {
    if args.iter().any(|t| is_owned(t)) {
        return propagate_owned(op, args, results);
    }
    let rule = op.dim_rule(args, results);
    let mut split: Vec<Option<Split>> = vec![None; rule.roles.len()];
    for (arg, labels) in args.iter().zip(&rule.args) {
        for (dim, &label) in arg.dims.iter().zip(labels) {
            let Some(s) = &dim.split else { continue };
            match &split[label] {
                Some(other) if other != s => {
                    return Err(mismatch(op, format!("one dim is split over {other} and over {s}")));
                }
                _ => split[label] = Some(s.clone()),
            }
        }
    }
    check_agreement(op, args, &rule, &split)?;
    let mut pending = pending_of_args(op, args)?;
    for (label, axis) in split.iter().enumerate() {
        let Some(Split { axis, .. }) = axis else { continue };
        match rule.roles[label] {
            Role::Map => {}
            Role::Reduce(kind) => {
                // Also over one axis: ranks would multiply parts of one operand with other parts of the other.
                if pending.is_some() {
                    return Err(mismatch(op, "two merges would be pending at once".into()));
                }
                pending = Some((kind, axis.clone()));
            }
            Role::Whole => {
                return Err(Diagnostic::new(
                    "split-whole-dim",
                    format!("`{}` needs a dim whole that is split over {axis}", op.name()),
                )
                .help("gather it first"));
            }
        }
    }
    for (result, labels) in results.iter_mut().zip(&rule.results) {
        for (dim, &label) in result.dims.iter_mut().zip(labels) {
            dim.split = split[label].clone();
        }
        result.pending = pending.clone();
    }
    if let Op::Reshape(_) = op {
        Reshape::scale_units(args[0], &mut results[0]);
    }
    Ok(())
}

fn is_owned(t: &TensorType) -> bool {
    matches!(t.pending, Some((PendingKind::Owned, _)))
}

/// [`propagate`] where operands are pending `own`: they stay so under what keeps zeros, and with experts of the same
/// owners; anywhere else they are sums. Whether owners are the same is no question of types: see [`Owner`].
fn propagate_owned(op: &Op, args: &[&TensorType], results: &mut [TensorType]) -> Result<(), Diagnostic> {
    if let Op::Fused(f) = op {
        let placed = f.placed(args)?;
        results.iter_mut().zip(placed).for_each(|(r, t)| *r = t);
        return Ok(());
    }
    let with = |pending: &dyn Fn(&Axis) -> Option<(PendingKind, Axis)>| -> Vec<TensorType> {
        let of = |t: &TensorType| match &t.pending {
            Some((PendingKind::Owned, a)) => TensorType { pending: pending(a), ..t.clone() },
            _ => t.clone(),
        };
        args.iter().map(|t| of(t)).collect()
    };
    let axes: Vec<&Axis> = args.iter().filter(|t| is_owned(t)).filter_map(|t| Some(&t.pending.as_ref()?.1)).collect();
    let one = axes.windows(2).all(|w| w[0] == w[1]);
    let alone = args.iter().all(|t| t.pending.is_none() || is_owned(t));
    let experts = matches!(op, Op::GroupedMatmul(_)) && args.iter().skip(1).all(|t| t.pending.is_none());
    if one && alone && (op.keeps_zero() || experts) {
        let finished = with(&|_| None);
        let mut placed = results.to_vec();
        propagate(op, &finished.iter().collect::<Vec<_>>(), &mut placed)?;
        let own = Some((PendingKind::Owned, axes[0].clone()));
        let stays = match op.keeps_zero() {
            true => placed.iter().all(|t| t.pending.is_none()),
            false => placed.iter().all(|t| t.pending == own),
        };
        if stays {
            results.iter_mut().zip(placed).for_each(|(r, t)| *r = TensorType { pending: own.clone(), ..t });
            return Ok(());
        }
    }
    let sums = with(&|a| Some((PendingKind::Sum, a.clone())));
    propagate(op, &sums.iter().collect::<Vec<_>>(), results)
}

fn mismatch(op: &Op, what: String) -> Diagnostic {
    Diagnostic::new("split-mismatch", format!("`{}`: {what}", op.name()))
}

/// The label along which several weights of one matmul are joined: each has a size, pieces and a part of its own there.
pub(crate) fn own_parts(op: &Op, rule: &DimRule) -> Option<usize> {
    matches!(op, Op::Matmul(m) if m.names.len() > 1).then(|| rule.results.first()?.last().copied()).flatten()
}

/// A dim that is split on one argument must be split alike on every argument that has it, and cut by the same pieces.
fn check_agreement(op: &Op, args: &[&TensorType], rule: &DimRule, split: &[Option<Split>]) -> Result<(), Diagnostic> {
    let mut pieces: Vec<Option<&Extent>> = vec![None; rule.roles.len()];
    for (i, (arg, labels)) in args.iter().zip(&rule.args).enumerate() {
        for (dim, &label) in arg.dims.iter().zip(labels) {
            if split[label] != dim.split {
                return Err(mismatch(op, format!("argument {i} holds {dim} whole, another argument a part of it")));
            }
            let apart = Some(label) == own_parts(op, rule) && i > 0;
            let joined = |e: &Extent| matches!(e, Extent::Joined(_));
            match pieces[label] {
                _ if apart => {}
                Some(e) if split[label].is_some() && *e != dim.extent && (joined(e) || joined(&dim.extent)) => {
                    return Err(mismatch(op, format!("{e} and {} are cut by other pieces", dim.extent)));
                }
                _ => pieces[label] = Some(&dim.extent),
            }
        }
    }
    Ok(())
}

fn pending_of_args(op: &Op, args: &[&TensorType]) -> Result<Option<(PendingKind, Axis)>, Diagnostic> {
    let mut pending: Option<(PendingKind, Axis)> = None;
    for (i, arg) in args.iter().enumerate() {
        let Some(p) = &arg.pending else { continue };
        if !op.linear_at(i, args) || p.0 != PendingKind::Sum {
            return Err(Diagnostic::new(
                "pending-nonlinear",
                format!("`{}` is not linear in argument {i}, which is still pending over {}", op.name(), p.1),
            )
            .help("all_reduce it first"));
        }
        if pending.as_ref().is_some_and(|q| q != p) {
            return Err(mismatch(op, "arguments are pending over different axes".into()));
        }
        pending = Some(p.clone());
    }
    // Two pending factors multiply to cross terms that no later sum can undo; sums and joins of pendings are fine.
    if args.iter().filter(|a| a.pending.is_some()).count() > 1 && !matches!(op.name(), "add" | "join") {
        return Err(Diagnostic::new("pending-nonlinear", format!("`{}` of two pending values", op.name()))
            .help("all_reduce one of them first"));
    }
    // A result that holds a pending and a finished part would count the finished one once a rank.
    let side_by_side = match op {
        Op::Add(_) | Op::Join(_) => args,
        Op::Matmul(m) if m.names.len() > 1 && args[1..].iter().any(|a| a.pending.is_some()) => &args[1..],
        _ => &[],
    };
    if pending.is_some() && side_by_side.iter().any(|a| a.pending.is_none()) {
        let what = format!("`{}` of a pending and a finished value", op.name());
        return Err(Diagnostic::new("pending-nonlinear", what).help("all_reduce the pending one first"));
    }
    Ok(pending)
}
