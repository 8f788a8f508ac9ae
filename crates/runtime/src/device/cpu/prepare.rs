//! Owns the preparation of a phase for the CPU: names and specs are resolved once, so that a step of execution looks
//! nothing up. Never executes.

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::ops::Einsum;
use glmc_ir::plan::{Mem, Phase};
use glmc_ir::ty::{Dim, Elem, Extent, SymValues, TensorType};

use super::error::KernelError;
use super::share::{Along, Place, Share};
use crate::collective::Exchange;

/// A phase, ready to run.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) steps: Vec<Step>,
}

/// One launch.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    /// Inputs in parameter order: reads and updates.
    pub(super) inputs: Vec<Operand>,
    /// Outputs in parameter order.
    pub(super) outputs: Vec<Operand>,
    /// What a rank of several must know besides its own shapes.
    pub(super) share: Option<Share>,
}

/// A bound argument.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) mem: Mem,
    /// Offset of its buffer in the arena.
    pub(super) offset: usize,
    pub(super) elem: Elem,
    dims: Vec<Size>,
    /// Widths of the pieces of a joined last dim.
    pub(super) pieces: Vec<usize>,
    /// Their names.
    pub(super) names: Vec<String>,
}

#[derive(Clone, Debug)]
enum Size {
    Const(usize),
    Sym(usize),
    /// A rank's part of a symbol.
    Part(Along),
}

/// How a matmul is computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Contract {
    /// Each row of the right operand against each row of the left: `y[f.., n..] = sum x[f.., c..] w[n.., c..]`.
    Rows {
        /// Number of left dims that are free.
        free: usize,
    },
    /// Over the middle dim: `y[f.., h, n] = sum_c x[f.., c] w[h, c, n]`.
    Mid {
        /// Number of left dims that are free.
        free: usize,
    },
    /// A product a head: `y[t, h, c] = sum_n x[t, h, n] w[h, c, n]`.
    Heads,
    /// Anything else, by strides.
    Strided(Einsum),
}

/// A contract with what its attributes resolve to.
#[derive(Debug)]
pub(super) enum Op {
    /// With the dim of each right operand that its last result dim is.
    Matmul(Contract, usize),
    GateUp(Contract),
    /// The ranks meet.
    Meet(Exchange),
    /// Rows go into a pool: what makes them, its inputs those after the pool and the row ids, its output a row.
    AppendRow(Box<Step>),
    Other(Kernel),
}

impl Prepared {
    pub(super) fn new(phase: &Phase, place: Place<'_>) -> Result<Self, KernelError> {
        let steps = phase.steps.iter().map(|s| {
            let operand = |a: &glmc_ir::plan::Arg| Operand::new(phase, a.mem, &a.ty, place);
            let of = |write: bool| {
                s.args
                    .iter()
                    .filter(|a| (a.access == Access::Write) == write)
                    .map(operand)
                    .collect::<Result<Vec<_>, _>>()
            };
            let (inputs, outputs) = (of(false)?, of(true)?);
            let op = match &s.kernel {
                Kernel::Matmul(m) => Op::Matmul(Contract::of(&m.spec)?, last_dim(&m.spec)),
                Kernel::GateUp(g) => Op::GateUp(Contract::of(&g.spec)?),
                Kernel::AppendRow(k) => Op::AppendRow(Box::new(Step {
                    op: Op::Other(k.make.kernel()),
                    inputs: inputs.iter().skip(2).cloned().collect(),
                    outputs: inputs.iter().take(1).cloned().collect(),
                    share: None,
                })),
                k => Exchange::of(s).map_or_else(|| Op::Other(k.clone()), Op::Meet),
            };
            Ok(Step { op, inputs, outputs, share: Share::of(phase, s, place)? })
        });
        Ok(Prepared { steps: steps.collect::<Result<_, KernelError>>()? })
    }
}

