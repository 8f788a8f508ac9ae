//! A plan of the first layers of a model: the header of a shorter file, compiled for the same machine.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_runtime::load::read_plan;

use super::super::figures::{self, TARGET};
use crate::cli::SizeArgs;
use crate::error::CliError;
use crate::signals::Unfinished;

/// The plan's name in its folder.
pub(super) const PLAN: &str = "plan";

/// A folder with the plan of the first `layers` layers of a model, or of the model of a plan.
pub(super) fn plan(path: &Path, sizes: &SizeArgs, layers: u64) -> Result<Unfinished, CliError> {
    let folder = Unfinished::folder()?;
    let (model, sizes): (PathBuf, SizeArgs) = if path.is_dir() && path.join("plan.json").exists() {
        let plan = read_plan(path)?;
        let target = figures::target_of(path, &plan)?.to_toml().map_err(|e| CliError::internal(e.to_string()))?;
        let file = folder.path().join(TARGET);
        std::fs::write(&file, target).map_err(|e| CliError::io(&file, &e))?;
        let model = plan.files.first().ok_or_else(|| CliError::internal("a plan without files"))?;
        let l = &plan.limits;
        let sizes = SizeArgs {
            target: Some(file.display().to_string()),
            ctx: Some(l.ctx),
            max_batch: Some(l.max_batch),
            cache: Some(l.cache_rows),
            ..SizeArgs::default()
        };
        (PathBuf::from(&model.path), sizes)
    } else {
        (path.to_owned(), sizes.clone())
    };
    let short = folder.path().join("model.gguf");
    shorten(&model, layers, &short)?;
    let made = super::super::compile::compile(&short, &sizes, glmc_passes::cost::TUNE_CTX, None)?;
    made.write(&folder.path().join(PLAN))?;
    Ok(folder)
}

/// Writes the header of `model` cut to its first layers, without a draft head.
fn shorten(model: &Path, layers: u64, to: &Path) -> Result<(), CliError> {
    let set = open(model)?;
    let config = glmc_frontend_gguf::GlmDsaConfig::load(&set)?;
    if layers > config.layers {
        let m = format!("--layers {layers}: the model has {}", config.layers);
        return Err(CliError::usage("arguments", m).of(model));
    }
    let failed = |e: std::io::Error| CliError::io(to, &e);
    let mut w = GgufWriter::from_set(&set).map_err(failed)?;
    let block = |name: &str| name.strip_prefix("blk.").and_then(|n| n.split('.').next()?.parse::<u64>().ok());
    w.retain_tensors(|name| block(name).is_none_or(|b| b < layers)).hollow();
    // Sizes are 32-bit in files.
    let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    w.set("glm-dsa.block_count", short(layers)).set("glm-dsa.nextn_predict_layers", 0u32);
    w.set("glm-dsa.leading_dense_block_count", short(config.leading_dense_block_count.min(layers)));
    w.set("glm-dsa.attention.indexer.types", config.indexer.types[..layers as usize].to_vec());
    w.write(to).map_err(failed)
}
