//! `glmc verify`: a plan beside a reference, value by value and launch by launch. Owns what is run and in which order;
//! the parts judge and show.

mod choices;
mod judge;
mod launches;
mod metric;
mod model;
mod names;
mod page;
mod record;
mod reference;
mod report;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use glmc_ir::plan::Plan;
use glmc_runtime::RuntimeError;
use glmc_runtime::device::{Output, Seen};
use glmc_runtime::engine::{Engine, Running, SeqId, Want};
use glmc_runtime::load::{Loaded, map_weights, read_runnable};

use super::device::{Opened, Placed};
use super::explain_value::Origins;
use crate::cli::VerifyArgs;
use crate::error::CliError;
use crate::output::{Place, VERIFY_PAGE};
use crate::progress::Stage;
use crate::{bus, memory};
use judge::Judge;
use metric::Rounding;
pub(crate) use names::says_what;
use record::Recorded;
use reference::Reference;
use report::{Report, Unseen};

/// What a plan is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ReferenceKind {
    /// The lifted model in the reference interpreter.
    Interpreter,
    /// The model compiled without optimisation for one rank.
    Plain,
}

/// Bytes of weights up to which the interpreter is the reference where nothing is said.
const INTERPRETED: u64 = 256 << 20;
/// Most tokens of a prompt that are run at once: all that a step wrote is kept until it is judged.
const CHUNK: u64 = 64;
/// The prompt where none is given.
const PROMPT: &str = "1 2 3 4 5 6 7 8";

pub(crate) fn run(args: &VerifyArgs) -> Result<(), CliError> {
    let place = args.html.as_deref().map(|p| Place::check(VERIFY_PAGE, p)).transpose()?;
    super::want_plan(&args.plan)?;
    let at = |e: CliError| e.at(&args.plan);
    // What a divergence is told with: it is missed before anything runs.
    let origins = Origins::read(&args.plan)?;
    let named = Opened::named(&args.place)?;
    let plan = read_runnable(&args.plan).map_err(|e| at(e.into()))?;
    let device = Opened::of_plan(named, &plan, &args.place).map_err(at)?;
    memory::check(&plan, device.is_cpu()).map_err(at)?;
    super::start_threads()?;
    let ids = ids(args, &plan).map_err(at)?;
    let kind = args.reference.unwrap_or_else(|| usual(&plan));
    bus::reading_files(&plan.files);
    let mut loaded = map_weights(plan.clone(), &args.plan).map_err(|e| at(e.into()))?;
    // Launches are judged by the weights as the files have them.
    let clean = if args.fault.inject.is_some() {
        Some(map_weights(plan.clone(), &args.plan).map_err(|e| at(e.into()))?)
    } else {
        None
    };
    let fault = super::put_fault(&args.fault, &mut loaded).map_err(at)?;
    let rounding = Rounding::of(device.activations(&args.place));
    let mut progress = Stage::begin("verifying", args.json);
    let mut reference =
        Reference::open(kind, &plan, &device, &args.place, ids.len() as u64 + args.n, args.json).map_err(at)?;
    let Placed { mut engine, devices } = device.engine(loaded, &args.place, args.json).map_err(at)?;
    engine.set_poison(true);
    engine.set_chunk(CHUNK);
    super::put_death(&args.fault, &mut engine).map_err(at)?;
    let mut judge = Judge::new(&plan, rounding, kind);
    let failed =
        beside(&ids, args.n, &mut engine, clean.as_ref(), &mut reference, &mut judge, &mut progress).map_err(at)?;
    progress.end();
    if let (Some(e), None) = (failed, judge.first()) {
        return Err(at(e.into()));
    }
    let fault = match (fault, clean, judge.first()) {
        (Some(what), Some(clean), None) => {
            let sum = |engine: &mut Engine| numbers(engine, &ids, args.n).map_err(at);
            let with = sum(&mut engine)?;
            drop(engine);
            let Placed { mut engine, .. } = device.engine(clean, &args.place, true).map_err(at)?;
            engine.set_chunk(CHUNK);
            Some(Unseen { what, read: sum(&mut engine)? != with })
        }
        _ => None,
    };
    let about = (args.plan.as_path(), &origins);
    let report = Report::new(about, &plan, &judge, reference.about(), &devices, ids.len(), fault);
    if let (Some(place), Some(file)) = (place, &args.html) {
        let page = page::page(&report);
        place.write(page.len() as u64, |f| f.write_all(page.as_bytes()))?;
        if !args.json {
            super::print_line(&format!("{}: written", file.display()))?;
        }
    }
    let verdict = report.verdict();
    if args.json {
        // One object, whatever came out.
        let found = report.json();
        return verdict
            .map_err(|e| CliError { found: Some(Box::new(found.clone())), ..at(e) })
            .and_then(|()| super::print_json(&found));
    }
    report.lines().iter().try_for_each(|l| super::print_line(l))?;
    verdict.map_err(at)
}

