//! Owns `.glir`: the canonical text of modules and plans, and its parser.

mod lexer;
mod plan;
mod types;

pub use plan::{parse_plan, print_plan};
pub use types::{parse_dim, parse_type};
