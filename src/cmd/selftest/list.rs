//! What a self-test runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glmc_codegen_cuda::cases::{Check, checks, large, matrices};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options};
use glmc_ir::kernel::Kernel;

use crate::error::CliError;

/// Checks of one contract, type and rounding that a quick test runs.
const QUICK: usize = 2;

/// All checks and the kernel of each. Kernels of contracts that have variants for large machines are also made for
/// one multiprocessor, so that a block goes through many tiles and stages.
pub(super) fn all(seed: u64, arch: Arch, quick: bool) -> Result<(Vec<Check>, Vec<Generated>), CliError> {
    let mut list: Vec<Check> = Kernel::NAMES.iter().flat_map(|n| checks(n, seed, &Options::default())).collect();
    let few = Options { multiprocessors: Some(1), ..Options::default() };
    list.extend(checks("attention", seed, &few));
    let rounded = Options { activations: Activations::BF16, ..Options::default() };
    for name in ["matmul", "grouped_matmul"] {
        list.extend(checks(name, seed, &rounded));
    }
    list.extend(matrices(seed, None));
    list.extend(matrices(seed, Some(1)));
    list.extend(large(seed));
    if quick {
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        list.retain(|c| {
            let class = (c.case.kernel.name(), c.quant(), c.in_lanes(), c.options.activations, c.bounds.0.is_empty());
            let n = taken.entry(format!("{class:?}")).or_default();
            *n += 1;
            *n <= if c.bounds.0.is_empty() { QUICK } else { 1 }
        });
    }
    let (mut seen, mut out, mut kernels) = (BTreeSet::new(), Vec::new(), Vec::new());
    for c in list {
        let k = c.kernel(arch)?;
        // Options that change nothing give the same kernel again.
        if seen.insert((k.name.clone(), c.what.clone(), Arc::as_ptr(&c.case) as usize)) {
            out.push(c);
            kernels.push(k);
        }
    }
    Ok((out, kernels))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collectives span ranks, so that no launch of one rank can be checked against their meaning.
    const COLLECTIVES: [&str; 5] = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard"];

    #[test]
    fn every_contract_type_and_rounding_is_run() {
        for quick in [false, true] {
            let (checks, kernels) = all(7, Arch::Sm90, quick).expect("every kernel is made");
            assert_eq!(checks.len(), kernels.len());
            for name in Kernel::NAMES {
                let run = checks.iter().any(|c| c.case.kernel.name() == *name);
                assert!(run != COLLECTIVES.contains(name), "{name}");
            }
            let matmuls = checks.iter().filter(|c| c.case.kernel.name() == "matmul");
            let types: BTreeSet<_> = matmuls.filter_map(|c| c.quant().map(|q| q.to_string())).collect();
            assert_eq!(
                types.len(),
                glmc_ir::quant::QuantType::ALL.len() + glmc_ir::quant::QuantType::SUB.len(),
                "{types:?}"
            );
            for a in [Activations::F32, Activations::Int8, Activations::BF16] {
                assert!(checks.iter().any(|c| c.options.activations == a && c.in_lanes()), "{a:?}");
            }
        }
    }

    #[test]
    fn another_seed_gives_other_numbers_for_the_same_kernels() {
        let [(a, ka), (b, kb)] = [1, 2].map(|s| all(s, Arch::Sm90, true).expect("every kernel is made"));
        let names = |list: &[Generated]| list.iter().map(|k| k.name.clone()).collect::<BTreeSet<_>>();
        assert_eq!(names(&ka), names(&kb));
        let numbers = |c: &[Check]| format!("{:?}", c[0].case.inputs);
        assert_ne!(numbers(&a), numbers(&b));
    }
}
