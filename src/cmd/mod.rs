//! Owns the commands, one file each: arguments, call, output. Never an algorithm.

pub(crate) mod bench;
pub(crate) mod cached;
pub(crate) mod check;
pub(crate) mod compile;
pub(crate) mod decisions;
pub(crate) mod device;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod explain_page;
pub(crate) mod explain_value;
pub(crate) mod figures;
pub(crate) mod gpu;
pub(crate) mod ids;
pub(crate) mod inspect;
pub(crate) mod measure;
pub(crate) mod perplexity;
pub(crate) mod prompt;
pub(crate) mod ring;
pub(crate) mod room;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod spread;
pub(crate) mod synth;
pub(crate) mod targets;
pub(crate) mod verify;

use std::path::Path;

use glmc_runtime::engine::Engine;
use glmc_runtime::fault::Fault;
use glmc_runtime::load::{Loaded, read_sealed};
use glmc_runtime::text::Tokenizer;

use crate::cli::FaultArgs;
use crate::error::CliError;
use crate::terminal::{escaped, say, try_print};

/// Prints one JSON object on stdout.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    print_text(&format!("{value}\n"))
}

/// Prints one line on stdout, with what acts on a terminal or breaks lines escaped: names come from files.
pub(crate) fn print_line(line: &str) -> Result<(), CliError> {
    print_text(&format!("{}\n", escaped(line)))
}

/// Prints text on stdout at once. Nothing, and no error, once the reader has gone.
pub(crate) fn print_text(text: &str) -> Result<(), CliError> {
    try_print(text).map_err(|e| CliError::io(Path::new("stdout"), &e))
}

/// `1.5 GiB` and the like.
pub(crate) fn human_bytes(n: u64) -> String {
    indicatif::HumanBytes(n).to_string()
}

/// The tokenizer of a plan.
pub(crate) fn tokenizer(plan: &Path) -> Result<Tokenizer, CliError> {
    let json = read_sealed(plan, "tokenizer.json")?;
    let of = |e: glmc_runtime::text::TextError| CliError::usage("text", e.to_string()).class("plan");
    Tokenizer::from_json(&json).map_err(|e| of(e).of(&plan.join("tokenizer.json")))
}

/// Starts the threads that compute.
pub(crate) fn start_threads() -> Result<(), CliError> {
    if let Some(note) = glmc_runtime::threads::start().map_err(|e| CliError::usage("threads", e).class("memory"))? {
        say(&escaped(&note));
    }
    Ok(())
}

/// Puts in the corrupted block that a test asks for, and says so. What was done.
pub(crate) fn put_fault(args: &FaultArgs, loaded: &mut Loaded) -> Result<Option<String>, CliError> {
    let Some(Fault::Block(block)) = &args.inject else { return Ok(None) };
    let done = loaded.corrupt(block)?;
    say(&escaped(&format!("fault put in: {done}")));
    Ok(Some(done))
}

/// Lets the rank die that a test asks for, in the next run, and says so.
pub(crate) fn put_death(args: &FaultArgs, engine: &mut Engine) -> Result<(), CliError> {
    let Some(Fault::Death { rank, step }) = args.inject else { return Ok(()) };
    engine.kill(rank, step)?;
    say(&format!("fault put in: rank {rank} dies before step {step} of the next run"));
    Ok(())
}

/// A path with nothing there.
pub(crate) fn no_such_file(path: &Path) -> CliError {
    let e = CliError::usage("no-such-file", "no such file or directory");
    e.class("io").of(path)
}

/// Refuses what is no plan directory: nothing at all, or a model.
pub(crate) fn want_plan(path: &Path) -> Result<(), CliError> {
    if !path.exists() {
        return Err(no_such_file(path));
    }
    if path.is_file() {
        let m = "is a file, not a plan; compile a model first: glmc compile MODEL.gguf -o PLAN";
        return Err(CliError::usage("no-plan", m).class("plan").of(path));
    }
    Ok(())
}
