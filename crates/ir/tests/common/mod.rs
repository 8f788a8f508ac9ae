//! A small plan with every kind of memory, made by hand, with its weight file in memory.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use glmc_ir::entities::{BufId, ParamId, StateId, WeightId};
use glmc_ir::graph::Span;
use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::{PlanInterp, SliceSource};
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::*;
use glmc_ir::shard_map::{largest_bytes, recipe_slices};
use glmc_ir::tensor::{Data, EvalError, Tensor};
use glmc_ir::text::parse_type;
use glmc_ir::ty::{SymValues, TensorType};
use indexmap::IndexMap;

pub(crate) fn ty(text: &str) -> TensorType {
    parse_type(text).unwrap()
}

/// Weight files held in memory.
pub(crate) struct Files(pub(crate) Vec<Vec<u8>>);

impl SliceSource for Files {
    fn read(&self, s: &Slice, out: &mut Vec<u8>) -> Result<(), EvalError> {
        for i in 0..s.count {
            let start = (s.offset + i * s.stride) as usize;
            let run = self.0.get(s.part as usize).and_then(|f| f.get(start..start + s.bytes as usize));
            out.extend_from_slice(run.ok_or_else(|| EvalError::new("outside the file"))?);
        }
        Ok(())
    }
}

const HEADER: u64 = 64;

/// Makes a plan step by step.
pub(crate) struct Maker {
    pub(crate) plan: Plan,
    ends: [u64; 2],
}

impl Maker {
    pub(crate) fn new(mesh: &[(&str, u64)]) -> Self {
        let file = |i: u32| FileRef {
            path: format!("tiny-{i}.gguf"),
            bytes: HEADER,
            header_bytes: HEADER,
            header_hash: "00".into(),
            sample_hash: "00".into(),
        };
        let mesh: IndexMap<_, _> = mesh.iter().map(|(a, n)| ((*a).into(), *n)).collect();
        let ranks = mesh.values().product::<u64>() as u32;
        let plan = Plan {
            format: FORMAT,
            producer: "by hand".into(),
            target: Target { name: "cpu".into(), arch: "cpu".into(), ranks },
            model: Model {
                arch: "tiny".into(),
                name: "tiny \"quoted\"".into(),
                layers: 1,
                vocab: 16,
                trained_ctx: 8,
                stop: vec![3, 5],
                suppress: vec![],
            },
            limits: Limits { ctx: 8, max_batch: 1, cache_rows: 8, chunk: 2 },
            mesh,
            files: vec![file(0), file(1)],
            weights: Default::default(),
            states: Default::default(),
            phases: Vec::new(),
        };
        Maker { plan, ends: [HEADER; 2] }
    }

    pub(crate) fn weight(&mut self, name: &str, t: &str, part: u32) -> WeightId {
        let t = ty(t);
        let bytes = t.bytes(&SymValues::default()).unwrap();
        let end = &mut self.ends[part as usize];
        let span = Span { part, offset: *end, bytes };
        *end = (*end + bytes).next_multiple_of(32);
        self.plan.files[part as usize].bytes = *end;
        let slices = recipe_slices(&t, &self.plan.mesh, span).unwrap();
        self.plan.weights.push(Recipe { name: name.into(), tensor: format!("{name}.weight"), ty: t, span, slices })
    }

    pub(crate) fn state(&mut self, name: &str, t: &str) -> StateId {
        self.plan.states.push(State { name: name.into(), ty: ty(t) })
    }

    pub(crate) fn phase(&mut self, name: &str, kind: PhaseKind, tokens: u64, syms: &[(&str, u64)]) {
        self.plan.phases.push(Phase {
            name: name.into(),
            kind,
            tokens,
            syms: syms.iter().map(|(s, n)| ((*s).into(), *n)).collect(),
            params: Default::default(),
            buffers: Default::default(),
            arena_bytes: 0,
            steps: Vec::new(),
            segments: Vec::new(),
            overlaps: Vec::new(),
            results: Vec::new(),
        });
    }

    fn last(&mut self) -> &mut Phase {
        self.plan.phases.last_mut().unwrap()
    }

    pub(crate) fn param(&mut self, name: &str, t: &str) -> ParamId {
        self.last().params.push(Param { name: name.into(), ty: ty(t) })
    }

