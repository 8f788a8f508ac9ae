//! `glmc perplexity`: exp of the mean negative log-likelihood over windows, each from an empty cache.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use glmc_ir::plan::Limits;
use glmc_runtime::engine::{Engine, Want};
use glmc_runtime::load::{map_weights, read_runnable};

use super::device::{Opened, Placed};
use super::{ids, print_json, print_line};
use crate::cli::PerplexityArgs;
use crate::error::CliError;
use crate::progress::Stage;
use crate::{bus, memory};

/// Ids of a window where nothing is said and as many fit.
const WINDOW: u64 = 512;
/// Largest text, in bytes, that is read.
const MAX_TEXT: u64 = 64 << 20;

pub(crate) fn run(args: &PerplexityArgs) -> Result<(), CliError> {
    super::want_plan(&args.plan)?;
    let at = |e: CliError| e.at(&args.plan);
    let named = Opened::named(&args.place)?;
    // All that can be judged without the weights is, before they are mapped or gathered.
    let plan = read_runnable(&args.plan).map_err(|e| at(e.into()))?;
    let device = Opened::of_plan(named, &plan, &args.place).map_err(at)?;
    memory::check(&plan, device.is_cpu()).map_err(at)?;
    let window = window(args.window, &plan.limits).map_err(at)?;
    super::start_threads()?;
    let ids = ids(args, &read(&args.file)?, plan.model.vocab)?;
    if ids.len() < 2 {
        let m = "holds fewer than two tokens: there is nothing to score";
        return Err(CliError::usage("too-short", m).of(&args.file));
    }
    bus::reading_files(&plan.files);
    let mut loaded = map_weights(plan, &args.plan).map_err(|e| at(e.into()))?;
    super::put_fault(&args.fault, &mut loaded).map_err(at)?;
    let Placed { mut engine, devices } = device.engine(loaded, &args.place, args.json).map_err(at)?;
    engine.set_check(args.check);
    super::put_death(&args.fault, &mut engine).map_err(at)?;
    let mut progress = Stage::begin("scoring", args.json);
    let (mut nll, mut count) = (0.0, 0u64);
    let windows = ids.chunks(usize::try_from(window).unwrap_or(usize::MAX));
    let all = windows.len() as u64;
    for (window, done) in windows.zip(1..).filter(|(w, _)| w.len() > 1) {
        nll += score(&mut engine, window).map_err(at)?;
        count += window.len() as u64 - 1;
        progress.done(done, all);
    }
    progress.end();
    let perplexity = (nll / count as f64).exp();
    if !perplexity.is_finite() {
        let e = glmc_runtime::RuntimeError::Numbers(format!("the perplexity is {perplexity}"));
        return Err(at(e.into()));
    }
    if args.json {
        return print_json(&serde_json::json!({ "perplexity": perplexity, "tokens": count, "devices": devices }));
    }
    print_line(&format!("perplexity {perplexity:.4} over {count} tokens"))
}

/// The window that was asked for, or the usual one where a plan has room for it.
fn window(asked: Option<u64>, limits: &Limits) -> Result<u64, CliError> {
    let (room, what, flag) = if limits.cache_rows < limits.ctx {
        (limits.cache_rows, "the plan's caches hold", "--cache")
    } else {
        (limits.ctx, "the plan's context is", "--ctx")
    };
    let window = asked.unwrap_or(WINDOW.min(room));
    if window > room || window < 2 {
        let less = if room < 2 { "" } else { " or give a smaller --window" };
        let asked = asked.map_or_else(|| "a window of at least 2".to_owned(), |n| format!("--window {n}"));
        let m = format!("{asked} does not fit: {what} {room} tokens; compile with a larger {flag}{less}");
        return Err(CliError::usage("window", m));
    }
    Ok(window)
}

/// A JSON list of ids, or text, in which the text of a control token is that token, as in a prompt.
fn ids(args: &PerplexityArgs, bytes: &[u8], vocab: u64) -> Result<Vec<u32>, CliError> {
    let list = ids::parse(bytes, vocab).map_err(|e| {
        let m =
            format!("begins as a JSON list of token ids and is none: {e}; text may not begin with `[` and a number");
        CliError::usage("ids", m).class("format").of(&args.file)
    })?;
    if let Some(ids) = list {
        return Ok(ids);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| {
        CliError::usage("text", "is neither UTF-8 text nor a JSON list of ids").class("format").of(&args.file)
    })?;
    let tokenizer = super::tokenizer(&args.plan)?;
    let progress = Stage::begin("tokenising", args.json);
    let ids = tokenizer.encode(text, true).map_err(|e| CliError::usage("text", e.to_string()).of(&args.file))?;
    progress.end();
    Ok(ids)
}

/// The bytes of a text: a regular file or a pipe.
fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let io = |e: std::io::Error| CliError::io(path, &e);
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_TEXT {
        let m = format!("is longer than the {MAX_TEXT} bytes that are scored at once; give a part of it");
        return Err(CliError::usage("too-long", m).of(path));
    }
    Ok(bytes)
}

/// The negative log-likelihood of ids 1.. of a window, from an empty cache.
fn score(engine: &mut Engine, window: &[u32]) -> Result<f64, CliError> {
    let vocab = engine.plan().model.vocab as usize;
    let seq = engine.start();
    let logits = engine.feed(seq, window, Want::All);
    engine.end(seq);
    let logits = logits?;
    let mut nll = 0.0;
    for (row, next) in logits.chunks_exact(vocab).zip(&window[1..]) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        nll += sum.ln() + f64::from(max) - f64::from(row[*next as usize]);
    }
    Ok(nll)
}