/// Runs the prompt in chunks and `n` tokens more on both sides, until something differs; gives what ended the plan's run,
/// if it ended early.
fn beside(
    ids: &[u32],
    n: u64,
    engine: &mut Engine,
    clean: Option<&Loaded>,
    reference: &mut Reference,
    judge: &mut Judge<'_>,
    progress: &mut Stage,
) -> Result<Option<RuntimeError>, CliError> {
    let seq = engine.start();
    let chunk = usize::try_from(engine.plan().limits.chunk.min(CHUNK)).unwrap_or(1);
    let pieces: Vec<&[u32]> = ids.chunks(chunk).collect();
    let all = pieces.len() as u64 + n;
    let mut next: Vec<u32> = Vec::new();
    for run in 0..all {
        progress.done(run, all);
        let piece = usize::try_from(run).ok().and_then(|i| pieces.get(i).copied());
        let tokens = piece.unwrap_or(&next);
        let recorded = Recorded::of(engine, |e, see| match piece {
            Some(tokens) => e.feed_observed(seq, tokens, Want::Last, Some(see)),
            None => e.decode_observed(&one(seq, tokens), Some(see)),
        })?;
        let loaded = engine.loaded();
        let values = reference.step(&loaded.plan, tokens, &recorded, judge.rounding())?;
        let whole = judge.run(clean.unwrap_or(loaded), &recorded, &values)?;
        if let Some(e) = recorded.ended {
            return Ok(Some(e));
        }
        if !whole {
            break;
        }
        let numbers = |e| RuntimeError::Numbers(format!("{e}"));
        next = vec![glmc_runtime::sampler::argmax(&recorded.logits).map_err(numbers)?];
    }
    Ok(None)
}

/// A sum of the bits of all that every rank writes for these tokens, in whatever order ranks come.
fn numbers(engine: &mut Engine, ids: &[u32], n: u64) -> Result<u64, CliError> {
    let mut sum = 0u64;
    let mut see = |_: &Running<'_>, s: Seen<'_>| {
        let mut one = DefaultHasher::new();
        (s.rank, s.step, s.output).hash(&mut one);
        match s.data {
            Output::F32(v) => v.iter().for_each(|x| x.to_bits().hash(&mut one)),
            Output::I32(v) => v.hash(&mut one),
        }
        sum = sum.wrapping_add(one.finish());
        Ok(())
    };
    let seq = engine.start();
    let mut logits = engine.feed_observed(seq, ids, Want::Last, Some(&mut see))?;
    for _ in 0..n {
        let next = glmc_runtime::sampler::argmax(&logits).map_err(|e| RuntimeError::Numbers(format!("{e}")))?;
        logits = engine.decode_observed(&[(seq, next)], Some(&mut see))?;
    }
    engine.end(seq);
    Ok(sum)
}

fn one(seq: SeqId, tokens: &[u32]) -> Vec<(SeqId, u32)> {
    tokens.iter().map(|t| (seq, *t)).collect()
}

/// The reference for a plan of this size.
fn usual(plan: &Plan) -> ReferenceKind {
    let bytes = plan.weights.values().map(|w| w.span.bytes).fold(0, u64::saturating_add);
    if bytes <= INTERPRETED { ReferenceKind::Interpreter } else { ReferenceKind::Plain }
}

/// The tokens to run.
fn ids(args: &VerifyArgs, plan: &Plan) -> Result<Vec<u32>, CliError> {
    let ids = match &args.tokens {
        Some(ids) => ids.clone(),
        None => {
            let text = args.prompt.as_deref().unwrap_or(PROMPT);
            let encoded = super::tokenizer(&args.plan)?.encode(text, true);
            encoded.map_err(|e| CliError::usage("text", e.to_string()))?
        }
    };
    if ids.is_empty() {
        return Err(CliError::usage("empty-prompt", "the prompt is empty: there is nothing to run"));
    }
    let vocab = plan.model.vocab;
    if let Some(t) = ids.iter().find(|t| u64::from(**t) >= vocab) {
        return Err(CliError::usage("tokens", format!("id {t} is outside the vocabulary of {vocab}")));
    }
    let room = plan.limits.ctx.min(plan.limits.cache_rows);
    if (ids.len() as u64).saturating_add(args.n) > room {
        let m = format!("{} tokens and {} more do not fit: the plan holds {room}", ids.len(), args.n);
        return Err(CliError::usage("context", m));
    }
    Ok(ids)
}
