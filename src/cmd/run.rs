//! `glmc run`: a prompt in, text out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use glmc_runtime::engine::{Engine, SeqId, Want};
use glmc_runtime::load::{map_weights, read_runnable};
use glmc_runtime::sampler::{Sampler, SamplerParams};
use glmc_runtime::text::Tokenizer;

use super::device::{Opened, Placed, Where};
use super::{cached, print_json, print_text, prompt, tokenizer};
use crate::cli::RunArgs;
use crate::error::CliError;
use crate::output::{LOGITS, Place};
use crate::progress::Stage;
use crate::terminal::{say, unread};
use crate::{bus, memory, signals};

pub(crate) fn run(args: &RunArgs) -> Result<(), CliError> {
    check(args)?;
    let logits = args.logits.as_deref().map(|p| Place::check(LOGITS, p)).transpose()?;
    let sampler = Sampler::new(SamplerParams {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
    })
    .map_err(|e| CliError::usage("sampling", e.to_string()))?;
    let start = Instant::now();
    let named = Opened::named(&args.place)?;
    let dir = cached::plan_of(args)?;
    let at = |e: CliError| e.at(&dir);
    let progress = Stage::begin("loading", args.json);
    // All that can be judged without the weights is, before they are mapped or gathered.
    let plan = read_runnable(&dir).map_err(|e| at(e.into()))?;
    let device = Opened::of_plan(named, &plan, &args.place).map_err(at)?;
    memory::check(&plan, device.is_cpu()).map_err(at)?;
    super::start_threads()?;
    let tokenizer = tokenizer(&dir)?;
    let prompt = prompt::ids(args, &dir, &tokenizer, &plan).map_err(at)?;
    bus::reading_files(&plan.files);
    let mut loaded = map_weights(plan, &dir).map_err(|e| at(e.into()))?;
    super::put_fault(&args.fault, &mut loaded).map_err(at)?;
    let Placed { mut engine, devices } = device.engine(loaded, &args.place, args.json).map_err(at)?;
    engine.set_check(args.check);
    super::put_death(&args.fault, &mut engine).map_err(at)?;
    let load_s = start.elapsed().as_secs_f64();
    progress.end();
    let mut session = Session {
        args,
        engine,
        devices,
        place: device.place,
        sampler,
        tokenizer: &tokenizer,
        cancel: signals::cancel_flag().map_err(at)?,
        tokens: Vec::new(),
        logits: Vec::new(),
        text: String::new(),
    };
    let done = session.generate(&prompt).map_err(at)?;
    signals::end_at_once();
    if done.finish == UNREAD {
        std::process::exit(128 + SIGPIPE);
    }
    if let Some(place) = logits {
        place.write_npy(&session.logits, session.tokens.len(), session.engine.plan().model.vocab)?;
    }
    session.report(&prompt, &done, load_s)
}

fn check(args: &RunArgs) -> Result<(), CliError> {
    if args.prompt.is_none() && args.prompt_file.is_none() && args.tokens.is_none() {
        let what = if args.chat {
            "--chat needs the user's turn as --prompt or --prompt-file"
        } else {
            "give --prompt, --prompt-file or --tokens"
        };
        return Err(CliError::usage("no-prompt", what));
    }
    Ok(())
}

/// How a generation ends whose reader has gone and that leaves nothing else.
const UNREAD: &str = "unread";
/// What would have ended it, had it not been ignored.
const SIGPIPE: i32 = 13;

/// One generation.
struct Session<'a> {
    args: &'a RunArgs,
    engine: Engine,
    devices: Vec<serde_json::Value>,
    place: Where,
    sampler: Sampler,
    tokenizer: &'a Tokenizer,
    cancel: Arc<AtomicBool>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    text: String,
}

/// How a generation ended.
struct Done {
    finish: &'static str,
    prefill_s: f64,
    decode_s: f64,
}

