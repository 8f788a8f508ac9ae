//! Runs compiled plans: loading ([`load`]), devices ([`device`]), ranks that meet ([`collective`]), sequences
//! ([`engine`]), sampling ([`sampler`]), text ([`text`]), the memory that a plan needs ([`need`]) and the number of
//! threads ([`threads`]). It never knows an architecture, a tensor's name or why a step exists.

pub mod collective;
pub mod device;
mod died;
pub mod engine;
mod engine_can_run;
mod error;
pub mod fault;
pub mod load;
pub mod made;
mod map;
pub mod need;
pub mod sampler;
pub mod scan;
pub mod text;
pub mod threads;

pub use error::RuntimeError;
