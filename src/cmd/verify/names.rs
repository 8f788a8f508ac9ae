//! Under which names a reference may know what a step of a plan wrote. Provenance only: what a value is called, what a
//! collective or a cache says of another value. Never compares.

use std::collections::{BTreeMap, HashMap};

use glmc_ir::entities::BufId;
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::{Mem, Phase, Plan};
use glmc_ir::ty::TensorType;

/// What one output of a step is.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Provenance in the plan; of a value that is only numbered there, what it is a part of, with the number.
    pub(super) name: String,
    /// What it is, whatever its number: the same for all layers, but for the layer's own name before it.
    pub(super) column: String,
    /// Names of the same value, the best first.
    pub(super) names: Vec<String>,
    /// The output's type; of rows that go into a pool that of the pool.
    pub(super) ty: TensorType,
    /// The buffer; none for rows that go into a pool.
    pub(super) buffer: Option<BufId>,
}

/// The outputs of a phase, by step and output.
pub(super) fn of_phase(plan: &Plan, phase: &Phase) -> BTreeMap<(usize, usize), Known> {
    let same = same_values(plan, phase);
    let mut out = BTreeMap::new();
    // Columns of numbered values by what makes them and the first of what they are made of that has a name.
    let mut columns: HashMap<BufId, String> = HashMap::new();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for (i, step) in phase.steps.iter().enumerate() {
        if let (Kernel::AppendRow(_), Some(Mem::State(s))) = (&step.kernel, step.args.first().map(|a| a.mem)) {
            let pool = &plan.states[s];
            let (name, names) = (format!("{} rows", pool.name), vec![pool.name.clone()]);
            out.insert((i, 0), Known { column: name.clone(), name, names, ty: pool.ty.clone(), buffer: None });
        }
        for (k, a) in step.args.iter().filter(|a| a.access == Access::Write).enumerate() {
            let Mem::Buf(b) = a.mem else { continue };
            let name = phase.buffers[b].name.clone();
            let mut names = vec![plain(&name).to_owned()];
            names.extend(same.get(&b).into_iter().flatten().cloned());
            names.retain(|n| says_what(n));
            names.dedup();
            let (name, column) = match names.first() {
                Some(n) if says_what(&name) => (name, n.clone()),
                Some(n) => (format!("{n} ({name})"), format!("{n} on the way")),
                None => {
                    let of = step.args.iter().filter(|a| a.access != Access::Write);
                    let of = of.filter_map(|a| if let Mem::Buf(b) = a.mem { columns.get(&b) } else { None });
                    let column = made_of(&name, step.kernel.name(), of.map(String::as_str));
                    (name, column)
                }
            };
            let n = taken.entry(column.clone()).or_insert(0);
            *n += 1;
            let column = if *n > 1 { format!("{column} {n}") } else { column };
            columns.insert(b, column.clone());
            out.insert((i, k), Known { name, column, names, ty: a.ty.clone(), buffer: Some(b) });
        }
    }
    out
}

/// A column for a numbered value: the kernel and what it is made of, in the value's layer.
fn made_of<'a>(name: &str, kernel: &str, mut of: impl Iterator<Item = &'a str>) -> String {
    let place = name.rfind('.').map_or("", |at| &name[..=at]);
    let of = of.next().map_or_else(String::new, |n| format!(" of {}", n.strip_prefix(place).unwrap_or(n)));
    format!("{place}{kernel}{of}")
}

/// A name without the mark of what nothing reads.
fn plain(name: &str) -> &str {
    name.trim_start_matches('_')
}

/// Whether a name says what a value is: those without one are numbered, in each program in another way.
pub(crate) fn says_what(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let numbered = |prefix: &str| {
        last.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    !numbered("v") && !numbered("unused")
}

/// Other names of buffers: a collective's result is the value that its operand is, in another placement; what is appended
/// to a pool is what the pool is called.
fn same_values(plan: &Plan, phase: &Phase) -> HashMap<BufId, Vec<String>> {
    let mut out: HashMap<BufId, Vec<String>> = HashMap::new();
    let buf = |m: Mem| if let Mem::Buf(b) = m { Some(b) } else { None };
    let mut pairs = Vec::new();
    for step in &phase.steps {
        let mems: Vec<Mem> = step.args.iter().map(|a| a.mem).collect();
        if let (Kernel::Append(_), [Mem::State(s), _, Mem::Buf(x)]) = (&step.kernel, mems.as_slice()) {
            out.entry(*x).or_default().push(plan.states[*s].name.clone());
        }
        if let (Some(_), [x, y]) = (step.kernel.collective(), mems.as_slice())
            && let (Some(x), Some(y)) = (buf(*x), buf(*y))
        {
            pairs.push((x, y));
        }
    }
    // Chains of collectives go both ways; each round carries names one further.
    for _ in 0..pairs.len().min(8) {
        for (x, y) in &pairs {
            for (from, to) in [(*x, *y), (*y, *x)] {
                let own = plain(&phase.buffers[from].name).to_owned();
                let names: Vec<String> = out.get(&from).into_iter().flatten().cloned().chain([own]).collect();
                let known = out.entry(to).or_default();
                names.into_iter().for_each(|n| {
                    if !known.contains(&n) {
                        known.push(n);
                    }
                });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{made_of, says_what};

    #[test]
    fn numbers_are_no_names() {
        assert!(["blk.0.v", "blk.3.q_nope", "logits", "blk.1.v_b"].into_iter().all(says_what));
        assert!(!["blk.0.v26", "v87", "blk.2.unused0"].into_iter().any(says_what));
        let of = ["blk.1.attn_norm", "blk.1.q"];
        assert_eq!(made_of("blk.1.v26", "matmul", of.into_iter()), "blk.1.matmul of attn_norm");
        assert_eq!(made_of("v3", "gather", [].into_iter()), "gather");
    }
}
