//! Named values inside the f32 model against the goldens, on the CPU device and in the reference interpreter.

use std::collections::HashMap;
use std::path::PathBuf;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{Model, open};
use glmc_ir::entities::WeightId;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::plan::param;
use glmc_ir::tensor::{Data, EvalError, Tensor};
use glmc_ir::ty::SymValues;
use glmc_runtime::device::cpu::Output;
use glmc_runtime::engine::Want;

use super::support::{bf16, compile, engine, golden_json, golden_npy, prompts};

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
/// Values that a launch of the optimised plan computes on the way and does not write.
const INSIDE: &[&str] = &["kv_cmpr"];
/// Largest difference as a share of the golden's RMS.
const SHARE: f64 = 1e-3;

type Values = HashMap<String, (Vec<usize>, Vec<f64>)>;

#[test]
fn the_cpu_device_computes_the_goldens() {
    let mut e = engine(&compile(&bf16()));
    let prefill = e.plan().phases.iter().find(|p| p.name == "prefill").unwrap().clone();
    for prompt in ["count", "text65", "text400"] {
        let mut seen = Values::new();
        let seq = e.start();
        let mut see = |step: usize, output: usize, shape: &[usize], data: Output<'_>| {
            let args = prefill.steps[step].args.iter().filter(|a| a.access == glmc_ir::kernel::Access::Write);
            let glmc_ir::plan::Mem::Buf(b) = args.clone().nth(output).unwrap().mem else { return };
            let values = match data {
                Output::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
                Output::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            };
            seen.insert(prefill.buffers[b].name.clone(), (shape.to_vec(), values));
        };
        e.feed_observed(seq, &ids(prompt), Want::All, Some(&mut see)).unwrap();
        e.end(seq);
        println!("cpu {prompt}: {} values compared", compare(prompt, &seen, INSIDE));
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
    for prompt in ["count", "text65"] {
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
        println!("interpreter {prompt}: {} values compared", compare(prompt, &seen, &[]));
    }
}

fn ids(prompt: &str) -> Vec<u32> {
    prompts().into_iter().find(|(n, _)| n == prompt).unwrap().1
}

/// Compares all named values of a prompt, in the order they are computed; returns how many there were.
fn compare(prompt: &str, seen: &Values, inside: &[&str]) -> usize {
    let index = golden_json("points/index.json");
    let index = &index[prompt];
    let mut compared = 0;
    let layers = (0..3).flat_map(|l| ORDER.iter().map(move |n| (format!("{n}-{l}"), format!("blk.{l}.{n}"), *n)));
    let names = layers.chain([("result_norm".to_owned(), "result_norm".to_owned(), "result_norm")]);
    for (golden, ours, kind) in names {
        let entry = &index[&golden];
        if entry.is_null() {
            assert!(ours.contains("ffn_moe") || ours.contains("shexp"), "the goldens lack {golden}");
            continue;
        }
        if inside.contains(&kind) && !seen.contains_key(&ours) {
            continue;
        }
        let (_, want) =
            golden_npy(&PathBuf::from("points").join(prompt).join(format!("{golden}.npy")).to_string_lossy());
        let whole: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let rows: Vec<usize> = serde_json::from_value(entry["rows"].clone()).unwrap_or(vec![0, whole[0] - 1]);
        let (shape, have) = seen.get(&ours).unwrap_or_else(|| panic!("{prompt}: {ours} was never shown"));
        assert_eq!(shape[0], whole[0], "{prompt} {ours}: rows");
        let width = have.len() / shape[0];
        let have: Vec<&[f64]> = have.chunks_exact(width).skip(rows[0]).take(rows[1] + 1 - rows[0]).collect();
        let want: Vec<&[f64]> = want.chunks_exact(want.len() / have.len()).collect();
        for (row, (h, w)) in have.iter().zip(&want).enumerate() {
            let at = || format!("{prompt}: {ours} is the first value that differs, row {}", rows[0] + row);
            match kind {
                "top_k" | "ffn_moe_topk" => assert_eq!(chosen(h), chosen(w), "{}", at()),
                "ffn_moe_weights" => {
                    // The goldens list a token's experts by id.
                    let ids = &seen[&ours.replace("weights", "topk")].1;
                    let mut pairs: Vec<(i64, f64)> =
                        h.iter().enumerate().map(|(j, w)| (ids[(rows[0] + row) * width + j] as i64, *w)).collect();
                    pairs.sort_by_key(|(id, _)| *id);
                    close(&pairs.iter().map(|(_, w)| *w).collect::<Vec<_>>(), w, &at);
                }
                _ => close(h, w, &at),
            }
        }
        compared += 1;
    }
    assert!(compared >= 35, "only {compared} values were compared");
    compared
}

/// A row of ids as a sorted set, "none" left out.
fn chosen(row: &[f64]) -> Vec<i64> {
    let mut ids: Vec<i64> = row.iter().map(|x| *x as i64).filter(|x| *x >= 0).collect();
    ids.sort_unstable();
    ids
}

fn close(have: &[f64], want: &[f64], at: &dyn Fn() -> String) {
    assert_eq!(have.len(), want.len(), "{}", at());
    let finite: Vec<f64> = want.iter().copied().filter(|w| w.is_finite()).collect();
    let rms = (finite.iter().map(|w| w * w).sum::<f64>() / finite.len().max(1) as f64).sqrt();
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        let same = if w.is_finite() { (h - w).abs() <= SHARE * rms + 1e-6 } else { h == w };
        assert!(same, "{} column {i}: {h} against {w} (rms {rms})", at());
    }
}
