//! `glmc targets`: the machines that plans can be made for. Owns how a target is named and found.

use std::path::Path;

use glmc_passes::target::{Target, TargetError};

use super::{human_bytes, print_json, print_line};
use crate::cli::TargetsArgs;
use crate::error::CliError;

/// The target of `--target`: a shipped name, or the path of a user's own file.
///
/// # Errors
/// A file that cannot be read or that breaks the schema (the error names file and key), or a name that is not known.
pub(crate) fn find(name: &str) -> Result<Target, CliError> {
    if name.ends_with(".toml") {
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).map_err(|e| CliError::io(path, &e))?;
        Target::parse(&text).map_err(|e| {
            let subject = if let TargetError::Schema { key, .. } = &e { Some(key.clone()) } else { None };
            CliError { subject, ..CliError::usage("target-schema", e.to_string()).class("format").of(path) }
        })
    } else {
        Target::named(name).map_err(|e| CliError::usage("target-unknown", e.to_string()))
    }
}

pub(crate) fn run(args: &TargetsArgs) -> Result<(), CliError> {
    let all = Target::shipped();
    if args.json {
        return print_json(&serde_json::json!({ "targets": all }));
    }
    for t in all {
        let memory = t.device.memory_bytes.map_or("-".to_owned(), human_bytes);
        let bandwidth = t.device.read_bytes_per_s / 1e9;
        print_line(&format!(
            "{:<28} {:<7} {:>2} x {memory:>10}, {bandwidth:>6.0} GB/s  {}",
            t.name, t.arch, t.ranks, t.description
        ))?;
    }
    Ok(())
}
