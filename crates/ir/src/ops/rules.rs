//! Owns the checks that several type rules share. Never owns a rule of one op.

use crate::diag::Diagnostic;
use crate::ty::{Dim, Elem, TensorType};

pub(super) type Infer = Result<Vec<TensorType>, Diagnostic>;

/// `bad-arity`: the op takes another number of arguments.
pub(super) fn arity(op: &str, args: &[&TensorType], n: usize) -> Result<(), Diagnostic> {
    if args.len() == n {
        return Ok(());
    }
    Err(Diagnostic::new("bad-arity", format!("`{op}` takes {n} arguments, found {}", args.len())))
}

/// `bad-elem`: argument `i` must hold floats that take part in arithmetic.
pub(super) fn float(op: &str, args: &[&TensorType], i: usize) -> Result<(), Diagnostic> {
    if args[i].elem.is_float() {
        return Ok(());
    }
    Err(Diagnostic::new("bad-elem", format!("`{op}` needs floats as argument {i}, found {}", args[i])))
}

/// `bad-elem`: argument `i` must hold `i32`.
pub(super) fn int(op: &str, args: &[&TensorType], i: usize) -> Result<(), Diagnostic> {
    if args[i].elem == Elem::I32 {
        return Ok(());
    }
    Err(Diagnostic::new("bad-elem", format!("`{op}` needs i32 as argument {i}, found {}", args[i])))
}

/// `bad-rank`: argument `i` must have `n` dims.
pub(super) fn rank(op: &str, args: &[&TensorType], i: usize, n: usize) -> Result<(), Diagnostic> {
    if args[i].rank() == n {
        return Ok(());
    }
    Err(Diagnostic::new("bad-rank", format!("`{op}` needs {n} dims in argument {i}, found {}", args[i])))
}

/// `bad-state`: only ops that read or change pools may take state.
pub(super) fn stateless(op: &str, args: &[&TensorType], except: Option<usize>) -> Result<(), Diagnostic> {
    match args.iter().enumerate().find(|(i, a)| a.state && Some(*i) != except) {
        None => Ok(()),
        Some((i, a)) => Err(Diagnostic::new("bad-state", format!("`{op}` cannot take state as argument {i}: {a}"))
            .help("gather the rows it needs")),
    }
}

/// `shape-mismatch`: the two dims must have one size; joined dims must have the same pieces in the same order.
pub(super) fn same_dim(op: &str, what: &str, a: &Dim, b: &Dim) -> Result<(), Diagnostic> {
    use crate::ty::Extent::Joined;
    if let (Joined(x), Joined(y)) = (&a.extent, &b.extent)
        && x != y
    {
        return Err(Diagnostic::new("piece-order", format!("`{op}`: {what}: pieces {a} against {b}"))
            .help("both sides of a joined dim name the same pieces in the same order"));
    }
    if a.extent.same_size(&b.extent) {
        return Ok(());
    }
    Err(Diagnostic::new("shape-mismatch", format!("`{op}`: {what}: {a} against {b}")))
}

/// The type rule of collectives: any plain numbers, unchanged.
pub(super) fn moved(op: &str, args: &[&TensorType]) -> Infer {
    arity(op, args, 1)?;
    stateless(op, args, None)?;
    if let Elem::Quant(_) = args[0].elem {
        return Err(Diagnostic::new("bad-elem", format!("`{op}` of stored blocks: {}", args[0]))
            .help("a weight is split in its own type"));
    }
    Ok(vec![args[0].clone()])
}

/// The default of an attribute that counts units.
pub(super) fn one() -> u64 {
    1
}

/// Whether an attribute has its default.
pub(super) fn is_one(n: &u64) -> bool {
    *n == 1
}
