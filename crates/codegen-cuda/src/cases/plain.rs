//! Cases of elementwise contracts, norms, moves and rows.

use glmc_ir::kernel::{
    AddRmsNormKernel, AppendKernel, AppendRowKernel, GatherKernel, IndexRowKernel, JoinKernel, Kernel, LatentRowKernel,
    LayerNormKernel, RmsNormKernel, RopeJoinKernel, RopeKernel, RowMaker, SplitKernel, SwigluKernel,
};
use glmc_ir::ty::{Dim, Elem, TensorType};

use super::{In, Table, each_type, f32s, row};

const SHAPES: [&[u64]; 6] = [&[1, 1], &[3, 5], &[1, 257], &[7, 64], &[2, 3, 33], &[17]];
const EXTREME: [f64; 12] = [0.0, -0.0, 1e4, -1e4, 88.0, -88.0, 104.0, -104.0, 1e-30, -1e-30, 17.0, -17.0];

pub(super) fn unary(t: &mut Table, stored: bool, k: impl Fn() -> Kernel) {
    for s in SHAPES {
        let x = t.f(s);
        t.add(format!("{s:?}"), k(), vec![x]);
    }
    t.add("extremes", k(), vec![In::F(f32s([3u64, 4]), EXTREME.to_vec())]);
    if stored {
        each_type(t, |t, q| {
            let x = t.w(q, &[2, row(q)]);
            t.add(format!("{q}"), k(), vec![x]);
        });
    }
}

pub(super) fn binary(t: &mut Table, k: impl Fn() -> Kernel) {
    let shapes: [(&[u64], &[u64]); 7] = [
        (&[1, 1], &[1, 1]),
        (&[3, 5], &[3, 5]),
        (&[7, 257], &[7, 257]),
        (&[3, 5], &[3, 1]),
        (&[3, 5], &[1, 5]),
        (&[2, 3, 4], &[2, 1, 4]),
        (&[2, 3, 33], &[1, 1, 1]),
    ];
    for (a, b) in shapes {
        let inputs = vec![t.f(a), t.f(b)];
        t.add(format!("{a:?} {b:?}"), k(), inputs);
    }
    each_type(t, |t, q| {
        let dims = [2, row(q)];
        let inputs = vec![t.f(&dims), t.w(q, &dims)];
        t.add(format!("{q} right"), k(), inputs);
        let inputs = vec![t.w(q, &dims), t.f(&[2, 1])];
        t.add(format!("{q} left"), k(), inputs);
    });
}

pub(super) fn swiglu(t: &mut Table) {
    for s in SHAPES {
        let inputs = vec![t.f(s), t.f(s)];
        t.add(format!("{s:?}"), SwigluKernel { pieces: vec![] }, inputs);
    }
    for (n, t_) in [(1, 1), (5, 3), (33, 2), (128, 7)] {
        for order in [["gate", "up"], ["up", "gate"]] {
            let ty = f32s([Dim::new(t_), Dim::joined(&[(order[0], n), (order[1], n)])]);
            let x = t.of(ty, 4.0);
            let pieces = vec!["gate".to_owned(), "up".to_owned()];
            t.add(format!("{t_} x {n} {order:?}"), SwigluKernel { pieces }, vec![x]);
        }
    }
    let x = || In::F(f32s([12u64]), EXTREME.to_vec());
    let ones = In::F(f32s([12u64]), vec![1.5; 12]);
    t.add("extremes", SwigluKernel { pieces: vec![] }, vec![x(), ones]);
    each_type(t, |t, q| {
        let dims = [2, row(q)];
        let inputs = vec![t.w(q, &dims), t.w(q, &dims)];
        t.add(format!("{q}"), SwigluKernel { pieces: vec![] }, inputs);
    });
}

pub(super) fn add_norm(t: &mut Table) {
    let shapes: [(&[u64], &[u64]); 4] =
        [(&[1, 1], &[1, 1]), (&[3, 33], &[3, 33]), (&[5, 64], &[1, 64]), (&[2, 3, 7], &[2, 3, 7])];
    for (x, y) in shapes {
        let inputs = vec![t.f(x), t.f(y), t.f(&x[x.len() - 1..])];
        t.add(format!("{x:?} {y:?}"), AddRmsNormKernel { eps: 1e-5 }, inputs);
    }
    each_type(t, |t, q| {
        let d = row(q);
        let inputs = vec![t.f(&[3, d]), t.f(&[3, d]), t.w(q, &[d])];
        t.add(format!("{q}"), AddRmsNormKernel { eps: 1e-6 }, inputs);
    });
}

pub(super) fn norm(t: &mut Table, rms: bool) {
    let k = |eps: f64| -> Kernel { if rms { RmsNormKernel { eps }.into() } else { LayerNormKernel { eps }.into() } };
    for (x, scale) in
        [(vec![1, 1], 1.0), (vec![3, 33], 1.0), (vec![2, 3, 256], 1e4), (vec![5, 64], 1e-5), (vec![40, 7], 1e8)]
    {
        for eps in [1e-5, 1e-6] {
            let d = x[x.len() - 1];
            let mut inputs = vec![t.of(f32s(x.clone()), scale), t.f(&[d])];
            if !rms {
                inputs.push(t.f(&[d]));
            }
            t.add(format!("{x:?} x {scale} eps {eps}"), k(eps), inputs);
        }
    }
    each_type(t, |t, q| {
        let d = row(q);
        let mut inputs = vec![t.f(&[3, d]), t.w(q, &[d])];
        if !rms {
            inputs.push(t.w(q, &[d]));
        }
        t.add(format!("{q}"), k(1e-5), inputs);
    });
}

