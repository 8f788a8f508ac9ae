//! Faults put into a run on purpose, to see that checks find them: one block of one rank's weight in memory, or a rank
//! whose thread dies. Files stay whole. A testing aid; nothing asks for it by itself.

use std::str::FromStr;
use std::sync::OnceLock;

use glmc_ir::entities::WeightId;

use crate::error::RuntimeError;
use crate::load::{Bytes, Loaded};

/// What is put in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A corrupted block: `rank=R,weight=NAME,block=I[,kind=wrong|nan]`.
    Block(Block),
    /// A rank whose thread dies in the next run of a phase: `rank=R,die[,step=I]`.
    Death {
        /// The rank.
        rank: usize,
        /// The step before which it dies; a device that replays graphs dies before all.
        step: usize,
    },
}

/// A block to corrupt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// The rank that holds it.
    pub rank: usize,
    /// Name of the weight in the plan, or of its tensor in the file.
    pub weight: String,
    /// Which block of the rank's bytes; of a type without blocks which element.
    pub block: usize,
    /// What it becomes.
    pub kind: FaultKind,
}

/// What a corrupted block decodes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Other numbers, finite and of a like size.
    Wrong,
    /// NaN.
    Nan,
}

/// What can be said.
const SAY: &str = "rank=R,weight=NAME,block=I[,kind=wrong|nan], or rank=R,die[,step=I]";

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rank, mut weight, mut block, mut kind) = (None, None, None, None);
        let (mut dies, mut step) = (false, None);
        for part in text.split(',') {
            let number = |v: &str| v.parse::<usize>().map_err(|_| format!("`{part}` is no number"));
            match part.split_once('=') {
                Some(("rank", v)) => rank = Some(number(v)?),
                Some(("weight", v)) => weight = Some(v.to_owned()),
                Some(("block", v)) => block = Some(number(v)?),
                Some(("kind", "wrong")) => kind = Some(FaultKind::Wrong),
                Some(("kind", "nan")) => kind = Some(FaultKind::Nan),
                Some(("step", v)) => step = Some(number(v)?),
                None if part == "die" => dies = true,
                _ => return Err(format!("`{part}`: say {SAY}")),
            }
        }
        match (rank, weight, block, dies) {
            (Some(rank), Some(weight), Some(block), false) if step.is_none() => {
                Ok(Fault::Block(Block { rank, weight, block, kind: kind.unwrap_or(FaultKind::Wrong) }))
            }
            (Some(rank), None, None, true) if kind.is_none() => Ok(Fault::Death { rank, step: step.unwrap_or(0) }),
            _ => Err(format!("say {SAY}")),
        }
    }
}

impl Loaded {
    /// Corrupts a block of a rank's weight; the file and the other ranks keep theirs. Says what was done.
    ///
    /// # Errors
    /// No such rank, weight or block, or a block that has no other numbers of a like size.
    pub fn corrupt(&mut self, fault: &Block) -> Result<String, RuntimeError> {
        let refuse = |m: String| RuntimeError::Request(format!("the fault cannot be put in: {m}"));
        let named = self.plan.weights.iter().find(|(_, w)| w.name == fault.weight || w.tensor == fault.weight);
        let (id, recipe) = named.ok_or_else(|| refuse(format!("there is no weight `{}`", fault.weight)))?;
        let weights = self.weights.get_mut(fault.rank);
        let weights = weights.ok_or_else(|| refuse(format!("there is no rank {}", fault.rank)))?;
        let mut bytes = weights.bytes(id).to_vec();
        let entry = &mut weights.entries[WeightId::as_u32(id) as usize];
        let (elems, size) = entry.elem.block();
        let size = size as usize;
        let blocks = bytes.len() / size;
        let block = bytes.chunks_exact_mut(size).nth(fault.block);
        let block = block.ok_or_else(|| refuse(format!("`{}` has {blocks} blocks on the rank", recipe.name)))?;
        let quant = entry.elem.storage().ok_or_else(|| refuse("integers".into()))?;
        let decode = |b: &[u8]| {
            let mut out = vec![0.0f32; elems as usize];
            quant.decode(b, &mut out);
            out
        };
        let before = decode(block);
        let fits = |b: &[u8]| match fault.kind {
            FaultKind::Wrong => wrong(&before, &decode(b)),
            FaultKind::Nan => decode(b).iter().any(|x| x.is_nan()),
        };
        let found = candidates(block, fault.kind).find(|b| fits(b));
        let found = found.ok_or_else(|| refuse(format!("block {} has no such other bytes", fault.block)))?;
        block.copy_from_slice(&found);
        (entry.bytes, entry.floats) = (Bytes::Owned(bytes), OnceLock::new());
        Ok(format!(
            "rank {} holds a corrupted block {} of {blocks} of weight `{}` ({})",
            fault.rank, fault.block, recipe.name, recipe.ty
        ))
    }
}

