//! Named values inside the f32 model against the goldens, on the CPU device and in the reference interpreter.

use std::collections::HashMap;
use std::path::PathBuf;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{Model, open};
use glmc_ir::entities::WeightId;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::kernel::{Kernel, RowMaker};
use glmc_ir::plan::param;
use glmc_ir::tensor::{Data, EvalError, Tensor};
use glmc_ir::ty::{Extent, SymValues};
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, Want};

use super::models::{bf16, with_floats};
use super::support::{compile, golden_json, golden_npy, long_engine, prompts};

/// Values of one layer in the order they are computed; the first that differs is the one to look at.
const ORDER: &[&str] = &[
    "attn_norm",
    "qr",
    "kv_cmpr",
    "indexer_score",
    "top_k",
    "kqv_out",
    "attn_out",
    "ffn_norm",
    "ffn_moe_logits",
    "ffn_moe_topk",
    "ffn_moe_weights",
    "ffn_shexp",
    "ffn_out",
    "l_out",
];
/// The prompts with goldens.
const PROMPTS: [&str; 3] = ["count", "text65", "text400"];
/// Values of a prompt: 14 a layer, less the router's three and the shared expert of the dense layer; the last norm.
const VALUES: usize = 3 * 14 - 4 + 1;
/// Largest difference as a share of the golden's RMS.
const SHARE: f64 = 1e-3;
/// Largest difference of the norms of a whole tensor, of which the goldens may hold only some rows.
const NORM: f64 = 1e-4;

type Values = HashMap<String, (Vec<usize>, Vec<f64>)>;

/// What the CPU device computes for a prompt in one chunk.
fn on_device(e: &mut Engine, prompt: &str) -> Values {
    let prefill = e.plan().phase("prefill").unwrap().clone();
    let mut seen = Values::new();
    let seq = e.start();
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        let Seen { step, output, shape, .. } = s;
        let values: Vec<f64> = match s.data {
            Output::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Output::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
        };
        let of = &prefill.steps[step];
        if let Kernel::AppendRow(k) = &of.kernel {
            // The latent is normed on its way into the cache: it is the first piece of the row.
            let RowMaker::LatentRow(_) = &k.make else { return Ok(()) };
            let Some(Extent::Joined(pieces)) = of.args[0].ty.last().map(|d| &d.extent) else {
                panic!("{}", of.args[0].ty)
            };
            assert_eq!(pieces[0].0.as_str(), "latent");
            let (latent, row) = (pieces[0].1 as usize, shape[1]);
            let layer = of.name.rsplit_once('.').unwrap().0;
            let latents = values.chunks_exact(row).flat_map(|r| r[..latent].to_vec()).collect();
            seen.insert(format!("{layer}.kv_cmpr"), (vec![shape[0], latent], latents));
            return Ok(());
        }
        let mut args = of.args.iter().filter(|a| a.access == glmc_ir::kernel::Access::Write);
        let glmc_ir::plan::Mem::Buf(b) = args.nth(output).unwrap().mem else { return Ok(()) };
        let buffer = &prefill.buffers[b];
        // A value that nothing reads says so at the front: the last layer's output, of which only the norm is read.
        seen.insert(buffer.name.trim_start_matches('_').to_owned(), (shape.to_vec(), values));
        Ok(())
    };
    e.feed_observed(seq, &ids(prompt), Want::All, Some(&mut see)).unwrap();
    e.end(seq);
    seen
}

#[test]
fn the_cpu_device_computes_the_goldens() {
    let mut e = long_engine(&compile(&bf16()));
    for prompt in PROMPTS {
        let n = compare(prompt, &on_device(&mut e, prompt)).unwrap_or_else(|e| panic!("{e}"));
        println!("cpu {prompt}: {n} values compared");
        assert_eq!(n, VALUES);
    }
}