impl Session<'_> {
    fn generate(&mut self, prompt: &[u32]) -> Result<Done, CliError> {
        let seq = self.engine.start();
        let start = Instant::now();
        let Some(logits) = self.prefill(seq, prompt)? else {
            return Ok(Done { finish: "cancelled", prefill_s: start.elapsed().as_secs_f64(), decode_s: 0.0 });
        };
        let prefill_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let finish = self.decode(seq, logits)?;
        Ok(Done { finish, prefill_s, decode_s: start.elapsed().as_secs_f64() })
    }

    /// Logits after the prompt, or `None` if it was cancelled on the way.
    fn prefill(&mut self, seq: SeqId, prompt: &[u32]) -> Result<Option<Vec<f32>>, CliError> {
        let mut logits = Vec::new();
        for chunk in prompt.chunks(self.engine.plan().limits.chunk as usize) {
            if self.cancel.load(Ordering::SeqCst) {
                return Ok(None);
            }
            logits = self.engine.feed(seq, chunk, Want::Last)?;
        }
        Ok(Some(logits))
    }

    fn decode(&mut self, seq: SeqId, mut logits: Vec<f32>) -> Result<&'static str, CliError> {
        let stop = self.engine.plan().model.stop.clone();
        let tokenizer = self.tokenizer;
        let mut stream = tokenizer.stream();
        let finish = loop {
            if self.tokens.len() as u64 >= self.args.n {
                break "length";
            }
            if self.cancel.load(Ordering::SeqCst) {
                break "cancelled";
            }
            if self.args.logits.is_some() {
                self.logits.extend_from_slice(&logits);
            }
            let token = self.sample(&mut logits)?;
            self.tokens.push(token);
            if stop.contains(&token) && !self.args.ignore_eos {
                break "stop";
            }
            self.show(&stream.push(token))?;
            if unread() && !self.args.json && self.args.logits.is_none() {
                break UNREAD;
            }
            if self.tokens.len() as u64 >= self.args.n {
                break "length";
            }
            if self.engine.room(seq) == 0 {
                break "context";
            }
            logits = self.engine.decode(&[(seq, token)])?;
        };
        self.show(&stream.finish())?;
        Ok(finish)
    }

    fn sample(&mut self, logits: &mut [f32]) -> Result<u32, CliError> {
        for id in &self.engine.plan().model.suppress {
            if let Some(l) = logits.get_mut(*id as usize).filter(|l| l.is_finite()) {
                *l = f32::NEG_INFINITY;
            }
        }
        let failed = |e| CliError::from(glmc_runtime::RuntimeError::Numbers(format!("{e}")));
        self.sampler.sample(logits).map_err(failed)
    }

    fn show(&mut self, piece: &str) -> Result<(), CliError> {
        self.text.push_str(piece);
        if self.args.json || piece.is_empty() { Ok(()) } else { print_text(piece) }
    }

    fn report(&self, prompt: &[u32], done: &Done, load_s: f64) -> Result<(), CliError> {
        let rate = |n: usize, s: f64| if n > 0 && s > 0.0 { n as f64 / s } else { 0.0 };
        let prefill_tps = rate(prompt.len(), done.prefill_s);
        // The first token comes from the prompt's logits; each further one takes a decode step.
        let decode_tps = rate(self.tokens.len().saturating_sub(1), done.decode_s);
        if self.args.json {
            return print_json(&serde_json::json!({
                "prompt_tokens": prompt.len(),
                "tokens": self.tokens,
                "text": self.text,
                "finish": done.finish,
                "timings": { "load_s": load_s, "prefill_tps": prefill_tps, "decode_tps": decode_tps },
                "devices": self.devices,
            }));
        }
        print_text("\n")?;
        say(&format!(
            "[{}] {} prompt tokens at {prefill_tps:.1}/s, {} tokens at {decode_tps:.1}/s, loaded in {load_s:.2} s on {}",
            done.finish,
            prompt.len(),
            self.tokens.len(),
            self.place
        ));
        Ok(())
    }
}
