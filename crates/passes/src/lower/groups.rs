//! Owns the search for groups of ops that become one launch. Never emits a launch for an op outside a group.

use std::collections::{HashMap, HashSet};

use glmc_ir::entities::{Inst, Value};
use glmc_ir::graph::{Function, InstKind};
use glmc_ir::kernel::{AppendRowKernel, PagedAttentionKernel, PagedIndexerKernel, RowMaker, SplitKernel, SwigluKernel};
use glmc_ir::op::Op;
use glmc_ir::ops::Attention;
use glmc_ir::ty::TensorType;

use super::{LoweredStep, def_of, single};
use crate::pass::PassCx;

/// A `piece` instruction: itself, the piece's name, its result or its operand.
type PieceInst = (Inst, String, Value);

/// The groups of one function.
pub(super) struct Groups {
    /// Decodes that vanish: the decoded value is the stored one.
    decoded: HashMap<Value, Value>,
    /// Instructions that another one's launch covers.
    covered: HashSet<Inst>,
    /// Instructions that stand for a group.
    leaders: HashMap<Inst, LoweredStep>,
}

impl Groups {
    pub(super) fn find(f: &Function, cx: &mut PassCx) -> Self {
        let uses = Uses::of(f);
        let mut g = Groups { decoded: HashMap::new(), covered: HashSet::new(), leaders: HashMap::new() };
        for inst in &f.body {
            let data = &f.insts[*inst];
            match &data.kind {
                InstKind::Op(Op::Dequant(_)) if uses.all_decode(f, data.results[0]) && cx.choose() => {
                    g.decoded.insert(data.results[0], data.args[0]);
                    g.covered.insert(*inst);
                }
                InstKind::Op(Op::Mul(_)) => g.swiglu(f, &uses, *inst, cx),
                InstKind::Op(Op::Append(_)) => g.append_row(f, &uses, *inst, cx),
                InstKind::Op(Op::Attention(a)) => g.paged_attention(f, &uses, *inst, a, cx),
                InstKind::Op(Op::IndexerScores(s)) => g.paged_scores(f, &uses, *inst, s.scale, cx),
                _ => {}
            }
        }
        g.splits(f, cx);
        g
    }

    /// The steps of `inst` if it is in a group: one for a leader, none for a covered one.
    pub(super) fn take(&mut self, _: &Function, inst: Inst) -> Option<Option<LoweredStep>> {
        if let Some(step) = self.leaders.remove(&inst) {
            return Some(Some(step));
        }
        self.covered.contains(&inst).then_some(None)
    }

    /// What a launch reads for `v`: the stored tensor where its decode vanished.
    pub(super) fn stored(&self, v: Value) -> Value {
        self.decoded.get(&v).copied().unwrap_or(v)
    }

    /// `mul(silu(gate), up)`, where nothing else reads the silu.
    fn swiglu(&mut self, f: &Function, uses: &Uses, mul: Inst, cx: &mut PassCx) {
        let data = &f.insts[mul];
        let (s, up) = (data.args[0], data.args[1]);
        let Some((silu, Op::Silu(_))) = def_of(f, s) else { return };
        let gate = f.insts[silu].args[0];
        if uses.count(s) != 1 || f.ty(gate) != f.ty(up) || !cx.choose() {
            return;
        }
        self.covered.insert(silu);
        let step = match joined_halves(f, uses, gate, up) {
            Some((x, pieces, insts)) => {
                self.covered.extend(insts);
                LoweredStep::Launch {
                    kernel: SwigluKernel { pieces }.into(),
                    inputs: vec![x],
                    outputs: data.results.clone(),
                }
            }
            None => {
                let inputs = vec![self.stored(gate), self.stored(up)];
                LoweredStep::Launch {
                    kernel: SwigluKernel { pieces: vec![] }.into(),
                    inputs,
                    outputs: data.results.clone(),
                }
            }
        };
        self.leaders.insert(mul, step);
    }

