//! Layers that share an earlier layer's selection.
//!
//! The reference is the same graph, except that each shared layer is given the result of a second computation of its
//! nearest earlier full layer's selection.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::write::{GgufWriter, MetaValue};
use glmc_frontend_gguf::{GgufSet, Model, open};
use glmc_ir::entities::{Value, WeightId};
use glmc_ir::graph::{Function, InstKind, Module, ValueDef};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::plan::param;
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::ty::SymValues;
use glmc_runtime::engine::Want;

use super::models::bf16;
use super::support::{compile, engine, prompts};

/// The bf16 model with these indexer types.
pub(super) fn with_types(dir: &Path, types: [bool; 3]) -> PathBuf {
    let set = open(&bf16()).unwrap();
    let path = dir.join(format!("{}.gguf", types.map(|t| if t { 'F' } else { 'S' }).iter().collect::<String>()));
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("glm-dsa.attention.indexer.types", MetaValue::from(types.to_vec()));
    w.write(&path).unwrap();
    path
}

/// More tokens than the indexer's top-k of 64.
fn long() -> Vec<u32> {
    prompts().into_iter().find(|(n, _)| n == "text400").unwrap().1[..160].to_vec()
}

/// Last logits on the device, as one chunk, and by small chunks and single steps across top-k.
fn logits(model: &Path) -> [Vec<f64>; 2] {
    let mut e = engine(&compile(model));
    let ids = long();
    let seq = e.start();
    let whole = e.feed(seq, &ids, Want::Last).unwrap();
    e.end(seq);
    let seq = e.start();
    e.set_chunk(7);
    let mut stepped = e.feed(seq, &ids[..60], Want::Last).unwrap();
    for t in &ids[60..] {
        stepped = e.decode(&[(seq, *t)]).unwrap();
    }
    [whole, stepped].map(|l| l.into_iter().map(f64::from).collect())
}

struct Stored<'a>(&'a GgufSet, &'a Module);

impl WeightSource for Stored<'_> {
    fn bytes(&self, w: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError> {
        let s = self.1.weights[w].span;
        let bytes = self.0.tensor_bytes(s.part as usize, s.offset, s.bytes);
        bytes.map(Into::into).ok_or_else(|| EvalError::new("outside the file"))
    }
}

/// Logits of the last token by the interpreter, after `edit` of the lifted module.
fn interpret(model: &Path, edit: impl FnOnce(&mut Module)) -> Vec<f64> {
    let set = open(model).unwrap();
    let ids = long();
    let n = ids.len();
    let options = LiftOptions { ctx: 256, max_batch: 1, cache_rows: 256, chunk: 256 };
    let mut m = Model::load(&set).unwrap().lift(&options).unwrap().module;
    edit(&mut m);
    glmc_ir::verify::verify_module(&m).unwrap();
    let entry = m.func_named("prefill").unwrap();
    let f = &m.funcs[entry];
    let syms = SymValues::default().with("T", n as u64).with("S", n as u64).with("R", 1);
    let ramp = |from: i64| (0..n as i64).map(|i| i + from).collect::<Vec<_>>();
    let arg = |p: &Value| match f.value_name(*p).as_str() {
        param::TOKENS => Tensor::i(vec![n], ids.iter().map(|t| i64::from(*t)).collect()),
        param::POS | param::ROW => Tensor::i(vec![n], ramp(0)),
        param::SEQ => Tensor::i(vec![n], vec![0; n]),
        param::LEN => Tensor::i(vec![n], ramp(1)),
        param::TABLE => Tensor::i(vec![1, n], ramp(0)),
        param::OUT => Tensor::i(vec![1], vec![n as i64 - 1]),
        _ => Tensor::poison(f.ty(*p), &syms).unwrap(),
    };
    let args = f.params.iter().map(arg).collect();
    let stored = Stored(&set, &m);
    let results = Interp::new(&m, Arith::Real, syms, &stored).run(entry, args).unwrap();
    let at = f.results.iter().position(|(n, _)| n == param::LOGITS).unwrap();
    results[at].floats().unwrap().to_vec()
}

/// Makes every shared layer's `top` argument the result of a second computation of an earlier full layer's selection,
/// over the same inputs and pools: of the nearest one, or of the one `skip` full layers before it. Returns how many.
fn recompute_selections(m: &mut Module, skip: usize) -> usize {
    let entry = m.func_named("prefill").unwrap();
    let f = m.funcs[entry].clone();
    let calls: Vec<_> = f.body.iter().copied().filter(|i| matches!(f.insts[*i].kind, InstKind::Call { .. })).collect();
    let mut edited = 0;
    for (k, call) in calls.iter().enumerate() {
        let InstKind::Call { func, .. } = &f.insts[*call].kind else { continue };
        let callee = &m.funcs[*func];
        let Some(top) = callee.param_named("top") else { continue };
        let mut full = calls[..k].iter().rev().filter(|c| match &f.insts[**c].kind {
            InstKind::Call { func, .. } => m.funcs[*func].param_named("index").is_some(),
            InstKind::Op(_) => false,
        });
        let full = *full.nth(skip).unwrap();
        let at = callee.params.iter().position(|p| *p == top).unwrap();
        let again = second_selection(m, &f, full, entry);
        // The first computation is no longer read: discarded by name.
        let first = std::mem::replace(&mut m.funcs[entry].insts[*call].args[at], again);
        m.funcs[entry].values[first].name = Some(format!("_top_{}", first.as_u32()));
        edited += 1;
    }
    // The entry's calls were inserted at the end of its body: put each before its first use.
    order(&mut m.funcs[entry]);
    edited
}

