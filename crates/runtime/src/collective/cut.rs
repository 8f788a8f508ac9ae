//! Owns cutting and joining of row-major words along one dim, given the ranges. Never decides a range.

use std::ops::Range;

use super::MeetError;

/// Rows before a dim, entries along it, and words in one entry.
fn runs(shape: &[usize], d: usize) -> Result<(usize, usize, usize), MeetError> {
    let n = *shape.get(d).ok_or_else(|| MeetError::Shape(format!("there is no dim {d} in {shape:?}")))?;
    Ok((shape[..d].iter().product(), n, shape[d + 1..].iter().product()))
}

fn check(shape: &[usize], n: usize, ranges: &[Range<u64>]) -> Result<usize, MeetError> {
    match ranges.iter().find(|r| r.start > r.end || r.end > n as u64) {
        Some(r) => Err(MeetError::Shape(format!("{r:?} is outside a dim of {shape:?}"))),
        None => Ok(ranges.iter().map(|r| (r.end - r.start) as usize).sum()),
    }
}

/// Writes the entries in `ranges` of dim `d` of `from`, which has this shape, to `to`.
///
/// # Errors
/// Ranges outside the dim, or slices of other lengths.
pub(crate) fn take(
    from: &[u32],
    shape: &[usize],
    d: usize,
    ranges: &[Range<u64>],
    to: &mut [u32],
) -> Result<(), MeetError> {
    let (outer, n, inner) = runs(shape, d)?;
    let held = check(shape, n, ranges)?;
    for (what, have, want) in
        [("an operand", from.len(), outer * n * inner), ("a part", to.len(), outer * held * inner)]
    {
        if have != want {
            return Err(MeetError::length(what, have, want));
        }
    }
    let mut at = 0;
    for o in 0..outer {
        for r in ranges {
            let words = (r.end - r.start) as usize * inner;
            let start = (o * n + r.start as usize) * inner;
            to[at..at + words].copy_from_slice(&from[start..start + words]);
            at += words;
        }
    }
    Ok(())
}

/// Writes `part`, which holds `ranges` of dim `d`, to its places in `to`, which has this shape.
///
/// # Errors
/// As for [`take`].
pub(super) fn paste(
    part: &[u32],
    ranges: &[Range<u64>],
    shape: &[usize],
    d: usize,
    to: &mut [u32],
) -> Result<(), MeetError> {
    let (outer, n, inner) = runs(shape, d)?;
    let held = check(shape, n, ranges)?;
    for (what, have, want) in [("a part", part.len(), outer * held * inner), ("a result", to.len(), outer * n * inner)]
    {
        if have != want {
            return Err(MeetError::length(what, have, want));
        }
    }
    let mut at = 0;
    for o in 0..outer {
        for r in ranges {
            let words = (r.end - r.start) as usize * inner;
            let start = (o * n + r.start as usize) * inner;
            to[start..start + words].copy_from_slice(&part[at..at + words]);
            at += words;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_and_put_back() {
        // [2, 6, 1]: a rank holds entries 0..1 and 3..5.
        let from: Vec<u32> = (0..12).collect();
        let ranges = [0..1, 3..5];
        let mut part = [99; 6];
        take(&from, &[2, 6, 1], 1, &ranges, &mut part).unwrap();
        assert_eq!(part, [0, 3, 4, 6, 9, 10]);
        let mut back = [77; 12];
        paste(&part, &ranges, &[2, 6, 1], 1, &mut back).unwrap();
        assert_eq!(back, [0, 77, 77, 3, 4, 77, 6, 77, 77, 9, 10, 77]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (mut to, first, outside) = ([0; 2], 0..1, 2..4);
        let one = std::slice::from_ref;
        assert!(take(&[0; 6], &[2, 3], 1, one(&outside), &mut to).is_err());
        assert!(take(&[0; 6], &[2, 3], 2, one(&first), &mut to).is_err());
        assert!(take(&[0; 5], &[2, 3], 1, one(&first), &mut to).is_err());
        assert!(paste(&[0; 3], one(&first), &[2, 3], 1, &mut [0; 6]).is_err());
    }
}
