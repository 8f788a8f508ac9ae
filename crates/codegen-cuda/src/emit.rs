//! Composes kernels into translation units.

use std::collections::BTreeSet;

use crate::request::Generated;

/// One translation unit of many kernels: headers once, then each body. Equal kernels appear once.
pub fn unit<'a>(kernels: impl IntoIterator<Item = &'a Generated>) -> String {
    let mut includes = BTreeSet::from(["prim.cuh"]);
    let mut seen = BTreeSet::new();
    let mut bodies = String::new();
    for k in kernels {
        includes.extend(&k.includes);
        if seen.insert(&k.name) {
            bodies.push('\n');
            bodies.push_str(&k.body);
        }
    }
    let head: String = includes.iter().map(|i| format!("#include \"{i}\"\n")).collect();
    format!("{head}{bodies}")
}
