//! Cases of matmuls and experts.

use glmc_ir::kernel::{GateUpKernel, GroupedDownKernel, GroupedGateUpKernel, GroupedMatmulKernel, MatmulKernel};
use glmc_ir::ty::Dim;

use super::{In, Table, each_type, f32s, row};

pub(super) fn gate_up(t: &mut Table) {
    let k = || GateUpKernel { spec: "tk,nk->tn".into() };
    for (tokens, n, d) in [(1, 1, 1), (3, 8, 33), (33, 65, 129)] {
        let inputs = vec![t.f(&[tokens, d]), t.f(&[n, d]), t.f(&[n, d])];
        t.add(format!("{tokens} x {n} x {d}"), k(), inputs);
    }
    let inputs = vec![t.f(&[3, 2, 5]), t.f(&[2, 7, 5]), t.f(&[2, 7, 5])];
    t.add("a product a head", GateUpKernel { spec: "thn,hcn->thc".into() }, inputs);
    each_type(t, |t, q| {
        let inputs = vec![t.f(&[3, row(q)]), t.w(q, &[5, row(q)]), t.w(q, &[5, row(q)])];
        t.add(format!("{q}"), k(), inputs);
    });
}

pub(super) fn experts(t: &mut Table, down: bool) {
    let add = |t: &mut Table, what: String, x: In, ws: Vec<In>, ids: In, slots: [u64; 2]| {
        let mut inputs = vec![x];
        inputs.extend(ws);
        inputs.push(ids);
        if down {
            inputs.push(t.f(&slots));
            t.add(what, GroupedDownKernel {}, inputs);
        } else {
            t.add(what, GroupedGateUpKernel {}, inputs);
        }
    };
    let count = if down { 1 } else { 2 };
    for (tokens, slots, e, n, k) in [(1, 1, 1, 1, 1), (5, 2, 4, 3, 17), (9, 3, 2, 33, 64), (1, 4, 8, 7, 129)] {
        for per_slot in [false, true] {
            let x: Vec<u64> = if per_slot { vec![tokens, slots, k] } else { vec![tokens, k] };
            let (x, ws) = (t.f(&x), (0..count).map(|_| t.f(&[e, n, k])).collect());
            let ids = t.ids(&[tokens, slots], e as usize, true);
            add(t, format!("{tokens} {slots} [{e}, {n}, {k}] {per_slot}"), x, ws, ids, [tokens, slots]);
        }
    }
    each_type(t, |t, q| {
        let k = row(q);
        let (x, ws) = (t.f(&[6, 2, k]), (0..count).map(|_| t.w(q, &[4, 5, k])).collect());
        let ids = t.ids(&[6, 2], 4, false);
        add(t, format!("{q}"), x, ws, ids, [6, 2]);
    });
}

pub(super) fn grouped(t: &mut Table) {
    for (tokens, slots, e, n, k) in [(1, 1, 1, 1, 1), (5, 2, 4, 3, 17), (9, 3, 2, 33, 64), (1, 4, 8, 7, 129)] {
        for per_slot in [false, true] {
            let x: Vec<u64> = if per_slot { vec![tokens, slots, k] } else { vec![tokens, k] };
            let inputs = vec![t.f(&x), t.f(&[e, n, k]), t.ids(&[tokens, slots], e as usize, false)];
            t.add(format!("{x:?} by [{e}, {n}, {k}]"), GroupedMatmulKernel {}, inputs);
        }
    }
    each_type(t, |t, q| {
        let k = row(q);
        for x in [vec![1, k], vec![6, 2, k], vec![33, k]] {
            let inputs = vec![t.f(&x), t.w(q, &[4, 5, k]), t.ids(&[x[0], 2], 4, false)];
            t.add(format!("{q} {x:?}"), GroupedMatmulKernel {}, inputs);
        }
    });
}

pub(super) fn matmul(t: &mut Table) {
    let one = |spec: &str| MatmulKernel { spec: spec.into(), names: vec![] };
    let specs: [(&str, &[u64], &[u64]); 9] = [
        ("tk,nk->tn", &[5, 33], &[7, 33]),
        ("tr,hdr->thd", &[3, 17], &[2, 5, 17]),
        ("qsc,hcn->qshn", &[2, 3, 9], &[4, 9, 7]),
        ("qsc,hvc->qshv", &[2, 3, 9], &[4, 7, 9]),
        ("thv,dhv->td", &[3, 2, 5], &[7, 2, 5]),
        ("thn,hcn->thc", &[3, 2, 5], &[2, 7, 5]),
        ("tj,tjd->td", &[3, 2], &[3, 2, 7]),
        ("tk,kn->tn", &[5, 9], &[9, 4]),
        ("bk,bk->b", &[5, 9], &[5, 9]),
    ];
    for (spec, x, w) in specs {
        let inputs = vec![t.f(x), t.f(w)];
        t.add(format!("{spec} {x:?} {w:?}"), one(spec), inputs);
        let ones = |d: &[u64]| vec![1; d.len()];
        let inputs = vec![t.f(&ones(x)), t.f(&ones(w))];
        t.add(format!("{spec} of ones"), one(spec), inputs);
    }
    for (n, k) in [(1, 1), (3, 8), (65, 129), (16, 1024)] {
        for tokens in [1, 2, 8, 33] {
            let inputs = vec![t.f(&[tokens, k]), t.f(&[n, k])];
            t.add(format!("{tokens} x {n} x {k}"), one("tk,nk->tn"), inputs);
        }
    }
    let wide = t.of(f32s([4u64, 64]), 1e15);
    let inputs = vec![wide, t.f(&[5, 64])];
    t.add("large numbers", one("tk,nk->tn"), inputs);
    each_type(t, |t, q| {
        let k = row(q);
        for tokens in [1, 3, 17, 40] {
            let inputs = vec![t.f(&[tokens, k]), t.w(q, &[5, k])];
            t.add(format!("{q} {tokens} tokens"), one("tk,nk->tn"), inputs);
        }
        let other: [(&str, Vec<u64>, Vec<u64>); 6] = [
            ("tr,hdr->thd", vec![3, k], vec![2, 3, k]),
            ("qsc,hcn->qshn", vec![2, 3, 5], vec![2, 5, k]),
            ("qsc,hvc->qshv", vec![1, 5, k], vec![2, 3, k]),
            ("thn,hcn->thc", vec![3, 2, k], vec![2, 5, k]),
            ("thv,dhv->td", vec![3, 2, k], vec![5, 2, k]),
            ("tk,kn->tn", vec![3, 5], vec![5, k]),
        ];
        for (spec, x, w) in other {
            let inputs = vec![t.f(&x), t.w(q, &w)];
            t.add(format!("{q} {spec}"), one(spec), inputs);
        }
        let names = ["gate", "up", "q"].map(str::to_owned).to_vec();
        let inputs = vec![t.f(&[3, k]), t.w(q, &[2, k]), t.f(&[1, k]), t.w(q, &[5, k])];
        t.add(format!("{q} of three"), MatmulKernel { spec: "tk,nk->tn".into(), names }, inputs);
    });
    // A right operand whose rows have pieces of their own, beside one that has none.
    let pieces = t.of(f32s([Dim::joined(&[("latent", 4), ("rope", 2)]), Dim::new(9)]), 1.0);
    let inputs = vec![t.f(&[3, 9]), pieces, t.f(&[5, 9])];
    let names = vec!["kv".into(), "q".into()];
    t.add("pieces within a piece", MatmulKernel { spec: "tk,nk->tn".into(), names }, inputs);
}
