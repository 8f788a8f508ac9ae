//! One meaning at every level: random modules and random small models through all passes, every kernel contract on the
//! CPU device, and mutants of a real plan.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "../crates/ir/tests/support/placed.rs"]
mod placed;
#[path = "../crates/ir/tests/support/random.rs"]
mod random;
#[path = "support/run.rs"]
mod run;
#[path = "../crates/ir/tests/support/sharded.rs"]
mod sharded;
#[path = "support/stages.rs"]
#[allow(dead_code, reason = "the text tests use the rest of it")]
mod stages;
#[path = "../crates/ir/tests/support/values.rs"]
mod values;

mod equivalence {
    mod alone;
    mod compile;
    mod contracts;
    mod devices;
    mod emulated;
    mod layer;
    mod models;
    mod modules;
    mod mutants;
    mod placed;
    mod rank_files;
    mod rank_models;
    mod rank_mutants;
    mod rank_run;
    mod rotate;
    mod rule_cases;
    mod rules;
    mod script;
    mod small_model;
    mod validate;
    mod whole;
}