/// Whether `b` is clearly not `a`, finite, and no larger than numbers near it are.
fn wrong(a: &[f32], b: &[f32]) -> bool {
    let square = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let size = square(&mut a.iter().copied());
    let apart = square(&mut a.iter().zip(b).map(|(x, y)| x - y));
    let most = 8.0 * a.iter().fold(0.0f32, |m, x| m.max(x.abs())) + f32::MIN_POSITIVE;
    apart > 0.25 * size && b.iter().all(|x| x.abs() <= most)
}

/// Blocks with some bits of all bytes or of one byte turned over; for NaN all bits set in all bytes or in two.
fn candidates(block: &[u8], kind: FaultKind) -> impl Iterator<Item = Vec<u8>> {
    let masks: &[u8] = if kind == FaultKind::Nan { &[] } else { &[0x5a, 0x33, 0x0f, 0x11, 0x08, 0x55, 0x80] };
    let all = masks.iter().map(|m| block.iter().map(|b| b ^ m).collect::<Vec<u8>>());
    let one = masks.iter().flat_map(|m| {
        (0..block.len()).map(move |i| {
            let mut b = block.to_vec();
            b[i] ^= m;
            b
        })
    });
    let pairs = (0..block.len().saturating_sub(1)).filter(move |_| kind == FaultKind::Nan).map(|i| {
        let mut b = block.to_vec();
        b[i..i + 2].fill(0xff);
        b
    });
    let whole = (kind == FaultKind::Nan).then(|| vec![0xff; block.len()]);
    all.chain(one).chain(pairs).chain(whole).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_said_in_one_word() {
        let f: Fault = "rank=3,weight=blk.1.ffn_down,block=7".parse().unwrap();
        let block = |rank, weight: &str, block, kind| Fault::Block(Block { rank, weight: weight.into(), block, kind });
        assert_eq!(f, block(3, "blk.1.ffn_down", 7, FaultKind::Wrong));
        assert_eq!("rank=0,weight=w,block=0,kind=nan".parse(), Ok(block(0, "w", 0, FaultKind::Nan)));
        assert_eq!("rank=3,die".parse(), Ok(Fault::Death { rank: 3, step: 0 }));
        assert_eq!("die,step=9,rank=1".parse(), Ok(Fault::Death { rank: 1, step: 9 }));
        for bad in [
            "",
            "rank=1",
            "rank=x,weight=w,block=0",
            "rank=0,weight=w,block=0,kind=odd",
            "rank=0,weight=w",
            "die",
            "rank=1,die,weight=w,block=0",
            "rank=1,die,kind=nan",
            "rank=1,step=2",
            "rank=1,weight=w,block=0,step=1",
        ] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_stored_type_has_wrong_and_nan_blocks() {
        use glmc_ir::quant::QuantType;
        use glmc_ir::quant::synth::synth_blocks;
        let mut without_nan = Vec::new();
        for &q in QuantType::ALL {
            let mut block = vec![0; q.block_bytes()];
            synth_blocks(q, 1, 2, 3, 0.5, &mut block);
            let decode = |b: &[u8]| {
                let mut out = vec![0.0; q.block_elems()];
                q.decode(b, &mut out);
                out
            };
            let before = decode(&block);
            let found = candidates(&block, FaultKind::Wrong).find(|b| wrong(&before, &decode(b)));
            assert!(found.is_some_and(|b| b != block), "{q}");
            if !candidates(&block, FaultKind::Nan).any(|b| decode(&b).iter().any(|x| x.is_nan())) {
                without_nan.push(q.name());
            }
        }
        assert!(without_nan.len() <= 3, "{without_nan:?}");
    }
}
