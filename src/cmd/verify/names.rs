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
    /// Provenance in the plan.
    pub(super) name: String,
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
    for (i, step) in phase.steps.iter().enumerate() {
        if let (Kernel::AppendRow(_), Some(Mem::State(s))) = (&step.kernel, step.args.first().map(|a| a.mem)) {
            let pool = &plan.states[s];
            let (name, names) = (format!("{} rows", pool.name), vec![pool.name.clone()]);
            out.insert((i, 0), Known { name, names, ty: pool.ty.clone(), buffer: None });
        }
        for (k, a) in step.args.iter().filter(|a| a.access == Access::Write).enumerate() {
            let Mem::Buf(b) = a.mem else { continue };
            let name = phase.buffers[b].name.clone();
            let mut names = vec![plain(&name).to_owned()];
            names.extend(same.get(&b).into_iter().flatten().cloned());
            names.retain(|n| says_what(n));
            names.dedup();
            out.insert((i, k), Known { name, names, ty: a.ty.clone(), buffer: Some(b) });
        }
    }
    out
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
    use super::says_what;

    #[test]
    fn numbers_are_no_names() {
        assert!(["blk.0.v", "blk.3.q_nope", "logits", "blk.1.v_b"].into_iter().all(says_what));
        assert!(!["blk.0.v26", "v87", "blk.2.unused0"].into_iter().any(says_what));
    }
}
