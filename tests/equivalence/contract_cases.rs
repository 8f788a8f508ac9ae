//! The table of contract cases: shapes with ones, tails and odd sizes, extreme numbers, and every stored type where an
//! operand may be a weight. Never runs one.

use glmc_ir::kernel::{
    AddKernel, AddRmsNormKernel, AppendKernel, AttentionKernel, DecodeKernel, GateUpKernel, GatherKernel,
    GroupedDownKernel, GroupedGateUpKernel, GroupedMatmulKernel, IndexerKernel, JoinKernel, Kernel, LatentRowKernel,
    LayerNormKernel, MatmulKernel, MulKernel, ReluKernel, RmsNormKernel, RopeJoinKernel, RopeKernel, RouteKernel,
    ScaleKernel, SigmoidKernel, SiluKernel, SplitKernel, SwigluKernel, TopKKernel,
};
use glmc_ir::ops::{Attention, Gating, MoeRoute};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, TensorType};

use crate::run::{Rng, blocks};

/// An operand with its numbers.
pub(super) enum In {
    /// Floats in a buffer.
    F(TensorType, Vec<f64>),
    /// A stored weight.
    W(TensorType, Vec<u8>),
    /// A step parameter.
    I(TensorType, Vec<i64>),
    /// A cache pool with its rows.
    Pool(TensorType, Vec<f64>),
}

impl In {
    pub(super) fn ty(&self) -> &TensorType {
        match self {
            In::F(t, _) | In::W(t, _) | In::I(t, _) | In::Pool(t, _) => t,
        }
    }
}

/// One launch.
pub(super) struct Case {
    /// For messages.
    pub(super) what: String,
    pub(super) kernel: Kernel,
    pub(super) inputs: Vec<In>,
}

fn f32s<D: Into<Dim>>(dims: impl IntoIterator<Item = D>) -> TensorType {
    TensorType::new(Elem::F32, dims)
}

fn count(t: &TensorType) -> usize {
    t.elems(&Default::default()).expect("constant") as usize
}

/// The cases of one contract under construction.
struct Table {
    rng: Rng,
    out: Vec<Case>,
}

impl Table {
    fn add(&mut self, what: impl Into<String>, kernel: impl Into<Kernel>, inputs: Vec<In>) {
        self.out.push(Case { what: what.into(), kernel: kernel.into(), inputs });
    }

    fn of(&mut self, t: TensorType, scale: f64) -> In {
        let v = (0..count(&t)).map(|_| self.rng.float() * scale).collect();
        In::F(t, v)
    }

    fn f(&mut self, dims: &[u64]) -> In {
        self.of(f32s(dims.iter().copied()), 1.0)
    }

    fn w(&mut self, q: QuantType, dims: &[u64]) -> In {
        let t = TensorType::new(q, dims.iter().copied());
        let bytes = blocks(q, count(&t), self.rng.next(), 0.5);
        In::W(t, bytes)
    }

    /// Random ids below `n`, of which some are -1 if `gaps`.
    fn ids(&mut self, dims: &[u64], n: usize, gaps: bool) -> In {
        let t = TensorType::new(Elem::I32, dims.iter().copied());
        let v = (0..count(&t))
            .map(|_| if gaps && self.rng.below(4) == 0 { -1 } else { self.rng.below(n) as i64 })
            .collect();
        In::I(t, v)
    }

    fn ints(&self, dims: &[u64], v: &[i64]) -> In {
        In::I(TensorType::new(Elem::I32, dims.iter().copied()), v.to_vec())
    }

    fn pool(&mut self, dims: [u64; 2]) -> In {
        let t = f32s(dims).as_state();
        let v = (0..count(&t)).map(|_| self.rng.float()).collect();
        In::Pool(t, v)
    }
}

/// Row length of a stored type that is one or a few blocks, with a tail for floats.
fn row(q: QuantType) -> u64 {
    if q.block_elems() == 1 { 37 } else { (q.block_elems() as u64).max(64) }
}

const SHAPES: [&[u64]; 6] = [&[1, 1], &[3, 5], &[1, 257], &[7, 64], &[2, 3, 33], &[17]];
const EXTREME: [f64; 12] = [0.0, -0.0, 1e4, -1e4, 88.0, -88.0, 104.0, -104.0, 1e-30, -1e-30, 17.0, -17.0];

