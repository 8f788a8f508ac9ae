//! Cases of attention and scores over rows of a pool. Rows that no token sees are no numbers: who reads one shows it.

use glmc_ir::kernel::{PagedAttentionKernel, PagedIndexerKernel};
use glmc_ir::ty::{Dim, Elem, TensorType};

use super::{In, Table, f32s};

/// Which rows of a pool positions have, and how many positions each token sees.
struct Map {
    table: In,
    seq: In,
    len: In,
    /// The rows that are in sight.
    seen: Vec<bool>,
}

/// A table of `q x s` rows of a pool of `rows`, all different, now and then none; `n` tokens.
fn map(t: &mut Table, rows: u64, q: u64, s: u64, n: u64) -> Map {
    let order = t.rng.shuffled(rows as usize);
    let mut table: Vec<i64> = order.into_iter().take((q * s) as usize).collect();
    for row in &mut table {
        if t.rng.below(9) == 0 {
            *row = -1;
        }
    }
    let seq: Vec<i64> = (0..n).map(|_| t.rng.below(q as usize) as i64).collect();
    // One token sees all of its sequence, some see nothing.
    let len: Vec<i64> = (0..n).map(|i| if i == 0 { s as i64 } else { t.rng.below(s as usize + 1) as i64 }).collect();
    let mut seen = vec![false; rows as usize];
    for (q, n) in seq.iter().zip(&len) {
        let of = &table[*q as usize * s as usize..][..*n as usize];
        of.iter().filter(|row| **row >= 0).for_each(|row| seen[*row as usize] = true);
    }
    Map { table: t.ints(&[q, s], &table), seq: t.ints(&[n], &seq), len: t.ints(&[n], &len), seen }
}

/// A pool of rows of this last dim.
fn pool(t: &mut Table, seen: &[bool], row: Dim) -> In {
    let ty = TensorType::new(Elem::F32, [Dim::new(seen.len() as u64), row]).as_state();
    let width = super::count(&ty) / seen.len();
    let v = seen.iter().flat_map(|s| vec![*s; width]).map(|s| if s { t.rng.float() } else { f64::NAN });
    In::Pool(ty, v.collect())
}

/// Tokens, heads, sequences, positions; the pieces of a row with their widths, of which `keys` are keys in this order;
/// the piece that is values.
type Size = (u64, u64, u64, u64, &'static [(&'static str, u64)], &'static [&'static str], &'static str);

pub(super) fn attention(t: &mut Table) {
    let sizes: [Size; 5] = [
        (1, 1, 1, 1, &[("a", 1)], &["a"], "a"),
        (3, 2, 2, 5, &[("a", 3), ("b", 7)], &["b"], "a"),
        (5, 3, 1, 70, &[("latent", 32), ("rope", 8)], &["latent", "rope"], "latent"),
        (2, 9, 3, 129, &[("x", 5), ("rope", 2), ("latent", 24)], &["latent", "rope"], "latent"),
        (1, 8, 1, 300, &[("latent", 96), ("rope", 32)], &["latent", "rope"], "latent"),
    ];
    for (n, h, q, s, row, keys, value) in sizes {
        for (selected, size) in [(false, 1.0), (true, 1.0), (false, 30.0), (true, 5.0)] {
            let width = |name: &str| row.iter().find(|(n, _)| *n == name).map_or(0, |(_, w)| *w);
            let mut inputs: Vec<In> = keys.iter().map(|k| t.of(f32s([n, h, width(k)]), size)).collect();
            let m = map(t, q * s + 3, q, s, n);
            let dim = Dim::from(row.iter().map(|(name, w)| ((*name).into(), *w)).collect::<Vec<_>>());
            inputs.push(pool(t, &m.seen, dim));
            inputs.extend([m.table, m.seq, m.len]);
            if selected {
                let k = (s / 2).max(1);
                let each =
                    (0..n).flat_map(|_| t.rng.shuffled(s as usize).into_iter().take(k as usize).collect::<Vec<_>>());
                let mut sel: Vec<i64> = each.collect();
                sel[0] = -1;
                inputs.push(t.ints(&[n, k], &sel));
            }
            let kernel = PagedAttentionKernel {
                keys: keys.iter().map(|k| (*k).to_owned()).collect(),
                value: value.to_owned(),
                scale: 1.0 / (keys.iter().map(|k| width(k)).sum::<u64>() as f64).sqrt(),
                selected,
            };
            t.add(format!("{n} tokens {h} heads {q} x {s} rows {row:?} selected {selected} x {size}"), kernel, inputs);
        }
    }
}

pub(super) fn scores(t: &mut Table) {
    for (n, h, q, s, d) in [(1, 1, 1, 1, 1), (3, 2, 2, 7, 5), (5, 4, 1, 70, 64), (2, 32, 1, 129, 33)] {
        let m = map(t, q * s + 2, q, s, n);
        let pool = pool(t, &m.seen, Dim::new(d));
        let inputs = vec![t.f(&[n, h, d]), pool, m.table, t.f(&[n, h]), m.seq, m.len];
        t.add(format!("{n} tokens {h} heads {q} x {s} rows of {d}"), PagedIndexerKernel { scale: 0.125 }, inputs);
    }
}
