//! `glmc run`: a prompt in, text out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use glmc_runtime::engine::{Engine, SeqId, Want};
use glmc_runtime::load::{Loaded, load, read_bounded, read_sealed, read_sealed_if_any};
use glmc_runtime::sampler::{Sampler, SamplerParams};
use glmc_runtime::text::{Chat, ChatTemplate, Message, TextError, Tokenizer};

use super::device::{Opened, Placed};
use super::{print_json, print_text};
use crate::cli::RunArgs;
use crate::error::CliError;
use crate::npy;
use crate::progress::Stage;
use crate::terminal::say;

/// Largest prompt file that is read.
const MAX_PROMPT: u64 = 256 << 20;

pub(crate) fn run(args: &RunArgs) -> Result<(), CliError> {
    check(args)?;
    let logits = args.logits.as_deref().map(npy::Place::check).transpose()?;
    let sampler = Sampler::new(SamplerParams {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
    })
    .map_err(|e| CliError::usage("sampling", e.to_string()))?;
    let cancel = cancel_flag()?;
    let start = Instant::now();
    let device = Opened::new(&args.place)?;
    let dir = plan_of(args)?;
    let progress = Stage::begin("loading", args.json);
    let loaded = load(&dir)?;
    let tokenizer = tokenizer(&dir)?;
    let prompt = prompt(args, &dir, &tokenizer, &loaded)?;
    let Placed { engine, devices } = device.engine(loaded, &args.place, args.json)?;
    let load_s = start.elapsed().as_secs_f64();
    progress.end();
    let mut session = Session {
        args,
        engine,
        devices,
        sampler,
        tokenizer: &tokenizer,
        cancel,
        tokens: Vec::new(),
        logits: Vec::new(),
        text: String::new(),
    };
    let done = session.generate(&prompt)?;
    if let Some(place) = logits {
        place.write(&session.logits, session.tokens.len(), session.engine.plan().model.vocab)?;
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

fn cancel_flag() -> Result<Arc<AtomicBool>, CliError> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    // The first Ctrl-C ends after the current step; a second one at once.
    let handler = move || {
        if set.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    };
    ctrlc::set_handler(handler).map_err(|e| CliError::internal(format!("signal handler: {e}")))?;
    Ok(flag)
}

/// The plan to run: the one given, or one compiled from the model given.
fn plan_of(args: &RunArgs) -> Result<PathBuf, CliError> {
    let path = &args.plan;
    let holds = |name: &str| path.join(name).exists();
    let is_model =
        path.is_file() || (path.is_dir() && !holds("plan.json") && !holds("manifest.json") && has_gguf(path));
    if !is_model {
        let s = &args.sizes;
        let given = [
            ("--target", s.target.is_some()),
            ("--ctx", s.ctx.is_some()),
            ("--max-batch", s.max_batch.is_some()),
            ("--cache", s.cache.is_some()),
            ("--fuel", s.fuel.is_some()),
        ];
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            let m = format!("{flag} is fixed when a plan is compiled; give the GGUF file, or compile it with {flag}");
            return Err(CliError::usage("arguments", m).of(path));
        }
        if !path.exists() {
            return Err(super::no_such_file(path));
        }
        return Ok(path.clone());
    }
    let place = cached_place(path, args)?;
    // A plan that still fits its files is used again.
    if load(&place).is_ok() {
        return Ok(place);
    }
    let compiled = super::compile::compile(path, &args.sizes, glmc_passes::cost::TUNE_CTX, None)?;
    compiled.write(&place)?;
    Ok(place)
}

fn has_gguf(dir: &Path) -> bool {
    let gguf = |e: std::fs::DirEntry| e.path().extension().is_some_and(|x| x == "gguf");
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(gguf))
}

