//! `glmc compile`: from a GGUF file to a plan directory.

use std::path::Path;
use std::time::Instant;

use glmc_frontend_gguf::arch::{Entry, LiftOptions, Lifted};
use glmc_frontend_gguf::{GgufSet, Model, Part, open};
use glmc_ir::graph::Module;
use glmc_ir::plan::{self, FORMAT, FileRef, Limits, PhaseKind, Plan};
use glmc_ir::text::{print_module, print_plan};
use glmc_passes::egraph::cost::Machine;
use glmc_passes::fit::{Need, TooLarge};
use glmc_passes::lower::print_lowered;
use glmc_passes::pass::{Choices, PassError, Timing};
use glmc_passes::pipeline;
use glmc_passes::schedule::EntryInfo;
use glmc_passes::target::Target;
use glmc_runtime::text::Tokenizer;

use super::check::{self, Check};
use super::decisions::{DECISIONS, Decisions};
use super::figures::{self, Figures};
use super::{human_bytes, print_json, print_line, print_text, room, targets};
use crate::bus;
use crate::cli::{CompileArgs, SizeArgs};
use crate::error::CliError;
use crate::plan_dir;
use crate::progress::Stage;
use crate::template;
use crate::terminal::escaped;

/// Default of `--ctx`, where the model was trained for more.
const DEFAULT_CTX: u64 = 32768;

/// A compiled plan with the texts that stand beside it.
pub(crate) struct Compiled {
    pub(crate) plan: Plan,
    target: Target,
    graph: String,
    decisions: Decisions,
    checked: Option<Check>,
    tokenizer: String,
    template: Option<String>,
    timings: Vec<Timing>,
    /// The IR of the stages that were asked for.
    emitted: String,
}

pub(crate) fn run(args: &CompileArgs) -> Result<(), CliError> {
    let start = Instant::now();
    let stage = emit_stage(args)?;
    let output = plan_dir::named(&args.output)?;
    plan_dir::check_place(&output)?;
    let progress = Stage::begin("compiling", args.json);
    let compiled = compile_checked(&args.model, &args.sizes, args.tune_ctx, stage, args.check)?;
    compiled.write(&output)?;
    progress.end();
    print_text(&compiled.emitted)?;
    report(args, &compiled, start.elapsed().as_secs_f64())
}

/// The stage that `--emit` names.
fn emit_stage(args: &CompileArgs) -> Result<Option<&str>, CliError> {
    let Some(emit) = args.emit.as_deref() else { return Ok(None) };
    let stage = emit.strip_prefix("after=").unwrap_or(emit);
    if stage == "all" || (emit != stage && pipeline::STAGES.contains(&stage)) {
        return Ok(Some(stage));
    }
    let known = pipeline::STAGES.iter().map(|s| format!("after={s}")).collect::<Vec<_>>().join(", ");
    Err(CliError::usage("emit", format!("--emit {emit}: there is no such stage; say all, or one of {known}")))
}

/// Compiles a model for steps that see `tune_ctx` positions; `emit` keeps the IR of a stage.
pub(crate) fn compile(path: &Path, sizes: &SizeArgs, tune_ctx: u64, emit: Option<&str>) -> Result<Compiled, CliError> {
    compile_checked(path, sizes, tune_ctx, emit, false)
}

/// The same; `check` validates every pass first.
fn compile_checked(
    path: &Path,
    sizes: &SizeArgs,
    tune_ctx: u64,
    emit: Option<&str>,
    check: bool,
) -> Result<Compiled, CliError> {
    let target = targets::find(sizes.target.as_deref().unwrap_or("cpu"))?;
    bus::reading(path);
    let set = open(path)?;
    let paths = set.parts().iter().map(lossless_path).collect::<Result<Vec<_>, _>>()?;
    let model = Model::load(&set)?;
    check_text(&model, set.path())?;
    let limits = limits(&model, sizes, &target, set.path())?;
    let job = Job { model: &model, file: set.path(), target: &target, tune_ctx, choices: sizes.choices(), emit, check };
    // Before a byte of the weights is looked at.
    let mut made = match job.fitted(&limits)? {
        Ok(made) => made,
        Err(refused) => return Err(room::refusal(&job, &limits, &refused)?),
    };
    made.plan.files = files(&set, paths)?;
    let start = Instant::now();
    glmc_ir::verify::plan::verify_plan(&made.plan)
        .map_err(|found| CliError::internal(format!("the verifier refuses the plan: {found}")))?;
    made.timings.push(Timing { name: "verify schedule".into(), time: start.elapsed() });
    for t in &made.timings {
        tracing::debug!("{}: {:.1} ms", t.name, t.time.as_secs_f64() * 1e3);
    }
    show(emit, &mut made.emitted, pipeline::SCHEDULE, || print_plan(&made.plan));
    Ok(Compiled {
        plan: made.plan,
        target,
        graph: made.graph,
        decisions: made.decisions,
        checked: made.checked,
        tokenizer: model.tokenizer.json,
        template: model.templates.default,
        timings: made.timings,
        emitted: made.emitted,
    })
}

