//! `glmc synth`: a GGUF file of any dims with random weights, or the header of one.

use std::path::Path;
use std::time::Instant;

use glmc_frontend_gguf::write::synth::{Dims, model};
use glmc_frontend_gguf::write::temporary;
use glmc_frontend_gguf::{Model, open};
use serde_json::json;

use super::{human_bytes, print_json, print_line};
use crate::cli::SynthArgs;
use crate::error::CliError;
use crate::plan_dir::{check_parent, check_room, check_size};
use crate::progress::Stage;
use crate::signals::Unfinished;
use crate::terminal::escaped;

/// A dim by its name: `width=6144`.
pub(crate) fn parse_dim(text: &str) -> Result<(String, u64), String> {
    let (name, n) = text.split_once('=').ok_or("say NAME=NUMBER, such as width=6144")?;
    let n = n.parse().map_err(|_| format!("`{n}` is no whole number"))?;
    Ok((name.to_owned(), n))
}

/// A preset's dims.
pub(crate) fn parse_preset(name: &str) -> Result<Dims, String> {
    Dims::preset(name).ok_or_else(|| format!("there is no preset `{name}`: {}", Dims::PRESETS.join(", ")))
}

fn dims(args: &SynthArgs) -> Result<Dims, CliError> {
    let mut dims = args.preset.clone();
    let short = [("layers", args.layers), ("dense", args.dense), ("experts", args.experts)];
    let short = short.into_iter().filter_map(|(name, n)| Some((name.to_owned(), n?)));
    for (name, n) in short.chain(args.dims.iter().cloned()) {
        dims.set(&name, n).map_err(|e| CliError::usage("dims", e))?;
    }
    // A shorter trunk without a word about it has no more layers without experts than it has layers.
    if args.dense.is_none() && !args.dims.iter().any(|(name, _)| name == "dense") {
        dims.dense = dims.dense.min(dims.layers);
    }
    Ok(dims)
}

pub(crate) fn run(args: &SynthArgs) -> Result<(), CliError> {
    let start = Instant::now();
    let out: &Path = &args.output;
    check_parent(out, "the file")?;
    let dims = dims(args)?;
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::InvalidInput => CliError::usage("dims", e.to_string()),
        std::io::ErrorKind::AlreadyExists => {
            CliError::usage("output-exists", "exists and is not overwritten; choose another name").of(out)
        }
        _ => CliError::io(out, &e),
    };
    let progress = Stage::begin("writing", args.json);
    let file = model(&dims, args.mix, args.seed, args.hollow).map_err(failed)?;
    let bytes = file.bytes();
    check_size(bytes).map_err(|e| CliError::io(out, &e))?;
    check_room(out, std::iter::once(file.disk_bytes()))?;
    // It has a name before it is whole only where the file system has no files without one.
    let (_unfinished, ()) = Unfinished::new(&temporary(out), || Ok(())).map_err(failed)?;
    file.write(out).map_err(failed)?;
    progress.end();
    // What was written must be what `compile` takes.
    let set = open(out)?;
    let tensors = set.tensor_count();
    Model::load(&set)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        return print_json(&json!({
            "path": out.display().to_string(), "bytes": bytes, "tensors": tensors, "hollow": args.hollow,
            "seed": args.seed, "layers": dims.layers, "seconds": seconds,
        }));
    }
    let what = if args.hollow { "the header, its weights are a hole" } else { "random weights" };
    print_line(&format!(
        "{}: {}, {tensors} tensors, {} layers, {what}; {seconds:.2} s",
        escaped(&out.display().to_string()),
        human_bytes(bytes),
        dims.layers
    ))
}
