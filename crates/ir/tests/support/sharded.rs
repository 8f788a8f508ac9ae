//! Sharded modules on meshes of other sizes, and the ranks against the whole.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use glmc_ir::builder::call_types;
use glmc_ir::entities::FuncId;
use glmc_ir::graph::{InstKind, Module};
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::Interp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::placement::{Mesh, infer_on};
use glmc_ir::shard_map::canonical;
use glmc_ir::tensor::Tensor;
use glmc_ir::ty::{SymValues, TensorType};
use glmc_ir::verify::verify_module;

use crate::values::{Floats, Rng, Weights, differ, operands};

/// Inputs tried for each function and mesh.
const SEEDS: u64 = 8;

/// Every mesh of `n` ranks with the axes of `m`.
pub(crate) fn meshes(m: &Module, n: u64) -> Vec<Mesh> {
    let mut all = vec![(Mesh::new(), n)];
    for (i, axis) in m.mesh.keys().enumerate() {
        let last = i + 1 == m.mesh.len();
        let sizes = |rest: u64| (1..=rest).filter(move |s| rest.is_multiple_of(*s) && (!last || *s == rest));
        let with = |(mesh, rest): (Mesh, u64)| {
            let add = move |s: u64| {
                let mut mesh = mesh.clone();
                mesh.insert(axis.clone(), s);
                (mesh, rest / s)
            };
            sizes(rest).map(add).collect::<Vec<_>>()
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all.into_iter().map(|(mesh, _)| mesh).collect()
}

/// The same module on another mesh: units that the mesh does not need go, types are inferred again.
pub(crate) fn on_mesh(m: &Module, mesh: &Mesh) -> Result<Module, String> {
    let mut m = Module { mesh: mesh.clone(), ..m.clone() };
    m.weights.values_mut().for_each(|w| w.ty = canonical(&w.ty, mesh));
    let ids: Vec<FuncId> = m.funcs.keys().collect();
    for id in ids {
        m.funcs[id].values.values_mut().for_each(|v| v.ty = canonical(&v.ty, mesh));
        for i in m.funcs[id].body.clone() {
            let f = &m.funcs[id];
            let types: Vec<&TensorType> = f.insts[i].args.iter().map(|a| f.ty(*a)).collect();
            let results = match &f.insts[i].kind {
                InstKind::Op(op) => infer_on(op, &types, mesh),
                InstKind::Call { func, .. } => call_types(&m, *func, &types),
            };
            let results = results.map_err(|d| format!("@{} on {mesh:?}: {d}", f.name))?;
            for (r, ty) in f.insts[i].results.clone().into_iter().zip(results) {
                m.funcs[id].values[r].ty = ty;
            }
        }
    }
    Ok(m)
}

/// Operands and the whole results of function `id`, if it has an answer to those of this seed.
pub(crate) fn whole(m: &Module, id: FuncId, seed: u64) -> Option<(SymValues, Vec<Tensor>, Vec<Tensor>)> {
    let mut rng = Rng(seed);
    let syms = SymValues(m.syms.iter().map(|(s, n)| (s.clone(), 1 + rng.below(7.min(*n)))).collect());
    let args = operands(&m.funcs[id], &syms, &mut rng, Floats::Real, seed % 7);
    let weights = Weights(m, Floats::Real);
    let want = Interp::new(m, Arith::Real, syms.clone(), &weights).run(id, args.clone()).ok()?;
    Some((syms, args, want))
}

/// On 1, 2, 4 and 8 ranks the module is right and every function gives what it gives whole; the number of comparisons.
pub(crate) fn check(m: &Module) -> Result<usize, String> {
    let mut compared = 0;
    for n in [1, 2, 4, 8] {
        for mesh in meshes(m, n) {
            let on = on_mesh(m, &mesh)?;
            verify_module(&on).map_err(|e| format!("on {mesh:?}: {e}"))?;
            for (id, f) in &on.funcs {
                let mut answered = 0;
                for (syms, args, want) in (0..SEEDS).filter_map(|seed| whole(&on, id, seed)) {
                    let weights = Weights(&on, Floats::Real);
                    let got = RankInterp::new(&on, Arith::Real, syms, &weights).run(id, args);
                    let got = got.map_err(|e| format!("on {mesh:?}: {e}"))?;
                    if let Some(d) = differ(&got, &want, 1e-9) {
                        return Err(format!("@{} on {mesh:?}: {d}", f.name));
                    }
                    answered += 1;
                }
                if answered == 0 {
                    return Err(format!("@{} has no answer on any random operands", f.name));
                }
                compared += answered;
            }
        }
    }
    Ok(compared)
}
