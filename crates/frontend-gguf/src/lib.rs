//! Reads GGUF files: an own container reader made for hostile input, typed metadata, a claim ledger for weights, the
//! tokenizer and chat template as text, and a writer for test and synthetic files.
//!
//! [`open`] gives the parts of a model; [`Model::load`] gives its config, its claimed weights and its tokenizer. It
//! knows tensor names and architectures, and never knows ranks, kernels or speed.

pub mod arch;
pub mod container;
mod cursor;
pub mod error;
pub mod map;
pub mod metadata;
mod metadata_keys;
mod model;
pub mod set;
pub mod template;
mod tensor_table;
pub mod tokenizer;
pub mod value;
pub mod weights;
pub mod write;

pub use arch::Architecture;
pub use arch::glm_dsa::config::GlmDsaConfig;
pub use container::{Part, TensorInfo};
pub use error::{Class, InputError};
pub use model::Model;
pub use set::{GgufSet, find, open};
pub use weights::{Ledger, LedgerReport, WeightRef};
