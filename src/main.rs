//! glmc
fn main() {}