pub(super) fn rope(t: &mut Table) {
    for theta in [1e4, 1e6, 8e6] {
        for x in [vec![1u64, 2], vec![5, 6], vec![5, 1, 64], vec![5, 3, 64], vec![5, 2, 3, 8]] {
            let pos: Vec<i64> = [0, 1, 4095, 131_071, 1_048_575][..x[0] as usize].to_vec();
            let inputs = vec![t.f(&x), t.ints(&[x[0]], &pos)];
            t.add(format!("{x:?} theta {theta}"), RopeKernel { theta }, inputs);
        }
    }
}

pub(super) fn pieces(t: &mut Table, split: bool) {
    for widths in [&[1u64, 1] as &[u64], &[3, 5], &[64, 1, 33], &[7]] {
        let names: Vec<String> = (0..widths.len()).map(|i| format!("p{i}")).collect();
        let named: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(widths.iter().copied()).collect();
        for outer in [vec![1u64], vec![5], vec![2, 3]] {
            let dims = |last: Dim| -> Vec<Dim> { outer.iter().map(|n| Dim::new(*n)).chain([last]).collect() };
            let what = format!("{outer:?} of {widths:?}");
            if split {
                let x = t.of(f32s(dims(Dim::joined(&named))), 1.0);
                let names = names.iter().rev().cloned().collect();
                t.add(what, SplitKernel { names }, vec![x]);
            } else {
                let inputs = widths.iter().map(|w| t.of(f32s(dims(Dim::new(*w))), 1.0)).collect();
                t.add(what, JoinKernel { names: names.clone() }, inputs);
            }
        }
    }
}

pub(super) fn cached_rows(t: &mut Table, latent: bool) {
    for (tokens, rope, rest) in [(1u64, 2, 1), (5, 8, 33), (3, 64, 64)] {
        let pos: Vec<i64> = [0, 1, 4095, 131_071, 7][..tokens as usize].to_vec();
        for order in [[("rope", rope), ("rest", rest)], [("rest", rest), ("rope", rope)]] {
            let x = t.of(f32s([Dim::new(tokens), Dim::joined(&order)]), 1.0);
            let (rope, theta) = ("rope".to_owned(), 1e4);
            let names: Vec<String> = order.iter().map(|(n, _)| (*n).to_owned()).collect();
            let from = names.clone();
            let pos = t.ints(&[tokens], &pos);
            if latent {
                let w = t.f(&[rest]);
                t.add(
                    format!("{tokens} {order:?}"),
                    LatentRowKernel { eps: 1e-5, theta, from, names, rope },
                    vec![x, w, pos],
                );
            } else {
                t.add(format!("{tokens} {order:?}"), RopeJoinKernel { theta, from, names, rope }, vec![x, pos]);
            }
        }
    }
    if latent {
        each_type(t, |t, q| {
            let x = t.of(f32s([Dim::new(2), Dim::joined(&[("latent", row(q)), ("rope", 4)])]), 1.0);
            let inputs = vec![x, t.w(q, &[row(q)]), t.ints(&[2], &[3, 0])];
            let names = ["latent", "rope"].map(str::to_owned).to_vec();
            let (from, rope) = (names.clone(), "rope".to_owned());
            t.add(format!("{q}"), LatentRowKernel { eps: 1e-5, theta: 1e6, from, names, rope }, inputs);
        });
    } else {
        // Two pieces of a row of three, in another order and under other names, a head at a time.
        let x = t.of(f32s([Dim::new(2), Dim::new(3), Dim::joined(&[("q", 3), ("k.a", 4), ("k.b", 5)])]), 1.0);
        let inputs = vec![x, t.ints(&[2], &[9, 100])];
        let (from, names) = (vec!["k.b".to_owned(), "k.a".into()], vec!["b".to_owned(), "a".into()]);
        t.add("heads", RopeJoinKernel { theta: 1e6, from, names, rope: "a".into() }, inputs);
    }
}

/// Tokens, the pieces of a row, and which is rotated.
type RowCase = (u64, &'static [(&'static str, u64)], &'static str);

const ROWS: [RowCase; 4] = [
    (1, &[("rope", 2), ("rest", 1)], "rope"),
    (5, &[("rest", 33), ("rope", 8)], "rope"),
    (3, &[("rope", 64), ("rest", 64)], "rope"),
    (4, &[("a", 5), ("rope", 6), ("b", 70)], "rope"),
];

