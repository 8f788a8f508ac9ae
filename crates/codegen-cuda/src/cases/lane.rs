//! Cases whose weights lie in the lane layout, at every rounding of activations.

use std::sync::Arc;

use glmc_ir::kernel::{
    GateUpKernel, GroupedDownKernel, GroupedGateUpKernel, GroupedMatmulKernel, Kernel, MatmulKernel,
};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, SymValues, TensorType};

use super::check::Check;
use super::rng::{Rng, blocks};
use super::{Case, In};
use crate::request::{Activations, Options, Storage};

const TYPES: [QuantType; 4] = [QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];
const ALL: [Activations; 3] = [Activations::F32, Activations::Int8, Activations::BF16];

fn floats(rng: &mut Rng, dims: &[u64]) -> In {
    let n: u64 = dims.iter().product();
    In::F(TensorType::new(Elem::F32, dims.iter().copied()), (0..n).map(|_| rng.float()).collect())
}

fn weight(rng: &mut Rng, q: QuantType, dims: &[u64]) -> In {
    let n: u64 = dims.iter().product();
    In::W(TensorType::new(q, dims.iter().copied()), blocks(q, n as usize, rng.next(), 0.5))
}

/// A list of checks under construction.
struct List {
    rng: Rng,
    multiprocessors: Option<u32>,
    out: Vec<Check>,
}

impl List {
    fn add(
        &mut self,
        what: String,
        kernel: impl Into<Kernel>,
        inputs: Vec<In>,
        activations: Activations,
        symbolic: bool,
    ) {
        let stored = |i: &In| if matches!(i, In::W(..)) { Storage::Lane } else { Storage::Rows };
        let storage = inputs.iter().map(stored).collect();
        let options = Options {
            activations,
            storage,
            multiprocessors: self.multiprocessors,
            tuning: None,
            fixed: Vec::new(),
            merge: None,
        };
        let case = Case { what: format!("lane, {what} {activations:?}"), kernel: kernel.into(), inputs };
        let mut check = Check::new(Arc::new(case), options);
        if let (true, Some(tokens)) = (symbolic, check.types[0].dims[0].extent.as_const()) {
            let none = SymValues::default();
            (check.bounds, check.values) = (none.clone().with("T", tokens + 1), none.with("T", tokens));
            for (t, i) in check.types.iter_mut().zip(&check.case.inputs) {
                if !matches!(i, In::W(..)) {
                    t.dims[0] = Dim::sym("T");
                }
            }
            check.what.push_str(" with symbols");
        }
        self.out.push(check);
    }

    fn matmuls(&mut self, q: QuantType) {
        let spec = |s: &str| MatmulKernel { spec: s.into(), names: vec![] };
        let odd = if q == QuantType::Q8_0 { 192 } else { 256 };
        for (n, k) in [(1, odd), (37, 512), (130, odd), (9, 2048), (300, 1024)] {
            for (tokens, symbolic) in [(1, false), (2, false), (3, true), (8, false), (20, false)] {
                if n == 300 && tokens > 1 {
                    continue;
                }
                for activations in ALL {
                    // Few numbers may all be small against the terms that they are sums of; see `fit_for_bf16` too.
                    let least = match activations {
                        Activations::F32 => 3,
                        Activations::Int8 => 32,
                        Activations::BF16 => 300,
                    };
                    if n * tokens < least {
                        continue;
                    }
                    let inputs = vec![floats(&mut self.rng, &[tokens, k]), weight(&mut self.rng, q, &[n, k])];
                    let what = format!("{q} [{tokens}, {k}] by {n}");
                    self.add(what, spec("tk,nk->tn"), inputs, activations, symbolic);
                }
            }
        }
        for tokens in [1, 4] {
            let rng = &mut self.rng;
            let inputs = vec![floats(rng, &[tokens, 3, 256]), weight(rng, q, &[3, 16, 256])];
            self.add(format!("{q} {tokens} by heads"), spec("thn,hcn->thc"), inputs, Activations::F32, false);
            // Two matrices of different types and heights share x.
            let other = if q == QuantType::Q8_0 { QuantType::Q4_K } else { QuantType::Q8_0 };
            let kernel = MatmulKernel { spec: "tk,nk->tn".into(), names: vec!["a".to_owned(), "b".to_owned()] };
            let rng = &mut self.rng;
            let inputs = vec![floats(rng, &[tokens, 256]), weight(rng, q, &[33, 256]), weight(rng, other, &[7, 256])];
            self.add(format!("{q} {tokens} joined"), kernel, inputs, Activations::F32, false);
            for right in [q, other] {
                let rng = &mut self.rng;
                let inputs =
                    vec![floats(rng, &[tokens, 256]), weight(rng, q, &[40, 256]), weight(rng, right, &[40, 256])];
                let kernel = GateUpKernel { spec: "tk,nk->tn".into() };
                self.add(format!("{q} {right} {tokens} gated"), kernel, inputs, Activations::F32, tokens == 4);
            }
        }
    }

