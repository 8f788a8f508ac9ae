//! What tests that run modules and plans share: random weights in memory, random operands, plans around scheduled
//! parts, comparisons. Never decides what is right; an interpreter does.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::borrow::Cow;

use glmc_ir::entities::WeightId;
use glmc_ir::graph::{Function, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::interp::plan::SliceSource;
use glmc_ir::plan::{FORMAT, FileRef, Limits, Model, Plan, Slice, Target};
use glmc_ir::quant::QuantType;
use glmc_ir::quant::synth::synth_blocks;
use glmc_ir::shard_map::rank_count;
use glmc_ir::tensor::{Data, EvalError, Tensor, concrete};
use glmc_ir::ty::{Elem, SymValues, TensorType};
use glmc_passes::schedule::Scheduled;

/// A shipped target at the default context.
pub(crate) fn machine(target: &str) -> glmc_passes::egraph::cost::Machine {
    let target = glmc_passes::target::Target::named(target).expect("a shipped target");
    glmc_passes::egraph::cost::Machine::new(&target, glmc_passes::cost::TUNE_CTX)
}

/// SplitMix64 (Steele et al., 2014).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// In [-1, 1), exact in f32.
    pub(crate) fn float(&mut self) -> f64 {
        (self.next() >> 40) as f64 / 8_388_608.0 - 1.0
    }

    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<i64> {
        let mut all: Vec<i64> = (0..n as i64).collect();
        (1..n).rev().for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }
}

/// Random stored entries of `ty`, near `rms`.
pub(crate) fn blocks(q: QuantType, elems: usize, seed: u64, rms: f32) -> Vec<u8> {
    let mut out = vec![0; elems / q.block_elems() * q.block_bytes()];
    synth_blocks(q, seed, seed, 0, rms, &mut out);
    out
}

/// Weight files in memory.
pub(crate) struct Files(pub(crate) Vec<Vec<u8>>);

impl Files {
    /// Random bytes for each weight of `m`; they depend on its span alone, so every form of `m` reads the same.
    pub(crate) fn synth(m: &Module) -> Files {
        let parts = m.weights.values().map(|w| w.span.part as usize + 1).max().unwrap_or(0);
        let mut files = vec![Vec::new(); parts];
        for w in m.weights.values() {
            let (file, start) = (&mut files[w.span.part as usize], w.span.offset as usize);
            let end = start + w.span.bytes as usize;
            if file.len() < end {
                file.resize(end, 0u8);
            }
            let q = w.ty.elem.in_file().storage().expect("weights are stored floats or blocks");
            synth_blocks(q, 1, w.span.offset ^ u64::from(w.span.part) << 40, 0, 0.5, &mut file[start..end]);
        }
        Files(files)
    }

    fn slice(&self, part: u32, start: u64, bytes: u64) -> Result<&[u8], EvalError> {
        let file = self.0.get(part as usize);
        let run = file.and_then(|f| f.get(start as usize..(start + bytes) as usize));
        run.ok_or_else(|| EvalError::new("outside the file"))
    }
}

impl SliceSource for Files {
    fn read(&self, s: &Slice, out: &mut Vec<u8>) -> Result<(), EvalError> {
        for i in 0..s.count {
            out.extend_from_slice(self.slice(s.part, s.offset + i * s.stride, s.bytes)?);
        }
        Ok(())
    }
}

/// A module's weights in its files.
pub(crate) struct InModule<'a>(pub(crate) &'a Module, pub(crate) &'a Files);

impl WeightSource for InModule<'_> {
    fn bytes(&self, w: WeightId) -> Result<Cow<'_, [u8]>, EvalError> {
        let s = self.0.weights[w].span;
        self.1.slice(s.part, s.offset, s.bytes).map(Cow::Borrowed)
    }
}

/// Runs `func` of `m` in Real.
pub(crate) fn run_global(
    m: &Module,
    func: &str,
    files: &Files,
    syms: &SymValues,
    args: Vec<Tensor>,
) -> Result<Vec<Tensor>, EvalError> {
    let id = m.func_named(func).ok_or_else(|| EvalError::new(format!("there is no @{func}")))?;
    let source = InModule(m, files);
    Interp::new(m, Arith::Real, syms.clone(), &source).run(id, args)
}

/// A random tensor of `ty`; integers in `0..=most`.
pub(crate) fn random(ty: &TensorType, syms: &SymValues, rng: &mut Rng, most: usize) -> Tensor {
    let shape = concrete(ty, syms).expect("every symbol has a value");
    let n: usize = shape.iter().product();
    match ty.elem {
        Elem::I32 => Tensor::i(shape, (0..n).map(|_| rng.below(most + 1) as i64).collect()),
        Elem::Quant(q) => {
            let bytes = blocks(q, n, rng.next(), 0.5);
            Tensor::from_bytes(ty.elem, shape, &bytes).expect("whole blocks")
        }
        _ => Tensor::f(shape, (0..n).map(|_| rng.float()).collect()),
    }
}

/// Random operands of `f`; see [`random`].
pub(crate) fn operands(f: &Function, syms: &SymValues, rng: &mut Rng, most: usize) -> Vec<Tensor> {
    f.params.iter().map(|p| random(f.ty(*p), syms, rng, most)).collect()
}

/// A plan around scheduled parts, for the ranks of the module's mesh.
pub(crate) fn wrap(m: &Module, s: Scheduled, files: &Files) -> Plan {
    let file = |bytes: &Vec<u8>| FileRef {
        path: "weights".into(),
        bytes: bytes.len() as u64,
        header_bytes: 0,
        header_hash: String::new(),
        sample_hash: String::new(),
    };
    Plan {
        format: FORMAT,
        producer: "test".into(),
        target: Target { name: "cpu".into(), arch: "cpu".into(), ranks: rank_count(&m.mesh).expect("a mesh") as u32 },
        model: Model {
            arch: "none".into(),
            name: String::new(),
            layers: 1,
            vocab: 1,
            trained_ctx: 1,
            stop: vec![],
            suppress: vec![],
        },
        limits: Limits { ctx: 1, max_batch: 1, cache_rows: 1, chunk: 1 },
        mesh: m.mesh.clone(),
        files: files.0.iter().map(file).collect(),
        weights: s.weights,
        states: s.states,
        phases: s.phases,
    }
}

/// Where two results part: integers at all, floats by more than `tolerance` of the size of `b`'s numbers. NaN (poison)
/// equals NaN.
pub(crate) fn differ(a: &Tensor, b: &Tensor, tolerance: f64) -> Option<String> {
    if a.shape != b.shape {
        return Some(format!("shapes {:?} and {:?}", a.shape, b.shape));
    }
    match (&a.data, &b.data) {
        (Data::F(x), Data::F(y)) => {
            let far = |(_, (x, y)): &(usize, (&f64, &f64))| {
                let same = x == y || x.is_nan() && y.is_nan();
                !same && (x.is_nan() != y.is_nan() || (*x - *y).abs() > tolerance * x.abs().max(y.abs()).max(1e-30))
            };
            x.iter().zip(y).enumerate().find(far).map(|(i, (x, y))| format!("element {i}: {x} and {y}"))
        }
        (x, y) if x == y => None,
        _ => Some("other entries".into()),
    }
}

/// [`differ`] over lists.
pub(crate) fn all_differ(a: &[Tensor], b: &[Tensor], tolerance: f64) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} and {} results", a.len(), b.len()));
    }
    let part = |(i, (a, b)): (usize, (&Tensor, &Tensor))| differ(a, b, tolerance).map(|d| format!("result {i}: {d}"));
    a.iter().zip(b).enumerate().find_map(part)
}