    /// A step of kernel `k` on `inputs` (memory, and a view if it is not seen as it is); returns its outputs' buffers.
    pub(crate) fn step(&mut self, name: &str, k: &str, attrs: &str, inputs: &[(Mem, &str)]) -> Vec<BufId> {
        let kernel = Kernel::from_attrs(k, serde_json::from_str(attrs).unwrap()).unwrap();
        let params = kernel.params();
        let seen: Vec<TensorType> =
            inputs.iter().map(|(m, view)| if view.is_empty() { self.ty_of(*m) } else { ty(view) }).collect();
        let mut types = kernel.result_types(&seen.iter().collect::<Vec<_>>()).unwrap();
        types.drain(..params.iter().filter(|p| p.access == Access::Update).count());
        let mut reads = inputs.iter().zip(seen);
        let (mut args, mut made) = (Vec::new(), Vec::new());
        let bounds = self.last().bounds();
        for p in params {
            let (mem, t) = if p.access == Access::Write {
                let t = types.remove(0);
                let bytes = largest_bytes(&t, &self.plan.mesh, &bounds).unwrap();
                let b = self.last().buffers.push(Buffer { name: name.into(), ty: t.clone(), offset: 0, bytes });
                made.push(b);
                (Mem::Buf(b), t)
            } else {
                let ((mem, _), t) = reads.next().unwrap();
                (*mem, t)
            };
            args.push(Arg { name: p.name, access: p.access, mem, ty: t });
        }
        self.last().steps.push(Step { name: name.into(), kernel, args });
        made
    }

    fn ty_of(&mut self, m: Mem) -> TensorType {
        match m {
            Mem::Weight(w) => self.plan.weights[w].ty.clone(),
            Mem::State(s) => self.plan.states[s].ty.clone(),
            Mem::Param(p) => self.last().params[p].ty.clone(),
            Mem::Buf(b) => self.last().buffers[b].ty.clone(),
        }
    }

    /// Names the results, lays the arena out as tightly as first fit can, and cuts two segments.
    pub(crate) fn finish(&mut self, results: &[(&str, BufId)]) {
        let phase = self.last();
        for (name, b) in results {
            let ty = phase.buffers[*b].ty.clone();
            phase.results.push(PhaseResult { name: (*name).into(), mem: Mem::Buf(*b), ty });
        }
        let touched = |b: BufId| -> Vec<usize> {
            let touches = |s: &Step| s.args.iter().any(|a| a.mem == Mem::Buf(b));
            let mut at: Vec<usize> = (0..phase.steps.len()).filter(|i| touches(&phase.steps[*i])).collect();
            if phase.results.iter().any(|r| r.mem == Mem::Buf(b)) {
                at.push(usize::MAX);
            }
            at
        };
        let lives: Vec<(usize, usize)> =
            phase.buffers.keys().map(|b| (touched(b)[0], *touched(b).last().unwrap())).collect();
        let mut placed: Vec<(usize, u64, u64)> = Vec::new();
        for i in 0..lives.len() {
            let b = BufId::from_u32(i as u32);
            let bytes = phase.buffers[b].bytes;
            let mut offset = 0;
            while let Some((_, at, n)) = placed.iter().find(|(j, at, n)| {
                let together = lives[*j].0 <= lives[i].1 && lives[i].0 <= lives[*j].1;
                together && *at < offset + bytes && offset < at + n
            }) {
                offset = (at + n).next_multiple_of(ALIGN);
            }
            phase.buffers[b].offset = offset;
            placed.push((i, offset, bytes));
        }
        phase.arena_bytes = placed.iter().map(|(_, at, n)| at + n).max().unwrap();
        let n = phase.steps.len();
        phase.segments = vec![Segment { first: 0, count: n / 2 }, Segment { first: n / 2, count: n - n / 2 }];
    }
}

