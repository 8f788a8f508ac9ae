//! Where each bit of a block lands: one code bit moves one element (or one group of a code book), scales move their
//! run only, and nothing but the block's own f16 scales crosses a sub-block. The last fact is what makes a cut at
//! sub-blocks exact.

use std::collections::BTreeSet;

use glmc_ir::quant::QuantType;
use glmc_ir::quant::QuantType::*;
use glmc_ir::quant::synth::synth_blocks;

const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

/// Offsets of the f16 scales that a whole block shares.
fn shared_scales(ty: QuantType) -> &'static [usize] {
    match ty {
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        F32 | F16 | BF16 | MXFP4 | NVFP4 | IQ1_M => &[],
        _ => &[0],
    }
}

/// A block with all scales non-zero and all codes in the middle of their range: 0x55 everywhere, f16 scales 1.
fn middle(ty: QuantType) -> Vec<u8> {
    let mut block = vec![0x55; ty.block_bytes()];
    for &at in shared_scales(ty) {
        block[at..at + 2].copy_from_slice(&ONE);
    }
    block
}

fn decode(ty: QuantType, block: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; ty.block_elems()];
    ty.decode_block(block, &mut out);
    out
}

/// The elements that change when bit `bit` of byte `byte` flips.
fn moved(ty: QuantType, byte: usize, bit: usize) -> Vec<usize> {
    let mut block = middle(ty);
    let before = decode(ty, &block);
    block[byte] ^= 1 << bit;
    let after = decode(ty, &block);
    (0..before.len()).filter(|&i| before[i].to_bits() != after[i].to_bits()).collect()
}

/// Checks that bit `bit` of byte `first + k` belongs to element `element(k, bit)` alone, for `k` below `count`.
fn codes(ty: QuantType, first: usize, count: usize, element: impl Fn(usize, usize) -> usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    for k in 0..count {
        for bit in 0..8 {
            let want = element(k, bit);
            assert_eq!(moved(ty, first + k, bit), [want], "{ty}: bit {bit} of byte {}", first + k);
            seen.insert(want);
        }
    }
    seen
}

/// As [`codes`]; the codes must also reach every element.
fn all_codes(ty: QuantType, first: usize, count: usize, element: impl Fn(usize, usize) -> usize) {
    let seen = codes(ty, first, count, element);
    assert!(seen.into_iter().eq(0..ty.block_elems()), "{ty}: every element has a code");
}

#[test]
fn nibbles_of_small_blocks_are_halves_not_pairs() {
    let halves = |k: usize, bit: usize| k + 16 * (bit / 4);
    for (ty, first) in [(Q4_0, 2), (Q4_1, 4), (Q5_0, 6), (Q5_1, 8), (IQ4_NL, 2), (MXFP4, 1)] {
        all_codes(ty, first, 16, halves);
    }
    all_codes(IQ4_XS, 8, 128, |k, bit| 32 * (k / 16) + halves(k % 16, bit));
    all_codes(NVFP4, 4, 32, |k, bit| 16 * (k / 8) + k % 8 + 8 * (bit / 4));
}

#[test]
fn fifth_bits_are_in_element_order() {
    for (ty, first) in [(Q5_0, 2), (Q5_1, 4)] {
        all_codes(ty, first, 4, |k, bit| 8 * k + bit);
    }
}

#[test]
fn bytes_and_small_codes_are_in_element_order() {
    all_codes(Q8_0, 2, 32, |k, _| k);
    all_codes(Q1_0, 2, 16, |k, bit| 8 * k + bit);
    all_codes(Q2_0, 2, 16, |k, bit| 4 * k + bit / 2);
}

#[test]
fn codes_of_k_types_lie_in_planes() {
    let planes = |k: usize, bit: usize| 128 * (k / 32) + 32 * (bit / 2) + k % 32;
    all_codes(Q2_K, 16, 64, planes);
    all_codes(Q3_K, 32, 64, planes);
    all_codes(TQ2_0, 0, 64, planes);
    all_codes(Q6_K, 128, 64, planes);
    all_codes(Q3_K, 0, 32, |k, bit| 32 * bit + k);
    all_codes(Q5_K, 16, 32, |k, bit| 32 * bit + k);
    let low = |k: usize, bit: usize| 64 * (k / 32) + 32 * (bit / 4) + k % 32;
    all_codes(Q4_K, 16, 128, low);
    all_codes(Q5_K, 48, 128, low);
    all_codes(Q6_K, 0, 128, |k, bit| 128 * (k / 64) + 64 * (bit / 4) + k % 64);
}

#[test]
fn signs_and_indices_of_code_books_move_their_group() {
    for k in 0..32 {
        for bit in 0..8 {
            assert_eq!(moved(IQ2_S, 34 + k, bit), [8 * k + bit], "iq2_s sign");
            assert_eq!(moved(IQ3_S, 74 + k, bit), [8 * k + bit], "iq3_s sign");
        }
    }
    // (type, first index byte, index bytes, elements an index stands for)
    for (ty, first, count, group) in
        [(IQ2_S, 2, 32, 8), (IQ3_XXS, 2, 64, 4), (IQ3_S, 2, 64, 4), (IQ1_S, 2, 32, 8), (IQ1_M, 0, 32, 8)]
    {
        for k in 0..count {
            let reached: BTreeSet<usize> = (0..8).flat_map(|bit| moved(ty, first + k, bit)).collect();
            assert!(!reached.is_empty(), "{ty}: index byte {k}");
            assert!(reached.iter().all(|i| i / group == k), "{ty}: index byte {k} moves {reached:?}");
        }
    }
}

