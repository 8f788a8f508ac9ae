//! Owns cutting and joining of concrete tensors along one dim, given the ranges. Never decides the ranges.

use std::ops::Range;

use crate::tensor::{Data, EvalError, Tensor};
use crate::ty::PendingKind;

/// A tensor seen as `outer` times `n` runs of `inner` units along one dim, with how many entries one of the `n` is.
struct Runs {
    outer: usize,
    n: usize,
    inner: usize,
    granule: usize,
}

impl Runs {
    fn of(t: &Tensor, d: usize) -> Result<Self, EvalError> {
        let n = *t.shape.get(d).ok_or_else(|| EvalError::new(format!("there is no dim {d} in {:?}", t.shape)))?;
        let outer = t.shape[..d].iter().product();
        let rest: usize = t.shape[d + 1..].iter().product();
        match &t.data {
            Data::Q(q, _) if d + 1 == t.shape.len() => {
                Ok(Runs { outer, n: n / q.block_elems(), inner: q.block_bytes(), granule: q.block_elems() })
            }
            Data::Q(q, _) => Ok(Runs { outer, n, inner: rest / q.block_elems() * q.block_bytes(), granule: 1 }),
            _ => Ok(Runs { outer, n, inner: rest, granule: 1 }),
        }
    }

    fn ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Range<usize>>, EvalError> {
        let scaled = |r: &Range<u64>| {
            let (a, b) = (r.start as usize, r.end as usize);
            let fits = a.is_multiple_of(self.granule) && b.is_multiple_of(self.granule) && b / self.granule <= self.n;
            fits.then_some(a / self.granule..b / self.granule)
                .ok_or_else(|| EvalError::new(format!("{r:?} cannot be cut from {} times {}", self.n, self.granule)))
        };
        ranges.iter().map(scaled).collect()
    }
}

/// The entries in `ranges` of dim `d`.
pub(super) fn take(t: &Tensor, d: usize, ranges: &[Range<u64>]) -> Result<Tensor, EvalError> {
    fn copy<T: Copy>(from: &[T], runs: &Runs, ranges: &[Range<usize>]) -> Vec<T> {
        let mut out = Vec::new();
        for o in 0..runs.outer {
            for r in ranges {
                out.extend_from_slice(&from[(o * runs.n + r.start) * runs.inner..(o * runs.n + r.end) * runs.inner]);
            }
        }
        out
    }
    let runs = Runs::of(t, d)?;
    let cut = runs.ranges(ranges)?;
    let mut shape = t.shape.clone();
    shape[d] = ranges.iter().map(|r| (r.end - r.start) as usize).sum();
    let data = match &t.data {
        Data::F(v) => Data::F(copy(v, &runs, &cut)),
        Data::I(v) => Data::I(copy(v, &runs, &cut)),
        Data::Q(q, b) => Data::Q(*q, copy(b, &runs, &cut).into()),
    };
    Ok(Tensor { shape, data })
}

/// One tensor from parts that hold the given ranges of dim `d`, whose whole extent is `n`.
pub(super) fn join(parts: &[(&Tensor, Vec<Range<u64>>)], d: usize, n: u64) -> Result<Tensor, EvalError> {
    fn paste<T: Copy>(to: &mut [T], part: &[T], runs: &Runs, own: usize, ranges: &[Range<usize>]) {
        for o in 0..runs.outer {
            let mut at = o * own;
            for r in ranges {
                let len = r.end - r.start;
                to[(o * runs.n + r.start) * runs.inner..][..len * runs.inner]
                    .copy_from_slice(&part[at * runs.inner..][..len * runs.inner]);
                at += len;
            }
        }
    }
    let (first, _) = parts.first().ok_or_else(|| EvalError::new("nothing to join"))?;
    let mut shape = first.shape.clone();
    *shape.get_mut(d).ok_or_else(|| EvalError::new(format!("there is no dim {d} to join")))? = n as usize;
    let len: usize = shape.iter().product();
    let empty = match &first.data {
        Data::F(_) => Data::F(vec![f64::NAN; len]),
        Data::I(_) => Data::I(vec![i64::from(i32::MIN); len]),
        Data::Q(q, _) => Data::Q(*q, vec![0; len / q.block_elems() * q.block_bytes()].into()),
    };
    let mut out = Tensor { shape, data: empty };
    let runs = Runs::of(&out, d)?;
    for (part, ranges) in parts {
        let (own, cut) = (Runs::of(part, d)?, runs.ranges(ranges)?);
        let held: usize = cut.iter().map(|r| r.end - r.start).sum();
        if own.n != held || own.outer != runs.outer || own.inner != runs.inner {
            return Err(EvalError::new(format!("a part of {:?} does not hold {ranges:?} of dim {d}", part.shape)));
        }
        match (&mut out.data, &part.data) {
            (Data::F(to), Data::F(v)) => paste(to, v, &runs, own.n, &cut),
            (Data::I(to), Data::I(v)) => paste(to, v, &runs, own.n, &cut),
            (Data::Q(_, to), Data::Q(_, v)) => {
                let mut bytes = to.to_vec();
                paste(&mut bytes, v, &runs, own.n, &cut);
                *to = bytes.into();
            }
            _ => return Err(EvalError::new("parts of different kinds")),
        }
    }
    Ok(out)
}

/// Place `at` of `size`'s part of a value that is still to be merged. A sum falls into `x + 1`, `-1` and zeros: a merge
/// that is left out or done twice shows, and what is exactly 0 stays so under products.
pub(super) fn unmerged(mut t: Tensor, kind: PendingKind, at: u64, size: u64) -> Result<Tensor, EvalError> {
    if let Data::Q(..) = t.data {
        return Err(EvalError::new("stored blocks are never pending"));
    }
    let each = |t: &mut Tensor, f: fn(f64) -> f64, i: fn(i64) -> i64| match &mut t.data {
        Data::F(v) => v.iter_mut().for_each(|x| *x = f(*x)),
        Data::I(v) => v.iter_mut().for_each(|x| *x = i(*x)),
        Data::Q(..) => {}
    };
    match (kind, at) {
        _ if size == 1 => {}
        (PendingKind::Sum, 0) => each(&mut t, |x| x + 1.0, |x| x + 1),
        (PendingKind::Sum, 1) => each(&mut t, |_| -1.0, |_| -1),
        (PendingKind::Sum, _) => each(&mut t, |_| 0.0, |_| 0),
        // Entries of all ranks in turn.
        (PendingKind::Owned, _) => match &mut t.data {
            Data::F(v) => (0u64..).zip(v).filter(|(i, _)| i % size != at).for_each(|(_, x)| *x = 0.0),
            Data::I(v) => (0u64..).zip(v).filter(|(i, _)| i % size != at).for_each(|(_, x)| *x = 0),
            Data::Q(..) => {}
        },
        (PendingKind::Max, _) if at + 1 == size => {}
        (PendingKind::Max, _) => each(&mut t, |x| x - 1.0, |x| x - 1),
        (PendingKind::Softmax | PendingKind::TopK, _) => {
            return Err(EvalError::new("a whole value has no parts for a softmax or top-k merge"));
        }
    }
    Ok(t)
}

/// Whether two copies are the same to the bit, NaN like NaN.
pub(super) fn same(a: &Tensor, b: &Tensor) -> bool {
    match (&a.data, &b.data) {
        (Data::F(x), Data::F(y)) => {
            a.shape == b.shape && x.iter().zip(y).all(|(x, y)| x == y || x.is_nan() && y.is_nan())
        }
        _ => a == b,
    }
}
