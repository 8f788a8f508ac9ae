//! The lifted draft head in the interpreter against PyTorch in float32.

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{GgufSet, Model, open};
use glmc_ir::entities::WeightId;
use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::plan::param;
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::ty::SymValues;

use super::support::{fixture, golden_npy, prompts};

struct Stored<'a>(&'a GgufSet, &'a Module);

impl WeightSource for Stored<'_> {
    fn bytes(&self, w: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError> {
        let s = self.1.weights[w].span;
        let bytes = self.0.tensor_bytes(s.part as usize, s.offset, s.bytes);
        bytes.map(Into::into).ok_or_else(|| EvalError::new("outside the file"))
    }
}

/// Runs `entry` over tokens `first ..`; `hidden` for the draft head.
fn run(set: &GgufSet, m: &Module, entry: &str, ids: &[u32], first: usize, hidden: Option<&Tensor>) -> Vec<Tensor> {
    let id = m.func_named(entry).unwrap();
    let f = &m.funcs[id];
    let n = ids.len();
    let syms = SymValues::default().with("T", n as u64).with("S", n as u64).with("R", n as u64);
    let ramp = |from: usize| (0..n).map(|i| (i + from) as i64).collect::<Vec<_>>();
    let arg = |name: &str, ty| match name {
        param::TOKENS => Tensor::i(vec![n], ids.iter().map(|t| i64::from(*t)).collect()),
        param::POS => Tensor::i(vec![n], ramp(first)),
        param::ROW | param::OUT => Tensor::i(vec![n], ramp(0)),
        param::SEQ => Tensor::i(vec![n], vec![0; n]),
        param::LEN => Tensor::i(vec![n], ramp(1)),
        param::TABLE => Tensor::i(vec![1, n], ramp(0)),
        "hidden" => hidden.unwrap().clone(),
        _ => Tensor::poison(ty, &syms).unwrap(),
    };
    let args = f.params.iter().map(|p| arg(&f.value_name(*p), f.ty(*p))).collect();
    Interp::new(m, Arith::Real, syms.clone(), &Stored(set, m)).run(id, args).unwrap()
}

#[test]
fn the_draft_head_computes_the_goldens() {
    let set = open(&fixture("models/tiny-UD-Q4_K_XL-00001-of-00003.gguf")).unwrap();
    let m = Model::load(&set)
        .unwrap()
        .lift(&LiftOptions { ctx: 512, max_batch: 1, cache_rows: 512, chunk: 512 })
        .unwrap()
        .module;
    let (shape, golden) = golden_npy("mtp-UD-Q4_K_XL.npy");
    assert_eq!(shape, [11, 2, 2048]);
    let (mut compared, mut worst) = (0, 0.0f64);
    for (i, (name, ids)) in prompts().iter().filter(|(_, ids)| ids.len() > 1).enumerate() {
        let trunk = run(&set, &m, "prefill", ids, 0, None);
        let hidden = trunk[1].floats().unwrap();
        let n = ids.len() - 1;
        let hidden = Tensor::f(vec![n, 256], hidden[..n * 256].to_vec());
        let draft = run(&set, &m, "mtp", &ids[1..], 1, Some(&hidden));
        let last = &draft[0].floats().unwrap()[(n - 1) * 2048..];
        let want = &golden[(2 * i + 1) * 2048..(2 * i + 2) * 2048];
        assert_eq!(last.len(), want.len());
        for (a, b) in last.iter().zip(want) {
            let d = (a - b).abs();
            assert!(d < 1e-3, "{name}: a draft logit is off by {d}");
            worst = worst.max(d);
        }
        compared += 1;
    }
    println!("draft head: {compared} prompts, largest difference {worst:.1e}");
    assert_eq!(compared, 11);
}
