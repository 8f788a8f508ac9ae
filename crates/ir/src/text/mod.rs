//! Owns `.glir`: the canonical text of modules and plans, and its parser.

mod lexer;
mod parse;
mod plan;
mod print;
mod types;

pub use lexer::is_word;
pub use parse::{parse_module, parse_module_unchecked};
pub use plan::{parse_plan, print_plan};
pub use print::{Names, print_function, print_module, print_with_errors, weight_place};
pub use types::{parse_dim, parse_type};
