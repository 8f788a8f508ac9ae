//! One rank of eight alone on the host emulation: its own launches, and stand-ins that sum or join copies of its part.

use std::collections::HashMap;
use std::path::Path;

use glmc_codegen_cuda::Arch;
use glmc_codegen_cuda::host::PlanRun;
use glmc_codegen_cuda::program::{Choices, Program};
use glmc_ir::collective::CollectiveKind;
use glmc_ir::kernel::Access;
use glmc_ir::launch::Place;
use glmc_ir::plan::Mem;
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, Want};
use glmc_runtime::load::map_weights;

use super::compile::compile_for;
use super::emulated::{Emulated, OPTIONS, model};

#[test]
fn a_rank_alone_runs_its_launches_and_stands_in_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let c = compile_for(&model(folder.path()), &OPTIONS, &crate::run::machine("8x-cpu").target);
    let plan = c.unwrap_or_else(|e| panic!("{e}")).plan;
    let stored = map_weights(plan.clone(), Path::new(".")).unwrap();
    let all = Program::new(&plan, Arch::Sm90, &Choices::default()).unwrap();
    assert!(all.clone().alone(&plan, 8).is_err());
    for rank in [0, 5] {
        let program = all.clone().alone(&plan, rank).unwrap_or_else(|e| panic!("{e}"));
        for (own, of) in program.launches.phases.iter().zip(&all.launches.phases) {
            let whole = of.calls.iter().filter(|c| c.rank == rank).count();
            let meets =
                of.calls.iter().filter(|c| all.kernels[c.kernel].name.starts_with("meet_") && c.rank == 0).count();
            assert!(own.calls.len() <= whole + meets && own.calls.len() > meets, "{} calls", own.calls.len());
            let of_rank = |p: &Place| !matches!(p, Place::Mem { rank, .. } | Place::Symbols { rank } if *rank != 0);
            assert!(own.calls.iter().all(|c| c.rank == 0 && c.args.iter().all(of_rank)));
            assert!(own.calls.iter().all(|c| c.args.len() == program.kernels[c.kernel].signature.0.len()));
        }
        let used = program.launches.phases.iter().flat_map(|p| &p.calls).map(|c| c.kernel).max().unwrap();
        assert!(used < program.kernels.len());
        let bytes = |_: usize, w| stored.weights[rank].bytes(w).to_vec();
        let run = PlanRun::new(&plan, program, &bytes, Path::new(env!("CARGO_TARGET_TMPDIR")))
            .unwrap_or_else(|e| panic!("{e}"));
        let device = Emulated::alone(run, rank);
        let loaded = map_weights(plan.clone(), Path::new(".")).unwrap();
        let mut engine = Engine::on(loaded, Box::new(device)).unwrap();
        let seq = engine.start();
        let prompt = engine.feed(seq, &[65, 30, 9, 120, 7], Want::All).unwrap();
        assert!(prompt.iter().all(|x| x.is_finite()));
        // What each buffer of the decode step holds.
        let mut held: HashMap<Mem, Vec<f32>> = HashMap::new();
        let phase = plan.phase("decode_1").unwrap();
        let mut see = |_: &Running<'_>, s: Seen<'_>| {
            let written = phase.steps[s.step].args.iter().filter(|a| a.access == Access::Write).nth(s.output);
            if let (Some(a), Output::F32(v)) = (written, s.data) {
                held.insert(a.mem, v.to_vec());
            }
            Ok(())
        };
        let logits = engine.decode_observed(&[(seq, 11)], (rank == 0).then_some(&mut see)).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()));
        if rank > 0 {
            continue;
        }
        let (mut sums, mut joins) = (0, 0);
        for step in &phase.steps {
            let Some(what) = step.kernel.collective() else { continue };
            let of = |access| step.args.iter().find(|a| a.access == access).and_then(|a| held.get(&a.mem));
            let (Some(x), Some(y)) = (of(Access::Read), of(Access::Write)) else { continue };
            match what.kind {
                CollectiveKind::AllReduce => {
                    let sum = |x: &f32| (1..8).fold(*x, |v, _| v + x);
                    assert_eq!(*y, x.iter().map(sum).collect::<Vec<_>>(), "{}", step.name);
                    sums += 1;
                }
                CollectiveKind::AllGather => {
                    assert!(y.iter().enumerate().all(|(i, v)| *v == x[i % x.len()]), "{}", step.name);
                    joins += 1;
                }
                _ => {}
            }
        }
        println!("rank {rank}: {sums} sums and {joins} joins of copies");
        assert!(sums > 3 && joins > 0, "{sums} sums, {joins} joins");
    }
}
