//! The end-to-end part of the self-test: a small model that the program carries, compiled here, run on the GPU against
//! the CPU device.

use std::path::Path;

use glmc_runtime::RuntimeError;
use glmc_runtime::engine::{Engine, Want};
use glmc_runtime::load::{Loaded, load};

use super::super::device::{Where, gpu_device};
use super::super::gpu::Gpu;
use crate::cli::{DeviceArgs, SizeArgs};
use crate::error::CliError;
use crate::signals::Unfinished;

/// A model of three layers with weights of `q4_K`, `q5_0`, `q6_K`, `q8_0` and `f32`.
const MODEL: &[u8] = include_bytes!("../../../tests/fixtures/models/tiny-Q4_K_M.gguf");
/// Relative L2 of logits against the CPU's: sums of f32 in other orders, through all layers.
pub(super) const BUDGET: f64 = 1e-3;
/// Prompt ids, more than one chunk of them, and ids that follow one by one.
const PROMPT: usize = 150;
const NEXT: usize = 24;
const CHUNK: u64 = 64;

/// One line of the report.
pub(super) struct ModelCheck {
    pub(super) what: &'static str,
    /// The relative L2, or what is wrong.
    pub(super) outcome: Result<f64, String>,
}

/// All logits of a prompt in chunks, of single steps, and of steps of two sequences.
fn logits(engine: &mut Engine) -> Result<[Vec<f32>; 3], RuntimeError> {
    let vocab = engine.plan().model.vocab as usize;
    let ids = |n: usize, from: usize| (0..n).map(move |i| ((7 * i * i + 31 * i + from) % vocab) as u32);
    engine.set_chunk(CHUNK);
    let (a, b) = (engine.start(), engine.start());
    let prompt: Vec<u32> = ids(PROMPT, 3).collect();
    let first = engine.feed(a, &prompt, Want::All)?;
    engine.feed(b, &prompt[..20], Want::Last)?;
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for id in ids(NEXT, 11) {
        one.extend(engine.decode(&[(a, id)])?);
    }
    for (x, y) in ids(NEXT, 17).zip(ids(NEXT, 90)) {
        two.extend(engine.decode(&[(a, x), (b, y)])?);
    }
    engine.end(a);
    engine.end(b);
    Ok([first, one, two])
}

/// The relative L2 of `got`, if it is within the budget.
fn near(got: &[f32], want: &[f32]) -> Result<f64, String> {
    if got.len() != want.len() || want.is_empty() {
        return Err(format!("{} logits for {}", got.len(), want.len()));
    }
    let square = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>();
    let off = square(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w)));
    let l2 = (off / square(&mut want.iter().map(|w| f64::from(*w)))).sqrt();
    // NaN is no smaller than anything.
    if l2 <= BUDGET { Ok(l2) } else { Err(format!("relative L2 {l2:e}, at most {BUDGET:e}")) }
}

fn compiled(dir: &Path) -> Result<Loaded, CliError> {
    let file = dir.join("model.gguf");
    std::fs::write(&file, MODEL).map_err(|e| CliError::io(&file, &e))?;
    let sizes = SizeArgs { ctx: Some(512), max_batch: Some(2), cache: Some(1024), ..SizeArgs::default() };
    let plan = dir.join("plan");
    super::super::compile::compile(&file, &sizes, glmc_passes::cost::TUNE_CTX, None)?.write(&plan)?;
    Ok(load(&plan)?)
}

fn on_gpu(gpu: &Gpu, dir: &Path, index: usize, eager: bool) -> Result<[Vec<f32>; 3], CliError> {
    let loaded = load(&dir.join("plan"))?;
    let args = DeviceArgs { device: Some(Where::Cuda(index)), eager, ..DeviceArgs::default() };
    let (device, _) = gpu_device(gpu, &loaded, &args, true)?;
    let mut engine = Engine::on(loaded, Box::new(device))?;
    engine.set_poison(eager);
    Ok(logits(&mut engine)?)
}

/// Runs the model on both devices.
///
/// # Errors
/// The model cannot be compiled or run on the CPU; what the GPU does wrong is in the result.
pub(super) fn run(gpu: &Gpu, index: usize) -> Result<Vec<ModelCheck>, CliError> {
    let dir = Unfinished::folder()?;
    let want = logits(&mut Engine::new(compiled(dir.path())?)?)?;
    let names = ["prompt in chunks", "single steps", "steps of two sequences"];
    // Outputs are poisoned before each launch where no graph is replayed.
    let eager = on_gpu(gpu, dir.path(), index, true);
    let graphs = on_gpu(gpu, dir.path(), index, false);
    let mut out = Vec::new();
    match (&eager, &graphs) {
        (Ok(e), Ok(g)) => {
            for ((what, got), want) in names.into_iter().zip(g).zip(&want) {
                out.push(ModelCheck { what, outcome: near(got, want) });
            }
            let same = e.iter().zip(g).all(|(e, g)| e.iter().map(|x| x.to_bits()).eq(g.iter().map(|x| x.to_bits())));
            let told = || "replayed graphs give other bits than step by step on poisoned memory".to_owned();
            let outcome = if same { Ok(0.0) } else { Err(told()) };
            out.push(ModelCheck { what: "graphs and single launches", outcome });
        }
        (Err(e), _) => out.push(ModelCheck { what: "step by step", outcome: Err(e.message.clone()) }),
        (_, Err(e)) => out.push(ModelCheck { what: "graphs", outcome: Err(e.message.clone()) }),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_near_numbers_is_near() {
        assert!(near(&[1.0, 2.0], &[1.0, 2.0]).is_ok());
        assert!(near(&[1.0, f32::NAN], &[1.0, 2.0]).is_err());
        assert!(near(&[1.0, 2.1], &[1.0, 2.0]).is_err());
        assert!(near(&[], &[]).is_err());
        assert!(near(&[1.0], &[1.0, 2.0]).is_err());
    }

    #[test]
    fn the_model_that_is_carried_runs_on_the_cpu_and_repeats() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = [0, 1].map(|_| logits(&mut Engine::new(compiled(dir.path()).unwrap()).unwrap()).unwrap());
        let vocab = a[0].len() / PROMPT;
        assert_eq!(a.each_ref().map(Vec::len), [PROMPT * vocab, NEXT * vocab, 2 * NEXT * vocab]);
        assert_eq!(a, b);
    }
}