    /// Rows that are made for a pool and nothing else go into it at once.
    fn append_row(&mut self, f: &Function, uses: &Uses, inst: Inst, cx: &mut PassCx) {
        let data = &f.insts[inst];
        let Some((maker, op)) = def_of(f, data.args[2]) else { return };
        let Ok(make) = single(op) else { return };
        let Some(make) = RowMaker::of(&make).filter(|_| uses.count(data.args[2]) == 1) else { return };
        if !whole(f.ty(data.args[2])) || !cx.choose() {
            return;
        }
        let made = f.insts[maker].args.iter().map(|a| self.stored(*a));
        let inputs = data.args[..2].iter().copied().chain(made).collect();
        self.covered.insert(maker);
        let kernel = AppendRowKernel { make }.into();
        self.leaders.insert(inst, LoweredStep::Launch { kernel, inputs, outputs: data.results.clone() });
    }

    /// Attention to pieces of gathered rows of a pool, which nothing else reads: the launch finds the rows itself.
    fn paged_attention(&mut self, f: &Function, uses: &Uses, inst: Inst, a: &Attention, cx: &mut PassCx) {
        let data = &f.insts[inst];
        let (queries, rest) = data.args.split_at(a.parts);
        let (cached, rest) = rest.split_at(a.parts + 1);
        let Some(pieces) = cached.iter().map(|v| piece_of(f, *v)).collect::<Option<Vec<_>>>() else { return };
        let rows = pieces[0].2;
        let own = |insts: &[Inst], v: Value| uses.by.get(&v).is_some_and(|u| u.iter().all(|(i, _)| insts.contains(i)));
        let insts: Vec<Inst> = pieces.iter().map(|(i, ..)| *i).collect();
        let alone = own(&insts, rows) && cached.iter().all(|v| own(&[inst], *v) && !uses.results.contains(v));
        if !alone || pieces.iter().any(|(.., of)| *of != rows) {
            return;
        }
        let Some((gather, pool, table)) = uses.rows_of_a_pool(f, rows) else { return };
        if !cx.choose() {
            return;
        }
        let mut names = pieces.into_iter().map(|(_, name, _)| name);
        let keys = names.by_ref().take(a.parts).collect();
        let Some(value) = names.next() else { return };
        let kernel = PagedAttentionKernel { keys, value, scale: a.scale, selected: a.selected };
        let inputs = [queries, &[pool, table], rest].concat();
        self.covered.extend(insts);
        self.covered.insert(gather);
        let step = LoweredStep::Launch { kernel: kernel.into(), inputs, outputs: data.results.clone() };
        self.leaders.insert(inst, step);
    }

    /// Scores of gathered rows of a pool, which nothing else reads.
    fn paged_scores(&mut self, f: &Function, uses: &Uses, inst: Inst, scale: f64, cx: &mut PassCx) {
        let data = &f.insts[inst];
        let rows = data.args[1];
        let Some((gather, pool, table)) = uses.rows_of_a_pool(f, rows).filter(|_| uses.count(rows) == 1) else {
            return;
        };
        if !cx.choose() {
            return;
        }
        let mut inputs = vec![data.args[0], pool, table];
        inputs.extend_from_slice(&data.args[2..]);
        self.covered.insert(gather);
        let kernel = PagedIndexerKernel { scale }.into();
        self.leaders.insert(inst, LoweredStep::Launch { kernel, inputs, outputs: data.results.clone() });
    }

