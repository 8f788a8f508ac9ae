//! The typed IR of glmc.

pub mod quant;