/// A joined row with pieces in front and behind that are not used, and what the maker takes besides.
fn made(t: &mut Table, tokens: u64, row: &[(&str, u64)], rope: &str) -> ([In; 4], IndexRowKernel) {
    let from: Vec<String> = row.iter().map(|(name, _)| format!("k.{name}")).collect();
    let mut wide: Vec<(&str, u64)> = vec![("before", 3)];
    wide.extend(from.iter().zip(row).map(|(name, (_, n))| (name.as_str(), *n)));
    wide.push(("behind", 2));
    let width = row.iter().map(|(_, n)| n).sum();
    let x = t.of(f32s([Dim::new(tokens), Dim::joined(&wide)]), 3.0);
    let pos: Vec<i64> = [0, 131_071, 1, 4095, 7][..tokens as usize].to_vec();
    let inputs = [x, t.f(&[width]), t.f(&[width]), t.ints(&[tokens], &pos)];
    let names = row.iter().map(|(name, _)| (*name).to_owned()).collect();
    (inputs, IndexRowKernel { eps: 1e-6, theta: 1e4, from, names, rope: rope.to_owned() })
}

pub(super) fn index_row(t: &mut Table) {
    for (tokens, row, rope) in ROWS {
        let (inputs, kernel) = made(t, tokens, row, rope);
        t.add(format!("{tokens} {row:?}"), kernel, inputs.into());
    }
    each_type(t, |t, q| {
        let x = t.of(f32s([Dim::new(2), Dim::joined(&[("rest", row(q) - 4), ("rope", 4)])]), 1.0);
        let inputs = vec![x, t.w(q, &[row(q)]), t.w(q, &[row(q)]), t.ints(&[2], &[3, 0])];
        let names = ["rest", "rope"].map(str::to_owned).to_vec();
        let (from, rope) = (names.clone(), "rope".to_owned());
        t.add(format!("{q}"), IndexRowKernel { eps: 1e-5, theta: 1e6, from, names, rope }, inputs);
    });
}

pub(super) fn append_row(t: &mut Table) {
    for (tokens, row, rope) in ROWS {
        // A row that is left out, one that two tokens have, one at the end.
        for ids in [[4i64, -1, 2, 4, 8], [-1, 3, 3, 3, -1], [8, 7, 6, 5, 4]] {
            let ([x, w, b, pos], k) = made(t, tokens, row, rope);
            let IndexRowKernel { eps, theta, from, names, rope } = k.clone();
            let dim = Dim::joined(row);
            // Pieces are normed one by one: all that are have the width of the weight.
            let rest: Vec<u64> = row.iter().filter(|(n, _)| *n != rope).map(|(_, n)| *n).collect();
            let mut makers = vec![
                (RowMaker::IndexRow(k), vec![x.clone(), w, b, pos.clone()]),
                (
                    RowMaker::RopeJoin(RopeJoinKernel {
                        theta,
                        from: from.clone(),
                        names: names.clone(),
                        rope: rope.clone(),
                    }),
                    vec![x.clone(), pos.clone()],
                ),
            ];
            if let [n] = rest[..] {
                let kernel = LatentRowKernel { eps, theta, from, names, rope };
                makers.push((RowMaker::LatentRow(kernel), vec![x, t.f(&[n]), pos]));
            }
            for (make, inputs) in makers {
                let ty = TensorType::new(Elem::F32, [Dim::new(9), dim.clone()]).as_state();
                let pool = (0..super::count(&ty)).map(|_| t.rng.float()).collect();
                let all = [vec![In::Pool(ty, pool), t.ints(&[tokens], &ids[..tokens as usize])], inputs].concat();
                t.add(format!("{} of {row:?} at {ids:?}", make.kernel().name()), AppendRowKernel { make }, all);
            }
        }
    }
}

pub(super) fn append(t: &mut Table) {
    for (rows, width, list) in [
        (1, 1, vec![0]),
        (8, 5, vec![3, -1, 7]),
        (8, 33, vec![2, 2, 0]),
        (5, 64, vec![-1, -1]),
        (40, 7, (0..40).rev().collect()),
    ] {
        let n = list.len() as u64;
        let inputs = vec![t.pool([rows, width]), t.ints(&[n], &list), t.f(&[n, width])];
        t.add(format!("{rows} x {width} at {list:?}"), AppendKernel {}, inputs);
    }
}

pub(super) fn gather(t: &mut Table) {
    for ids in [&[1u64] as &[u64], &[5], &[2, 7]] {
        for width in [1, 33, 64] {
            let inputs = vec![t.pool([9, width]), t.ids(ids, 9, true)];
            t.add(format!("pool of {width}, {ids:?}"), GatherKernel {}, inputs);
            let inputs = vec![t.f(&[9, width]), t.ids(ids, 9, true)];
            t.add(format!("buffer of {width}, {ids:?}"), GatherKernel {}, inputs);
        }
    }
    each_type(t, |t, q| {
        for (table, ids) in [(vec![7, row(q)], vec![5u64]), (vec![3, 2, row(q)], vec![2, 2])] {
            let n = table[0] as usize;
            let inputs = vec![t.w(q, &table), t.ids(&ids, n, true)];
            t.add(format!("{q} {table:?} {ids:?}"), GatherKernel {}, inputs);
        }
    });
}
