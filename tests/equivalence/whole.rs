//! The runtime does only what `plan.json` says: an edited plan is refused by the verifier, or the CPU device computes
//! what the plan interpreter computes from the same edited plan. Nothing comes from anywhere else: not from a file's
//! metadata, not from a weight's name, not from what the model usually is.

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;
use glmc_ir::entities::{BufId, WeightId};
use glmc_ir::interp::Arith;
use glmc_ir::kernel::Access;
use glmc_ir::plan::{Mem, Plan};
use glmc_ir::ty::Elem;
use glmc_ir::verify::plan::verify_plan;

use super::compile::{Compiled, compile};
use super::script::{ROWS, execute, interpret};
use crate::run::{Files, Rng};

/// Largest difference between device and interpreter, as a share of the logits' RMS.
const TOLERANCE: f64 = 2e-5;
/// What counts as other logits.
const OTHER: f64 = 1e-4;

/// The shipped model with an indexer that selects 2 of up to 6 positions, so that every weight matters in a short run.
fn model(dir: &Path) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let set = open(&shipped).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("glm-dsa.attention.indexer.top_k", 2u32);
    let path = dir.join("model.gguf");
    w.write(&path).unwrap();
    path
}

fn compiled(path: &Path) -> Compiled {
    let options = LiftOptions { ctx: 16, max_batch: 1, cache_rows: ROWS as u64, chunk: 4 };
    compile(path, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// The largest difference as a share of `b`'s RMS.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let rms = (b.iter().map(|x| x * x).sum::<f64>() / b.len() as f64).sqrt();
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs() / rms);
    far.fold(0.0, |m: f64, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

/// Logits of the unedited plan: the device's and the interpreter's.
struct Right {
    device: Vec<f64>,
    interp: Vec<f64>,
}

impl Right {
    fn of(c: &Compiled) -> Right {
        let right = Right {
            device: execute(&c.plan).unwrap(),
            interp: interpret(&c.plan, Arith::Typed, &c.files).unwrap_or_else(|e| panic!("{e}")),
        };
        assert!(right.interp.iter().all(|x| x.is_finite()) && right.interp.iter().any(|x| x.abs() > 1.0));
        assert!(apart(&right.device, &right.interp) <= TOLERANCE);
        right
    }

    /// Holds the device to the interpreter on an accepted plan; whether its logits are others than they were.
    fn moved(&self, what: &str, plan: &Plan, files: &Files, worst: &mut f64) -> bool {
        let interp = interpret(plan, Arith::Typed, files).unwrap_or_else(|e| panic!("{what}: {e}"));
        let device = execute(plan).unwrap_or_else(|e| panic!("{what}: {e}"));
        let d = apart(&device, &interp);
        assert!(d <= TOLERANCE, "{what}: the device is off by {d:e} of the RMS");
        *worst = worst.max(d);
        let (a, b) = (apart(&interp, &self.interp), apart(&device, &self.device));
        // A choice that an edit does not turn leaves the logits as they were, in both.
        assert!((a > OTHER) == (b > OTHER) || (a - b).abs() <= 2.0 * TOLERANCE, "{what}: moved by {a:e} and {b:e}");
        a > OTHER
    }
}

#[test]
fn weights_that_change_places_change_the_logits_as_the_plan_means() {
    let dir = tempfile::tempdir().unwrap();
    let c = compiled(&model(dir.path()));
    let right = Right::of(&c);
    let all: Vec<WeightId> = c.plan.weights.keys().collect();
    let (mut pairs, mut moved, mut worst, mut still) = (0, 0, 0.0, Vec::new());
    for (j, b) in all.iter().enumerate() {
        // With the nearest two before it of its kind: layers of the same depth, of others, and roles of one shape.
        let kin = all[..j].iter().rev().filter(|a| c.plan.weights[**a].ty == c.plan.weights[*b].ty);
        for a in kin.take(2) {
            let what = format!("{} and {}", c.plan.weights[*a].name, c.plan.weights[*b].name);
            let mut plan = c.plan.clone();
            let (x, y) = (c.plan.weights[*a].clone(), c.plan.weights[*b].clone());
            (plan.weights[*a].span, plan.weights[*a].slices) = (y.span, y.slices);
            // With the slices of one alone, two weights are the same bytes.
            assert!(verify_plan(&plan).is_err(), "{what}: half a swap is accepted");
            (plan.weights[*b].span, plan.weights[*b].slices) = (x.span, x.slices);
            verify_plan(&plan).unwrap_or_else(|e| panic!("{what}: {e}"));
            pairs += 1;
            if right.moved(&what, &plan, &c.files, &mut worst) {
                moved += 1;
            } else {
                still.push(what);
            }
        }
    }
    println!(
        "{pairs} pairs, {moved} with other logits, device off by at most {worst:.1e} of the RMS; still: {still:?}"
    );
    assert!(pairs >= 50 && moved * 10 >= pairs * 9, "{moved} of {pairs}");
}

#[test]
fn a_norm_that_is_doubled_changes_the_logits_as_the_plan_means() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let c = compiled(&path);
    let right = Right::of(&c);
    let whole = std::fs::read(&path).unwrap();
    let (mut norms, mut moved, mut worst, mut still) = (0, 0, 0.0, Vec::new());
    for w in c.plan.weights.values().filter(|w| w.name.contains("norm")) {
        assert_eq!(w.ty.elem, Elem::F32, "{}", w.name);
        let mut bytes = whole.clone();
        for x in bytes[w.span.offset as usize..][..w.span.bytes as usize].chunks_exact_mut(4) {
            let v = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
            x.copy_from_slice(&(2.0 * v).to_le_bytes());
        }
        let other = dir.path().join("other.gguf");
        std::fs::write(&other, bytes).unwrap();
        let edited = compiled(&other);
        assert_eq!((&edited.plan.weights, &edited.plan.phases), (&c.plan.weights, &c.plan.phases), "{}", w.name);
        norms += 1;
        if right.moved(&w.name, &edited.plan, &edited.files, &mut worst) {
            moved += 1;
        } else {
            still.push(w.name.clone());
        }
    }
    println!("{norms} norms, {moved} move the logits, device off by at most {worst:.1e} of the RMS; still: {still:?}");
    // A doubled index key norm may choose the same positions.
    assert!(norms >= 15 && still.iter().all(|n| n.contains("indexer")), "{norms}: {still:?}");
}

/// Every step of every phase is left out once.
#[test]
fn a_plan_without_a_step_is_refused_or_means_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let c = compiled(&model(dir.path()));
    let right = Right::of(&c);
    let mut count = Count::default();
    for p in 0..c.plan.phases.len() {
        for k in 0..c.plan.phases[p].steps.len() {
            let mut plan = c.plan.clone();
            let phase = &mut plan.phases[p];
            let what = format!("{} without step {k} `{}`", phase.name, phase.steps[k].name);
            phase.steps.remove(k);
            // The segments still fit: what is refused is the missing step itself.
            let s = phase.segments.iter().position(|s| k < s.first + s.count).unwrap();
            phase.segments[s].count -= 1;
            phase.segments[s + 1..].iter_mut().for_each(|s| s.first -= 1);
            phase.segments.retain(|s| s.count > 0);
            judge(&right, &what, &plan, &c.files, &mut count);
        }
    }
    println!("{count:?}");
    assert!(count.refused >= 100 && count.accepted == 0);
}

