//! The sharded text tests as plans on the CPU: 1, 2, 4 and 8 ranks, each with its own threads and arena, against the plan
//! interpreter; and what happens when a rank finishes early, fails, or stays away.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::plan::{PhaseKind, Plan};
use glmc_ir::tensor::Tensor;
use glmc_ir::text::parse_module;
use glmc_ir::ty::SymValues;
use glmc_ir::verify::plan::verify_plan;
use glmc_passes::lower;
use glmc_passes::pass::PassCx;
use glmc_passes::schedule::{self, EntryInfo};
use glmc_runtime::RuntimeError;
use glmc_runtime::device::Device;
use glmc_runtime::device::cpu::CpuGroup;
use glmc_runtime::load::Loaded;

use super::rank_run::{group, load, rests, same, words};
use crate::run::{Files, Rng, machine, random, wrap};
use crate::sharded::{meshes, on_mesh};

/// Runs of each entry on each mesh.
const SEEDS: u64 = 6;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/glir/sharded")
}

fn module(file: &str) -> Module {
    let text = std::fs::read_to_string(folder().join(file)).expect("the file is there");
    parse_module(&text).expect("it parses")
}

/// The plan in program order, or with launches beside collectives.
fn plan_of(m: &Module, files: &Files, overlap: bool) -> Result<Plan, String> {
    let entries: Vec<EntryInfo> =
        m.entries().map(|(_, f)| EntryInfo { func: f.name.clone(), kind: PhaseKind::Prefill, tokens: 1 }).collect();
    let mut cx = PassCx::new(None);
    let lowered = lower::lower(m, &mut cx).map_err(|d| d.to_string())?;
    let scheduled = if overlap {
        schedule::schedule_for(m, &lowered, &entries, &machine("8x-cpu"), &mut cx)
    } else {
        schedule::schedule(m, &lowered, &entries)
    };
    let scheduled = scheduled.map_err(|d| d.to_string())?;
    let plan = wrap(m, scheduled, files);
    verify_plan(&plan).map_err(|e| e.to_string())?;
    Ok(plan)
}

/// Symbol values and whole parameters of a phase.
fn inputs(plan: &Plan, index: usize, rng: &mut Rng, most: usize) -> (SymValues, Vec<Tensor>) {
    let phase = &plan.phases[index];
    let value = |bound: &u64, rng: &mut Rng| 1 + rng.below(7.min(*bound as usize)) as u64;
    let syms = SymValues(phase.syms.iter().map(|(s, bound)| (s.clone(), value(bound, rng))).collect());
    // The device, unlike the interpreter, wants a sequence that exists of tokens that see nothing, too.
    let table = phase.param_named("table").and_then(|t| phase.params[t].ty.shape(&syms)).map_or(1, |s| s[0] as usize);
    let most = |name: &str| if name == "seq" { most.min(table - 1) } else { most };
    let params = phase.params.values().map(|p| random(&p.ty, &syms, rng, most(&p.name))).collect();
    (syms, params)
}

/// Two steps of each phase on random operands, caches carried; how many parts were compared, by phase.
fn check(loaded: &Loaded, files: &Files) -> Result<Vec<usize>, String> {
    let plan = &loaded.plan;
    let mut compared = vec![0; plan.phases.len()];
    for (index, phase) in plan.phases.iter().enumerate() {
        for seed in 0..SEEDS {
            let mut rng = Rng(seed);
            let mut interp = PlanInterp::new(plan, Arith::Typed, files).map_err(|e| e.to_string())?;
            let mut group = group(plan)?;
            group.set_before(Some(rests(seed)));
            for _ in 0..2 {
                let (syms, params) = inputs(plan, index, &mut rng, seed as usize % 3);
                // Random ids may lie outside what they index, and random tables name rows that nothing wrote.
                let Ok(want) = interp.run(phase, &syms, &params) else { break };
                let own: Vec<Vec<i32>> = params.iter().map(words).collect();
                let at = |e: String| format!("{} on {:?}, seed {seed}: {e}", phase.name, plan.mesh);
                group.run(plan, index, &loaded.weights, &syms, &own, None).map_err(|e| at(e.to_string()))?;
                compared[index] += same(&group, plan, phase, &syms, &want).map_err(at)?;
                if let Some(rank) = (0..plan.target.ranks as usize).find(|r| !group.is_poisoned(phase, *r)) {
                    return Err(at(format!("the arena of rank {rank} was not poisoned when it had finished")));
                }
            }
        }
    }
    Ok(compared)
}

