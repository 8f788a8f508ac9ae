//! Owns the plans in the user's cache: where the plan of a model lies, whether it still fits, and its healing. A cached
//! plan is nobody's work: one that is damaged is made again.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::find;
use glmc_runtime::RuntimeError;
use glmc_runtime::load::{check_weights, read_runnable, read_sealed_if_any};

use crate::cli::{RunArgs, SizeArgs};
use crate::error::CliError;
use crate::terminal::say;

/// The plan to run: the one given, or one compiled from the model given.
///
/// # Errors
/// Flags that only a compilation takes, or those of compiling.
pub(crate) fn plan_of(args: &RunArgs) -> Result<PathBuf, CliError> {
    plan_at(&args.plan, &args.sizes)
}

/// The same of a path.
///
/// # Errors
/// As for [`plan_of`].
pub(crate) fn plan_at(path: &Path, sizes: &SizeArgs) -> Result<PathBuf, CliError> {
    let holds = |name: &str| path.join(name).exists();
    let is_model =
        path.is_file() || (path.is_dir() && !holds("plan.json") && !holds("manifest.json") && has_gguf(path));
    if !is_model {
        let s = sizes;
        let given = [
            ("--target", s.target.is_some()),
            ("--ctx", s.ctx.is_some()),
            ("--max-batch", s.max_batch.is_some()),
            ("--cache", s.cache.is_some()),
            ("--fuel", s.fuel.is_some()),
            ("--force", !s.force.is_empty()),
        ];
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            let m = format!("{flag} is fixed when a plan is compiled; give the GGUF file, or compile it with {flag}");
            return Err(CliError::usage("arguments", m).of(path));
        }
        if !path.exists() {
            return Err(super::no_such_file(path));
        }
        return Ok(path.to_owned());
    }
    let place = place(path, sizes)?;
    if std::fs::symlink_metadata(&place).is_ok() {
        match usable(&place) {
            Ok(()) => return Ok(place),
            // Not the plan's fault.
            Err(e) if e.class == "memory" => return Err(e),
            Err(e) => say(&format!("the cached plan is compiled again: {}", e.place_and_message())),
        }
    }
    let compiled = super::compile::compile(path, sizes, glmc_passes::cost::TUNE_CTX, None)?;
    compiled.replace(&place).map_err(|e| not_cached(e, "the plan cannot be put into the cache"))?;
    Ok(place)
}

/// Whether all that a run reads of a plan is as it was written, and fits the model's files.
fn usable(place: &Path) -> Result<(), CliError> {
    if !std::fs::symlink_metadata(place).is_ok_and(|m| m.is_dir()) {
        return Err(CliError::usage("plan-incomplete", "is no directory").class("plan").of(place));
    }
    let at = |e: RuntimeError| CliError::from(e).at(place);
    let plan = read_runnable(place).map_err(at)?;
    check_weights(&plan).map_err(at)?;
    super::tokenizer(place)?;
    read_sealed_if_any(place, super::prompt::TEMPLATE)?;
    Ok(())
}

fn has_gguf(dir: &Path) -> bool {
    let gguf = |e: std::fs::DirEntry| e.path().extension().is_some_and(|x| x == "gguf");
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(gguf))
}

/// A cache that cannot be written.
fn not_cached(e: CliError, what: &str) -> CliError {
    let message = format!("{what}: {}; set XDG_CACHE_HOME, or compile the model first", e.message);
    CliError { message, ..e }
}

/// Where the user's cache keeps the plan of a model compiled with these sizes by this version.
fn place(model: &Path, s: &SizeArgs) -> Result<PathBuf, CliError> {
    let cache = dirs::cache_dir()
        .ok_or_else(|| CliError::usage("cache", "there is no cache folder for this user; compile the model first"))?;
    let folder = cache.join("glmc").join("plans");
    std::fs::create_dir_all(&folder)
        .map_err(|e| not_cached(CliError::io(&folder, &e), "the folder of cached plans cannot be made"))?;
    // Of a folder the one model in it: another beside it is an error with and without a cached plan.
    let file = find(model)?;
    let whole = std::fs::canonicalize(&file).map_err(|e| CliError::io(&file, &e))?;
    // A target file of the user's own counts by what it says, not by where it is.
    let own = s.target.as_deref().filter(|t| t.ends_with(".toml"));
    let own = own.map(|t| super::targets::read(Path::new(t))).transpose()?;
    let key = format!(
        "{whole:?} {own:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
        s.target,
        s.ctx,
        s.max_batch,
        s.cache,
        s.fuel,
        s.force,
        env!("CARGO_PKG_VERSION")
    );
    Ok(folder.join(&glmc_content::hash(key.as_bytes())[..32]))
}
