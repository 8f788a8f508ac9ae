//! Activations as 24-bit integers, for products with quantised weights in integer arithmetic.
//!
//! Owns the number format: each run of 32 values shares one scale `s = max|x| / (127 * 2^16)`, and a value is
//! `s * (p2 * 2^16 + p1 * 2^8 + p0)` with signed bytes `p`. The error of a value is at most half of `s`, 2^-24 of the
//! run's largest value, which is what f32 additions lose on the way. Products of the bytes with weights of up to six
//! bits, and the shifts between the planes, are exact in 32 bits. Never multiplies; `simd::vnni` does.

/// Values that share a scale: the sub-blocks of q4_K and q5_K.
const RUN: usize = 32;
/// Values of a block.
pub(super) const BLOCK: usize = 256;
/// Groups of 64 values of a block: low and high nibbles of each half of the packed bytes.
pub(super) const GROUPS: usize = 4;
/// Largest magnitude of a value as an integer: the top plane then fits a signed byte after carries.
const LARGEST: f32 = 127.0 * 65536.0;
/// One ulp is one here, so that additions round to integers.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Below this largest value a run's scale would lose bits to underflow.
const SMALLEST: f32 = 1e-30;

/// One block of 256 values, in the order in which q4_K and q5_K pack theirs: group `2 p + h` holds the values of
/// sub-blocks `4 p + h` and `4 p + 2 + h`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct FixedBlock {
    /// The planes `p2, p1, p0` of each group.
    pub(super) planes: [[[i8; 64]; 3]; GROUPS],
    /// The scale of each 32-bit lane of each group.
    pub(super) scales: [[f32; 16]; GROUPS],
    /// Eight zeros, then the sums of the eight runs.
    pub(super) sums: [f32; 16],
}

/// A vector in blocks.
pub(super) struct Fixed {
    /// Its blocks in order.
    pub(super) blocks: Vec<FixedBlock>,
}

impl Fixed {
    /// Converts `x`; `None` if the format cannot hold it: a length that is no multiple of 256, a value that is not
    /// finite, or a run of values too small for a scale.
    pub(super) fn new(x: &[f32]) -> Option<Fixed> {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        if !rest.is_empty() {
            return None;
        }
        blocks.iter().map(block).collect::<Option<_>>().map(|blocks| Fixed { blocks })
    }
}

fn block(x: &[f32; BLOCK]) -> Option<FixedBlock> {
    let mut out = FixedBlock { planes: [[[0; 64]; 3]; GROUPS], scales: [[0.0; 16]; GROUPS], sums: [0.0; 16] };
    for (j, run) in x.as_chunks::<RUN>().0.iter().enumerate() {
        let (group, half) = (2 * (j / 4) + j % 2, j / 2 % 2);
        let largest = run.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let finite = run.iter().all(|v| v.is_finite());
        if !finite || (largest != 0.0 && largest < SMALLEST) {
            return None;
        }
        if largest == 0.0 {
            continue;
        }
        // The scale as it is stored; in f64, so that dividing by it adds no error of its own.
        let scale = largest / LARGEST;
        let inverse = 1.0 / f64::from(scale);
        out.scales[group][8 * half..8 * half + 8].fill(scale);
        out.sums[8 + j] = run.iter().sum();
        let [p2, p1, p0] = &mut out.planes[group];
        let at = RUN * half;
        for (i, v) in run.iter().enumerate() {
            // Adding and taking away 1.5 * 2^52 rounds to the nearest integer, ties to even.
            let whole = ((f64::from(*v) * inverse + ROUND) - ROUND) as i32;
            let low = whole as i8;
            let rest = (whole - i32::from(low)) >> 8;
            let middle = rest as i8;
            p0[at + i] = low;
            p1[at + i] = middle;
            p2[at + i] = ((rest - i32::from(middle)) >> 8) as i8;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::testing::Rng;

    #[test]
    fn values_come_back_to_24_bits() {
        let mut x = Rng::new(7).floats(4 * BLOCK);
        x[..RUN].fill(0.0);
        x[40] = 1e6;
        x[300] = -3e38;
        let fixed = Fixed::new(&x).unwrap();
        for (b, (block, x)) in fixed.blocks.iter().zip(x.as_chunks::<BLOCK>().0).enumerate() {
            for (i, v) in x.iter().enumerate() {
                let (j, k) = (i / RUN, i % RUN);
                let (group, half) = (2 * (j / 4) + j % 2, j / 2 % 2);
                let [p2, p1, p0] = block.planes[group].map(|p| f64::from(p[RUN * half + k]));
                let scale = f64::from(block.scales[group][8 * half + k / 4]);
                let back = scale * (p2 * 65536.0 + p1 * 256.0 + p0);
                let largest = x[j * RUN..(j + 1) * RUN].iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let error = (back - f64::from(*v)).abs();
                assert!(error <= f64::from(largest) * 6.1e-8, "block {b}, value {i}: {back} for {v}");
            }
        }
    }

    #[test]
    fn what_the_format_cannot_hold_is_left_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-35] {
            let mut x = vec![0.0; BLOCK];
            x[77] = bad;
            assert!(Fixed::new(&x).is_none(), "{bad}");
        }
        assert!(Fixed::new(&[1.0; 255]).is_none());
        assert!(Fixed::new(&[0.0; BLOCK]).is_some());
    }
}
