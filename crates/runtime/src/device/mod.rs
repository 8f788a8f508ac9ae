//! The devices that can execute a plan's steps.
//!
//! Owns what a device computes; never decides which step runs where.

pub mod cpu;