#[test]
fn the_interpreter_computes_the_goldens() {
    let set = open(&bf16()).unwrap();
    let model = Model::load(&set).unwrap();
    let lifted = model.lift(&LiftOptions { ctx: 512, max_batch: 1, cache_rows: 512, chunk: 512 }).unwrap();
    struct Stored<'a>(&'a glmc_frontend_gguf::GgufSet, &'a glmc_ir::graph::Module);
    impl WeightSource for Stored<'_> {
        fn bytes(&self, w: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError> {
            let s = self.1.weights[w].span;
            let bytes = self.0.tensor_bytes(s.part as usize, s.offset, s.bytes);
            bytes.map(Into::into).ok_or_else(|| EvalError::new("outside the file"))
        }
    }
    let m = &lifted.module;
    let entry = m.func_named("prefill").unwrap();
    let f = &m.funcs[entry];
    for prompt in PROMPTS {
        let ids = ids(prompt);
        let n = ids.len();
        let syms = SymValues::default().with("T", n as u64).with("S", n as u64).with("R", n as u64);
        let ramp = |from: i64| (0..n as i64).map(|i| i + from).collect::<Vec<_>>();
        let args = f.params.iter().map(|p| {
            let name = f.value_name(*p);
            match name.as_str() {
                param::TOKENS => Tensor::i(vec![n], ids.iter().map(|t| i64::from(*t)).collect()),
                param::POS | param::ROW | param::OUT => Tensor::i(vec![n], ramp(0)),
                param::SEQ => Tensor::i(vec![n], vec![0; n]),
                param::LEN => Tensor::i(vec![n], ramp(1)),
                param::TABLE => Tensor::i(vec![1, n], ramp(0)),
                _ => Tensor::poison(f.ty(*p), &syms).unwrap(),
            }
        });
        let args = args.collect();
        let mut seen = Values::new();
        let stored = Stored(&set, m);
        let mut see = |path: &str, _: &glmc_ir::ty::TensorType, t: &Tensor| {
            let values = match &t.data {
                Data::F(v) => v.clone(),
                Data::I(v) => v.iter().map(|x| *x as f64).collect(),
                Data::Q(..) => return,
            };
            seen.insert(path.to_owned(), (t.shape.clone(), values));
        };
        Interp::new(m, Arith::Real, syms, &stored).observe(&mut see).run(entry, args).unwrap();
        let n = compare(prompt, &seen).unwrap_or_else(|e| panic!("{e}"));
        println!("interpreter {prompt}: {n} values compared");
        assert_eq!(n, VALUES);
    }
}

#[test]
fn the_comparison_names_the_first_value_that_differs() {
    let mut e = long_engine(&compile(&bf16()));
    let seen = on_device(&mut e, "text400");
    let names: Vec<String> = order().map(|(_, ours, _)| ours).filter(|n| seen.contains_key(n)).collect();
    assert_eq!(names.len(), VALUES);
    let named = |seen: &Values| compare("text400", seen).unwrap_err().split(" is the first").next().unwrap().to_owned();
    for (i, name) in names.iter().enumerate() {
        // The same value of another layer; nothing is like the last norm, so that is given the last layer's output.
        let other = match name.strip_prefix("blk.").and_then(|n| n.split_once('.')) {
            Some((layer, value)) => format!("blk.{}.{value}", if layer == "2" { 1 } else { 2 }),
            None => "blk.2.l_out".to_owned(),
        };
        let mut wrong = seen.clone();
        wrong.insert(name.clone(), seen[&other].clone());
        // Something later is wrong too: the earlier is named.
        if let Some(later) = names.get(i + 1) {
            wrong.get_mut(later).unwrap().1.fill(f64::NAN);
        }
        assert_eq!(named(&wrong), format!("text400: {name}"));
        // One number of the last row, off by as little as is too much; the ids of choices by one.
        let mut wrong = seen.clone();
        let (shape, values) = wrong.get_mut(name).unwrap();
        let row = values.len() - values.len() / shape[0];
        let rms = (values[row..].iter().filter(|v| v.is_finite()).map(|v| v * v).sum::<f64>() / shape[1] as f64).sqrt();
        let choice = name.ends_with("top_k") || name.ends_with("topk");
        values[row] += if choice { 1000.0 } else { 3.0 * SHARE * rms + 3e-6 };
        assert_eq!(named(&wrong), format!("text400: {name}"));
        // A row that the goldens do not hold, through the norms of the whole.
        let mut wrong = seen.clone();
        wrong.get_mut(name).unwrap().1[0] += 1e4;
        assert_eq!(named(&wrong), format!("text400: {name}"));
    }
}

#[test]
fn a_changed_weight_shows_where_it_acts() {
    let dir = tempfile::tempdir().unwrap();
    for (tensor, value) in [
        ("blk.1.attn_kv_a_norm.weight", "blk.1.kv_cmpr"),
        ("blk.2.exp_probs_b.bias", "blk.2.ffn_moe_topk"),
        ("blk.0.ffn_norm.weight", "blk.0.ffn_norm"),
        ("output_norm.weight", "result_norm"),
    ] {
        let path = with_floats(dir.path(), tensor, tensor, |x| {
            if tensor.ends_with("bias") {
                x.reverse();
            }
            x.iter_mut().for_each(|x| *x *= 1.01);
        });
        let error = compare("text65", &on_device(&mut long_engine(&compile(&path)), "text65")).unwrap_err();
        println!("{tensor} changed: {error}");
        assert!(error.starts_with(&format!("text65: {value} is the first value that differs")), "{error}");
    }
}

fn ids(prompt: &str) -> Vec<u32> {
    prompts().into_iter().find(|(n, _)| n == prompt).unwrap().1
}

