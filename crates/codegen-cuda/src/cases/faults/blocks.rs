//! Faults in the bytes of stored blocks. Which bytes of a block are codes and which are scales is found by decoding: a
//! code reaches few elements of its block, a scale many.

use glmc_ir::quant::QuantType;

use super::Fault;
use crate::cases::rng;

/// Most elements that a byte of codes reaches: a code book's index is of eight.
const CODE: usize = 8;
/// Blocks that are looked at.
const BLOCKS: usize = 4;

/// For each byte of a block the most elements that a change of it reaches.
fn reach(q: QuantType) -> Vec<usize> {
    let decode = |b: &[u8]| {
        let mut out = vec![0.0f32; q.block_elems()];
        q.decode(b, &mut out);
        out
    };
    let mut most = vec![0; q.block_bytes()];
    for block in rng::blocks(q, BLOCKS * q.block_elems(), 5, 0.5).chunks_exact(q.block_bytes()) {
        let right = decode(block);
        for (at, most) in most.iter_mut().enumerate() {
            for mask in [0x01, 0x10, 0x0f, 0xf0, 0xff] {
                let mut b = block.to_vec();
                b[at] ^= mask;
                let other = decode(&b);
                let n = right.iter().zip(&other).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                *most = (*most).max(n);
            }
        }
    }
    most
}

/// A weight with the fault in all its blocks; `None` of a type that has no blocks.
pub(super) fn changed(fault: Fault, q: QuantType, bytes: &[u8]) -> Option<Vec<u8>> {
    if q.block_elems() == 1 {
        return None;
    }
    let (reach, size) = (reach(q), q.block_bytes());
    let mut out = bytes.to_vec();
    match fault {
        Fault::Nibbles => {
            let code = reach.iter().position(|n| (1..=CODE).contains(n))?;
            out.chunks_exact_mut(size).for_each(|b| b[code] = b[code].rotate_left(4));
        }
        Fault::NextScale => {
            let scales: Vec<usize> = (0..size).filter(|at| reach[*at] > CODE).collect();
            let next = bytes.chunks_exact(size).cycle().skip(1);
            out.chunks_exact_mut(size).zip(next).for_each(|(b, next)| scales.iter().for_each(|at| b[*at] = next[*at]));
        }
        Fault::LastRow | Fault::Tail => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_with_blocks_has_codes_and_scales() {
        for &q in QuantType::ALL.iter().chain(QuantType::SUB) {
            let bytes = rng::blocks(q, 4 * q.block_elems(), 9, 0.5);
            for fault in [Fault::Nibbles, Fault::NextScale] {
                match changed(fault, q, &bytes) {
                    None => assert_eq!(q.block_elems(), 1, "{q}"),
                    Some(other) => {
                        assert_eq!(other.len(), bytes.len());
                        assert!(other != bytes, "{q}: {fault:?} changes nothing");
                        // A byte of each block, or its scales, and not all of it.
                        let differ = bytes.iter().zip(&other).filter(|(a, b)| a != b).count();
                        assert!(differ < bytes.len() / 2, "{q}: {fault:?} changes {differ} of {}", bytes.len());
                    }
                }
            }
        }
        // d at 0, dmin at 2, scales from 4 on, codes from 16 on.
        let r = reach(QuantType::Q4_K);
        assert!(r[..16].iter().all(|n| *n > CODE) && r[16..].iter().all(|n| *n == 2), "{r:?}");
    }
}