/// All cases of the contract called `name`.
pub(super) fn cases(name: &str) -> Vec<Case> {
    let mut t = Table { rng: Rng(name.len() as u64), out: Vec::new() };
    match name {
        "add" => binary(&mut t, || AddKernel {}.into()),
        "mul" => binary(&mut t, || MulKernel {}.into()),
        "relu" => unary(&mut t, true, || ReluKernel {}.into()),
        "sigmoid" => unary(&mut t, true, || SigmoidKernel {}.into()),
        "silu" => unary(&mut t, true, || SiluKernel {}.into()),
        "scale" => {
            for factor in [1.0, -0.37, 1e6, 1e-6] {
                unary(&mut t, false, || ScaleKernel { factor }.into());
            }
        }
        "swiglu" => swiglu(&mut t),
        "decode" => each_type(&mut t, |t, q| {
            for dims in [vec![1, row(q)], vec![3, 2, row(q)], vec![q.block_elems() as u64]] {
                let w = t.w(q, &dims);
                t.add(format!("{q} {dims:?}"), DecodeKernel {}, vec![w]);
            }
        }),
        "add_rms_norm" => add_norm(&mut t),
        "gate_up" => gate_up(&mut t),
        "grouped_gate_up" | "grouped_down" => experts(&mut t, name == "grouped_down"),
        "rope_join" | "latent_row" => cached_rows(&mut t, name == "latent_row"),
        "append" => append(&mut t),
        "gather" => gather(&mut t),
        "grouped_matmul" => grouped(&mut t),
        "matmul" => matmul(&mut t),
        "rms_norm" | "layer_norm" => norm(&mut t, name == "rms_norm"),
        "rope" => rope(&mut t),
        "split" | "join" => pieces(&mut t, name == "split"),
        "attention" => attention(&mut t),
        "indexer_scores" => indexer(&mut t),
        "topk" => topk(&mut t),
        "moe_route" => route(&mut t),
        _ => {}
    }
    t.out
}

fn each_type(t: &mut Table, mut f: impl FnMut(&mut Table, QuantType)) {
    QuantType::ALL.iter().for_each(|q| f(t, *q));
}

fn unary(t: &mut Table, stored: bool, k: impl Fn() -> Kernel) {
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

fn binary(t: &mut Table, k: impl Fn() -> Kernel) {
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

fn swiglu(t: &mut Table) {
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

fn add_norm(t: &mut Table) {
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

fn gate_up(t: &mut Table) {
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

fn experts(t: &mut Table, down: bool) {
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

fn cached_rows(t: &mut Table, latent: bool) {
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

fn append(t: &mut Table) {
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

fn gather(t: &mut Table) {
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

fn grouped(t: &mut Table) {
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

fn matmul(t: &mut Table) {
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

fn norm(t: &mut Table, rms: bool) {
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

fn rope(t: &mut Table) {
    for theta in [1e4, 1e6, 8e6] {
        for x in [vec![1u64, 2], vec![5, 6], vec![5, 1, 64], vec![5, 3, 64], vec![5, 2, 3, 8]] {
            let pos: Vec<i64> = [0, 1, 4095, 131_071, 1_048_575][..x[0] as usize].to_vec();
            let inputs = vec![t.f(&x), t.ints(&[x[0]], &pos)];
            t.add(format!("{x:?} theta {theta}"), RopeKernel { theta }, inputs);
        }
    }
}

fn pieces(t: &mut Table, split: bool) {
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

/// Tokens, heads, sequences, positions, widths of the parts, width of the values.
type AttentionSize = (u64, u64, u64, u64, &'static [u64], u64);

fn attention(t: &mut Table) {
    let sizes: [AttentionSize; 6] = [
        (1, 1, 1, 1, &[1], 1),
        (3, 2, 2, 5, &[7], 3),
        (5, 3, 1, 70, &[32, 8], 16),
        (2, 4, 3, 129, &[24, 2], 33),
        (9, 1, 1, 33, &[64], 64),
        (1, 8, 1, 300, &[96, 32], 64),
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

fn indexer(t: &mut Table) {
    for (n, h, q, s, d) in [(1, 1, 1, 1, 1), (3, 2, 2, 7, 5), (5, 4, 1, 70, 64), (2, 32, 1, 129, 33)] {
        let len: Vec<i64> =
            (0..n).map(|i| if i == 0 { s as i64 } else { t.rng.below(s as usize + 1) as i64 }).collect();
        let inputs =
            vec![t.f(&[n, h, d]), t.f(&[q, s, d]), t.f(&[n, h]), t.ids(&[n], q as usize, false), t.ints(&[n], &len)];
        t.add(format!("{n} tokens {h} heads {q} x {s} keys of {d}"), IndexerKernel { scale: 0.125 }, inputs);
    }
}

fn topk(t: &mut Table) {
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

fn route(t: &mut Table) {
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
