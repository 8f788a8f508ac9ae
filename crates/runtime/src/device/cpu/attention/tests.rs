//! Attention against its definition in f64, with NaN in every hidden place.

use super::{AttentionArgs, Cached, KeyPart, attention};
use crate::device::cpu::testing::{Rng, on_threads};

struct Case {
    heads: usize,
    dims: Vec<(usize, bool)>,
    dv: usize,
    v_per_head: bool,
    positions: usize,
    seq: Vec<i32>,
    len: Vec<i32>,
    k: Option<usize>,
}

fn run(c: &Case, seed: u64) {
    let mut rng = Rng::new(seed);
    let (t, seqs) = (c.seq.len(), 2);
    let heads_of = |own: bool| if own { c.heads } else { 1 };
    let sel: Option<Vec<i32>> = c.k.map(|k| (0..t * k).map(|_| rng.below(c.positions + 2) as i32 - 2).collect());
    let visible = |t: usize, s: usize| {
        (s as i32) < c.len[t]
            && sel.as_ref().is_none_or(|sel| sel[t * c.k.unwrap()..(t + 1) * c.k.unwrap()].contains(&(s as i32)))
    };
    let seen = |q: usize, s: usize| (0..t).any(|t| c.seq[t] as usize == q && visible(t, s));
    let mut cache = |own: bool, d: usize| {
        let row = heads_of(own) * d;
        let mut data = rng.floats(seqs * c.positions * row);
        for q in 0..seqs {
            for s in 0..c.positions {
                if !seen(q, s) {
                    data[(q * c.positions + s) * row..][..row].fill(f32::NAN);
                }
            }
        }
        data
    };
    let keys: Vec<Vec<f32>> = c.dims.iter().map(|&(d, own)| cache(own, d)).collect();
    let v = cache(c.v_per_head, c.dv);
    let queries: Vec<Vec<f32>> = c.dims.iter().map(|&(d, _)| rng.floats(t * c.heads * d)).collect();
    fn cached(data: &[f32], heads: usize, d: usize) -> Cached<'_> {
        Cached::dense(data, heads * d)
    }
    let parts: Vec<KeyPart<'_>> = std::iter::zip(&c.dims, std::iter::zip(&queries, &keys))
        .map(|(&(d, per_head), (q, k))| KeyPart { q, k: cached(k, heads_of(per_head), d), d, per_head })
        .collect();
    let args = AttentionArgs {
        parts: &parts,
        v: cached(&v, heads_of(c.v_per_head), c.dv),
        dv: c.dv,
        v_per_head: c.v_per_head,
        heads: c.heads,
        seqs,
        positions: c.positions,
        seq: &c.seq,
        len: &c.len,
        sel: sel.as_deref(),
        scale: 0.7,
    };
    let out = on_threads(|| {
        let mut out = vec![f32::NAN; t * c.heads * c.dv];
        attention(&args, &mut out).unwrap();
        out
    });
    for t in 0..t {
        let row = |s: usize| c.seq[t] as usize * c.positions + s;
        let shown: Vec<usize> = (0..c.positions).filter(|&s| visible(t, s)).collect();
        for h in 0..c.heads {
            let score = |s: usize| {
                let part = |(p, k): (&KeyPart<'_>, &Vec<f32>)| {
                    let at = if p.per_head { row(s) * c.heads + h } else { row(s) };
                    let q = &p.q[(t * c.heads + h) * p.d..][..p.d];
                    q.iter().zip(&k[at * p.d..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                };
                (0.7_f32 as f64 * parts.iter().zip(&keys).map(part).sum::<f64>()).exp()
            };
            let e: Vec<f64> = shown.iter().map(|&s| score(s)).collect();
            let total: f64 = e.iter().sum();
            for j in 0..c.dv {
                let value =
                    |s: usize| f64::from(v[if c.v_per_head { row(s) * c.heads + h } else { row(s) } * c.dv + j]);
                let want = shown.iter().zip(&e).map(|(&s, e)| e / total * value(s)).sum::<f64>();
                let got = f64::from(out[(t * c.heads + h) * c.dv + j]);
                assert!((got - want).abs() < 2e-6, "t {t} h {h} j {j}: {got} for {want}");
            }
        }
    }
}

#[test]
fn equals_the_definition_and_reads_no_hidden_key() {
    let case = |heads, dims, dv, v_per_head, positions, len: &[i32], k| {
        let seq = (0..len.len()).map(|t| t as i32 % 2).collect();
        run(&Case { heads, dims, dv, v_per_head, positions, seq, len: len.to_vec(), k }, 3);
    };
    case(1, vec![(1, false)], 1, false, 1, &[1], None);
    case(3, vec![(5, true)], 7, true, 9, &[0, 1, 9, 4], None);
    case(9, vec![(32, false), (16, false)], 32, false, 40, &[40, 17, 1, 0, -1], None);
    case(17, vec![(24, true), (8, false)], 65, true, 33, &[33, 2, 0], None);
    case(8, vec![(64, false), (16, false)], 64, false, 50, &[50, 30, 1, 0], Some(12));
    case(2, vec![(16, true), (4, false)], 50, false, 21, &[21, 20], Some(5));
}

#[test]
fn large_scores_do_not_overflow() {
    let part = KeyPart { q: &[1e4], k: Cached::dense(&[1e4, 1e4, -1e4], 1), d: 1, per_head: false };
    let args = AttentionArgs {
        parts: &[part],
        v: Cached::dense(&[1.0, 3.0, f32::MAX], 1),
        dv: 1,
        v_per_head: false,
        heads: 1,
        seqs: 1,
        positions: 3,
        seq: &[0],
        len: &[3],
        sel: None,
        scale: 1.0,
    };
    let mut out = [0.0];
    attention(&args, &mut out).unwrap();
    assert_eq!(out, [2.0]);
    // A position that is selected twice counts once.
    attention(&AttentionArgs { sel: Some(&[0, 1, 0, 0, -1]), ..args }, &mut out).unwrap();
    assert_eq!(out, [2.0]);
}

#[test]
fn refuses_what_does_not_exist() {
    let part = KeyPart { q: &[1.0], k: Cached::dense(&[1.0, 1.0], 1), d: 1, per_head: false };
    let args = AttentionArgs {
        parts: &[part],
        v: Cached::dense(&[1.0, 3.0], 1),
        dv: 1,
        v_per_head: false,
        heads: 1,
        seqs: 1,
        positions: 2,
        seq: &[0],
        len: &[2],
        sel: None,
        scale: 1.0,
    };
    let mut out = [0.0];
    assert!(attention(&args, &mut out).is_ok());
    assert!(attention(&AttentionArgs { seq: &[1], ..args }, &mut out).is_err());
    assert!(attention(&AttentionArgs { seq: &[-1], ..args }, &mut out).is_err());
    assert!(attention(&AttentionArgs { len: &[3], ..args }, &mut out).is_err());
    assert!(attention(&AttentionArgs { v: Cached::dense(&[1.0], 1), ..args }, &mut out).is_err());
    assert!(attention(&args, &mut []).is_err());
}
