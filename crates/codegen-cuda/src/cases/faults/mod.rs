//! Faults planted in kernels, one at a time, to show that the judge of a check sees them: at every class of shapes of
//! every family, each fault that changes a bit of a result must be beyond the budget, or seen by what lies round the
//! buffers. Never runs a kernel.
//!
//! Two are planted in the blocks that a kernel reads: what a kernel with the fault computes of a weight is what the right
//! kernel computes of that weight with its bytes so changed. Two are planted in the kernel's own constants and functions.

mod blocks;
mod source;
mod tally;

pub use tally::{Row, Tally};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glmc_ir::kernel::Kernel;
use glmc_ir::ty::{Extent, TensorType};

use super::{Case, Check, In, checks, matrices};
use crate::arch::Arch;
use crate::request::{Activations, GenerateError, Generated, Options};

/// What is planted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// The two nibbles of the first byte of codes of every block exchanged.
    Nibbles,
    /// The scales of every block taken from the next one; of the last from the first.
    NextScale,
    /// The last row of the result, or its last element where it is not made by rows, not written.
    LastRow,
    /// One token, row or element more than there are.
    Tail,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 4] = [Fault::Nibbles, Fault::NextScale, Fault::LastRow, Fault::Tail];

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Nibbles => "two nibbles exchanged",
            Fault::NextScale => "a scale of the next block",
            Fault::LastRow => "the last row skipped",
            Fault::Tail => "the tail not masked",
        }
    }

    /// Whether it is in what stored types differ by.
    pub fn is_of_blocks(self) -> bool {
        matches!(self, Fault::Nibbles | Fault::NextScale)
    }

    /// The check and the kernel with the fault; `None` where there is nothing that could have it. What is expected is
    /// that of the check without it.
    pub fn plant(self, check: &Check, kernel: &Generated) -> Option<(Check, Generated)> {
        match self {
            Fault::Nibbles | Fault::NextScale => {
                let mut found = false;
                let mut one = |i: &In| match i {
                    In::W(ty, bytes) => {
                        let changed = ty.elem.storage().and_then(|q| blocks::changed(self, q, bytes));
                        found |= changed.is_some();
                        In::W(ty.clone(), changed.unwrap_or_else(|| bytes.clone()))
                    }
                    other => other.clone(),
                };
                let inputs = check.case.inputs.iter().map(&mut one).collect();
                let case = Case { what: check.case.what.clone(), kernel: check.case.kernel.clone(), inputs };
                found.then(|| (Check { case: Arc::new(case), ..check.clone() }, kernel.clone()))
            }
            Fault::LastRow => source::last_row(check, kernel).map(|k| (check.clone(), k)),
            Fault::Tail => source::tail(kernel).map(|k| (behind(check), k)),
        }
    }

    /// Whether it must change something in some check of the class: a number of tokens that a kernel knows needs no mask,
    /// and a single block has no next one.
    fn must_reach(self, check: &Check) -> bool {
        match self {
            Fault::Nibbles | Fault::LastRow => true,
            Fault::Tail => symbolic(check),
            Fault::NextScale => check.case.inputs.iter().any(|i| match i {
                In::W(ty, bytes) => {
                    ty.elem.storage().is_some_and(|q| q.block_elems() > 1 && bytes.len() > q.block_bytes())
                }
                _ => false,
            }),
        }
    }
}