/// How often a model is placed again because what placement does not know of took too much memory.
const PLACED_AGAIN: usize = 3;

/// What a model is compiled for, but for its sizes.
pub(super) struct Job<'a> {
    model: &'a Model,
    pub(super) file: &'a Path,
    target: &'a Target,
    tune_ctx: u64,
    choices: Choices,
    emit: Option<&'a str>,
    check: bool,
}

/// A plan that is not yet held against memory and files.
struct Made {
    plan: Plan,
    graph: String,
    decisions: Decisions,
    checked: Option<Check>,
    timings: Vec<Timing>,
    emitted: String,
}

impl Job<'_> {
    /// A plan of these sizes that fits its target, or by how much the first that was made does not.
    fn fitted(&self, limits: &Limits) -> Result<Result<Made, Box<TooLarge>>, CliError> {
        let options = LiftOptions {
            ctx: limits.ctx,
            max_batch: limits.max_batch,
            cache_rows: limits.cache_rows,
            chunk: limits.chunk,
        };
        let lifted = self.model.lift(&options).map_err(|d| CliError::internal(d.to_string()))?;
        let mut made = self.make(&lifted, limits, self.target)?;
        let mut more = 0;
        for tries in 0.. {
            let Err(refused) = figures::fit(&made.plan, self.target)? else { break };
            // Placement knows weights and pools only. Where those fit, it is told what everything else took.
            let placed = made.decisions.placement.as_ref().is_some_and(|p| p.fits);
            let needs = figures::needs(&made.plan, self.target)?;
            let known = |n: &Need| {
                let d = &self.target.device;
                [n.weights, n.cache_bytes(), d.context_bytes, d.graph_bytes, d.reserve_bytes].into_iter().sum::<u64>()
            };
            let took = needs.iter().map(|n| n.total().saturating_sub(known(n))).max().filter(|_| placed);
            let over = needs.iter().map(Need::total).max().unwrap_or(0);
            let over = over.saturating_sub(self.target.device.memory_bytes.unwrap_or(u64::MAX));
            // Another placement has other arenas: what it took is seen only once it is made.
            let Some(took) = took.filter(|_| tries < PLACED_AGAIN) else { return Ok(Err(refused)) };
            more = if took > more { took } else { more.saturating_add(over) };
            let mut tighter = self.target.clone();
            tighter.device.reserve_bytes = tighter.device.reserve_bytes.saturating_add(more);
            made = self.make(&lifted, limits, &tighter)?;
        }
        Ok(Ok(made))
    }

    /// By how many bytes a plan of these sizes is too large; 0 or less where it fits.
    pub(super) fn too_large(&self, limits: &Limits) -> Result<i128, CliError> {
        let choices = Choices { brief: true, ..self.choices.clone() };
        let (needs, memory) = match (Job { emit: None, check: false, choices, ..*self }).fitted(limits)? {
            Ok(made) => (figures::needs(&made.plan, self.target)?, self.target.device.memory_bytes),
            Err(refused) => (vec![refused.need], Some(refused.memory)),
        };
        let most = needs.iter().map(Need::total).max().unwrap_or(0);
        Ok(i128::from(most) - i128::from(memory.unwrap_or(u64::MAX)))
    }

    /// A plan for `target`: the job's, or one with less memory.
    fn make(&self, lifted: &Lifted, limits: &Limits, target: &Target) -> Result<Made, CliError> {
        let machine = &Machine::new(target, self.tune_ctx);
        let entry = |e: &Entry| EntryInfo { func: e.func.clone(), kind: e.kind, tokens: e.tokens };
        let entries: Vec<EntryInfo> = lifted.entries.iter().map(entry).collect();
        let check = || check::run(&lifted.module, &entries, machine, &self.choices);
        let checked = self.check.then(check).transpose()?;
        let mut emitted = String::new();
        let mut module = |stage: &str, m: &Module| show(self.emit, &mut emitted, stage, || print_module(m));
        let done = pipeline::run(lifted.module.clone(), &entries, machine, self.choices.clone(), &mut module)
            .map_err(failed)?;
        show(self.emit, &mut emitted, pipeline::LOWER, || print_lowered(&done.module, &done.lowered));
        let decisions = Decisions::of(&done);
        let checked = checked.map(|c| c.against(&done.saturated));
        let t = self.target;
        let plan = Plan {
            format: FORMAT,
            producer: format!("glmc {}", env!("CARGO_PKG_VERSION")),
            target: plan::Target { name: t.name.clone(), arch: t.arch.clone(), ranks: t.ranks },
            model: model_info(self.model),
            limits: limits.clone(),
            mesh: done.module.mesh.clone(),
            files: Vec::new(),
            weights: done.scheduled.weights,
            states: done.scheduled.states,
            phases: done.scheduled.phases,
        };
        Ok(Made { plan, graph: print_module(&done.module), decisions, checked, timings: done.timings, emitted })
    }
}

