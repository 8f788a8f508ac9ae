//! Cuts inside the file's blocks: sub-blocks kept apart decode to the bits of the block, and what ranks hold of a tensor is
//! the tensor, whatever the ranks and the joined dims.

mod common;

use common::ty;
use glmc_ir::graph::Span;
use glmc_ir::quant::QuantType;
use glmc_ir::quant::synth::synth_blocks;
use glmc_ir::shard_map::{Shard, check, recipe_slices};
use glmc_ir::ty::{Axis, SymValues, TensorType};
use indexmap::IndexMap;

fn decode(q: QuantType, bytes: &[u8]) -> Vec<u32> {
    let mut out = vec![0.0; bytes.len() / q.block_bytes() * q.block_elems()];
    q.decode(bytes, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

/// Bytes that any file may hold: scales that are NaN or infinite too.
fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Equal bits; any NaN equals any NaN.
fn same(a: u32, b: u32) -> bool {
    a == b || f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan()
}

#[test]
fn sub_blocks_decode_to_the_bits_of_their_block() {
    let mut forms = 0;
    for q in QuantType::ALL.iter().filter(|q| q.apart().is_some()) {
        let apart = q.apart().unwrap();
        assert_eq!((apart.in_file(), q.in_file()), (*q, *q));
        assert!(q.block_elems().is_multiple_of(apart.block_elems()) && apart.block_elems() >= q.sub_block());
        assert!(QuantType::from_name(apart.name()) == Some(apart) && !QuantType::ALL.contains(&apart));
        for seed in 0..2000 {
            let mut block = bytes(seed, q.block_bytes());
            if seed % 2 == 0 {
                synth_blocks(*q, seed, 1, 0, 0.5, &mut block);
            }
            let mut runs = Vec::new();
            q.sub_blocks(&block, 0..q.block_elems() / apart.block_elems(), &mut runs);
            let (want, have) = (decode(*q, &block), decode(apart, &runs));
            assert_eq!(want.len(), have.len());
            let wrong = want.iter().zip(&have).position(|(a, b)| !same(*a, *b));
            assert_eq!(wrong, None, "{q}, seed {seed}");
        }
        forms += 1;
    }
    assert_eq!(forms, QuantType::SUB.len());
}

fn mesh(ranks: u64) -> IndexMap<Axis, u64> {
    [("tp".into(), ranks)].into_iter().collect()
}

#[test]
fn the_ranks_hold_the_tensor() {
    let none = SymValues::default();
    let types = [
        "q4_K_sub[3, 5, 256/tp:32] rows",
        "q5_K_sub[2, 512/tp:32] rows",
        "q6_K_sub[4, 768/tp:64] rows",
        "q4_K_sub[3, {a: 256, b: 512}/tp:32] rows",
    ];
    for (t, ranks) in types.iter().flat_map(|t| [2, 3, 5, 7, 8].map(|n| (ty(t), n))) {
        let t = glmc_ir::shard_map::canonical(&t, &mesh(ranks));
        check(&t, &mesh(ranks)).unwrap();
        let stored: TensorType = t.with_elem(t.elem.in_file());
        let span = Span { part: 0, offset: 0, bytes: stored.bytes(&none).unwrap() };
        let (q, apart) = (stored.elem.storage().unwrap(), t.elem.storage().unwrap());
        let file = bytes(ranks, span.bytes as usize);
        let want = decode(q, &file);
        let width = t.shape(&none).unwrap().last().copied().unwrap() as usize;
        let mut have = vec![None; want.len()];
        for (rank, slices) in recipe_slices(&t, &mesh(ranks), span).unwrap().into_iter().enumerate() {
            let shard = Shard::of(&t, &mesh(ranks), rank as u64, &none).unwrap();
            let mut read = Vec::new();
            for s in slices {
                (0..s.count).for_each(|i| read.extend(&file[(s.offset + i * s.stride) as usize..][..s.bytes as usize]));
            }
            let held = shard.stored(read);
            assert_eq!(held.len() as u64, shard.bytes(), "{t} on {ranks} ranks");
            let mut values = decode(apart, &held).into_iter();
            for row in 0..want.len() / width {
                for i in shard.ranges.last().unwrap().iter().flat_map(|r| r.clone()) {
                    let place = &mut have[row * width + i as usize];
                    assert_eq!(*place, None, "two ranks hold an element");
                    *place = values.next();
                }
            }
        }
        for (i, (a, b)) in want.iter().zip(have).enumerate() {
            assert!(b.is_some_and(|b| same(*a, b)), "{t} on {ranks} ranks: element {i}");
        }
    }
}

#[test]
fn a_sub_block_is_never_cut() {
    for t in ["q4_K_sub[4, 256/tp:16] rows", "q6_K_sub[4, 256/tp] rows"] {
        let d = check(&ty(t), &mesh(16)).unwrap_err();
        assert_eq!(d.code, "shard-cuts-block", "{t}");
    }
    // The file's type says what would.
    let d = check(&ty("q4_K[4, 256/tp] rows"), &mesh(8)).unwrap_err();
    assert!(d.message.contains("as q4_K_sub it could be cut at sub-blocks of 32"), "{}", d.message);
}