#[test]
fn sharded_files_run_on_the_ranks_of_one_process() {
    let mut files: Vec<_> =
        std::fs::read_dir(folder()).expect("the folder").map(|e| e.expect("an entry").path()).collect();
    files.retain(|p| p.extension().is_some_and(|x| x == "glir"));
    files.sort();
    let (mut total, mut overlaps) = (0, 0);
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        if !text.contains("; verify: ok") {
            continue;
        }
        let m = parse_module(&text).expect("it parses");
        for n in [1, 2, 4, 8] {
            for mesh in meshes(&m, n) {
                let on = on_mesh(&m, &mesh).expect("the file has this mesh");
                let files = Files::synth(&on);
                let dir = tempfile::tempdir().expect("a folder");
                let plan = plan_of(&on, &files, true).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                overlaps += plan.phases.iter().map(|p| p.overlaps.len()).sum::<usize>();
                let loaded = load(plan, &files, dir.path()).expect("it loads");
                let compared = check(&loaded, &files).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(compared.iter().all(|n| *n > 0), "{}: {compared:?} on {mesh:?}", path.display());
                total += compared.iter().sum::<usize>();
            }
        }
    }
    println!("{total} parts of results compared; launches beside {overlaps} collectives");
    assert!(overlaps >= 6, "{overlaps}");
}

/// The plan of `mlp.glir` on four ranks, with its ranks and one step's inputs.
struct Mlp {
    loaded: Loaded,
    group: CpuGroup,
    syms: SymValues,
    params: Vec<Tensor>,
    want: Vec<Tensor>,
    _dir: tempfile::TempDir,
}

fn mlp() -> Mlp {
    on_four("mlp.glir", false)
}

fn on_four(file: &str, overlap: bool) -> Mlp {
    let m = module(file);
    let on = on_mesh(&m, &meshes(&m, 4)[0]).expect("a mesh of four");
    let files = Files::synth(&on);
    let dir = tempfile::tempdir().expect("a folder");
    let loaded = load(plan_of(&on, &files, overlap).expect("a plan"), &files, dir.path()).expect("it loads");
    let (syms, params) = inputs(&loaded.plan, 0, &mut Rng(5), 1);
    let mut interp = PlanInterp::new(&loaded.plan, Arith::Typed, &files).expect("a plan");
    let want = interp.run(&loaded.plan.phases[0], &syms, &params).expect("it has an answer");
    let group = group(&loaded.plan).expect("ranks");
    Mlp { loaded, group, syms, params, want, _dir: dir }
}

impl Mlp {
    fn run(&mut self) -> Result<(), RuntimeError> {
        let own: Vec<Vec<i32>> = self.params.iter().map(words).collect();
        self.group.run(&self.loaded.plan, 0, &self.loaded.weights, &self.syms, &own, None)
    }

    fn right(&self) -> Result<usize, String> {
        same(&self.group, &self.loaded.plan, &self.loaded.plan.phases[0], &self.syms, &self.want)
    }

    /// The step of the only all_reduce.
    fn meeting(&self) -> usize {
        let steps = &self.loaded.plan.phases[0].steps;
        steps.iter().position(|s| s.kernel.name() == "all_reduce").expect("there is one")
    }
}

#[test]
fn nobody_reads_the_arena_of_a_rank_that_has_finished() {
    let mut m = mlp();
    let (last, meeting) = (m.loaded.plan.phases[0].steps.len() - 1, m.meeting());
    assert!(meeting < last);
    // Rank 3 goes on from the meeting only when all others are done and their arenas are poison.
    let done = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(Mutex::new(0));
    let (ended, waited) = (Arc::clone(&done), Arc::clone(&seen));
    m.group.set_before(Some(Box::new(move |rank, step| {
        if rank != 3 && step == last {
            ended.fetch_add(1, Ordering::SeqCst);
        }
        if rank == 3 && step == meeting + 1 {
            let since = Instant::now();
            while ended.load(Ordering::SeqCst) < 3 && since.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // From the begin of their last step to the poison.
            std::thread::sleep(Duration::from_millis(100));
            *waited.lock().expect("no panic") = ended.load(Ordering::SeqCst);
        }
        Ok(())
    })));
    m.run().expect("it runs");
    assert_eq!((*seen.lock().expect("no panic"), done.load(Ordering::SeqCst)), (3, 3));
    assert!(m.right().expect("right parts") > 0);
    for rank in 0..4 {
        assert!(m.group.is_poisoned(&m.loaded.plan.phases[0], rank));
    }
}

