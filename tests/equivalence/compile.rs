//! From a model file to every form that the tests compare.

use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{Model, open};
use glmc_ir::graph::Module;
use glmc_ir::plan::{FileRef, Plan};
use glmc_ir::verify::plan::verify_plan;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::pipeline;
use glmc_passes::schedule::EntryInfo;
use glmc_passes::target::Target;

use crate::run::{Files, wrap};

/// A model at every level.
pub(super) struct Compiled {
    /// The module after the lift and after each pass.
    pub(super) stages: Vec<(String, Module)>,
    /// The verified plan.
    pub(super) plan: Plan,
    /// The weight files, in memory.
    pub(super) files: Files,
}

/// Compiles the model of `path` for one CPU rank.
pub(super) fn compile(path: &Path, options: &LiftOptions) -> Result<Compiled, String> {
    compile_for(path, options, &crate::run::machine("cpu").target)
}

/// The same for a target.
pub(super) fn compile_for(path: &Path, options: &LiftOptions, target: &Target) -> Result<Compiled, String> {
    let set = open(path).map_err(|e| e.line())?;
    let model = Model::load(&set).map_err(|e| e.line())?;
    let lifted = model.lift(options).map_err(|e| e.to_string())?;
    let entries: Vec<EntryInfo> =
        lifted.entries.iter().map(|e| EntryInfo { func: e.func.clone(), kind: e.kind, tokens: e.tokens }).collect();
    let mut stages = Vec::new();
    let on = Machine::new(target, glmc_passes::cost::TUNE_CTX);
    let done =
        pipeline::run(lifted.module, &entries, &on, None, &mut |name, m| stages.push((name.to_owned(), m.clone())))
            .map_err(|e| e.to_string())?;
    let files = set.parts().iter().map(|p| std::fs::read(p.path())).collect::<Result<_, _>>();
    let files = Files(files.map_err(|e| e.to_string())?);
    let mut plan = wrap(&done.module, done.scheduled, &files);
    let file = |p: &glmc_frontend_gguf::Part| {
        Ok(FileRef {
            path: p.path().to_string_lossy().into_owned(),
            bytes: p.size(),
            header_bytes: p.header_len(),
            header_hash: p.header_hash().map_err(|e| e.line())?,
            sample_hash: p.sample_hash().map_err(|e| e.line())?,
        })
    };
    plan.files = set.parts().iter().map(file).collect::<Result<_, String>>()?;
    plan.model.vocab = model.config.vocab_size;
    plan.limits.ctx = options.ctx;
    plan.limits.max_batch = options.max_batch;
    plan.limits.cache_rows = options.cache_rows;
    plan.limits.chunk = options.chunk;
    verify_plan(&plan).map_err(|e| e.to_string())?;
    Ok(Compiled { stages, plan, files })
}
