//! Owns where a value may lie on a mesh of one axis, and the machine that costs are asked of. Never searches.

use glmc_ir::collective::CollectiveKind;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, InstKind, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::ops::{AllGather, AllReduce, AllToAll, ReduceScatter, Shard};
use glmc_ir::placement::{Mesh, local_type, strip};
use glmc_ir::quant::QuantType;
use glmc_ir::shard_map::{canonical, check, granule, largest_bytes};
use glmc_ir::ty::{Axis, Dim, Elem, PendingKind, Split, SymValues, TensorType};

use crate::cost::{Exchange, Spread, launch_seconds};
use crate::lower::single;
use crate::target::Target;
use crate::validate::shrink::Sizes;

/// Where a value lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// On every rank.
    Whole,
    /// A part of one dim on each rank.
    Split {
        /// The dim.
        dim: usize,
        /// See [`Split::unit`].
        unit: u64,
    },
    /// Merged by no one yet.
    Pending(PendingKind),
}

impl Place {
    /// The placement that `t` states.
    pub fn of(t: &TensorType) -> Place {
        if let Some((kind, _)) = &t.pending {
            return Place::Pending(*kind);
        }
        let split = t.dims.iter().enumerate().find_map(|(dim, d)| Some((dim, d.split.as_ref()?)));
        split.map_or(Place::Whole, |(dim, s)| Place::Split { dim, unit: s.unit })
    }
}

/// Whether `v` is rows of a pool, or pieces of such.
fn rows_of_a_pool(f: &Function, v: Value) -> bool {
    let ValueDef::Result(inst, _) = f.values[v].def else { return false };
    let data = &f.insts[inst];
    match &data.kind {
        InstKind::Op(Op::Gather(_)) => f.ty(data.args[0]).state,
        InstKind::Op(Op::Piece(_) | Op::Reshape(_)) => rows_of_a_pool(f, data.args[0]),
        _ => false,
    }
}

/// The ranks, the machine and the sizes that costs are asked for.
#[derive(Clone, Debug)]
pub struct World<'t> {
    /// The machine.
    pub target: &'t Target,
    /// One axis.
    pub mesh: Mesh,
    /// It.
    pub axis: Axis,
    /// Nominal values of the symbols.
    pub syms: SymValues,
    /// Whether rows may be cut inside blocks, into forms that keep sub-blocks apart. A processor's kernels read them about
    /// as fast; a GPU's fast ones read whole blocks, so there it takes someone who asks.
    pub sub: bool,
    /// The sizes that those of the module stand for: what is allowed is asked of its own, costs are of these.
    pub stands_for: Sizes,
}

impl<'t> World<'t> {
    /// The ranks of `target` on the axis `axis`.
    pub fn new(target: &'t Target, axis: &str, syms: SymValues) -> Self {
        let axis = Axis::from(axis);
        let mesh = Mesh::from([(axis.clone(), u64::from(target.ranks))]);
        World { target, mesh, axis, syms, sub: target.arch == "cpu", stands_for: Sizes::default() }
    }

    /// The same for the sizes that these stand for, if they do.
    fn full(&self) -> Option<Self> {
        (!self.stands_for.0.is_empty()).then(|| World { stands_for: Sizes::default(), ..self.clone() })
    }

    /// `dim` split in units of `unit`.
    pub fn split(&self, dim: &Dim, unit: u64) -> Dim {
        Dim { split: Some(Split { axis: self.axis.clone(), unit }), ..dim.clone() }
    }

    /// The unit in which dim `i` of `t` could be cut inside blocks, where whole blocks do not divide it evenly.
    pub fn sub_unit(&self, t: &TensorType, i: usize) -> Option<u64> {
        let blocks = t.dims[i].extent.as_const().unwrap_or(0) / granule(t, i);
        let uneven = !blocks.is_multiple_of(u64::from(self.target.ranks));
        let apart = t.elem.storage().filter(|_| self.sub && uneven && i + 1 == t.rank())?.apart()?;
        Some(apart.block_elems() as u64)
    }

    /// `t` as the form that keeps sub-blocks apart, if its split cuts blocks and that form may be cut so.
    fn apart(&self, t: TensorType) -> TensorType {
        let cut = t.last().is_some_and(|d| d.split.is_some());
        let apart = t.elem.storage().filter(|_| self.sub && cut).and_then(QuantType::apart);
        let Some(apart) = apart.filter(|_| check(&t, &self.mesh).is_err()) else { return t };
        let sub = t.with_elem(Elem::from(apart));
        if check(&sub, &self.mesh).is_ok() { sub } else { t }
    }

