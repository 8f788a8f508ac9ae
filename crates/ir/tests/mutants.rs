//! Mutants of the small plan: whatever changes what a plan computes is refused by the verifier.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{files, fused, run, run_unverified, tiny};
use glmc_ir::mutate::{MutantClass, mutate};
use glmc_ir::plan::Plan;
use glmc_ir::verify::plan::verify_plan;

const SEEDS: u64 = 24;

/// Whether a run without the verifier shows the bug: other numbers, or poison.
fn counts(mutant: &Plan, right: &[f64]) -> bool {
    match run_unverified(mutant, &files(&tiny())) {
        Ok(v) => {
            v.len() != right.len()
                || v.iter().zip(right).any(|(a, b)| a.is_nan() || (a - b).abs() > 1e-9 * (1.0 + b.abs()))
        }
        Err(e) => e.to_string().contains("poison"),
    }
}

#[test]
fn the_small_plan_runs() {
    let out = run(&tiny(), &files(&tiny())).unwrap();
    assert_eq!(out.len(), 3 * 16);
    assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| x.abs() > 1e-3), "{out:?}");
}

#[test]
fn every_mutant_that_counts_is_refused() {
    let plan = tiny();
    let right = run(&plan, &files(&plan)).unwrap();
    let (mut table, mut total) = (String::new(), 0);
    for class in MutantClass::ALL {
        let mut seen = BTreeSet::new();
        let (mut counted, mut codes) = (0, BTreeMap::<&str, u32>::new());
        for seed in 0..SEEDS {
            let Some(mutant) = mutate(&plan, class, seed) else { continue };
            if !seen.insert(serde_json::to_string(&mutant).unwrap()) || !counts(&mutant, &right) {
                continue;
            }
            counted += 1;
            let found = match verify_plan(&mutant) {
                Err(d) => d,
                Ok(()) => panic!("{class:?} seed {seed} changes the numbers and is accepted"),
            };
            for code in found.0.iter().map(|d| d.code).collect::<BTreeSet<_>>() {
                *codes.entry(code).or_default() += 1;
            }
        }
        if MutantClass::ON_RANKS.contains(&class) {
            assert_eq!(counted, 0, "{class:?} needs ranks");
            continue;
        }
        assert!(counted > 0, "no mutant of class {class:?} counts");
        let codes: Vec<String> = codes.iter().map(|(c, n)| format!("{c} {n}")).collect();
        table += &format!("{class:?}: {counted} of {counted} refused: {}\n", codes.join(", "));
        total += counted;
    }
    assert!(total >= 40, "only {total} mutants count");
    table += &format!("all: {total}\n");
    insta::assert_snapshot!(table);
}

#[test]
fn the_mutator_is_a_function_of_its_seed() {
    for class in MutantClass::ALL {
        for seed in 0..4 {
            assert_eq!(mutate(&tiny(), class, seed), mutate(&tiny(), class, seed));
        }
        let any = (0..SEEDS).any(|s| mutate(&tiny(), class, s).is_some_and(|m| m != tiny()));
        assert!(any != MutantClass::ON_RANKS.contains(&class), "{class:?}");
    }
}

#[test]
fn shards_of_two_ranks_that_change_places_are_refused() {
    let plan = fused();
    let mutants: Vec<Plan> =
        (0..8).filter_map(|s| mutate(&plan, MutantClass::SwapShards, s)).filter(|m| *m != plan).collect();
    assert!(!mutants.is_empty());
    for m in mutants {
        assert!(verify_plan(&m).unwrap_err().0.iter().all(|d| d.code == "weight-order"));
    }
}

#[test]
fn no_mutant_of_a_mutant_makes_the_verifier_panic() {
    for seed in 0..400u64 {
        let mut plan = if seed % 3 == 0 { fused() } else { tiny() };
        for round in 0..6u64 {
            let class = MutantClass::ALL[(seed * 7 + round * 5) as usize % MutantClass::ALL.len()];
            if let Some(m) = mutate(&plan, class, seed ^ round << 16) {
                plan = m;
            }
        }
        let _ = verify_plan(&plan);
    }
}

/// Every number of the plan's JSON, one at a time, set to numbers that overflow what they can.
#[test]
fn hostile_numbers_do_not_make_the_verifier_panic() {
    let json = serde_json::to_string(&fused()).unwrap();
    let digits = |c: char| c.is_ascii_digit();
    let mut judged = 0;
    for (start, _) in json.char_indices().filter(|(i, c)| digits(*c) && !json[..*i].ends_with(digits)) {
        let end = start + json[start..].find(|c| !digits(c)).unwrap();
        for evil in ["0", "1", "18446744073709551615", "9223372036854775808", "4294967295", "281474976710656"] {
            let text = format!("{}{evil}{}", &json[..start], &json[end..]);
            if let Ok(plan) = serde_json::from_str::<Plan>(&text) {
                let _ = verify_plan(&plan);
                judged += 1;
            }
        }
    }
    assert!(judged > 500, "{judged}");
}

/// The list of a table of ids.
fn rows(table: &mut serde_json::Value) -> &mut Vec<serde_json::Value> {
    if table.is_object() { table["elems"].as_array_mut().unwrap() } else { table.as_array_mut().unwrap() }
}

#[test]
fn seed_bug_disconnected_output() {
    let mut value: serde_json::Value = serde_json::from_str(&serde_json::to_string(&tiny()).unwrap()).unwrap();
    let phase = &mut value["phases"][0];
    let arena = phase["arena_bytes"].as_u64().unwrap().next_multiple_of(256);
    phase["arena_bytes"] = (arena + 256).into();
    let buffers = rows(&mut phase["buffers"]);
    let fresh = format!("b{}", buffers.len());
    buffers.push(serde_json::json!({ "name": "blk.0.q_out", "ty": "f32[T, 32]", "offset": arena, "bytes": 256 }));
    // The query projection writes a buffer of its own; attention goes on reading the old one.
    let step = &mut phase["steps"][5];
    assert_eq!(step["name"], "blk.0.q");
    step["args"][2]["mem"] = fresh.into();
    let plan: Plan = serde_json::from_value(value).unwrap();
    let e = run(&plan, &files(&tiny())).unwrap_err();
    assert!(e.to_string().contains("poison"), "{e}");
    insta::assert_snapshot!(verify_plan(&plan).unwrap_err());
}

#[test]
fn seed_bug_shard_order() {
    let mut value: serde_json::Value = serde_json::from_str(&serde_json::to_string(&fused()).unwrap()).unwrap();
    let recipe = &mut rows(&mut value["weights"])[1];
    let (offset, bytes) = (recipe["span"]["offset"].as_u64().unwrap(), recipe["span"]["bytes"].as_u64().unwrap());
    // The seam is forgotten: rank 0 reads the first half of the file (all of gate), rank 1 the second (all of up).
    let half = |i: u64| {
        let half = bytes / 2;
        serde_json::json!([{ "part": 1, "offset": offset + i * half, "bytes": half, "count": 1, "stride": half }])
    };
    recipe["slices"] = serde_json::json!([half(0), half(1)]);
    let plan: Plan = serde_json::from_value(value).unwrap();
    insta::assert_snapshot!(verify_plan(&plan).unwrap_err());
}