/// A choice that was asked for and cannot be had is the command's, anything else a bug.
fn failed(e: PassError) -> CliError {
    match &e {
        PassError::Failed { error, .. } if matches!(error.code, "cut-refused" | "no-candidate" | "no-decision") => {
            let at = if error.at.is_empty() { String::new() } else { format!(" ({})", error.at) };
            CliError::usage(error.code, format!("{}{at}", error.message))
        }
        _ => CliError::internal(e.to_string()),
    }
}

/// Adds the text of a stage that was asked for.
fn show(emit: Option<&str>, emitted: &mut String, stage: &str, text: impl Fn() -> String) {
    if emit.is_some_and(|e| e == "all" || e == stage) {
        emitted.push_str(&format!("; after {stage}\n{}", text()));
    }
}

fn limits(model: &Model, sizes: &SizeArgs, target: &Target, file: &Path) -> Result<Limits, CliError> {
    let trained = model.config.context_length;
    let ctx = sizes.ctx.unwrap_or(trained.min(DEFAULT_CTX));
    if ctx > trained {
        let m = format!("--ctx {ctx} is more than the {trained} positions that the model was trained for");
        return Err(CliError::usage("ctx", m).of(file));
    }
    let cache_rows = sizes.cache.unwrap_or(ctx);
    if cache_rows > i32::MAX as u64 {
        return Err(
            CliError::usage("cache", format!("--cache {cache_rows}: at most {} rows are possible", i32::MAX)).of(file)
        );
    }
    let max_batch = sizes.max_batch.unwrap_or(target.max_batch);
    Ok(Limits { ctx, max_batch, cache_rows, chunk: target.chunk.min(ctx) })
}

fn model_info(model: &Model) -> plan::Model {
    let c = &model.config;
    let mut suppress = model.tokenizer.info.suppress.clone();
    suppress.sort_unstable();
    suppress.dedup();
    plan::Model {
        arch: "glm-dsa".into(),
        name: c.name.clone().unwrap_or_default(),
        layers: c.layers,
        vocab: c.vocab_size,
        trained_ctx: c.context_length,
        stop: model.tokenizer.info.stop.clone(),
        suppress,
    }
}

/// Where a part lies, as a plan can say it.
fn lossless_path(part: &Part) -> Result<String, CliError> {
    let path = std::fs::canonicalize(part.path()).map_err(|e| CliError::io(part.path(), &e))?;
    path.into_os_string().into_string().map_err(|path| {
        let m = "the path is not UTF-8, so a plan cannot name the file; rename the file or its folder";
        CliError::usage("path-not-utf8", m).class("unsupported").of(Path::new(&path))
    })
}

/// Refuses what a run would refuse of the text files that go into a plan.
fn check_text(model: &Model, file: &Path) -> Result<(), CliError> {
    Tokenizer::from_json(model.tokenizer.json.as_bytes())
        .map_err(|e| CliError::usage("tokenizer", e.to_string()).class("model").of(file))?;
    // Only a chat needs it.
    if let Some(Err(e)) = model.templates.default.as_deref().map(template::check) {
        tracing::warn!("{}: {e}; `run --chat` will not work", file.display());
    }
    Ok(())
}

fn files(set: &GgufSet, paths: Vec<String>) -> Result<Vec<FileRef>, CliError> {
    let file = |(p, path): (&Part, String)| {
        Ok(FileRef {
            path,
            bytes: p.size(),
            header_bytes: p.header_len(),
            header_hash: p.header_hash()?,
            sample_hash: p.sample_hash()?,
        })
    };
    set.parts().iter().zip(paths).map(file).collect()
}

impl Compiled {
    /// Whether the plan's kernels are compiled; `None` where none need be.
    fn kernels(&self) -> Option<bool> {
        // The runtime generates and compiles them when a plan first runs on a GPU.
        (self.target.arch != "cpu").then_some(false)
    }