/// Adds to the entry the operations of the full layer that lead to its `top`, one by one, on new values.
fn second_selection(
    m: &mut Module,
    f: &Function,
    call: glmc_ir::entities::Inst,
    entry: glmc_ir::entities::FuncId,
) -> Value {
    let data = &f.insts[call];
    let InstKind::Call { func, .. } = &data.kind else { unreachable!() };
    let callee = m.funcs[*func].clone();
    // A layer that no other reuses has no result `top`, but makes the value all the same.
    let target = callee.values.keys().find(|v| callee.value_name(*v) == "top_k").unwrap();
    let mut map: std::collections::HashMap<Value, Value> =
        callee.params.iter().copied().zip(data.args.iter().copied()).collect();
    // The pool is read as the layer left it: the state that the call returned.
    let pool_result = callee.results.iter().position(|(n, _)| n == "index").unwrap();
    let pool_after = callee.results[pool_result].1;
    map.insert(pool_after, data.results[pool_result]);
    let needed = needed(&callee, target, pool_after);
    for inst in callee.body.iter().filter(|i| needed.contains(i)) {
        let d = &callee.insts[*inst];
        let out = &mut m.funcs[entry];
        let args = d.args.iter().map(|a| map[a]).collect();
        let new = out.insts.push(glmc_ir::graph::InstData { kind: d.kind.clone(), args, results: Vec::new() });
        for (k, r) in d.results.iter().enumerate() {
            let ty = callee.ty(*r).clone();
            let def = ValueDef::Result(new, k as u32);
            let v = out.values.push(glmc_ir::graph::ValueData { ty, def, name: None });
            out.insts[new].results.push(v);
            map.insert(*r, v);
        }
        out.body.push(new);
    }
    map[&target]
}

/// The instructions that `target` depends on, not going beyond the changed pool.
fn needed(f: &Function, target: Value, stop: Value) -> Vec<glmc_ir::entities::Inst> {
    let (mut open, mut found) = (vec![target], Vec::new());
    while let Some(v) = open.pop() {
        if let ValueDef::Result(i, _) = f.values[v].def
            && v != stop
            && !found.contains(&i)
        {
            found.push(i);
            open.extend(&f.insts[i].args);
        }
    }
    found
}

/// Stable topological order of a body.
fn order(f: &mut Function) {
    let mut waiting = std::mem::take(&mut f.body);
    let mut done: Vec<Value> = f.params.clone();
    done.extend(f.values.iter().filter(|(_, d)| matches!(d.def, ValueDef::Weight(_))).map(|(v, _)| v));
    while !waiting.is_empty() {
        let at = waiting.iter().position(|i| f.insts[*i].args.iter().all(|a| done.contains(a))).unwrap();
        let i = waiting.remove(at);
        done.extend(&f.insts[i].results);
        f.body.push(i);
    }
}

fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

#[test]
fn shared_layers_reuse_the_nearest_selection() {
    let dir = tempfile::tempdir().unwrap();
    for types in [[true, false, true], [true, false, false], [true, true, false]] {
        let model = with_types(dir.path(), types);
        let shared = interpret(&model, |_| {});
        let recomputed = interpret(&model, |m| {
            assert_eq!(recompute_selections(m, 0), types.iter().filter(|full| !**full).count());
        });
        let [whole, stepped] = logits(&model).map(|device| difference(&shared, &device));
        let again = difference(&shared, &recomputed);
        println!("{types:?}: recomputed {again:.1e}, device {whole:.1e}, device by steps {stepped:.1e}");
        assert!(again < 1e-9, "{types:?}");
        assert!(whole < 1e-3 && stepped < 1e-3, "{types:?}");
    }
}

#[test]
fn another_layers_selection_is_another_result() {
    let dir = tempfile::tempdir().unwrap();
    let model = with_types(dir.path(), [true, true, false]);
    let shared = interpret(&model, |_| {});
    let farther = interpret(&model, |m| assert_eq!(recompute_selections(m, 1), 1));
    let d = difference(&shared, &farther);
    println!("the selection of the full layer before the nearest moves the logits by {d:.1e}");
    assert!(d > 1e-2);
}

#[test]
fn making_a_shared_layer_full_changes_the_logits() {
    let dir = tempfile::tempdir().unwrap();
    for (shared, full) in [
        ([true, false, true], [true, true, true]),
        ([true, true, false], [true, true, true]),
        ([true, false, false], [true, true, false]),
        ([true, false, false], [true, false, true]),
    ] {
        let of = |name: &str, types| {
            let dir = dir.path().join(format!("{name} {shared:?} {full:?}"));
            std::fs::create_dir(&dir).unwrap();
            logits(&with_types(&dir, types))
        };
        let (a, b) = (of("shared", shared), of("full", full));
        let d = difference(&a[0], &b[0]);
        println!("{shared:?} to {full:?}: {d:.1e}");
        assert!(d > 1e-2);
        assert!(difference(&a[1], &b[1]) > 1e-2);
    }
}
