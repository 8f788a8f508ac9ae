//! Owns the verifiers: one function a rule, each with a stable code. Never mends, never chooses.

pub mod plan;