/// All named values in the order they are computed: their names in the goldens and here, and which kind each is.
fn order() -> impl Iterator<Item = (String, String, &'static str)> {
    let layers = (0..3).flat_map(|l| ORDER.iter().map(move |n| (format!("{n}-{l}"), format!("blk.{l}.{n}"), *n)));
    layers.chain([("result_norm".to_owned(), "result_norm".to_owned(), "result_norm")])
}

/// Compares all named values of a prompt, in the order they are computed; returns how many there were.
///
/// # Errors
/// A sentence that names the first value that differs.
fn compare(prompt: &str, seen: &Values) -> Result<usize, String> {
    let index = golden_json("points/index.json");
    let index = index[prompt].as_object().unwrap();
    // The expanded form never makes the absorbed query; everything else must be compared.
    let known: Vec<String> = order().map(|(golden, ..)| golden).collect();
    let missed = index.keys().find(|k| !known.contains(k) && !k.starts_with("q_nope_absorbed"));
    assert_eq!(missed, None, "{prompt}: a golden that is not compared");
    let mut compared = 0;
    for (golden, ours, kind) in order() {
        let Some(entry) = index.get(&golden) else {
            assert!(golden.ends_with("-0") && (ours.contains("ffn_moe") || ours.contains("shexp")), "no {golden}");
            continue;
        };
        let (_, want) =
            golden_npy(&PathBuf::from("points").join(prompt).join(format!("{golden}.npy")).to_string_lossy());
        let whole: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let rows: Vec<usize> = serde_json::from_value(entry["rows"].clone()).unwrap();
        let differs = |why: String| format!("{prompt}: {ours} is the first value that differs, {why}");
        let (shape, values) = seen.get(&ours).ok_or_else(|| differs("it was never shown".into()))?;
        if shape[0] != whole[0] {
            return Err(differs(format!("{} rows, not {}", shape[0], whole[0])));
        }
        let width = values.len() / shape[0];
        let have: Vec<&[f64]> = values.chunks_exact(width).skip(rows[0]).take(rows[1] + 1 - rows[0]).collect();
        let want: Vec<&[f64]> = want.chunks_exact(want.len() / have.len()).collect();
        assert_eq!((have.len(), want.len()), (rows[1] + 1 - rows[0], rows[1] + 1 - rows[0]));
        for (row, (h, w)) in have.iter().zip(&want).enumerate() {
            let row = rows[0] + row;
            let same = match kind {
                "top_k" | "ffn_moe_topk" => sets(h, w),
                "ffn_moe_weights" => {
                    // The goldens list a token's experts by id.
                    let ids = &seen[&ours.replace("weights", "topk")].1[row * width..];
                    let mut pairs: Vec<(i64, f64)> = h.iter().zip(ids).map(|(w, id)| (*id as i64, *w)).collect();
                    pairs.sort_by_key(|(id, _)| *id);
                    close(&pairs.iter().map(|(_, w)| *w).collect::<Vec<_>>(), w)
                }
                _ => close(h, w),
            };
            same.map_err(|why| differs(format!("row {row}, {why}")))?;
        }
        for (what, norm) in [("abs", norm(values, f64::abs)), ("l2", norm(values, |x| x * x).sqrt())] {
            match entry.get(what).map(|w| w.as_f64().unwrap()) {
                Some(w) if (norm - w).abs() <= NORM * w => {}
                Some(w) => return Err(differs(format!("{what} of the whole: {norm} against {w}"))),
                None => assert!(kind == "top_k" || kind == "ffn_moe_topk", "{golden} has no {what}"),
            }
        }
        compared += 1;
    }
    Ok(compared)
}

/// A sum over the finite values; a NaN stays.
fn norm(values: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    values.iter().filter(|x| !x.is_infinite()).map(|x| f(*x)).sum()
}

/// Rows of ids as sets, "none" left out.
fn sets(have: &[f64], want: &[f64]) -> Result<(), String> {
    let chosen = |row: &[f64]| {
        let mut ids: Vec<i64> = row.iter().map(|x| *x as i64).filter(|x| *x >= 0).collect();
        ids.sort_unstable();
        ids
    };
    let (have, want) = (chosen(have), chosen(want));
    if have == want { Ok(()) } else { Err(format!("{have:?} against {want:?}")) }
}

fn close(have: &[f64], want: &[f64]) -> Result<(), String> {
    if have.len() != want.len() {
        return Err(format!("{} columns, not {}", have.len(), want.len()));
    }
    let finite: Vec<f64> = want.iter().copied().filter(|w| w.is_finite()).collect();
    let rms = (finite.iter().map(|w| w * w).sum::<f64>() / finite.len().max(1) as f64).sqrt();
    let same = |h: f64, w: f64| if w.is_finite() { (h - w).abs() <= SHARE * rms + 1e-6 } else { h == w };
    match have.iter().zip(want).position(|(h, w)| !same(*h, *w)) {
        Some(i) => Err(format!("column {i}: {} against {} (rms {rms})", have[i], want[i])),
        None => Ok(()),
    }
}
