//! The shipped model placed on 1 to 8 ranks: the ranks compute what one rank computes, and so does the plan.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_frontend_gguf::{Model, open};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::Interp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::ty::SymValues;
use glmc_ir::verify::plan::verify_plan;
use glmc_passes::cost::TUNE_CTX;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::pass::PassCx;
use glmc_passes::shard::Shard;
use glmc_passes::target::Target;
use glmc_passes::{lower, pipeline, schedule};

use super::compile::compile;
use super::script::{ROWS, interpret};
use crate::run::{Files, InModule, wrap};

const OPTIONS: LiftOptions = LiftOptions { ctx: 16, max_batch: 1, cache_rows: ROWS as u64, chunk: 4 };

/// The shipped model with an indexer that selects 2 of up to 6 positions.
fn model(dir: &Path) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let set = open(&shipped).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("glm-dsa.attention.indexer.top_k", 2u32);
    let path = dir.join("model.gguf");
    w.write(&path).unwrap();
    path
}

/// Machines on which other placements pay: free links, and the shipped one on as many ranks as it has.
fn targets(ranks: u32) -> Vec<(&'static str, Target)> {
    let base = |launch: f64| {
        let mut t = Target::named("8x-cpu").unwrap();
        (t.ranks, t.device.launch_s) = (ranks, launch);
        t
    };
    let mut fast = base(1e-9);
    if let Some(l) = &mut fast.link {
        (l.latency_s, l.bytes_per_s) = (1e-9, 1e15);
    }
    let mut all = vec![("free links", fast)];
    if ranks == 8 {
        all.push(("8x-cpu", base(2e-6)));
    }
    all
}

/// The largest difference as a share of `b`'s largest entry; unequal integers or poison are infinitely apart.
fn apart(a: &[Tensor], b: &[Tensor]) -> f64 {
    assert_eq!(a.len(), b.len());
    let one = |(a, b): (&Tensor, &Tensor)| match (&a.data, &b.data) {
        (Data::F(x), Data::F(y)) if a.shape == b.shape => {
            let size = y.iter().filter(|y| y.is_finite()).fold(1e-30, |m: f64, y| m.max(y.abs()));
            let far = |(x, y): (&f64, &f64)| match (x == y || x.is_nan() && y.is_nan(), (x - y).abs()) {
                (true, _) => 0.0,
                (_, d) if d.is_nan() => f64::INFINITY,
                (_, d) => d / size,
            };
            x.iter().zip(y).map(far).fold(0.0, f64::max)
        }
        (x, y) if x == y && a.shape == b.shape => 0.0,
        _ => f64::INFINITY,
    };
    a.iter().zip(b).map(one).fold(0.0, f64::max)
}

/// Operands of an entry for a chunk of 4 tokens: parameters by name, pools of poison.
fn operands(m: &glmc_ir::graph::Module, entry: &str) -> (SymValues, Vec<Tensor>) {
    let f = &m.funcs[m.func_named(entry).unwrap()];
    let n: i64 = if entry == "prefill" { 4 } else { 1 };
    let syms = SymValues::default().with("T", n as u64).with("S", n as u64).with("R", 1);
    let list = |v: Vec<i64>| Tensor::i(vec![v.len()], v);
    let args = f.params.iter().map(|p| match f.value_name(*p).as_str() {
        _ if f.ty(*p).state => Tensor::poison(f.ty(*p), &syms).unwrap(),
        "tokens" => list(vec![65, 300, 9, 1200][..n as usize].to_vec()),
        "pos" | "row" => list((0..n).collect()),
        "seq" => list(vec![0; n as usize]),
        "len" => list((1..=n).collect()),
        "table" => Tensor::i(vec![1, n as usize], (0..n).collect()),
        _ => list(vec![n - 1]),
    });
    let args = args.collect();
    (syms, args)
}

#[test]
fn the_ranks_compute_what_one_rank_computes() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let one = compile(&path, &OPTIONS).unwrap_or_else(|e| panic!("{e}"));
    let want = interpret(&one.plan, Arith::Real, &one.files).unwrap_or_else(|e| panic!("{e}"));
    let saturated = &one.stages.iter().find(|(n, _)| n == "saturate").unwrap().1;
    let files: &Files = &one.files;
    let model = open(&path).unwrap();
    let lifted = Model::load(&model).unwrap().lift(&OPTIONS).unwrap();
    let entries: Vec<schedule::EntryInfo> = lifted
        .entries
        .iter()
        .map(|e| schedule::EntryInfo { func: e.func.clone(), kind: e.kind, tokens: e.tokens })
        .collect();
    let mut moved = 0;
    for ranks in [1, 2, 3, 4, 8] {
        for (name, target) in targets(ranks) {
            let what = format!("{name}, {ranks} ranks");
            let on = Machine::new(&target, TUNE_CTX);
            if ranks == 1 {
                let done = pipeline::run(lifted.module.clone(), &entries, &on, None, &mut |_, _| {});
                assert!(done.unwrap().sharded.is_none());
                continue;
            }
            let (placed, report) = Shard::new(on).place(saturated, &mut PassCx::new(None)).unwrap();
            if let Err(e) = glmc_ir::verify::verify_module(&placed) {
                panic!("{what}: {e}");
            }
            assert!(report.fits, "{what}: {} bytes", report.bytes);
            moved += report.functions.iter().map(|f| f.collectives.len()).sum::<usize>();
            for entry in ["prefill", "decode_1"] {
                let (syms, args) = operands(&placed, entry);
                let (a, b) = (saturated.func_named(entry).unwrap(), placed.func_named(entry).unwrap());
                let source = InModule(saturated, files);
                let whole = Interp::new(saturated, Arith::Real, syms.clone(), &source).run(a, args.clone()).unwrap();
                let source = InModule(&placed, files);
                let got = RankInterp::new(&placed, Arith::Real, syms, &source).run(b, args);
                let d = apart(&got.unwrap_or_else(|e| panic!("{what} @{entry}: {e}")), &whole);
                assert!(d <= 1e-9, "{what} @{entry}: {d:e}");
            }
            let lowered = lower::lower(&placed, &mut PassCx::new(None)).unwrap();
            let scheduled = schedule::schedule(&placed, &lowered, &entries).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut plan = wrap(&placed, scheduled, files);
            (plan.files, plan.model, plan.limits) =
                (one.plan.files.clone(), one.plan.model.clone(), one.plan.limits.clone());
            verify_plan(&plan).unwrap_or_else(|e| panic!("{what}: {e}"));
            let got = interpret(&plan, Arith::Real, files).unwrap_or_else(|e| panic!("{what}: {e}"));
            let size = want.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / size);
            let d = far.fold(0.0, |m: f64, d| if d.is_nan() { f64::INFINITY } else { m.max(d) });
            assert!(got.len() == want.len() && d <= 1e-9, "{what}: plan off by {d:e}");
            println!(
                "{what}: {} bytes a rank, {} states, cut {}, plan off by {d:.1e}",
                report.bytes,
                report.functions.iter().map(|f| f.states).max().unwrap_or(0),
                report.cut
            );
        }
    }
    assert!(moved > 100, "{moved} collectives");
}