/// Runs a plan in which rank 1 comes to the collective only when rank 0 has begun the step behind it, or after a second.
/// Whether rank 0 had.
fn goes_on(m: &mut Mlp) -> bool {
    let meeting = m.meeting();
    let (ahead, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (at, waited) = (Arc::clone(&ahead), Arc::clone(&seen));
    m.group.set_before(Some(Box::new(move |rank, step| {
        if rank == 0 && step == meeting + 1 {
            at.fetch_add(1, Ordering::SeqCst);
        }
        if rank == 1 && step == meeting {
            let since = Instant::now();
            while at.load(Ordering::SeqCst) == 0 && since.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
            waited.store(at.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        Ok(())
    })));
    m.run().expect("it runs");
    assert!(m.right().expect("right parts") > 0);
    seen.load(Ordering::SeqCst) == 1
}

#[test]
fn a_rank_goes_on_before_the_others_come() {
    let mut m = on_four("beside.glir", true);
    assert_eq!(m.loaded.plan.phases[0].overlaps.len(), 1, "{:?}", m.loaded.plan.phases[0].overlaps);
    assert!(goes_on(&mut m), "the ranks waited for each other at the start of the collective");
    // In program order they do wait.
    assert!(!goes_on(&mut on_four("beside.glir", false)));
}

#[test]
fn a_rank_that_fails_beside_a_collective_stops_all() {
    for step in 0..on_four("beside.glir", true).loaded.plan.phases[0].steps.len() {
        let mut m = on_four("beside.glir", true);
        m.group.set_before(Some(Box::new(move |rank, at| match (rank, at) {
            (2, at) if at == step => Err(RuntimeError::Request("made to fail".into())),
            _ => Ok(()),
        })));
        let since = Instant::now();
        let e = m.run().expect_err("a rank fails");
        assert!(since.elapsed() < Duration::from_secs(20), "the others waited");
        assert!(e.to_string().starts_with("rank 2: made to fail"), "{e}");
        m.group.set_before(None);
        m.run().expect("it runs");
        assert!(m.right().expect("right parts") > 0);
    }
}

#[test]
fn a_rank_that_fails_stops_all_and_is_named() {
    for step in 0..mlp().loaded.plan.phases[0].steps.len() {
        let mut m = mlp();
        let name = m.loaded.plan.phases[0].steps[step].name.clone();
        m.group.set_before(Some(Box::new(move |rank, at| match (rank, at) {
            (2, at) if at == step => Err(RuntimeError::Request(format!("made to fail before `{name}`"))),
            _ => Ok(()),
        })));
        let since = Instant::now();
        let e = m.run().expect_err("a rank fails");
        assert!(since.elapsed() < Duration::from_secs(20), "the others waited");
        assert!(e.to_string().starts_with("rank 2: made to fail before `"), "{e}");
        // The ranks can run again.
        m.group.set_before(None);
        m.run().expect("it runs");
        assert!(m.right().expect("right parts") > 0);
    }
}

#[test]
fn a_rank_that_stays_away_is_named_by_those_who_wait() {
    let mut m = mlp();
    m.group.set_patience(Duration::from_millis(100));
    let meeting = m.meeting();
    m.group.set_before(Some(Box::new(move |rank, step| {
        if rank == 1 && step == meeting {
            std::thread::sleep(Duration::from_millis(1500));
        }
        Ok(())
    })));
    let e = m.run().expect_err("a rank stays away").to_string();
    assert!(e.contains("(all_reduce): rank 1 did not come within"), "{e}");
}

#[test]
fn a_step_that_fails_on_a_rank_names_rank_and_step() {
    let m = module("vocab.glir");
    let on = on_mesh(&m, &meshes(&m, 2)[0]).expect("a mesh of two");
    let files = Files::synth(&on);
    let dir = tempfile::tempdir().expect("a folder");
    let loaded = load(plan_of(&on, &files, false).expect("a plan"), &files, dir.path()).expect("it loads");
    let mut group = group(&loaded.plan).expect("ranks");
    let syms = SymValues::default().with("T", 1_000_000);
    let e = group.run(&loaded.plan, 0, &loaded.weights, &syms, &[vec![0]], None).expect_err("too many tokens");
    assert!(e.to_string().starts_with("rank 0: step `step` (symbols): "), "{e}");
}