    /// `t` placed: with no unit that changes no cut, and as a form that keeps sub-blocks apart where blocks are cut.
    pub fn on(&self, t: &TensorType, place: Place) -> TensorType {
        let mut t = strip(t);
        t.elem = t.elem.in_file();
        match place {
            Place::Whole => {}
            Place::Split { dim, unit } => {
                if let Some(d) = t.dims.get_mut(dim) {
                    *d = self.split(d, unit);
                }
            }
            Place::Pending(kind) => t.pending = Some((kind, self.axis.clone())),
        }
        self.apart(canonical(&t, &self.mesh))
    }

    /// Whether a value may have this type: the axis is used once, and every rank's part can be had.
    pub fn legal(&self, t: &TensorType) -> bool {
        let used = t.dims.iter().filter_map(Dim::axis).count() + usize::from(t.pending.is_some());
        used <= 1 && check(t, &self.mesh).is_ok() && self.local(t).is_ok()
    }

    /// Whether a split of `t`, if it has one, divides anything: of a dim of one unit one rank would hold all, compute as
    /// much as with the whole and make all others wait.
    pub fn divides(&self, t: &TensorType) -> bool {
        if t.dims.iter().all(|d| d.split.is_none()) {
            return true;
        }
        let part = self.local(t).ok().and_then(|p| p.elems(&self.syms));
        part.is_none_or(|n| strip(t).elems(&self.syms).is_none_or(|all| n < all))
    }

    /// The largest rank's part.
    fn local(&self, t: &TensorType) -> Result<TensorType, Diagnostic> {
        local_type(t, &self.mesh, 0, &self.syms)
    }

    /// Bytes that the largest rank keeps of a weight or pool.
    pub fn held(&self, t: &TensorType) -> u64 {
        if let Some(full) = self.full() {
            return full.held(&self.stands_for.ty(t));
        }
        largest_bytes(t, &self.mesh, &self.syms).unwrap_or(u64::MAX)
    }

    /// Seconds of `op` on the rank with the largest parts; 0 for what no launch does. `again` marks operands that are
    /// read once with an earlier one.
    ///
    /// Readers find the rows of a pool that every rank holds by its table: there a `gather` is a view, and what is keys
    /// and values at once is read once. Rows that ranks hold in parts are gathered, as `lower` does.
    pub fn seconds(&self, op: &Op, args: &[TensorType], results: &[TensorType], again: &[bool]) -> f64 {
        if let Some(full) = self.full() {
            let of = |ts: &[TensorType]| ts.iter().map(|t| self.stands_for.ty(t)).collect::<Vec<_>>();
            return full.seconds(&self.stands_for.op(op), &of(args), &of(results), again);
        }
        if matches!(op, Op::Reshape(_) | Op::Piece(_) | Op::Dequant(_)) {
            return 0.0;
        }
        let whole = |t: &TensorType| Place::of(t) == Place::Whole;
        if matches!(op, Op::Gather(_)) && args[0].state && args.iter().chain(results).all(whole) {
            return 0.0;
        }
        if let Some(seconds) = self.of_split_experts(op, args, results) {
            return seconds;
        }
        let parts = |ts: &[TensorType]| ts.iter().map(|t| self.local(t)).collect::<Result<Vec<_>, _>>();
        let placed = args;
        let (Ok(args), Ok(results)) = (parts(args), parts(results)) else { return f64::INFINITY };
        let args: Vec<&TensorType> = args.iter().collect();
        let Ok(kernel) = single(op) else { return f64::INFINITY };
        let work = kernel.work(&args, &self.syms).unwrap_or_else(|_| op.work(&args, &results, &self.syms));
        let unit = crate::cost::Unit::of(&kernel, &args, self.target);
        let mut read = work.read;
        if let Op::Attention(a) = op
            && placed[a.parts..=2 * a.parts].iter().all(whole)
        {
            let twice = (0..args.len()).filter(|i| again.get(*i).copied().unwrap_or(false));
            let twice = twice.map(|i| op.bytes_read(&args, &results, i, &self.syms));
            read = read.saturating_sub(twice.fold(0, u64::saturating_add));
        }
        launch_seconds(self.target, read.saturating_add(work.write), work.flops, unit)
    }

