//! A plan measured: what is to be run, where, and what it is held against.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::synth::fill;
use glmc_ir::plan::{PhaseKind, Plan};
use glmc_ir::quant::synth::Fill;
use glmc_passes::cost::{self, PhaseCost, StepCost, TokenBytes};
use glmc_passes::fit::Need;
use glmc_passes::target::Target;
use glmc_runtime::load::read_runnable;

use super::super::device::{self, Where};
use super::super::{cached, figures};
use super::measured::Measured;
use super::pace::Pace;
use super::report;
use super::{cpu, cuda, pace, short, trace};
use crate::cli::{BenchArgs, SizeArgs};
use crate::error::CliError;
use crate::output::{Place, TRACE};

/// What is measured.
pub(super) struct Job {
    pub(super) dir: PathBuf,
    pub(super) plan: Plan,
    pub(super) target: Target,
    /// What each sequence decodes.
    pub(super) pace: Pace,
    pub(super) batch: u64,
    pub(super) prompt: u64,
    /// The rank that runs alone.
    pub(super) rank: Option<usize>,
    /// How the weights are made, if they are.
    pub(super) fills: Option<Vec<Fill>>,
    /// The phase that decodes, and that of a prompt's last chunk.
    pub(super) phase: usize,
    pub(super) prefill: usize,
}

/// What a plan says of its steps.
pub(super) struct Predicted {
    /// Of each step of the phase, on the rank that is measured.
    pub(super) steps: Vec<StepCost>,
    pub(super) phase: PhaseCost,
    pub(super) bytes: TokenBytes,
    pub(super) need: Need,
}

impl Job {
    /// The rank whose part is looked at.
    pub(super) fn rank(&self) -> usize {
        self.rank.unwrap_or(0)
    }

    /// What the plan says of a decode step.
    pub(super) fn predicted(&self) -> Result<Predicted, CliError> {
        self.predicted_at(self.phase, self.pace.ctx)
    }

    fn of(args: &BenchArgs, dir: PathBuf) -> Result<Job, CliError> {
        let at = |e: CliError| e.at(&dir);
        let plan = read_runnable(&dir).map_err(|e| at(e.into()))?;
        let target = figures::target_of(&dir, &plan)?;
        let l = &plan.limits;
        let usage = |m: String| CliError::usage("arguments", m).at(&dir);
        let room = (l.cache_rows / args.batch).min(l.ctx);
        let pace = Pace::fitting(args.ctx, room).map_err(|need| {
            usage(format!(
                "{need} positions are needed of each of {} sequences, of which each has {room}: the plan has a context \
                 of {} and {} cache rows for all; give a smaller --ctx, or compile with a larger --ctx or --cache",
                args.batch, l.ctx, l.cache_rows
            ))
        })?;
        let prompt = args.prompt.unwrap_or(l.chunk.min(l.ctx).min(l.cache_rows));
        if prompt > l.ctx.min(l.cache_rows) {
            return Err(usage(format!("a prompt of {prompt} tokens does not fit into a context of {}", l.ctx)));
        }
        if let Some(r) = args.rank.filter(|r| *r >= plan.target.ranks as usize) {
            return Err(usage(format!("there is no rank {r}: the plan has {}", plan.target.ranks)));
        }
        let phase = plan.phase_for(PhaseKind::Decode, args.batch, pace.positions());
        let phase =
            phase.ok_or_else(|| usage(format!("the plan does not decode {} sequences together", args.batch)))?;
        let last = prompt - (prompt - 1) / l.chunk.max(1) * l.chunk;
        let prefill = plan.phase_for(PhaseKind::Prefill, last, prompt);
        let prefill = prefill.ok_or_else(|| usage(format!("the plan does not read prompts of {prompt} tokens")))?;
        let fills = args.synthetic.then(|| fills(&plan, args.seed)).transpose()?;
        Ok(Job { plan, target, pace, batch: args.batch, prompt, rank: args.rank, fills, phase, prefill, dir })
    }

