//! End-to-end tests over the crates and the `glmc` binary.

mod e2e {
    mod goldens;
    mod lift;
    mod points;
    mod support;
}