/// Every output of every step goes to other buffers.
#[test]
fn an_output_that_goes_elsewhere_is_refused_or_means_what_it_says() {
    const OTHERS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let c = compiled(&model(dir.path()));
    let right = Right::of(&c);
    let (mut rng, mut count, mut exchanges) = (Rng(11), Count::default(), 0);
    for (p, phase) in c.plan.phases.iter().enumerate() {
        for (k, step) in phase.steps.iter().enumerate() {
            for (i, arg) in step.args.iter().enumerate().filter(|(_, a)| a.access == Access::Write) {
                let fits = |b: &glmc_ir::plan::Buffer| b.ty == arg.ty;
                let buffers = phase.buffers.iter().filter(|(b, x)| Mem::Buf(*b) != arg.mem && fits(x));
                let buffers: Vec<_> = buffers.map(|(b, _)| b).collect();
                // What the same step writes can be exchanged without breaking any order.
                let own = |b: &&BufId| step.args.iter().any(|a| a.access == Access::Write && a.mem == Mem::Buf(**b));
                let mut others: Vec<BufId> = buffers.iter().filter(own).copied().collect();
                others.extend((0..OTHERS.min(buffers.len())).map(|_| *rng.pick(&buffers)));
                for to in others {
                    let mut plan = c.plan.clone();
                    plan.phases[p].steps[k].args[i].mem = Mem::Buf(to);
                    let what = format!("{} step {k} `{}` writes {to}", phase.name, step.name);
                    judge(&right, &what, &plan, &c.files, &mut count);
                    // Both exchange their outputs: each buffer has one writer still.
                    let Some((k2, i2)) = writer(&c.plan, p, Mem::Buf(to)) else { continue };
                    plan.phases[p].steps[k2].args[i2].mem = arg.mem;
                    exchanges += 1;
                    let what = format!("{what}, step {k2} what it wrote");
                    judge(&right, &what, &plan, &c.files, &mut count);
                }
            }
        }
    }
    println!("{count:?}, {exchanges} exchanges");
    assert!(count.refused >= 300 && exchanges >= 100 && count.moved > 0);
}

/// The step and argument that write `mem`.
fn writer(plan: &Plan, phase: usize, mem: Mem) -> Option<(usize, usize)> {
    plan.phases[phase].steps.iter().enumerate().find_map(|(k, s)| {
        let i = s.args.iter().position(|a| a.mem == mem && a.access == Access::Write)?;
        Some((k, i))
    })
}

#[derive(Default, Debug)]
struct Count {
    refused: usize,
    accepted: usize,
    /// Accepted, with other logits: they are those that the plan now means.
    moved: usize,
}

fn judge(right: &Right, what: &str, plan: &Plan, files: &Files, count: &mut Count) {
    if verify_plan(plan).is_err() {
        count.refused += 1;
        return;
    }
    count.accepted += 1;
    count.moved += usize::from(right.moved(what, plan, files, &mut 0.0));
}