    /// What the plan says of a step of `phase` that sees `ctx` positions.
    fn predicted_at(&self, phase: usize, ctx: u64) -> Result<Predicted, CliError> {
        let bug = |d: glmc_ir::diag::Diagnostic| CliError::internal(d.to_string());
        let (plan, target) = (&self.plan, &self.target);
        let phase = &plan.phases[phase];
        let missing = || CliError::internal("a plan without ranks");
        let costs = cost::phase_costs(plan, phase, target, ctx).map_err(bug)?;
        let steps = cost::step_costs(plan, phase, target, ctx, self.rank()).map_err(bug)?;
        let need = figures::needs(plan, target)?;
        Ok(Predicted {
            steps,
            phase: costs.into_iter().nth(self.rank()).ok_or_else(missing)?,
            bytes: cost::bytes_per_token(plan, target, ctx).map_err(bug)?,
            need: need.into_iter().nth(self.rank()).ok_or_else(missing)?,
        })
    }
}

/// How each weight's values are made; shapes come from the header of the model's file.
fn fills(plan: &Plan, seed: u64) -> Result<Vec<Fill>, CliError> {
    let path = plan.files.first().map(|f| Path::new(&f.path));
    let path = path.ok_or_else(|| CliError::internal("a plan without files"))?;
    let set = open(path)?;
    let one = |recipe: &glmc_ir::plan::Recipe| {
        let found = set.tensor(&recipe.tensor).map(|(_, info)| info);
        let same = found.filter(|i| i.bytes == recipe.span.bytes && i.type_id == ggml_id(recipe));
        let info = same.ok_or_else(|| {
            let m = format!("has no tensor {} as the plan knows it; compile the model again", recipe.tensor);
            CliError::usage("weights-changed", m).class("plan").of(path)
        })?;
        Ok(fill(seed, &recipe.tensor, info.shape.last().copied().unwrap_or(1)))
    };
    plan.weights.values().map(one).collect()
}

fn ggml_id(recipe: &glmc_ir::plan::Recipe) -> u32 {
    recipe.ty.elem.in_file().storage().map_or(u32::MAX, |q| q.ggml_id())
}

pub(super) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let path = args.plan.as_ref().ok_or_else(|| CliError::usage("arguments", "give a plan or a GGUF file"))?;
    let out = args.trace.as_deref().map(|p| Place::check(TRACE, p)).transpose()?;
    let sizes = sizes(args);
    // Removed at the end.
    let short = args.layers.map(|n| short::plan(path, &sizes, n)).transpose()?;
    let dir = match &short {
        Some(folder) => folder.path().join(short::PLAN),
        None => cached::plan_at(path, &sizes)?,
    };
    let job = Job::of(args, dir)?;
    let place = args.device.unwrap_or(if job.plan.target.arch == "cpu" { Where::Cpu } else { Where::Cuda(0) });
    if let (Where::Cpu, Some(flag)) = (place, for_gpus(args)) {
        return Err(device::for_gpus(flag));
    }
    let measured: Measured = match place {
        Where::Cpu => cpu::measure(&job),
        Where::Cuda(n) => cuda::measure(&job, args, n),
        Where::Several(_) => {
            let m = "a plan is measured on one GPU; --rank R measures one rank of several alone";
            Err(CliError::usage("device", m))
        }
    }
    .map_err(|e| e.at(&job.dir))?;
    let predicted = job.predicted()?;
    if let Some(out) = out {
        let text = trace::events(&job, &predicted, &measured).to_string();
        out.write(text.len() as u64, |f| f.write_all(text.as_bytes()))?;
    }
    let prefill = job.predicted_at(job.prefill, job.prompt)?;
    report::show(&job, args, &predicted, &prefill, &measured)
}

/// The first flag that was given and means nothing on the processor.
fn for_gpus(args: &BenchArgs) -> Option<&'static str> {
    let given = [
        ("--rank", args.rank.is_some()),
        ("--activations", args.activations.is_some()),
        ("--nvrtc", args.nvrtc.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
}

/// What a GGUF file is compiled for.
fn sizes(args: &BenchArgs) -> SizeArgs {
    let is_model = args.plan.as_ref().is_some_and(|p| p.is_file()) || args.target.is_some();
    if !is_model {
        return SizeArgs::default();
    }
    let positions = Pace::whole(args.ctx.unwrap_or(pace::CTX)).positions();
    let ctx = positions.max(args.prompt.unwrap_or(0));
    SizeArgs {
        target: args.target.clone(),
        ctx: Some(ctx),
        max_batch: Some(args.batch),
        cache: Some(ctx.max(positions.saturating_mul(args.batch))),
        ..SizeArgs::default()
    }
}