/// Where the user's cache keeps the plan of a model compiled with these sizes by this version.
fn cached_place(model: &Path, args: &RunArgs) -> Result<PathBuf, CliError> {
    let cache = dirs::cache_dir()
        .ok_or_else(|| CliError::usage("cache", "there is no cache folder for this user; compile the model first"))?;
    let folder = cache.join("glmc").join("plans");
    std::fs::create_dir_all(&folder).map_err(|e| {
        let m =
            format!("the folder of cached plans cannot be made: {e}; set XDG_CACHE_HOME, or compile the model first");
        CliError { message: m, ..CliError::io(&folder, &e) }
    })?;
    let whole = std::fs::canonicalize(model).map_err(|e| CliError::io(model, &e))?;
    let s = &args.sizes;
    // A target file of the user's own counts by what it says, not by where it is.
    let own = s.target.as_deref().filter(|t| t.ends_with(".toml"));
    let own = own.map(|t| std::fs::read(t).map_err(|e| CliError::io(Path::new(t), &e))).transpose()?;
    let key = format!(
        "{whole:?} {own:?} {:?} {:?} {:?} {:?} {:?} {}",
        s.target,
        s.ctx,
        s.max_batch,
        s.cache,
        s.fuel,
        env!("CARGO_PKG_VERSION")
    );
    Ok(folder.join(&glmc_content::hash(key.as_bytes())[..32]))
}

fn tokenizer(dir: &Path) -> Result<Tokenizer, CliError> {
    let json = read_sealed(dir, "tokenizer.json")?;
    Tokenizer::from_json(&json).map_err(|e| text_error(e).of(&dir.join("tokenizer.json")))
}

fn text_error(e: TextError) -> CliError {
    CliError::usage("text", e.to_string()).class("plan")
}

/// The ids to start from.
fn prompt(args: &RunArgs, dir: &Path, tokenizer: &Tokenizer, loaded: &Loaded) -> Result<Vec<u32>, CliError> {
    if let Some(ids) = &args.tokens {
        let vocab = loaded.plan.model.vocab;
        return match ids.iter().find(|t| u64::from(**t) >= vocab) {
            Some(t) => Err(CliError::usage("tokens", format!("--tokens: id {t} is outside the vocabulary of {vocab}"))),
            None => Ok(ids.clone()),
        };
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(t), _) => t.clone(),
        (None, Some(path)) => String::from_utf8(read_bounded(path, MAX_PROMPT)?)
            .map_err(|_| CliError::usage("prompt", "is not UTF-8 text").class("format").of(path))?,
        (None, None) => return Err(CliError::usage("no-prompt", "give --prompt, --prompt-file or --tokens")),
    };
    let ids = if args.chat {
        chat(args, dir, tokenizer, text)?
    } else {
        tokenizer.encode(&text, true).map_err(text_error)?
    };
    if ids.is_empty() {
        return Err(CliError::usage("empty-prompt", "the prompt is empty: there is nothing to continue"));
    }
    Ok(ids)
}

fn chat(args: &RunArgs, dir: &Path, tokenizer: &Tokenizer, user: String) -> Result<Vec<u32>, CliError> {
    const NAME: &str = "chat_template.jinja";
    let Some(source) = read_sealed_if_any(dir, NAME)? else {
        let m = "the model has no chat template; run without --chat and write the turns yourself";
        return Err(CliError::usage("no-template", m).class("model").of(dir));
    };
    let source = String::from_utf8_lossy(&source).into_owned();
    let mut messages = Vec::new();
    messages.extend(args.system.clone().map(|s| Message::new("system", s)));
    messages.push(Message::new("user", user));
    let of = |e: TextError| text_error(e).class("model").of(&dir.join(NAME));
    ChatTemplate::new(source).map_err(of)?.encode(tokenizer, &Chat::new(messages)).map_err(of)
}

/// One generation.
struct Session<'a> {
    args: &'a RunArgs,
    engine: Engine,
    devices: Vec<serde_json::Value>,
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
        let (have, room) = (prompt.len(), self.engine.room(seq));
        if have > room {
            let limits = &self.engine.plan().limits;
            let (what, flag) = if limits.cache_rows < limits.ctx {
                ("the plan's caches hold", "--cache")
            } else {
                ("the plan's context is", "--ctx")
            };
            let m = format!(
                "the prompt has {have} tokens and {what} {room}; compile with a larger {flag} or give a shorter prompt"
            );
            return Err(CliError::usage("context", m));
        }
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
            self.args.place.device
        ));
        Ok(())
    }
}
