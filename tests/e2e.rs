//! End-to-end tests over the crates and the `glmc` binary.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

mod e2e {
    mod boundary;
    mod chunks;
    mod context;
    mod cuts;
    mod file_order;
    mod goldens;
    mod indexer_types;
    mod lift;
    mod models;
    mod mtp;
    mod padding;
    mod points;
    mod ranks;
    mod scan;
    mod support;
    mod synth;
    mod thin;
}
