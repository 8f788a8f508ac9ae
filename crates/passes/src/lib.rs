//! The passes of glmc, from a lifted module to a plan. Table of contents: [`pipeline`] (the list of passes and the
//! driver that verifies after each), [`pass`], the passes themselves ([`canonicalise`], [`rotate`], [`specialise`],
//! [`egraph`], [`prune`], [`shard`], [`lower`], [`schedule`]), [`target`] (machine descriptions), [`cost`] (what a plan costs on one), [`fit`] (whether it fits) and
//! [`validate`] (passes against the interpreters).
//!
//! This crate knows op rules, kernel contracts and target files. It never knows tensor names, file bytes, CUDA text or
//! device handles.

pub mod canonicalise;
pub mod cost;
pub mod egraph;
pub mod fit;
pub mod lower;
pub mod pass;
pub mod pipeline;
pub mod prune;
pub mod rotate;
pub mod schedule;
pub mod shard;
pub mod specialise;
pub mod target;
pub mod validate;
