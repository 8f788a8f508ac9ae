//! Cases of attention, indexer, top-k and expert choice.

use glmc_ir::kernel::{AttentionKernel, IndexerKernel, RouteKernel, TopKKernel};
use glmc_ir::ops::{Attention, Gating, MoeRoute};

use super::{In, Table, each_type, f32s};

/// Tokens, heads, sequences, positions, widths of the parts, width of the values.
type AttentionSize = (u64, u64, u64, u64, &'static [u64], u64);

pub(super) fn attention(t: &mut Table) {
    let sizes: [AttentionSize; 9] = [
        (1, 1, 1, 1, &[1], 1),
        (3, 2, 2, 5, &[7], 3),
        (5, 3, 1, 70, &[32, 8], 16),
        (2, 4, 3, 129, &[24, 2], 33),
        (9, 1, 1, 33, &[64], 64),
        (1, 8, 1, 300, &[96, 32], 64),
        (20, 3, 1, 70, &[32, 8], 16),
        (70, 2, 3, 33, &[24, 2], 33),
        (33, 1, 1, 200, &[96, 32], 96),
    ];
    for (n, h, q, s, d, dv) in sizes {
        for (shared, selected, size) in
            [(false, false, 1.0), (true, true, 1.0), (true, false, 30.0), (false, true, 5.0)]
        {
            let mut inputs: Vec<In> = d.iter().map(|d| t.of(f32s([n, h, *d]), size)).collect();
            for (i, w) in d.iter().chain([&dv]).enumerate() {
                let whole = shared || (i == 1 && d.len() == 2);
                let k = if whole { t.f(&[q, s, *w]) } else { t.f(&[q, s, h, *w]) };
                inputs.push(k);
            }
            inputs.push(t.ids(&[n], q as usize, false));
            // Some tokens see nothing, one sees all.
            let len: Vec<i64> =
                (0..n).map(|i| if i == 0 { s as i64 } else { t.rng.below(s as usize + 1) as i64 }).collect();
            inputs.push(t.ints(&[n], &len));
            if selected {
                let k = (s / 2).max(1);
                let mut sel = Vec::new();
                for _ in 0..n {
                    let mut all = t.rng.shuffled(s as usize);
                    all.truncate(k as usize);
                    if t.rng.flip() {
                        all[0] = -1;
                    }
                    sel.extend(all);
                }
                inputs.push(t.ints(&[n, k], &sel));
            }
            let op = Attention { parts: d.len(), scale: 1.0 / (d.iter().sum::<u64>() as f64).sqrt(), selected };
            let what =
                format!("{n} tokens {h} heads {q} x {s} keys {d:?} {dv} shared {shared} selected {selected} x {size}");
            t.add(what, AttentionKernel(op), inputs);
        }
    }
}

pub(super) fn indexer(t: &mut Table) {
    for (n, h, q, s, d) in [(1, 1, 1, 1, 1), (3, 2, 2, 7, 5), (5, 4, 1, 70, 64), (2, 32, 1, 129, 33)] {
        let len: Vec<i64> =
            (0..n).map(|i| if i == 0 { s as i64 } else { t.rng.below(s as usize + 1) as i64 }).collect();
        let inputs =
            vec![t.f(&[n, h, d]), t.f(&[q, s, d]), t.f(&[n, h]), t.ids(&[n], q as usize, false), t.ints(&[n], &len)];
        t.add(format!("{n} tokens {h} heads {q} x {s} keys of {d}"), IndexerKernel { scale: 0.125 }, inputs);
    }
}

pub(super) fn topk(t: &mut Table) {
    for (n, s, k) in [(1, 1, 1), (3, 7, 3), (5, 64, 64), (2, 5, 9), (4, 1000, 64), (2, 1025, 1)] {
        let x = t.f(&[n, s]);
        t.add(format!("{k} of {s}"), TopKKernel { k }, vec![x]);
    }
    // Equal numbers: the first wins. Minus infinity is never chosen.
    let row = [1.0, 2.0, 2.0, f64::NEG_INFINITY, 2.0, -1.0, f64::NEG_INFINITY, 1.0];
    for k in [1, 2, 4, 8] {
        t.add(format!("ties, {k}"), TopKKernel { k }, vec![In::F(f32s([1u64, 8]), row.to_vec())]);
    }
    t.add("nothing to choose", TopKKernel { k: 2 }, vec![In::F(f32s([1u64, 3]), vec![f64::NEG_INFINITY; 3])]);
}

pub(super) fn route(t: &mut Table) {
    for gating in [Gating::Sigmoid, Gating::Softmax] {
        for (e, groups, groups_used, k) in [(1, 1, 1, 1), (8, 1, 1, 3), (16, 4, 2, 4), (256, 8, 4, 8), (6, 2, 1, 3)] {
            for (bias, norm) in [(true, true), (false, false), (true, false), (false, true)] {
                let op = MoeRoute { gating, k, bias, groups, groups_used, norm, scale: 2.5 };
                let mut inputs = vec![t.of(f32s([5, e]), 3.0)];
                if bias {
                    inputs.push(t.of(f32s([e]), 0.5));
                }
                t.add(format!("{op:?} of {e}"), RouteKernel(op), inputs);
            }
        }
    }
    each_type(t, |t, q| {
        let e = (q.block_elems() as u64).max(8);
        let (groups, groups_used) = (1, 1);
        let op = MoeRoute { gating: Gating::Sigmoid, k: 2, bias: true, groups, groups_used, norm: true, scale: 1.0 };
        let inputs = vec![t.of(f32s([3, e]), 2.0), t.w(q, &[e])];
        t.add(format!("bias {q}"), RouteKernel(op), inputs);
    });
}
