//! A plan of several ranks on the CPU: its weight files, its parameters, and each rank's parts beside the interpreter's.

use std::path::Path;
use std::time::Duration;

use glmc_ir::plan::{FileRef, Phase, Plan};
use glmc_ir::shard_map::Shard;
use glmc_ir::tensor::{Data, Tensor};
use glmc_ir::ty::{SymValues, TensorType};
use glmc_runtime::device::cpu::{Before, CpuGroup};
use glmc_runtime::device::{Device, Output};
use glmc_runtime::load::{Loaded, map_weights};

use crate::run::{Files, Rng};

/// Largest error of one number as a share of the RMS.
pub(super) const ELEMENT: f64 = 8e-5;

/// `plan` with its files written to `dir` and mapped.
pub(super) fn load(mut plan: Plan, files: &Files, dir: &Path) -> Result<Loaded, String> {
    let write = |(i, bytes): (usize, &Vec<u8>)| {
        let path = dir.join(format!("part-{i}"));
        std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
        Ok(FileRef {
            path: path.to_string_lossy().into_owned(),
            bytes: bytes.len() as u64,
            header_bytes: 0,
            header_hash: glmc_content::header_hash(&path, 0).map_err(|e| e.to_string())?,
            sample_hash: glmc_content::sample_hash(&path, 0).map_err(|e| e.to_string())?,
        })
    };
    plan.files = files.0.iter().enumerate().map(write).collect::<Result<_, String>>()?;
    map_weights(plan, Path::new(".")).map_err(|e| e.to_string())
}

/// The ranks of a plan; what they write is poisoned before, and what they leave after.
pub(super) fn group(plan: &Plan) -> Result<CpuGroup, String> {
    let mut group = CpuGroup::new(plan).map_err(|e| e.to_string())?;
    group.set_poison(true);
    group.set_patience(Duration::from_secs(60));
    Ok(group)
}

/// Rests of random length before steps, so that ranks meet in every order.
pub(super) fn rests(seed: u64) -> Box<Before> {
    Box::new(move |rank, step| {
        let mut rng = Rng(seed ^ (rank as u64) << 40 ^ (step as u64) << 20);
        if rng.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(300) as u64));
        }
        Ok(())
    })
}

/// Parameters as the device takes them: 32-bit words.
pub(super) fn words(t: &Tensor) -> Vec<i32> {
    match &t.data {
        Data::F(v) => v.iter().map(|x| (*x as f32).to_bits().cast_signed()).collect(),
        Data::I(v) => v.iter().map(|x| *x as i32).collect(),
        Data::Q(..) => panic!("stored blocks are weights"),
    }
}

/// Compares every rank's part of every result with the rank's part of the whole, and the bits of ranks that hold the
/// same part; how many parts were compared.
pub(super) fn same(
    group: &CpuGroup,
    plan: &Plan,
    phase: &Phase,
    syms: &SymValues,
    want: &[Tensor],
) -> Result<usize, String> {
    let mut compared = 0;
    for (r, whole) in phase.results.iter().zip(want) {
        let mut held: Vec<(Shard, Vec<u32>)> = Vec::new();
        for rank in 0..plan.target.ranks as usize {
            let (shape, got) = group.part(plan, phase, &r.name, rank, syms).map_err(|e| e.to_string())?;
            let shard = Shard::of(&r.ty, &plan.mesh, rank as u64, syms).map_err(|e| e.to_string())?;
            if shape != shard.shape() {
                return Err(format!("rank {rank} holds {shape:?} of a {}", r.ty));
            }
            let (bits, part) = (bits(&got), part(whole, &r.ty, &shard));
            near(&got, whole, &part).map_err(|e| format!("`{}` on rank {rank}: {e}", r.name))?;
            if held.iter().any(|(s, b)| *s == shard && *b != bits) {
                return Err(format!("`{}` on rank {rank}: another rank's copy has other bits", r.name));
            }
            held.push((shard, bits));
            compared += 1;
        }
    }
    Ok(compared)
}

fn bits(o: &Output<'_>) -> Vec<u32> {
    match o {
        Output::F32(v) => v.iter().map(|x| x.to_bits()).collect(),
        Output::I32(v) => v.iter().map(|x| x.cast_unsigned()).collect(),
    }
}

/// The entries of `whole` that lie in a shard, in order.
fn part(whole: &Tensor, ty: &TensorType, shard: &Shard) -> Vec<f64> {
    assert!(ty.pending.is_none(), "a result is whole or split");
    let inside = |flat: &usize| {
        let mut rest = *flat;
        shard.ranges.iter().zip(&whole.shape).rev().all(|(ranges, n)| {
            let at = (rest % n) as u64;
            rest /= n;
            ranges.iter().any(|r| r.contains(&at))
        })
    };
    (0..whole.len()).filter(inside).map(|i| number(whole, i)).collect()
}

fn number(t: &Tensor, i: usize) -> f64 {
    match &t.data {
        Data::F(v) => v[i],
        Data::I(v) => v[i] as f64,
        Data::Q(..) => f64::NAN,
    }
}

fn near(got: &Output<'_>, whole: &Tensor, want: &[f64]) -> Result<(), String> {
    let (got, exact): (Vec<f64>, bool) = match got {
        Output::F32(v) => (v.iter().map(|x| f64::from(*x)).collect(), false),
        Output::I32(v) => (v.iter().map(|x| f64::from(*x)).collect(), true),
    };
    if got.len() != want.len() {
        return Err(format!("{} numbers for {}", got.len(), want.len()));
    }
    let n = whole.len().max(1);
    let rms = ((0..n.min(whole.len())).map(|i| number(whole, i).powi(2)).sum::<f64>() / n as f64).sqrt();
    let bound = if exact { 0.0 } else { ELEMENT * rms };
    match got.iter().zip(want).enumerate().find(|(_, (g, w))| {
        let off = (*g - *w).abs();
        off.is_nan() || off > bound
    }) {
        Some((i, (g, w))) => Err(format!("element {i} is {g}, not {w} (RMS {rms})")),
        None => Ok(()),
    }
}