/// One layer of one-headed-key attention and a gated feed-forward, in a prefill and a decode phase.
pub(crate) fn tiny() -> Plan {
    let mut m = Maker::new(&[]);
    let embed = m.weight("token_embd", "f32[16, 32]", 0);
    let norm = m.weight("blk.0.attn_norm", "f32[32]", 0);
    let kv = m.weight("blk.0.kv", "q8_0[16, 32] rows", 0);
    let q = m.weight("blk.0.q", "q8_0[32, 32] rows", 0);
    let o = m.weight("blk.0.o", "f32[32, 32]", 0);
    let ffn_norm = m.weight("blk.0.ffn_norm", "f32[32]", 1);
    let gate = m.weight("blk.0.ffn_gate", "q8_0[32, 32] rows", 1);
    let up = m.weight("blk.0.ffn_up", "q8_0[32, 32] rows", 1);
    let down = m.weight("blk.0.ffn_down", "f32[32, 32]", 1);
    let out_norm = m.weight("output_norm", "f32[32]", 1);
    let head = m.weight("output", "f32[16, 32]", 1);
    let pool = m.state("blk.0.kv_cache", "state f32[8, 16]");
    for (name, kind, tokens) in [("prefill", PhaseKind::Prefill, 2), ("decode_1", PhaseKind::Decode, 1)] {
        m.phase(name, kind, tokens, &[("T", tokens), ("S", 8)]);
        let [ids, rows, seq, len] = ["tokens", "rows", "seq", "len"].map(|n| Mem::Param(m.param(n, "i32[T]")));
        let table = Mem::Param(m.param("table", "i32[1, S]"));
        let w = Mem::Weight;
        let b = |v: Vec<BufId>| Mem::Buf(v[0]);
        let tn = r#"{"spec": "tk,nk->tn"}"#;
        let eps = r#"{"eps": 1e-5}"#;
        let x = b(m.step("embed", "gather", "{}", &[(w(embed), ""), (ids, "")]));
        let n = b(m.step("blk.0.attn_norm", "rms_norm", eps, &[(x, ""), (w(norm), "")]));
        let c = b(m.step("blk.0.kv", "matmul", tn, &[(n, ""), (w(kv), "")]));
        m.step("blk.0.append", "append", "{}", &[(Mem::State(pool), ""), (rows, ""), (c, "")]);
        let k = b(m.step("blk.0.keys", "gather", "{}", &[(Mem::State(pool), ""), (table, "")]));
        let qs = b(m.step("blk.0.q", "matmul", tn, &[(n, ""), (w(q), "")]));
        let attrs = r#"{"parts": 1, "scale": 0.25, "selected": false}"#;
        let ins = [(qs, "f32[T, 2, 16]"), (k, ""), (k, ""), (seq, ""), (len, "")];
        let a = b(m.step("blk.0.attn", "attention", attrs, &ins));
        let p = b(m.step("blk.0.attn_out", "matmul", tn, &[(a, "f32[T, 32]"), (w(o), "")]));
        let x1 = b(m.step("blk.0.attn_residual", "add", "{}", &[(x, ""), (p, "")]));
        let n1 = b(m.step("blk.0.ffn_norm", "rms_norm", eps, &[(x1, ""), (w(ffn_norm), "")]));
        let two = r#"{"spec": "tk,nk->tn", "names": ["gate", "up"]}"#;
        let gu = b(m.step("blk.0.gate_up", "matmul", two, &[(n1, ""), (w(gate), ""), (w(up), "")]));
        let h = b(m.step("blk.0.swiglu", "swiglu", r#"{"pieces": ["gate", "up"]}"#, &[(gu, "")]));
        let f = b(m.step("blk.0.ffn_out", "matmul", tn, &[(h, ""), (w(down), "")]));
        let x2 = b(m.step("blk.0.out", "add", "{}", &[(x1, ""), (f, "")]));
        let n2 = b(m.step("output_norm", "rms_norm", eps, &[(x2, ""), (w(out_norm), "")]));
        let y = m.step("logits", "matmul", tn, &[(n2, ""), (w(head), "")]);
        m.finish(&[("logits", y[0])]);
    }
    m.plan
}

/// The gated feed-forward with one fused weight over two ranks, up to the split activation.
pub(crate) fn fused() -> Plan {
    let mut m = Maker::new(&[("tp", 2)]);
    let embed = m.weight("token_embd", "f32[16, 32]", 0);
    let fused = m.weight("blk.0.ffn_gate_up", "q8_0[{gate: 64, up: 64}/tp, 32] rows", 1);
    m.phase("decode_1", PhaseKind::Decode, 1, &[("T", 1)]);
    let ids = Mem::Param(m.param("tokens", "i32[T]"));
    let x = m.step("embed", "gather", "{}", &[(Mem::Weight(embed), ""), (ids, "")]);
    let spec = r#"{"spec": "tk,nk->tn"}"#;
    let gu = m.step("blk.0.gate_up", "matmul", spec, &[(Mem::Buf(x[0]), ""), (Mem::Weight(fused), "")]);
    let h = m.step("blk.0.swiglu", "swiglu", r#"{"pieces": ["gate", "up"]}"#, &[(Mem::Buf(gu[0]), "")]);
    m.finish(&[("h", h[0])]);
    m.plan
}

/// A gathered activation on two ranks, and a step beside the gather that does not need it.
pub(crate) fn beside() -> Plan {
    let mut m = Maker::new(&[("tp", 2)]);
    let embed = m.weight("token_embd", "f32[16, 32]", 0);
    let up = m.weight("blk.0.ffn_up", "q8_0[64/tp, 32] rows", 1);
    m.phase("decode_1", PhaseKind::Decode, 1, &[("T", 1)]);
    let ids = Mem::Param(m.param("tokens", "i32[T]"));
    let x = Mem::Buf(m.step("embed", "gather", "{}", &[(Mem::Weight(embed), ""), (ids, "")])[0]);
    let spec = r#"{"spec": "tk,nk->tn"}"#;
    let up = Mem::Buf(m.step("up", "matmul", spec, &[(x, ""), (Mem::Weight(up), "")])[0]);
    let h = Mem::Buf(m.step("act", "silu", "{}", &[(up, "")])[0]);
    let g = Mem::Buf(m.step("whole", "all_gather", r#"{"axis": "tp"}"#, &[(h, "")])[0]);
    let s = m.step("beside", "relu", "{}", &[(x, "")])[0];
    let r = m.step("reader", "relu", "{}", &[(g, "")])[0];
    m.finish(&[("s", s), ("r", r)]);
    let phase = m.last();
    // The gather still reads its operand while the step beside it writes.
    phase.buffers[s].offset = phase.arena_bytes.next_multiple_of(ALIGN);
    phase.arena_bytes = phase.buffers[s].offset + phase.buffers[s].bytes;
    phase.overlaps = vec![Overlap { step: 3, done: 5 }];
    m.plan
}

/// Bytes for the plan's files: plausible f32 or q8_0 numbers for each weight, noise elsewhere.
pub(crate) fn files(plan: &Plan) -> Files {
    let mut files: Vec<Vec<u8>> = plan.files.iter().map(|f| vec![0x3c; f.bytes as usize]).collect();
    for (id, w) in &plan.weights {
        let noise = |i: u64| {
            let z = (i + 1 + 7919 * u64::from(id.as_u32())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let bytes: Vec<u8> = match w.ty.elem.name() {
            "q8_0" => (0..w.span.bytes / 34)
                .flat_map(|b| {
                    let scale = glmc_test_f16(0.004 * (1.0 + noise(b)));
                    scale.into_iter().chain((0..32).map(move |i| (noise(b * 32 + i) * 250.0) as i8 as u8))
                })
                .collect(),
            _ => (0..w.span.bytes / 4).flat_map(|i| (noise(i) + 0.3).to_le_bytes()).collect(),
        };
        files[w.span.part as usize][w.span.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    Files(files)
}

/// The bits of a half.
fn glmc_test_f16(x: f32) -> [u8; 2] {
    Tensor::f(vec![1], vec![f64::from(x)]).to_bytes(glmc_ir::ty::Elem::F16).unwrap().try_into().unwrap()
}

/// Runs the tiny plan: two tokens of prefill, then one decode step; all results one after the other.
pub(crate) fn run(plan: &Plan, files: &Files) -> Result<Vec<f64>, EvalError> {
    run_on(plan, PlanInterp::new(plan, Arith::Real, files)?)
}

/// The same of a plan that the verifier has not seen.
pub(crate) fn run_unverified(plan: &Plan, files: &Files) -> Result<Vec<f64>, EvalError> {
    run_on(plan, PlanInterp::new(plan, Arith::Real, files)?.unverified())
}

fn run_on(plan: &Plan, mut interp: PlanInterp<'_>) -> Result<Vec<f64>, EvalError> {
    let i = |v: &[i64]| Tensor::i(vec![v.len()], v.to_vec());
    let table = Tensor::i(vec![1, 3], vec![5, 2, 7]);
    let mut out = Vec::new();
    for (phase, (tokens, rows, seq, len)) in plan
        .phases
        .iter()
        .zip([(vec![4, 11], vec![5, 2], vec![0, 0], vec![1, 2]), (vec![9], vec![7], vec![0], vec![3])])
    {
        let syms = SymValues::default().with("T", tokens.len() as u64).with("S", 3);
        let params = [i(&tokens), i(&rows), i(&seq), i(&len), table.clone()];
        for t in interp.run(phase, &syms, &params)? {
            match t.data {
                Data::F(v) => out.extend(v),
                _ => return Err(EvalError::new("results are floats")),
            }
        }
    }
    Ok(out)
}
