//! Mutants of a plan of eight ranks, whole or uneven parts a rank: what changes its numbers is refused by the verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_ir::interp::Arith;
use glmc_ir::kernel::Kernel;
use glmc_ir::mutate::{MutantClass, Reordered, mutate, reorder};
use glmc_ir::plan::Plan;
use glmc_ir::verify::plan::verify_plan;
use glmc_passes::target::Target;

use super::compile::{Compiled, compile_for};
use super::script::{interpret, interpret_unverified};
use super::small_model;
use crate::random::Choices;
use crate::run::{Files, Rng};

/// Mutants that are counted for each class, and seeds that are tried for them.
const WANTED: usize = 12;
const SEEDS: u64 = 320;

/// Eight ranks whose links cost nothing, so that everything is split that can be.
fn target() -> Target {
    let mut t = Target::named("8x-cpu").expect("a shipped target");
    t.device.launch_s = 1e-12;
    if let Some(l) = &mut t.link {
        (l.latency_s, l.bytes_per_s) = (1e-12, 1e18);
    }
    t
}

/// The first random model whose plan has merges, other collectives, split blocks and caches.
fn model(dir: &Path) -> (u64, Compiled) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf-bad/ok-base.gguf");
    let options = LiftOptions { ctx: 80, max_batch: 1, cache_rows: 80, chunk: 4 };
    for seed in 0..64 {
        let mut rng = Rng(seed);
        let list: Vec<u32> = (0..4000).map(|_| rng.next() as u32).collect();
        let path = dir.join(format!("{seed}.gguf"));
        small_model::write(&mut Choices::new(&list), &base, &path);
        let c = compile_for(&path, &options, &target()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let steps = || c.plan.phases.iter().flat_map(|p| &p.steps);
        let merges = steps().filter(|s| matches!(s.kernel, Kernel::AllReduce(_))).count();
        let gathers = steps().filter(|s| matches!(s.kernel, Kernel::AllGather(_))).count();
        let cut = |w: &&glmc_ir::plan::Recipe| w.ty.elem.block().0 > 1 && w.slices[0] != w.slices[1];
        let cuts = c.plan.weights.values().filter(cut).count();
        if merges >= 8 && gathers >= 4 && cuts >= 4 && c.plan.weights.len() < 60 {
            println!("seed {seed}: {merges} merges, {gathers} gathers, {cuts} weights of blocks are split");
            return (seed, c);
        }
    }
    panic!("no model of 64 has what mutants need");
}

/// What a run without the verifier shows.
enum Seen {
    /// Other numbers, or poison.
    Wrong,
    /// The same numbers.
    Same,
    /// It cannot be run.
    Fails,
}

fn seen(mutant: &Plan, files: &Files, right: &[f64], order: Option<&Reordered>) -> Seen {
    match interpret_unverified(mutant, files, order) {
        Ok(v) => {
            let far = |(a, b): (&f64, &f64)| a.is_nan() || (a - b).abs() > 1e-9 * (1.0 + b.abs());
            if v.len() != right.len() || v.iter().zip(right).any(far) { Seen::Wrong } else { Seen::Same }
        }
        // Rows of a pool that no append wrote are NaN, which a choice refuses.
        Err(e) if ["poison", "NaN"].iter().any(|w| e.to_string().contains(w)) => Seen::Wrong,
        Err(_) => Seen::Fails,
    }
}

/// The kill table and what it is judged by.
#[derive(Default)]
struct Table {
    text: String,
    short: Vec<String>,
    survivors: Vec<String>,
}

impl Table {
    fn row(&mut self, name: &str, counted: usize, same: usize, fails: usize, codes: &BTreeMap<String, usize>) {
        let codes: Vec<String> = codes.iter().map(|(c, n)| format!("{c} {n}")).collect();
        self.text += &format!("{name}: {counted} count, refused by {}\n", codes.join(", "));
        if same + fails > 0 {
            self.text += &format!("  beside them {same} that give the same numbers, {fails} that cannot be run\n");
        }
        if counted < WANTED {
            self.short.push(format!("{name}: {counted}"));
        }
    }
}

fn class(c: &Compiled, right: &[f64], class: MutantClass, table: &mut Table) {
    let (mut tried, mut codes) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    let (mut counted, mut same, mut fails) = (0, 0, 0);
    for seed in 0..SEEDS {
        if counted == WANTED {
            break;
        }
        let Some(mutant) = mutate(&c.plan, class, seed) else { continue };
        if !tried.insert(serde_json::to_string(&mutant).expect("plans serialise")) {
            continue;
        }
        match seen(&mutant, &c.files, right, None) {
            Seen::Same => same += 1,
            Seen::Fails => fails += 1,
            Seen::Wrong => {
                counted += 1;
                match verify_plan(&mutant) {
                    Ok(()) => table.survivors.push(format!("{class:?} seed {seed}")),
                    Err(found) => found
                        .0
                        .iter()
                        .map(|d| d.code)
                        .collect::<BTreeSet<_>>()
                        .into_iter()
                        .for_each(|code| *codes.entry(code.to_owned()).or_default() += 1),
                }
            }
        }
    }
    table.row(&format!("{class:?}"), counted, same, fails, &codes);
}

/// Another order of collectives on one rank: no plan can say it, and a file that tries is not read.
fn other_orders(c: &Compiled, right: &[f64], table: &mut Table) {
    let (mut tried, mut codes) = (Vec::new(), BTreeMap::<String, usize>::new());
    let (mut counted, mut same, mut fails) = (0, 0, 0);
    for seed in 0..SEEDS {
        let Some(order) = reorder(&c.plan, seed).filter(|o| !tried.contains(o)) else { continue };
        if counted == WANTED {
            break;
        }
        match seen(&c.plan, &c.files, right, Some(&order)) {
            Seen::Same => same += 1,
            Seen::Fails => fails += 1,
            Seen::Wrong => {
                counted += 1;
                let mut json = serde_json::to_value(&c.plan).expect("plans serialise");
                let at = c.plan.phases.iter().position(|p| p.name == order.phase).expect("a phase of the plan");
                json["phases"][at]["steps_of_rank"] = serde_json::json!({ order.rank.to_string(): order.steps });
                match serde_json::from_value::<Plan>(json) {
                    Ok(_) => table.survivors.push(format!("{order:?}")),
                    Err(e) => {
                        assert!(e.to_string().contains("unknown field `steps_of_rank`"), "{e}");
                        *codes.entry("the plan format".into()).or_default() += 1;
                    }
                }
            }
        }
        tried.push(order);
    }
    table.row("ReorderOnOneRank", counted, same, fails, &codes);
}

#[test]
fn every_mutant_of_a_plan_of_eight_ranks_that_counts_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, c) = model(dir.path());
    let right = interpret(&c.plan, Arith::Real, &c.files).unwrap_or_else(|e| panic!("{e}"));
    assert!(right.iter().all(|x| x.is_finite()) && right.iter().any(|x| x.abs() > 1e-2));
    let again = interpret_unverified(&c.plan, &c.files, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again, right, "on a right plan both interpreters agree to the bit");
    let mut table = Table::default();
    for k in MutantClass::ALL {
        class(&c, &right, k, &mut table);
    }
    other_orders(&c, &right, &mut table);
    print!("{}", table.text);
    assert_eq!(table.survivors, [""; 0]);
    assert_eq!(table.short, [""; 0], "classes with fewer than {WANTED} mutants that count");
    insta::assert_snapshot!(table.text);
}
