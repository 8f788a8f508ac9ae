//! Owns `.glir`: the canonical text of modules and plans, and its parser.

mod lexer;
mod types;

pub use types::{parse_dim, parse_type};
