//! The `glmc` binary as its users, and those who mean it harm, meet it.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]
#![allow(unsafe_code, reason = "signals, limits and the peak memory of a child are system calls")]

mod cli {
    mod accepted;
    mod bench;
    mod cache;
    mod check;
    mod contract;
    mod deaths;
    mod early;
    mod emit;
    mod explain;
    mod files;
    mod gpu;
    mod hollow;
    mod hostile;
    mod kills;
    mod limits;
    mod measure;
    mod memory;
    mod page;
    mod prompts;
    mod scoring;
    mod signals;
    mod streams;
    mod support;
    mod synth;
    mod tamper;
    mod targets;
    mod templates;
    mod unfit;
    mod verify;
}