    /// Writes the plan directory, where there is none or an older plan.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), CliError> {
        plan_dir::write(dir, &self.files()?)
    }

    /// Writes the plan directory in the place of whatever is there.
    pub(crate) fn replace(&self, dir: &Path) -> Result<(), CliError> {
        plan_dir::replace(dir, &self.files()?)
    }

    fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, CliError> {
        let json = plan_json(&self.plan)?;
        let target = self.target.to_toml().map_err(|e| CliError::internal(e.to_string()))?;
        let mut files = vec![
            (glmc_runtime::load::PLAN, json),
            ("graph.glir", self.graph.clone().into_bytes()),
            (figures::TARGET, target.into_bytes()),
            (DECISIONS, self.decisions.to_json()?),
            ("tokenizer.json", self.tokenizer.clone().into_bytes()),
        ];
        files.extend(self.template.as_ref().map(|t| ("chat_template.jinja", t.clone().into_bytes())));
        Ok(files)
    }
}

/// The plan as JSON, a weight, buffer or step a line.
fn plan_json(plan: &Plan) -> Result<Vec<u8>, CliError> {
    let mut out = Vec::new();
    let mut ser = serde_json::Serializer::with_formatter(&mut out, Lines::default());
    serde::Serialize::serialize(plan, &mut ser).map_err(|e| CliError::internal(format!("plan.json: {e}")))?;
    out.push(b'\n');
    Ok(out)
}

/// Breaks lines between the entries of outer containers only.
#[derive(Default)]
struct Lines {
    depth: usize,
}

/// Containers below this depth stand on one line.
const BREAK_DEPTH: usize = 4;

impl Lines {
    fn next<W: std::io::Write + ?Sized>(&self, w: &mut W, first: bool) -> std::io::Result<()> {
        if !first {
            w.write_all(b",")?;
        }
        if self.depth > BREAK_DEPTH {
            return if first { Ok(()) } else { w.write_all(b" ") };
        }
        w.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| w.write_all(b" "))
    }
}

impl serde_json::ser::Formatter for Lines {
    fn begin_array<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.depth += 1;
        w.write_all(b"[")
    }
    fn end_array<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.depth -= 1;
        w.write_all(b"]")
    }
    fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.depth += 1;
        w.write_all(b"{")
    }
    fn end_object<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.depth -= 1;
        w.write_all(b"}")
    }
    fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

fn report(args: &CompileArgs, c: &Compiled, seconds: f64) -> Result<(), CliError> {
    let plan = &c.plan;
    let figures = Figures::of(plan, &c.target, args.tune_ctx)?;
    let per_rank: Vec<u64> = figures.needs.iter().map(|n| n.plan_bytes()).collect();
    if args.json {
        let steps = |kind: PhaseKind| plan.phases.iter().filter(|p| p.kind == kind).map(|p| p.steps.len()).max();
        return print_json(&serde_json::json!({
            "target": plan.target.name,
            "ranks": plan.target.ranks,
            "bytes_per_rank": per_rank,
            "memory_per_rank": figures.memory_json(),
            "kernels": super::inspect::kernels(plan).len(),
            "steps": { "decode": steps(PhaseKind::Decode), "prefill": steps(PhaseKind::Prefill) },
            "kernels_compiled": c.kernels(),
            "collectives_per_step": figures::collectives_json(plan),
            "bytes_per_token": figures.bytes,
            "tune_ctx": args.tune_ctx,
            "predicted": figures.predicted_json(),
            "checked": c.checked.as_ref().map(Check::json),
            "seconds": seconds,
            "passes": c.timings.iter().map(|t| serde_json::json!({ "name": t.name, "seconds": t.time.as_secs_f64() })).collect::<Vec<_>>(),
        }));
    }
    if args.emit.is_some() {
        return Ok(());
    }
    let place = escaped(&args.output.display().to_string());
    print_line(&format!("{place}: plan for `{}`, {} layers", plan.target.name, plan.model.layers))?;
    print_line(&format!(
        "  context {}, batch {}, cache rows {}, prefill chunk {}",
        plan.limits.ctx, plan.limits.max_batch, plan.limits.cache_rows, plan.limits.chunk
    ))?;
    for line in figures.lines() {
        print_line(&line)?;
    }
    for p in &plan.phases {
        print_line(&format!("  phase {:<10} {} steps, arena {}", p.name, p.steps.len(), human_bytes(p.arena_bytes)))?;
    }
    if c.kernels() == Some(false) {
        print_line("  kernels are compiled at the first run")?;
    }
    for line in c.checked.iter().flat_map(Check::lines) {
        print_line(&line)?;
    }
    print_line(&format!("  verified; {seconds:.2} s"))
}
