//! Owns the text of lowered functions, for people and snapshots. It is not read back.

use std::fmt::Write as _;

use glmc_ir::entities::Value;
use glmc_ir::graph::{Function, Module, ValueDef};
use glmc_ir::kernel::Access;

use super::{Lowered, LoweredStep};

/// The launches, calls and views of each function of `m`, one a line.
pub fn print_lowered(m: &Module, lowered: &[Lowered]) -> String {
    let mut out = String::new();
    for (f, low) in m.funcs.values().zip(lowered) {
        let _ = writeln!(out, "@{}", f.name);
        for step in &low.steps {
            let _ = writeln!(out, "  {}", line(m, f, step));
        }
        let mut views: Vec<_> = low.views.iter().collect();
        views.sort();
        for (v, of) in views {
            let _ = writeln!(out, "  view {} of {}", name(m, f, *v), name(m, f, *of));
        }
    }
    out
}

fn line(m: &Module, f: &Function, step: &LoweredStep) -> String {
    let list = |all: &[Value]| all.iter().map(|v| name(m, f, *v)).collect::<Vec<_>>().join(", ");
    match step {
        LoweredStep::Call { func, label, args, results } => {
            format!("{} = call @{} {label:?} ({})", list(results), m.funcs[*func].name, list(args))
        }
        LoweredStep::Launch { kernel, inputs, outputs } => {
            let params = kernel.params();
            let ins = params.iter().filter(|p| p.access != Access::Write).zip(inputs);
            let ins: Vec<String> = ins.map(|(p, v)| format!("{}: {}", p.name, name(m, f, *v))).collect();
            let attrs = kernel.attrs();
            let attrs = if attrs.is_empty() { String::new() } else { format!(" {}", serde_json::Value::Object(attrs)) };
            format!("{} = {}{attrs} ({})", list(outputs), kernel.name(), ins.join(", "))
        }
    }
}

fn name(m: &Module, f: &Function, v: Value) -> String {
    match f.values[v].def {
        ValueDef::Weight(w) => format!("@{}", m.weights[w].name),
        _ => format!("%{}", f.value_name(v)),
    }
}
