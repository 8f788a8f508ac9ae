//! Owns what is known about `glm-dsa` files: their keys ([`config`]), their tensors
//! ([`weights`]) and their equations (`lift`, `layer`).
//!
//! Dims are named as in the reference: D embedding, V vocabulary, H heads, rq and rkv the query and key-value latents,
//! dn and dr the head's parts without and with rope, dv the value head, F and Fe the dense and expert widths, E
//! experts, Hi and di the indexer's heads and their width.

pub mod config;
mod layer;
pub(crate) mod lift;
pub mod weights;

/// The value of `general.architecture`.
pub const NAME: &str = "glm-dsa";
