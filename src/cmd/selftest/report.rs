//! What a self-test says: a line a family, then each failure.

use std::collections::BTreeMap;

use glmc_codegen_cuda::cases::Check;
use serde_json::json;

use super::super::gpu::Gpu;
use super::super::{print_json, print_line};
use super::collectives::Stressed;
use super::model::{self, ModelCheck};
use crate::error::CliError;

/// The relative L2 of a check, or what is wrong.
pub(super) type Outcome = Result<f64, String>;

/// All that was found.
pub(super) struct Report<'c> {
    pub(super) seed: u64,
    pub(super) quick: bool,
    /// Until all was compiled, until the end.
    pub(super) seconds: [f64; 2],
    pub(super) kernels: usize,
    pub(super) checks: &'c [Check],
    pub(super) outcomes: Vec<Outcome>,
    /// A whole model.
    pub(super) models: Vec<ModelCheck>,
    /// All-reduces under replay.
    pub(super) collectives: Vec<Stressed>,
}

/// One family at one layout and rounding.
#[derive(Default)]
struct Row {
    checks: usize,
    failures: usize,
    worst: f64,
    budget: f64,
    types: std::collections::BTreeSet<String>,
}

fn key(c: &Check) -> (String, &'static str, String) {
    let layout = if c.in_lanes() { "lane" } else { "rows" };
    (c.case.kernel.name().to_owned(), layout, format!("{:?}", c.options.activations).to_lowercase())
}

impl Report<'_> {
    pub(super) fn failures(&self) -> usize {
        let models = self.models.iter().map(|m| &m.outcome);
        let collectives = self.collectives.iter().filter(|c| c.outcome.is_err()).count();
        self.outcomes.iter().chain(models).filter(|o| o.is_err()).count() + collectives
    }

    pub(super) fn total(&self) -> usize {
        self.checks.len() + self.models.len() + self.collectives.len()
    }

    fn rows(&self) -> BTreeMap<(String, &'static str, String), Row> {
        let mut rows: BTreeMap<_, Row> = BTreeMap::new();
        for (c, o) in self.checks.iter().zip(&self.outcomes) {
            let r = rows.entry(key(c)).or_default();
            r.checks += 1;
            r.budget = c.budget();
            r.types.extend(c.quant().map(|q| q.to_string()));
            match o {
                Ok(l2) => r.worst = r.worst.max(*l2),
                Err(_) => r.failures += 1,
            }
        }
        rows
    }

    pub(super) fn print(&self, gpu: &Gpu, as_json: bool) -> Result<(), CliError> {
        let failed = self.checks.iter().zip(&self.outcomes).filter_map(|(c, o)| o.as_ref().err().map(|e| (c, e)));
        if as_json {
            let rows: Vec<_> = self
                .rows()
                .into_iter()
                .map(|((family, layout, activations), r)| {
                    json!({
                        "family": family, "layout": layout, "activations": activations, "checks": r.checks,
                        "failures": r.failures, "worst_l2": r.worst, "budget": r.budget, "types": r.types,
                    })
                })
                .collect();
            let models: Vec<_> = self
                .models
                .iter()
                .map(|m| json!({ "what": m.what, "l2": m.outcome.as_ref().ok(), "budget": model::BUDGET, "why": m.outcome.as_ref().err() }))
                .collect();
            let collectives: Vec<_> = self.collectives.iter().map(Stressed::json).collect();
            let failures: Vec<_> =
                failed.map(|(c, e)| json!({ "family": c.case.kernel.name(), "case": c.what, "why": e })).collect();
            return print_json(&json!({
                "seed": self.seed, "quick": self.quick, "machine": gpu.json(), "kernels": self.kernels,
                "checks": self.total(), "models": models, "collectives": collectives, "compile_seconds": self.seconds[0], "seconds": self.seconds[1],
                "passed": self.failures() == 0, "families": rows, "failures": failures,
            }));
        }
        print_line(&format!(
            "{:<16} {:<5} {:<5} {:>6} {:>6} {:>9} {:>9}  result",
            "family", "lies", "acts", "types", "checks", "worst L2", "budget"
        ))?;
        for ((family, layout, activations), r) in self.rows() {
            let result = if r.failures == 0 { "ok".to_owned() } else { format!("{} FAIL", r.failures) };
            let (types, checks) = (r.types.len(), r.checks);
            print_line(&format!(
                "{family:<16} {layout:<5} {activations:<5} {types:>6} {checks:>6} {:>9.1e} {:>9.0e}  {result}",
                r.worst, r.budget
            ))?;
        }
        for m in &self.models {
            let (l2, result) = match &m.outcome {
                Ok(l2) => (*l2, "ok".to_owned()),
                Err(e) => (f64::NAN, format!("FAIL {e}")),
            };
            print_line(&format!("{:<46} {l2:>9.1e} {:>9.0e}  {result}", format!("model, {}", m.what), model::BUDGET))?;
        }
        for c in &self.collectives {
            print_line(&c.line())?;
        }
        for (c, e) in failed.take(50) {
            print_line(&format!("FAIL {} {}: {e}", c.case.kernel.name(), c.what))?;
        }
        print_line(&format!(
            "{} checks of {} kernels, {} fail, {:.1} s ({:.1} s until compiled), seed {}",
            self.total(),
            self.kernels,
            self.failures(),
            self.seconds[1],
            self.seconds[0],
            self.seed
        ))
    }
}
