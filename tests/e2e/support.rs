//! What end-to-end tests share: fixtures, goldens, plans, engines.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glmc_runtime::engine::Engine;
use serde_json::Value;

/// A file of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A golden as JSON.
pub(crate) fn golden_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture("models/goldens").join(name)).unwrap()).unwrap()
}

/// A golden array: shape and values.
pub(crate) fn golden_npy(name: &str) -> (Vec<usize>, Vec<f64>) {
    let bytes = std::fs::read(fixture("models/goldens").join(name)).unwrap();
    let npy = npyz::NpyFile::new(&bytes[..]).unwrap();
    let shape = npy.shape().iter().map(|n| *n as usize).collect();
    let values = match npy.dtype().descr().as_str() {
        "'<f4'" => npy.into_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        "'<f8'" => npy.into_vec::<f64>().unwrap(),
        "'<i2'" => npy.into_vec::<i16>().unwrap().into_iter().map(f64::from).collect(),
        "'<i4'" => npy.into_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
        "'<i8'" => npy.into_vec::<i64>().unwrap().into_iter().map(|x| x as f64).collect(),
        other => panic!("{name} holds {other}"),
    };
    (shape, values)
}

/// Files that live as long as the test process.
pub(crate) fn scratch() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// Runs `glmc` and returns what it printed; fails the test unless it succeeds.
pub(crate) fn glmc(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_glmc")).args(args).output().unwrap();
    assert!(out.status.success(), "glmc {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Compiles a model into a plan of its own.
pub(crate) fn compile(model: &Path) -> PathBuf {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let plan = scratch().join(format!("plan-{n}"));
    glmc(&["compile", model.to_str().unwrap(), "-o", plan.to_str().unwrap(), "--ctx", "1024", "--json"]);
    plan
}

/// An engine over a plan, outputs poisoned before each launch.
pub(crate) fn engine(plan: &Path) -> Engine {
    let mut e = Engine::new(glmc_runtime::load::load(plan).unwrap()).unwrap();
    e.set_poison(true);
    e
}

/// The same without the phases that are for short contexts.
pub(crate) fn long_engine(plan: &Path) -> Engine {
    let mut p = glmc_runtime::load::load(plan).unwrap().plan;
    let (all, most) = (p.phases.len(), p.limits.ctx);
    p.phases.retain(|x| x.visible().is_some_and(|n| n >= most));
    assert!(p.phases.len() < all, "no phase is for short contexts");
    let mut e = Engine::new(glmc_runtime::load::map_weights(p, plan).unwrap()).unwrap();
    e.set_poison(true);
    e
}

/// The 12 prompts in order: name and ids.
pub(crate) fn prompts() -> Vec<(String, Vec<u32>)> {
    let all = golden_json("prompts.json");
    let order: Vec<String> = serde_json::from_value(all["order"].clone()).unwrap();
    order
        .into_iter()
        .map(|name| {
            let p = if all["prompts"].is_null() { &all[&name] } else { &all["prompts"][&name] };
            let ids = ["ids", "tokens"].iter().find_map(|k| serde_json::from_value(p[*k].clone()).ok()).unwrap();
            (name, ids)
        })
        .collect()
}

/// Index and value of the largest entry; NaN fails the test.
pub(crate) fn arg_max(logits: &[f32]) -> u32 {
    assert!(logits.iter().all(|x| x.is_finite()), "the logits hold NaN or infinity");
    glmc_runtime::sampler::argmax(logits).unwrap()
}
