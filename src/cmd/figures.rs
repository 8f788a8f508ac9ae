//! Owns how memory and predicted times are shown, for people and as JSON. `compile`, `inspect` and `explain` share it.

use std::path::Path;

use glmc_ir::collective::CollectiveKind;
use glmc_ir::diag::Diagnostic;
use glmc_ir::plan::{Phase, PhaseKind, Plan, Step};
use glmc_passes::cost::{self, PhaseCost, TokenBytes};
use glmc_passes::fit::{Fit, Need, TooLarge};
use glmc_passes::target::Target;
use serde_json::{Value, json};

use super::human_bytes;
use crate::error::CliError;

/// The target's description in a plan directory.
pub(crate) const TARGET: &str = "target.toml";

/// What a plan takes and what its steps are predicted to take.
pub(crate) struct Figures {
    /// A rank an entry.
    pub(crate) needs: Vec<Need>,
    /// What each rank has, if the target says.
    memory: Option<u64>,
    pub(crate) bytes: TokenBytes,
    /// One decoded token on the slowest rank.
    decode: Option<PhaseCost>,
}

fn bug(d: Diagnostic) -> CliError {
    CliError::internal(d.to_string())
}

/// Whether a plan fits its target.
pub(crate) fn fit(plan: &Plan, target: &Target) -> Result<Result<(), Box<TooLarge>>, CliError> {
    Ok(Fit { plan, target }.check().map_err(bug)?.map(drop))
}

/// What each rank needs.
pub(crate) fn needs(plan: &Plan, target: &Target) -> Result<Vec<Need>, CliError> {
    Fit { plan, target }.needs().map_err(bug)
}

/// The description that the plan in `dir` was made for.
///
/// # Errors
/// It cannot be read, breaks the schema, or is that of another machine than the plan says.
pub(crate) fn target_of(dir: &Path, plan: &Plan) -> Result<Target, CliError> {
    let path = dir.join(TARGET);
    let refuse = |why: String| CliError::usage("plan-invalid", why).class("plan").of(&path);
    let text = glmc_runtime::load::read_sealed(dir, TARGET)?;
    let text = String::from_utf8(text).map_err(|e| refuse(e.to_string()))?;
    let target = Target::parse(&text).map_err(|e| refuse(format!("{e}; compile the model again")))?;
    let (own, of_plan) = ((&target.name, &target.arch, target.ranks), &plan.target);
    if own != (&of_plan.name, &of_plan.arch, of_plan.ranks) {
        let m = format!(
            "describes `{}`, {} ranks of {}; the plan is for `{}`, {} ranks of {}: compile the model again",
            own.0, own.2, own.1, of_plan.name, of_plan.ranks, of_plan.arch
        );
        return Err(refuse(m));
    }
    Ok(target)
}

/// The slowest rank's cost of a phase.
pub(crate) fn slowest(plan: &Plan, phase: &Phase, target: &Target, tune_ctx: u64) -> Result<PhaseCost, CliError> {
    let costs = cost::phase_costs(plan, phase, target, tune_ctx).map_err(bug)?;
    let slowest = costs.into_iter().max_by(|a, b| a.step_s.total_cmp(&b.step_s));
    slowest.ok_or_else(|| CliError::internal("a plan without ranks"))
}

impl Figures {
    pub(crate) fn of(plan: &Plan, target: &Target, tune_ctx: u64) -> Result<Self, CliError> {
        Ok(Figures {
            needs: needs(plan, target)?,
            memory: target.device.memory_bytes,
            bytes: cost::bytes_per_token(plan, target, tune_ctx).map_err(bug)?,
            decode: cost::decode(plan, target, tune_ctx).map_err(bug)?,
        })
    }

    /// A rank an entry: each part, the pools by kind, and the sum.
    pub(crate) fn memory_json(&self) -> Value {
        let rank = |n: &Need| {
            json!({
                "weights": n.weights, "caches": n.cache_bytes(), "cache_kinds": n.caches, "arena": n.arena,
                "collectives": n.collectives, "context": n.context, "graphs": n.graphs, "reserve": n.reserve,
                "total": n.total(), "available": self.memory,
            })
        };
        self.needs.iter().map(rank).collect()
    }

    /// Tokens a second of one sequence, and the step behind it.
    pub(crate) fn predicted_json(&self) -> Value {
        let tps = self.decode.as_ref().map(PhaseCost::tokens_per_s);
        json!({ "decode_tps": tps, "decode": self.decode.as_ref().map(step_json) })
    }

    /// The same for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let largest = self.needs.iter().max_by_key(|n| n.total());
        if let Some(n) = largest {
            let of = match self.memory {
                Some(m) => format!("of {}", human_bytes(m)),
                None => "(the target states no memory: weights stay in their files)".to_owned(),
            };
            let whose = if self.needs.len() > 1 { "memory of the fullest rank" } else { "memory" };
            lines.push(format!("  {whose}: {} {of}", human_bytes(n.total())));
            let parts = n.parts().into_iter().filter(|p| p.1 > 0);
            let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", human_bytes(bytes))).collect();
            lines.push(format!("    {}", parts.join(", ")));
        }
        lines.extend(self.decode.as_ref().map(step_lines).into_iter().flatten());
        lines
    }
}

/// Collectives of a step in which something travels, at full context: of the smallest decode phase, and of a prefill
/// chunk.
pub(crate) fn collectives_json(plan: &Plan) -> Value {
    let travels = |s: &Step| match s.kernel.collective() {
        Some(c) => !matches!(c.kind, CollectiveKind::Shard { .. }),
        None => false,
    };
    let of = |kind: PhaseKind| {
        let smallest = plan.phase_for(kind, 1, plan.limits.ctx).map(|i| &plan.phases[i]);
        smallest.map_or(0, |p| p.steps.iter().filter(|s| travels(s)).count())
    };
    json!({ "decode": of(PhaseKind::Decode), "prefill": of(PhaseKind::Prefill) })
}

/// A step by class, with its share of the byte limit.
pub(crate) fn step_json(c: &PhaseCost) -> Value {
    let mut v = json!(c);
    v["share_of_limit"] = json!(c.share());
    v
}

/// The same for people.
pub(crate) fn step_lines(c: &PhaseCost) -> Vec<String> {
    let k = &c.classes_s;
    let mut lines = vec![
        format!(
            "  predicted {} at context {}: {} a step, {:.1} tok/s, {:.0} % of the byte limit",
            c.phase,
            c.context,
            human_seconds(c.step_s),
            c.tokens_per_s(),
            c.share() * 100.0
        ),
        format!(
            "    weights {}, caches {}, collectives {}, launches {}, other {}",
            human_seconds(k.weights),
            human_seconds(k.caches),
            human_seconds(k.collectives),
            human_seconds(k.launches),
            human_seconds(k.other)
        ),
    ];
    if c.collectives > 0 {
        let (some, all, hidden) = (c.overlapped, c.collectives, human_seconds(c.hidden_s));
        lines.push(format!("    {some} of {all} collectives have launches beside them, which hides {hidden}"));
    }
    lines
}

/// `12.3 ms` and the like.
pub(crate) fn human_seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}
