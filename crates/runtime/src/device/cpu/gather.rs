//! Rows by index: embedding rows out of a quantised table, and f32 rows out of and into a pool.
//!
//! Owns the copying. A negative index reads zeros and writes nothing; it never computes an index.

use super::dot::decode_rows;
use super::error::{KernelError, want_len};
use super::matmul::WeightView;
use rayon::prelude::*;

/// `out[t, :]` = row `ids[t]` of the table, decoded; zeros where `ids[t]` is negative.
///
/// # Errors
/// If an id is not a row of the table or `out` is not `[T, D]`.
pub fn gather_rows(table: WeightView<'_>, ids: &[i32], out: &mut [f32]) -> Result<(), KernelError> {
    let d = table.k();
    want_len("out", out.len(), &[ids.len(), d])?;
    check("ids", ids, table.n())?;
    if d > 0 {
        out.par_chunks_mut(d).zip(ids).for_each(|(out, &id)| match usize::try_from(id) {
            Ok(id) => decode_rows(table.ty(), table.rows(id, 1).bytes(), d, out, d),
            Err(_) => out.fill(0.0),
        });
    }
    Ok(())
}

/// `out[i, :]` = row `rows[i]` of `pool` `[R, width]`; zeros where `rows[i]` is negative.
///
/// # Errors
/// If a row is outside the pool or a slice is not whole rows.
pub fn gather_pool(pool: &[f32], width: usize, rows: &[i32], out: &mut [f32]) -> Result<(), KernelError> {
    want_len("out", out.len(), &[rows.len(), width])?;
    check_pool(pool.len(), width, rows)?;
    if width > 0 {
        out.par_chunks_mut(width).with_min_len(64).zip(rows).for_each(|(out, &row)| match usize::try_from(row) {
            Ok(row) => out.copy_from_slice(&pool[row * width..(row + 1) * width]),
            Err(_) => out.fill(0.0),
        });
    }
    Ok(())
}

/// Row `rows[i]` of `pool` `[R, width]` becomes `x[i, :]`; negative rows are skipped. If a row is named twice, the
/// later one stays.
///
/// # Errors
/// If a row is outside the pool or a slice is not whole rows; the pool is then unchanged.
pub fn scatter_pool(x: &[f32], width: usize, rows: &[i32], pool: &mut [f32]) -> Result<(), KernelError> {
    want_len("x", x.len(), &[rows.len(), width])?;
    check_pool(pool.len(), width, rows)?;
    if width > 0 {
        for (x, &row) in x.chunks_exact(width).zip(rows) {
            if let Ok(row) = usize::try_from(row) {
                pool[row * width..(row + 1) * width].copy_from_slice(x);
            }
        }
    }
    Ok(())
}

fn check_pool(pool: usize, width: usize, rows: &[i32]) -> Result<(), KernelError> {
    let n = pool.checked_div(width).unwrap_or(0);
    want_len("pool", pool, &[n, width])?;
    check("rows", rows, n)
}

fn check(what: &'static str, ids: &[i32], bound: usize) -> Result<(), KernelError> {
    let bad = |id: i32| usize::try_from(id).is_ok_and(|id| id >= bound);
    match ids.iter().position(|&id| bad(id)) {
        Some(at) => Err(KernelError::Index { what, at, value: i64::from(ids[at]), bound }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{gather_pool, gather_rows, scatter_pool};
    use crate::device::cpu::matmul::WeightView;
    use crate::device::cpu::testing::weights;
    use glmc_ir::quant::QuantType;

    #[test]
    fn rows_decode_to_the_reference_bits() {
        for &ty in QuantType::ALL {
            let k = ty.block_elems().max(33).next_multiple_of(ty.block_elems());
            let (bytes, w) = weights(ty, 5, k, 1);
            let table = WeightView::new(ty, &bytes, 5, k).unwrap();
            let mut out = vec![f32::NAN; 3 * k];
            gather_rows(table, &[4, 0, 4], &mut out).unwrap();
            for (t, id) in [4, 0, 4].into_iter().enumerate() {
                assert_eq!(out[t * k..(t + 1) * k], w[id * k..(id + 1) * k], "{ty}");
            }
            assert!(gather_rows(table, &[5, 0, 0], &mut out).is_err());
            gather_rows(table, &[2, -1, 0], &mut out).unwrap();
            assert!(out[k..2 * k].iter().all(|x| *x == 0.0) && out[..k] == w[2 * k..3 * k], "{ty}");
            assert!(gather_rows(table, &[0], &mut out).is_err());
        }
    }

    #[test]
    fn negative_rows_read_zeros_and_write_nothing() {
        let pool: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut out = [9.0; 6];
        gather_pool(&pool, 2, &[5, -1, 0], &mut out).unwrap();
        assert_eq!(out, [10.0, 11.0, 0.0, 0.0, 0.0, 1.0]);
        let mut pool = [0.0; 6];
        scatter_pool(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, &[1, -7, 1], &mut pool).unwrap();
        assert_eq!(pool, [0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
        assert!(scatter_pool(&[1.0, 2.0], 2, &[3], &mut pool).is_err());
        assert!(scatter_pool(&[1.0], 2, &[0], &mut pool).is_err());
        assert!(gather_pool(&pool, 4, &[0], &mut [0.0; 4]).is_err());
    }
}
