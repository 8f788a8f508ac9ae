//! The `glmc` binary as its users, and those who mean it harm, meet it.
#![allow(unsafe_code, reason = "signals, limits and the peak memory of a child are system calls")]

mod cli {
    mod contract;
    mod hostile;
    mod kills;
    mod support;
    mod tamper;
}