    fn experts(&mut self, q: QuantType) {
        for (tokens, slots, n, k) in [(1u64, 3u64, 16u64, 256u64), (2, 2, 40, 256), (20, 2, 8, 256), (1, 3, 16, 1024)] {
            // Long rows are cut in parts, whatever the type.
            if k > 256 && !matches!(q, QuantType::Q4_K | QuantType::Q8_0) {
                continue;
            }
            for per_slot in [false, true] {
                for activations in ALL {
                    let rng = &mut self.rng;
                    let x = if per_slot { vec![tokens, slots, k] } else { vec![tokens, k] };
                    let ids: Vec<i64> =
                        (0..tokens * slots).map(|i| if i == 1 { -1 } else { rng.below(5) as i64 }).collect();
                    let ids = In::I(TensorType::new(Elem::I32, [tokens, slots]), ids);
                    let inputs = vec![floats(rng, &x), weight(rng, q, &[5, n, k]), ids.clone()];
                    let (what, symbolic) = (format!("{q} {x:?} by 5 x {n}"), tokens == 2);
                    let mut fused = inputs.clone();
                    if per_slot {
                        fused.push(floats(rng, &[tokens, slots]));
                    } else {
                        fused.insert(2, weight(rng, q, &[5, n, k]));
                    }
                    self.add(what.clone(), GroupedMatmulKernel {}, inputs, activations, symbolic);
                    // Products of rounded numbers have no budget of their own.
                    if activations == Activations::F32 && per_slot {
                        self.add(what, GroupedDownKernel {}, fused, activations, symbolic);
                    } else if activations == Activations::F32 {
                        self.add(what, GroupedGateUpKernel {}, fused, activations, symbolic);
                    }
                }
            }
        }
    }
}

/// Matrices and experts in the lane layout; `multiprocessors` as in [`Options`].
pub fn matrices(seed: u64, multiprocessors: Option<u32>) -> Vec<Check> {
    let mut list = List { rng: Rng(seed.wrapping_add(11)), multiprocessors, out: Vec::new() };
    TYPES.into_iter().for_each(|q| list.matmuls(q));
    TYPES.into_iter().for_each(|q| list.experts(q));
    list.out
}

/// Matrices as large as a rank of eight holds of the large model: too slow for the emulation.
pub fn large(seed: u64) -> Vec<Check> {
    let mut list = List { rng: Rng(seed.wrapping_add(12)), multiprocessors: None, out: Vec::new() };
    let kernel = || MatmulKernel { spec: "tk,nk->tn".into(), names: vec![] };
    for (q, n, k) in [
        (QuantType::Q8_0, 576, 6144),
        (QuantType::Q6_K, 1024, 2048),
        (QuantType::Q4_K, 256, 6144),
        (QuantType::Q5_K, 6144, 256),
    ] {
        for (tokens, activations) in
            [(1, Activations::F32), (1, Activations::Int8), (8, Activations::F32), (130, Activations::BF16)]
        {
            if tokens > 8 && k < 6144 {
                continue;
            }
            let inputs = vec![floats(&mut list.rng, &[tokens, k]), weight(&mut list.rng, q, &[n, k])];
            list.add(format!("{q} slice [{tokens}, {k}] by {n}"), kernel(), inputs, activations, false);
        }
    }
    list.out
}
