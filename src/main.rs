//! The `glmc` command: parse it, run it, render its error, choose the exit code. Nothing else.

mod bus;
mod cli;
mod cmd;
mod error;
mod memory;
mod output;
mod plan_dir;
mod progress;
mod signals;
mod template;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|a| a == template::COMMAND) && args.next().is_none() {
        return template::serve();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return error::usage(&e),
    };
    // A bare level is ours: the e-graph and tokenizer crates log by the thousand.
    let level = std::env::var("GLMC_LOG").unwrap_or_else(|_| "warn".into());
    let level = if level.contains(['=', ',']) { level } else { format!("{level},egg=warn,tokenizers=warn") };
    let filter =
        tracing_subscriber::EnvFilter::try_new(&level).unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| terminal::LogLines)
        // Colours are escapes, and those that a file's strings bring along must not pass.
        .with_ansi(false)
        .without_time()
        .init();
    let json = cli.command.json();
    bus::install(json);
    signals::no_signal_for_large_files();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => e.report(json),
    }
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Compile(a) => cmd::compile::run(&a),
        Command::Run(a) => cmd::run::run(&a),
        Command::Inspect(a) => cmd::inspect::run(&a),
        Command::Explain(a) => cmd::explain::run(&a),
        Command::Perplexity(a) => cmd::perplexity::run(&a),
        Command::Verify(a) => cmd::verify::run(&a),
        Command::Targets(a) => cmd::targets::run(&a),
        Command::Devices(a) => cmd::devices::run(&a),
        Command::Selftest(a) => cmd::selftest::run(&a),
        Command::Bench(a) => cmd::bench::run(&a),
        Command::Synth(a) => cmd::synth::run(&a),
    }
}
