//! Runs compiled plans.
//!
//! Owns devices, sampling and text. It never knows an architecture, a tensor's name or why a step exists.

pub mod device;
pub mod sampler;
pub mod text;