    /// Seconds of a launch whose experts are split, on the rank that most choices fall on.
    fn of_split_experts(&self, op: &Op, args: &[TensorType], results: &[TensorType]) -> Option<f64> {
        let kernel = single(op).ok()?;
        let placed: Vec<&TensorType> = args.iter().collect();
        let spread = Spread::of(&kernel, &placed, &self.mesh, &self.syms)?;
        let whole: Vec<TensorType> = args.iter().map(strip).collect();
        let whole: Vec<&TensorType> = whole.iter().collect();
        let reads = kernel.input_reads(&whole, &self.syms).ok()?;
        let flops = kernel.work(&whole, &self.syms).ok()?.flops;
        let of =
            |(i, (t, n)): (usize, (&TensorType, u64))| if Spread::cuts(&kernel, i, t) { spread.bytes(n) } else { n };
        let read = args.iter().zip(reads).enumerate().map(of);
        let written = results.iter().map(|t| t.bytes(&self.syms).unwrap_or(u64::MAX));
        let bytes = read.chain(written).fold(0, u64::saturating_add);
        let unit = crate::cost::Unit::of(&kernel, &whole, self.target);
        Some(launch_seconds(self.target, bytes, spread.flops(flops), unit))
    }

    /// The collective that takes a value from one place to another, if one does.
    pub fn conversion(&self, from: Place, to: Place) -> Option<Op> {
        let axis = self.axis.clone();
        Some(match (from, to) {
            (Place::Pending(_), Place::Whole) => AllReduce { axis }.into(),
            (Place::Pending(kind), Place::Split { dim, unit }) if kind.is_sum() => {
                ReduceScatter { axis, dim, unit }.into()
            }
            (Place::Split { .. }, Place::Whole) => AllGather { axis }.into(),
            (Place::Split { dim: a, .. }, Place::Split { dim, unit }) if a != dim => {
                AllToAll { axis, dim, unit }.into()
            }
            (Place::Whole, Place::Split { dim, unit }) => Shard { axis, dim, unit }.into(),
            _ => return None,
        })
    }

    /// The same for value `v` of `f`. Rows of a pool that every rank holds are a view to who reads them by table; a
    /// collective or a local slice of them needs the rows themselves, so the first of those also pays for the gather.
    pub fn move_seconds(&self, f: &Function, v: Value, from: Place, to: Place) -> f64 {
        let t = strip(f.ty(v));
        let seconds = self.conversion_seconds(&t, from, to);
        let t = self.stands_for.ty(&t);
        if from == to || from != Place::Whole || !rows_of_a_pool(f, v) {
            return seconds;
        }
        let bytes = t.bytes(&self.syms).unwrap_or(u64::MAX).saturating_mul(2);
        seconds + launch_seconds(self.target, bytes, 0, crate::cost::Unit::F32)
    }

    /// Seconds of taking a value of type `t` from one place to another; infinite if nothing does.
    pub fn conversion_seconds(&self, t: &TensorType, from: Place, to: Place) -> f64 {
        if let Some(full) = self.full() {
            return full.conversion_seconds(&self.stands_for.ty(t), from, to);
        }
        // What the back ends carry; anything else is a weight as stored, or a view of one.
        let movable = !t.state && matches!(t.elem, Elem::F32 | Elem::I32);
        let op = self.conversion(from, to).filter(|_| movable);
        let Some(c) = op.and_then(|o| o.collective()) else { return f64::INFINITY };
        let (a, b) = (self.on(t, from), self.on(t, to));
        if c.place("convert", &a).is_err() || !self.legal(&b) {
            return f64::INFINITY;
        }
        if let CollectiveKind::Shard { .. } = c.kind {
            let local = self.local(&b).ok().and_then(|t| t.bytes(&self.syms)).unwrap_or(u64::MAX);
            return launch_seconds(self.target, local.saturating_mul(2), 0, crate::cost::Unit::F32);
        }
        let exchange = Exchange::between(&c, &a, &b, &self.mesh, &self.syms).ok().flatten();
        let cost = exchange.and_then(|e| e.cost(self.target, &self.mesh));
        cost.map_or(f64::INFINITY, |c| c.seconds + self.target.device.launch_s)
    }
}