#[test]
fn only_the_shared_scales_cross_a_sub_block() {
    for &ty in QuantType::ALL.iter().filter(|ty| !ty.is_float()) {
        let run = ty.sub_block();
        let mut halves_joined = false;
        for byte in 0..ty.block_bytes() {
            for bit in 0..8 {
                let shared = shared_scales(ty).iter().any(|&at| (at..at + 2).contains(&byte))
                    || ty == IQ1_M && byte >= 48 && byte % 2 == 1 && bit >= 4;
                let moved = moved(ty, byte, bit);
                let runs: BTreeSet<usize> = moved.iter().map(|i| i / run).collect();
                assert!(shared || runs.len() <= 1, "{ty}: bit {bit} of byte {byte} moves runs {runs:?} of {run}");
                let halves: BTreeSet<usize> = moved.iter().map(|i| i / (run / 2)).collect();
                halves_joined |= halves.len() == 2 && runs.len() == 1;
            }
        }
        assert!(halves_joined, "{ty}: runs of {} would do", run / 2);
    }
}

#[test]
fn each_bit_of_q4_k_scales_and_minima_has_its_place() {
    // Where field j's six bits are: (byte, bit) of the 12 packed bytes.
    let place = |j: usize, b: usize, min: bool| match (j < 4, min, b < 4) {
        (true, false, _) => (j, b),
        (true, true, _) => (j + 4, b),
        (false, false, true) => (j + 4, b),
        (false, true, true) => (j + 4, b + 4),
        (false, false, false) => (j - 4, b + 2),
        (false, true, false) => (j, b + 2),
    };
    for (ty, codes) in [(Q4_K, 16), (Q5_K, 48)] {
        for j in 0..8 {
            for b in 0..6 {
                for min in [false, true] {
                    let mut block = vec![0; ty.block_bytes()];
                    block[..2].copy_from_slice(&ONE);
                    block[2..4].copy_from_slice(&ONE);
                    block[codes..].fill(0x11);
                    let (byte, bit) = place(j, b, min);
                    block[4 + byte] = 1 << bit;
                    let value = if min { -1.0 } else { 1.0 } * f32::from(1u8 << b);
                    let want: Vec<f32> = (0..256).map(|i| if i / 32 == j { value } else { 0.0 }).collect();
                    assert_eq!(decode(ty, &block), want, "{ty}: bit {b} of field {j}, minimum: {min}");
                }
            }
        }
    }
}

#[test]
fn zero_blocks_decode_to_zeros() {
    for &ty in QuantType::ALL {
        let zeros = decode(ty, &vec![0; ty.block_bytes()]);
        assert!(zeros.iter().all(|&y| y == 0.0), "{ty}");
    }
}

#[test]
fn subnormal_scales_are_not_flushed() {
    let mut block = middle(Q8_0);
    block[..2].copy_from_slice(&[1, 0]);
    block[2] = 1;
    assert_eq!(decode(Q8_0, &block)[0], 2f32.powi(-24));
    for (e, want) in [(0, 2f32.powi(-128)), (1, 2f32.powi(-127)), (2, 2f32.powi(-126)), (254, 2f32.powi(126))] {
        let mut block = vec![0x11; MXFP4.block_bytes()];
        block[0] = e;
        assert_eq!(decode(MXFP4, &block), vec![want; 32], "e = {e}");
    }
    assert!(decode(MXFP4, &[255; 17])[0].is_nan());
}

#[test]
fn rows_and_slices_keep_their_blocks() {
    for &ty in QuantType::ALL {
        let (elems, bytes) = (ty.block_elems(), ty.block_bytes());
        let mut packed = vec![0; 6 * bytes];
        synth_blocks(ty, 5, 0, 0, 1.0, &mut packed);
        let mut whole = vec![0.0; 6 * elems];
        ty.decode(&packed, &mut whole);
        for (i, block) in packed.chunks_exact(bytes).enumerate() {
            assert_eq!(decode(ty, block), whole[i * elems..(i + 1) * elems], "{ty}: block {i}");
        }
        let row = usize::try_from(ty.row_bytes(2 * elems as u64).expect("whole blocks")).expect("small");
        let mut second = vec![0.0; 2 * elems];
        ty.decode(&packed[row..2 * row], &mut second);
        assert_eq!(second, whole[2 * elems..4 * elems], "{ty}: row 1 of three");
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let refused = |ty: QuantType, bytes: usize, elems: usize| {
        std::panic::catch_unwind(|| ty.decode(&vec![0; bytes], &mut vec![0.0; elems])).is_err()
    };
    assert!(!refused(Q4_K, 288, 512));
    assert!(refused(Q4_K, 287, 512));
    assert!(refused(Q4_K, 288, 511));
    assert!(refused(Q4_K, 288, 256));
}