/// The check with something behind what it reads, as in memory that is sized by bounds: another token, whose numbers are
/// not those of the first and whose ids are possible.
fn behind(check: &Check) -> Check {
    let row = |n: usize, ty: &TensorType| {
        let tokens = ty.dims.first().and_then(|d| d.extent.as_const()).unwrap_or(1);
        n / usize::try_from(tokens).unwrap_or(1).max(1)
    };
    let one = |i: &In| match i {
        In::F(ty, v) => {
            let more = v.iter().take(row(v.len(), ty)).map(|x| 1.5 - x);
            In::F(ty.clone(), v.iter().copied().chain(more).collect())
        }
        In::I(ty, v) => {
            let most = v.iter().copied().max().unwrap_or(0);
            In::I(ty.clone(), v.iter().copied().chain(vec![most; row(v.len(), ty)]).collect())
        }
        other => other.clone(),
    };
    let inputs = check.case.inputs.iter().map(one).collect();
    let case = Case { what: check.case.what.clone(), kernel: check.case.kernel.clone(), inputs };
    Check { case: Arc::new(case), ..check.clone() }
}

/// Whether a size that the kernel meets is a symbol.
fn symbolic(check: &Check) -> bool {
    check.types.iter().flat_map(|t| &t.dims).any(|d| matches!(d.extent, Extent::Sym(_)))
}

/// The class of a check: contract, the templates that its kernel is made of, layout, rounding, and whether it has symbols.
pub fn class(check: &Check, kernel: &Generated) -> String {
    let mut paths: Vec<&str> =
        kernel.body.match_indices("<Config>(").map(|(at, _)| word_before(&kernel.body, at)).collect();
    paths.dedup();
    let layout = if check.in_lanes() { ", lane" } else { "" };
    let symbols = if symbolic(check) { ", symbols" } else { "" };
    let rounding = match check.options.activations {
        Activations::F32 => "",
        Activations::BF16 => ", bf16",
        Activations::Int8 => ", int8",
    };
    format!("{} by {}{layout}{rounding}{symbols}", check.case.kernel.name(), paths.join(" + "))
}

fn word_before(text: &str, end: usize) -> &str {
    let start = text[..end].rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(0, |i| i + 1);
    &text[start..end]
}

/// Checks that faults are planted in: at most `most` of each class and stored type, with their kernels.
///
/// # Errors
/// [`GenerateError`].
pub fn all(seed: u64, arch: Arch, most: usize) -> Result<Vec<(Check, Generated)>, GenerateError> {
    let mut list: Vec<Check> = Kernel::NAMES.iter().flat_map(|n| checks(n, seed, &Options::default())).collect();
    let rounded = Options { activations: Activations::BF16, ..Options::default() };
    ["matmul", "grouped_matmul"].iter().for_each(|n| list.extend(checks(n, seed, &rounded)));
    list.extend(matrices(seed, None));
    list.extend(matrices(seed, Some(1)));
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut out = Vec::new();
    // Large cases first: those of one element hide what is wrong with many.
    list.sort_by_key(|c| std::cmp::Reverse(results(c).min(LARGE)));
    for c in list {
        let k = c.kernel(arch)?;
        let n = taken.entry(format!("{} {:?}", class(&c, &k), c.quant())).or_default();
        *n += 1;
        if *n <= most {
            out.push((c, k));
        }
    }
    Ok(out)
}

/// The checks that can have a fault, with it, and their places in `list`; of faults in the source one of each class,
/// whatever its stored type.
pub fn plant_all(fault: Fault, list: &[(Check, Generated)]) -> Vec<(usize, (Check, Generated))> {
    let mut seen = BTreeSet::new();
    let new = |c: &Check, k: &Generated, seen: &mut BTreeSet<String>| fault.is_of_blocks() || seen.insert(class(c, k));
    let all = list.iter().enumerate().filter(|(_, (c, k))| new(c, k, &mut seen));
    all.filter_map(|(i, (c, k))| Some((i, fault.plant(c, k)?))).collect()
}

/// Results from which on a case is as good as a larger one.
const LARGE: u64 = 64;

fn results(c: &Check) -> u64 {
    let types: Vec<_> = c.case.inputs.iter().map(In::ty).collect();
    let of = c.case.kernel.result_types(&types).unwrap_or_default();
    of.iter().map(|t| t.elems(&Default::default()).unwrap_or(0)).sum()
}
