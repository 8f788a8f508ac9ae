//! Products against exact sums over every type, both paths, odd shapes and tails.

use super::*;
use crate::device::cpu::testing::{Rng, close, on_threads, weights};

const TOLERANCE: f64 = 2e-6;

fn check(ty: QuantType, n: usize, k: usize, t: usize) {
    let (bytes, w) = weights(ty, n, k, (n * 31 + k) as u64);
    let x = Rng::new(t as u64).floats(t * k);
    let view = WeightView::new(ty, &bytes, n, k).unwrap();
    let stride = n + 2;
    let y = on_threads(|| {
        let mut y = vec![7.5; t * stride];
        matmul(view, &x, t, &mut y, stride).unwrap();
        y
    });
    for (i, &got) in y.iter().enumerate() {
        let (t, r) = (i / stride, i % stride);
        if r < n {
            close(got, (0..k).map(|j| (w[r * k + j], x[t * k + j])), TOLERANCE);
        } else {
            assert_eq!(got, 7.5, "between the rows");
        }
    }
}

#[test]
fn every_type_on_both_paths() {
    for &ty in QuantType::ALL {
        for blocks in [1, 3] {
            for t in [1, 2, 3, 4, 5, 8, 9, 13] {
                check(ty, 11, blocks * ty.block_elems().max(32), t);
            }
        }
    }
}

#[test]
fn several_panels_and_tasks() {
    check(QuantType::Q4_K, 70, 1280, 10);
    check(QuantType::Q8_0, 33, 544, 12);
    check(QuantType::Q6_K, 300, 1024, 2);
    check(QuantType::F32, 40, 1030, 9);
}

#[test]
fn float_rows_of_any_length() {
    for ty in [QuantType::F32, QuantType::F16, QuantType::BF16] {
        for k in [1, 7, 16, 31, 33, 79, 527] {
            for t in [1, 4, 9] {
                check(ty, 3, k, t);
            }
        }
    }
}

#[test]
fn a_vector_gives_the_same_bits_alone_and_in_company() {
    let (n, k) = (20, 768);
    for ty in [QuantType::Q4_K, QuantType::Q8_0, QuantType::IQ4_XS] {
        let (bytes, _) = weights(ty, n, k, 3);
        let view = WeightView::new(ty, &bytes, n, k).unwrap();
        let x = Rng::new(1).floats(8 * k);
        let mut together = vec![0.0; 8 * n];
        matmul(view, &x, 8, &mut together, n).unwrap();
        for t in 0..8 {
            let mut alone = vec![0.0; n];
            matmul(view, &x[t * k..(t + 1) * k], 1, &mut alone, n).unwrap();
            assert_eq!(alone, together[t * n..(t + 1) * n]);
        }
    }
}

#[test]
fn batched_over_heads() {
    for (ty, heads, c, n, t) in [
        (QuantType::Q5_0, 3, 17, 192, 1),
        (QuantType::Q8_0, 4, 9, 64, 11),
        (QuantType::F32, 1, 1, 5, 2),
        (QuantType::Q4_K, 2, 40, 256, 9),
    ] {
        let (bytes, w) = weights(ty, heads * c, n, 2);
        let view = WeightView::new(ty, &bytes, heads * c, n).unwrap();
        let x = Rng::new(3).floats(t * heads * n);
        let out = on_threads(|| {
            let mut out = vec![f32::NAN; t * heads * c];
            batched_matmul(view, heads, &x, t, &mut out).unwrap();
            out
        });
        for (i, &got) in out.iter().enumerate() {
            let (th, h, r) = (i / c, i / c % heads, i % c);
            close(got, (0..n).map(|j| (x[th * n + j], w[(h * c + r) * n + j])), TOLERANCE);
        }
    }
}

#[test]
fn grouped_by_expert() {
    let (experts, n, k) = (5, 35, 512);
    let (bytes, w) = weights(QuantType::Q4_K, experts * n, k, 4);
    let view = WeightView::new(QuantType::Q4_K, &bytes, experts * n, k).unwrap();
    for (t, j, own) in [(1, 1, false), (1, 3, true), (7, 3, false), (40, 2, true), (40, 2, false)] {
        let mut rng = Rng::new(t as u64);
        // Negative ids, and expert 3 is never used.
        let ids: Vec<i32> = (0..t * j).map(|_| [-1, 0, 1, 2, 4, 4, 4][rng.below(7)]).collect();
        let x = rng.floats(t * if own { j } else { 1 } * k);
        let input = if own { GroupedInput::PerSlot(&x) } else { GroupedInput::PerToken(&x) };
        let y = on_threads(|| {
            let mut y = vec![f32::NAN; t * j * n];
            grouped_matmul(view, experts, input, &ids, t, &mut y).unwrap();
            y
        });
        for (i, &got) in y.iter().enumerate() {
            let (slot, r) = (i / n, i % n);
            let row = if own { slot } else { slot / j };
            match usize::try_from(ids[slot]) {
                Ok(e) => close(got, (0..k).map(|c| (x[row * k + c], w[(e * n + r) * k + c])), TOLERANCE),
                Err(_) => assert_eq!(got, 0.0),
            }
        }
    }
}

#[test]
fn empty_and_wrong_shapes() {
    let (bytes, _) = weights(QuantType::Q8_0, 2, 64, 1);
    assert!(WeightView::new(QuantType::Q8_0, &bytes, 2, 63).is_err());
    assert!(WeightView::new(QuantType::Q8_0, &bytes, 3, 64).is_err());
    assert!(WeightView::new(QuantType::Q8_0, &bytes, usize::MAX, 64).is_err());
    let w = WeightView::new(QuantType::Q8_0, &bytes, 2, 64).unwrap();
    matmul(w, &[], 0, &mut [], 2).unwrap();
    assert!(matmul(w, &[0.0; 64], 1, &mut [0.0; 2], 1).is_err());
    assert!(matmul(w, &[0.0; 64], 1, &mut [0.0; 1], 2).is_err());
    assert!(matmul(w, &[0.0; 63], 1, &mut [0.0; 2], 2).is_err());
    assert!(batched_matmul(w, 3, &[0.0; 64], 1, &mut [0.0; 2]).is_err());
    assert!(batched_matmul(w, 0, &[], 1, &mut []).is_err());
    let x = GroupedInput::PerToken(&[0.0; 64]);
    assert!(grouped_matmul(w, 2, x, &[2], 1, &mut [0.0]).is_err());
    assert!(grouped_matmul(w, 2, x, &[0, 1, 0], 2, &mut [0.0; 3]).is_err());
    assert!(grouped_matmul(w, 2, x, &[1], 1, &mut [0.0]).is_ok());
    // No elements to sum: zeros.
    let none = WeightView::new(QuantType::F32, &[], 2, 0).unwrap();
    let mut y = [1.0; 2];
    matmul(none, &[], 1, &mut y, 2).unwrap();
    assert_eq!(y, [0.0; 2]);
}
