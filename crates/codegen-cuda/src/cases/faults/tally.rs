//! What became of planted faults, by class.

use std::collections::BTreeMap;

use glmc_ir::tensor::Tensor;

use super::{Fault, class};
use crate::cases::{Bound, Check};
use crate::host::JobResult;
use crate::request::Generated;

/// The checks of one class and fault.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Row {
    /// Checks with the fault.
    pub checks: usize,
    /// Those in which it changes a result, or what lies round one.
    pub reached: usize,
    /// Those in which that is seen.
    pub found: usize,
    /// Whether it must be reached.
    pub must: bool,
    /// Checks in which it is not seen, or which fail without it.
    pub missed: Vec<String>,
}

/// All of them.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Tally {
    /// By fault, class and, of faults in blocks, stored type.
    pub rows: BTreeMap<(Fault, String, String), Row>,
}

impl Tally {
    /// Judges one check with its fault: what the kernel gave without it and with it, and what is expected.
    pub fn add(
        &mut self,
        fault: Fault,
        (check, kernel): (&Check, &Generated),
        bounds: &[Bound],
        right: &JobResult,
        planted: &JobResult,
        want: &[Tensor],
    ) {
        let quant = check.quant().filter(|_| fault.is_of_blocks());
        let quant = quant.map_or_else(String::new, |q| q.to_string());
        let row = self.rows.entry((fault, class(check, kernel), quant)).or_default();
        row.checks += 1;
        row.must |= fault.must_reach(check);
        let right = match right.as_ref().map_err(Clone::clone).and_then(|b| check.judge(bounds, b, want).map(|_| b)) {
            Ok(back) => back,
            Err(e) => return row.missed.push(format!("{} fails without a fault: {e}", check.what)),
        };
        let seen = planted.as_ref().map_err(Clone::clone).and_then(|b| check.judge(bounds, b, want));
        // Zeros of either sign are one number.
        let same = |b: &Vec<Vec<u8>>| {
            bounds.iter().all(|o| match (b.get(o.buffer), right.get(o.buffer)) {
                (Some(a), Some(b)) => o.numbers(a).ok() == o.numbers(b).ok() && a.get(o.bytes..) == b.get(o.bytes..),
                _ => false,
            })
        };
        if planted.as_ref().is_ok_and(same) {
            return;
        }
        row.reached += 1;
        match seen {
            Err(_) => row.found += 1,
            Ok(l2) => row.missed.push(format!("{}: relative L2 {l2:e} passes", check.what)),
        }
    }

    /// What is wrong: faults that were not seen, classes that none reached, and types that none reached anywhere.
    pub fn failures(&self) -> Vec<String> {
        let mut out = Vec::new();
        let (mut classes, mut types) = (BTreeMap::new(), BTreeMap::new());
        for ((fault, class, quant), row) in &self.rows {
            out.extend(row.missed.iter().map(|m| format!("{} in {class}: {m}", fault.name())));
            if row.must {
                *classes.entry((fault, class)).or_insert(0) += row.reached;
                *types.entry((fault, quant)).or_insert(0) += row.reached;
            }
        }
        for ((fault, of), n) in classes.into_iter().chain(types) {
            if n == 0 {
                out.push(format!("{} in {of}: it changes nothing in any check", fault.name()));
            }
        }
        out
    }

    /// For each fault and contract: classes (of faults in blocks, each with each type), checks, those in which it changes
    /// something, those in which that is seen.
    pub fn by_contract(&self) -> BTreeMap<(Fault, String), [usize; 4]> {
        let mut out: BTreeMap<(Fault, String), [usize; 4]> = BTreeMap::new();
        for ((fault, class, _), row) in &self.rows {
            let contract = class.split(' ').next().unwrap_or(class).to_owned();
            let sum = out.entry((*fault, contract)).or_default();
            [1, row.checks, row.reached, row.found].iter().zip(sum).for_each(|(n, s)| *s += n);
        }
        out
    }
}