    /// All pieces of one value that are not covered yet become one `split` where the first of them stands.
    fn splits(&mut self, f: &Function, cx: &mut PassCx) {
        let mut by_source: Vec<(Value, Vec<PieceInst>)> = Vec::new();
        for inst in f.body.iter().filter(|i| !self.covered.contains(i)) {
            let data = &f.insts[*inst];
            let InstKind::Op(Op::Piece(p)) = &data.kind else { continue };
            let entry = (*inst, p.name.clone(), data.results[0]);
            match by_source.iter_mut().find(|(v, _)| *v == data.args[0]) {
                Some((_, pieces)) if pieces.iter().all(|(_, n, _)| *n != p.name) => pieces.push(entry),
                Some(_) => {}
                None => by_source.push((data.args[0], vec![entry])),
            }
        }
        for (source, pieces) in by_source.into_iter().filter(|(_, p)| p.len() > 1) {
            if !cx.choose() {
                continue;
            }
            let names = pieces.iter().map(|(_, n, _)| n.clone()).collect();
            let outputs = pieces.iter().map(|(_, _, v)| *v).collect();
            self.covered.extend(pieces.iter().map(|(i, ..)| *i));
            let step = LoweredStep::Launch { kernel: SplitKernel { names }.into(), inputs: vec![source], outputs };
            self.leaders.insert(pieces[0].0, step);
        }
    }
}

/// Whether every rank has all of it.
fn whole(t: &TensorType) -> bool {
    t.pending.is_none() && t.dims.iter().all(|d| d.split.is_none())
}

/// The instruction that takes `v` as a piece of a value, the piece's name, that value.
fn piece_of(f: &Function, v: Value) -> Option<PieceInst> {
    let (inst, Op::Piece(p)) = def_of(f, v)? else { return None };
    Some((inst, p.name.clone(), f.insts[inst].args[0]))
}

/// If `gate` and `up` are pieces of one value and nothing else reads them: that value, their names, their instructions.
fn joined_halves(f: &Function, uses: &Uses, gate: Value, up: Value) -> Option<(Value, Vec<String>, [Inst; 2])> {
    let (gi, Op::Piece(g)) = def_of(f, gate)? else { return None };
    let (ui, Op::Piece(u)) = def_of(f, up)? else { return None };
    let (x, y) = (f.insts[gi].args[0], f.insts[ui].args[0]);
    let alone = uses.count(gate) == 1 && uses.count(up) == 1;
    (x == y && gate != up && alone).then(|| (x, vec![g.name.clone(), u.name.clone()], [gi, ui]))
}

/// Who reads each value.
struct Uses {
    by: HashMap<Value, Vec<(Inst, usize)>>,
    results: HashSet<Value>,
}

impl Uses {
    fn of(f: &Function) -> Self {
        let mut by: HashMap<Value, Vec<(Inst, usize)>> = HashMap::new();
        for inst in &f.body {
            for (i, a) in f.insts[*inst].args.iter().enumerate() {
                by.entry(*a).or_default().push((*inst, i));
            }
        }
        Uses { by, results: f.results.iter().map(|(_, v)| *v).collect() }
    }

    /// The gather that `v` is, its pool and its table, where the pool holds the same rows at every reader of `v`: no
    /// later state replaces it in this function. Rows that ranks hold in parts are for a gather of its own.
    fn rows_of_a_pool(&self, f: &Function, v: Value) -> Option<(Inst, Value, Value)> {
        let (gather, Op::Gather(_)) = def_of(f, v)? else { return None };
        let (pool, table) = (f.insts[gather].args[0], f.insts[gather].args[1]);
        let read = |(i, _): &(Inst, usize)| matches!(f.insts[*i].kind, InstKind::Op(Op::Gather(_)));
        let fits = f.ty(pool).state && [pool, table, v].iter().all(|v| whole(f.ty(*v))) && !self.results.contains(&v);
        (fits && self.by.get(&pool)?.iter().all(read)).then_some((gather, pool, table))
    }

    fn count(&self, v: Value) -> usize {
        self.by.get(&v).map_or(0, Vec::len) + usize::from(self.results.contains(&v))
    }

    /// Whether every reader of `v` decodes stored operands itself.
    fn all_decode(&self, f: &Function, v: Value) -> bool {
        let reads = |(inst, i): &(Inst, usize)| matches!(&f.insts[*inst].kind, InstKind::Op(op) if op.stored(*i));
        !self.results.contains(&v) && self.by.get(&v).is_some_and(|u| u.iter().all(reads))
    }
}