impl Operand {
    fn new(phase: &Phase, mem: Mem, ty: &TensorType, place: Place<'_>) -> Result<Self, KernelError> {
        let bad = KernelError::Dim { what: "an operand", have: 0, need: "a declared buffer and declared symbols" };
        let offset = match mem {
            Mem::Buf(b) => phase.buffers.get(b).ok_or_else(|| bad.clone())?.offset as usize,
            _ => 0,
        };
        let local = place.local(ty, &phase.bounds())?;
        let size = |(global, own): (&Dim, &Dim)| match (&global.extent, &global.split) {
            (Extent::Sym(s), None) => phase.syms.get_index_of(s).map(Size::Sym),
            (Extent::Sym(_), Some(_)) => place.along(phase, global).map(Size::Part),
            _ => own.extent.as_const().map(|n| Size::Const(n as usize)),
        };
        let dims = ty.dims.iter().zip(&local.dims).map(size).collect::<Option<Vec<_>>>().ok_or(bad)?;
        let (names, pieces) = match local.last().map(|d| &d.extent) {
            Some(Extent::Joined(p)) => p.iter().map(|(name, n)| (name.as_str().to_owned(), *n as usize)).unzip(),
            _ => (Vec::new(), Vec::new()),
        };
        Ok(Operand { mem, offset, elem: local.elem, dims, pieces, names })
    }

    /// The current shape.
    pub(super) fn shape(&self, syms: &[usize]) -> Vec<usize> {
        self.dims
            .iter()
            .map(|d| match d {
                Size::Const(n) => *n,
                Size::Sym(i) => syms[*i],
                Size::Part(along) => along.held(syms),
            })
            .collect()
    }

    /// Its current range of the arena, if it lies there.
    pub(super) fn range(&self, shape: &[usize]) -> Option<std::ops::Range<usize>> {
        let Mem::Buf(_) = self.mem else { return None };
        let bytes = shape.iter().product::<usize>() * self.elem.block().1 as usize;
        Some(self.offset..self.offset + bytes)
    }
}

/// The values of a phase's symbols by index.
pub(super) fn symbol_values(phase: &Phase, syms: &SymValues) -> Result<Vec<usize>, KernelError> {
    let value = |(s, bound): (&glmc_ir::ty::Sym, &u64)| {
        let n = syms.get(s).unwrap_or(0);
        if n > *bound {
            return Err(KernelError::Dim { what: "a symbol", have: n as usize, need: "at most its bound" });
        }
        Ok(n as usize)
    };
    phase.syms.iter().map(value).collect()
}

/// The right operand's dim that is the last of the result; 0 where it has none, which only one right operand may.
fn last_dim(spec: &str) -> usize {
    let at = |e: Einsum| e.rhs.iter().position(|c| Some(c) == e.out.last());
    Einsum::parse(spec).ok().and_then(at).unwrap_or(0)
}

impl Contract {
    fn of(spec: &str) -> Result<Self, KernelError> {
        let e = Einsum::parse(spec).map_err(|_| KernelError::Dim {
            what: "a matmul",
            have: spec.len(),
            need: "a valid spec",
        })?;
        let sum = e.contracted();
        let batch = e.lhs.iter().any(|c| e.rhs.contains(c) && e.out.contains(c));
        let free: Vec<u8> = e.lhs.iter().copied().filter(|c| !sum.contains(c)).collect();
        let new: Vec<u8> = e.rhs.iter().copied().filter(|c| !sum.contains(c)).collect();
        let joined = |a: &[u8], b: &[u8]| [a, b].concat();
        if !batch && e.lhs == joined(&free, &sum) && e.out == joined(&free, &new) {
            if e.rhs == joined(&new, &sum) {
                return Ok(Contract::Rows { free: free.len() });
            }
            if let ([h, n], [c]) = (new.as_slice(), sum.as_slice())
                && e.rhs == [*h, *c, *n]
            {
                return Ok(Contract::Mid { free: free.len() });
            }
        }
        if let ([t, h, n], [h2, c, n2]) = (e.lhs.as_slice(), e.rhs.as_slice())
            && (h, n) == (h2, n2)
            && e.out == [*t, *h, *c]
        {
            return Ok(Contract::Heads);
        }
        Ok(Contract::Strided(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_find_their_path() {
        let of = |s| Contract::of(s).unwrap();
        assert_eq!(of("tk,nk->tn"), Contract::Rows { free: 1 });
        assert_eq!(of("tr,hdr->thd"), Contract::Rows { free: 1 });
        assert_eq!(of("qsc,hvc->qshv"), Contract::Rows { free: 2 });
        assert_eq!(of("thv,dhv->td"), Contract::Rows { free: 1 });
        assert_eq!(of("qsc,hcn->qshn"), Contract::Mid { free: 2 });
        assert_eq!(of("thn,hcn->thc"), Contract::Heads);
        assert!(matches!(of("tj,tjd->td"), Contract::Strided(_)));
        assert!(matches!(of("tk,kn->tn"), Contract::Strided(_)));
        assert!(Contract::of("tk").is_err());
    }
}
