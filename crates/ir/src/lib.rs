//! The typed IR of glmc. Table of contents:
//!
//! - data: [`entities`], [`ty`], [`graph`], [`plan`], [`quant`]
//! - meaning: [`op`] and [`ops`], [`placement`], [`collective`], [`shard_map`], [`kernel`], [`tensor`], [`interp`]
//! - making and judging: [`builder`], [`text`], [`verify`], [`diag`], [`mutate`]
//!
//! This crate knows types, op and quant meaning, kernel contracts and plan data. It never knows files, CUDA, an
//! architecture, a machine's numbers or a choice.

pub mod builder;
pub mod collective;
pub mod diag;
pub mod entities;
pub mod graph;
pub mod interp;
pub mod kernel;
pub mod launch;
pub mod mutate;
pub mod op;
pub mod ops;
pub mod placement;
pub mod plan;
pub mod quant;
pub mod shard_map;
pub mod tensor;
pub mod text;
pub mod ty;
pub mod verify;
