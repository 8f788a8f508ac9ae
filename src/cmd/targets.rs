//! `glmc targets`: the machines that plans can be made for. Owns how a target is named and found.

use std::path::Path;

use glmc_codegen_cuda::Arch;
use glmc_passes::target::{Target, TargetError};

use super::{human_bytes, print_json, print_line};
use crate::cli::TargetsArgs;
use crate::error::CliError;

/// Largest target file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The target of `--target`: a shipped name, or the path of a user's own file.
///
/// # Errors
/// A file that cannot be read or that breaks the schema (the error names file and key), or a name that is not known.
pub(crate) fn find(name: &str) -> Result<Target, CliError> {
    if name.ends_with(".toml") {
        let path = Path::new(name);
        let text = read(path)?;
        let parsed = Target::parse(&text).and_then(|t| match t.arch.parse::<Arch>() {
            Err(why) if t.arch != "cpu" => Err(TargetError::Schema {
                key: "arch".into(),
                why: format!("must be `cpu` or an architecture that kernels are made for: {why}"),
            }),
            _ => Ok(t),
        });
        parsed.map_err(|e| {
            let subject = if let TargetError::Schema { key, .. } = &e { Some(key.clone()) } else { None };
            CliError { subject, ..CliError::usage("target-schema", e.to_string()).class("format").of(path) }
        })
    } else {
        Target::named(name).map_err(|e| CliError::usage("target-unknown", e.to_string()))
    }
}

/// The text of a user's own target file.
///
/// # Errors
/// It cannot be read, is no regular file, is far too large, or is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    let bytes = glmc_runtime::load::read_bounded(path, MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|_| CliError::usage("target-schema", "is not UTF-8 text").class("format").of(path))
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
