//! Keys and values as attention and the indexer read them: rows of a tensor, or rows of a cache pool by a table.
//!
//! Owns where the row of a position lies. It never copies a row.

use super::error::{KernelError, want_len};

/// Rows of `width` floats for each of `Q x S` positions.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    data: &'a [f32],
    /// Floats from one row to the next.
    stride: usize,
    /// The first float of a row that counts.
    at: usize,
    width: usize,
    table: Option<Table<'a>>,
}

/// Which row of a pool a position has.
#[derive(Clone, Copy, Debug)]
struct Table<'a> {
    ids: &'a [i32],
    /// The row of negative ids.
    zeros: &'a [f32],
}

impl<'a> Cached<'a> {
    /// `[Q, S, (H,) d]`, one after the other; `width` is that of all heads.
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Cached { data, stride: width, at: 0, width, table: None }
    }

    /// Floats `at .. at + width` of the rows `ids` `[Q, S]` of a pool `[R, stride]`; `zeros`, of at least `width` zeros,
    /// stands for negative ids.
    ///
    /// # Errors
    /// If an id is not a row of the pool, or the slices do not fit.
    pub fn paged(
        pool: &'a [f32],
        (stride, at, width): (usize, usize, usize),
        ids: &'a [i32],
        zeros: &'a [f32],
    ) -> Result<Self, KernelError> {
        let rows = pool.len().checked_div(stride).unwrap_or(0);
        want_len("pool", pool.len(), &[rows, stride])?;
        if at + width > stride || zeros.len() < width {
            return Err(KernelError::Dim {
                what: "a cached row",
                have: stride,
                need: "the floats that are read of it",
            });
        }
        let outside = |id: &i32| usize::try_from(*id).is_ok_and(|id| id >= rows);
        if let Some(i) = ids.iter().position(outside) {
            return Err(KernelError::Index { what: "table", at: i, value: i64::from(ids[i]), bound: rows });
        }
        Ok(Cached { data: pool, stride, at, width, table: Some(Table { ids, zeros: &zeros[..width] }) })
    }

    /// Checks that there are `positions` rows.
    pub(super) fn check(&self, what: &'static str, positions: usize) -> Result<(), KernelError> {
        match self.table {
            Some(t) => want_len(what, t.ids.len(), &[positions]),
            None => want_len(what, self.data.len(), &[positions, self.stride]),
        }
    }

    /// The row of position `i` of all.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [f32] {
        let row = match self.table {
            None => i,
            Some(t) => match usize::try_from(t.ids[i]) {
                Ok(row) => row,
                Err(_) => return t.zeros,
            },
        };
        &self.data[row * self.stride + self.at..][..self.width]
    }

    /// The part of it that is head `h`'s, of `heads`.
    #[inline(always)]
    pub(super) fn head(&self, i: usize, h: usize, heads: usize) -> &'a [f32] {
        let d = self.width / heads;
        &self.row(i)[h * d..(h + 1) * d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_where_the_table_says() {
        let pool: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let c = Cached::paged(&pool, (4, 1, 2), &[2, -1, 0], &[0.0; 3]).unwrap();
        assert_eq!([c.row(0), c.row(1), c.row(2)], [&[9.0, 10.0], &[0.0, 0.0], &[1.0, 2.0]]);
        assert!(c.check("k", 3).is_ok() && c.check("k", 4).is_err());
        let dense = Cached::dense(&pool, 6);
        assert_eq!((dense.row(1), dense.head(1, 1, 3)), (&pool[6..], &pool[8..10]));
        assert!(dense.check("k", 2).is_ok() && dense.check("k", 3).is_err());
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let pool = [0.0; 8];
        assert!(Cached::paged(&pool, (4, 0, 4), &[0, 2], &[0.0; 4]).is_err(), "a row beyond the pool");
        assert!(Cached::paged(&pool, (3, 0, 3), &[0], &[0.0; 3]).is_err(), "half a row");
        assert!(Cached::paged(&pool, (4, 3, 2), &[0], &[0.0; 2]).is_err(), "floats of the next row");
        assert!(Cached::paged(&pool, (4, 0, 4), &[0], &[0.0; 3]).is_err(), "too few zeros");
    }
}
