//! The lane layout of quantised weights: units of 32 weights in row order, each kind of field in a plane of its own, so
//! that the loads of a warp are one run of bytes and a block's rows are one run a plane. It holds what the file holds,
//! bit for bit; planes are padded to 16 bytes with zeros.
//!
//! | type | planes, bytes a unit |
//! |---|---|
//! | `q4_K` | codes 16: byte i holds weight i low, weight 16 + i high; header (d, dmin, scales) 16 for 8 units |
//! | `q5_K` | the same codes; fifth bits 4: bit 8b + w for weight 4w + b, bit 8b + 4 + w for 16 + 4w + b; header |
//! | `q6_K` | low nibbles as above; high pairs 8: bits 8b + 2w of a word for each half; scales 2; d 2 for 8 units |
//! | `q8_0` | bytes 0..16 of the unit 16; bytes 16..32 16; d 2 |

use std::fmt::Write as _;

use glmc_ir::kernel::Access;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::TensorType;

use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

/// A type that has a lane layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneType {
    /// Its structs in `kernels/`: `<name>_LANE` and `<name>_FILE`.
    pub(crate) name: &'static str,
    /// Bytes of each plane for so many units.
    planes: &'static [(u64, u64)],
    quant: QuantType,
}

const TYPES: [LaneType; 4] = [
    LaneType { name: "Q4_K", planes: &[(16, 1), (16, 8)], quant: QuantType::Q4_K },
    LaneType { name: "Q5_K", planes: &[(16, 1), (4, 1), (16, 8)], quant: QuantType::Q5_K },
    LaneType { name: "Q6_K", planes: &[(16, 1), (8, 1), (2, 1), (2, 8)], quant: QuantType::Q6_K },
    LaneType { name: "Q8_0", planes: &[(16, 1), (16, 1), (2, 1)], quant: QuantType::Q8_0 },
];

impl LaneType {
    pub(crate) fn of(q: QuantType) -> Option<LaneType> {
        TYPES.iter().copied().find(|t| t.quant == q)
    }

    /// Bytes of each plane for `units` units, unpadded.
    pub(crate) fn planes(self, units: u64) -> impl Iterator<Item = u64> {
        self.planes.iter().map(move |(bytes, per)| units * bytes / per)
    }

    /// Whether planes of `units` units end at a multiple of 16 bytes.
    pub(crate) fn aligned(self, units: u64) -> bool {
        self.planes.iter().all(|(bytes, per)| units.is_multiple_of(*per) && (units / per * bytes).is_multiple_of(16))
    }
}

/// Bytes of a tensor of `elems` elements in the lane layout; `None` if the type has none or rows are cut.
pub fn lane_bytes(q: QuantType, elems: u64) -> Option<u64> {
    let t = LaneType::of(q)?;
    elems.is_multiple_of(q.block_elems() as u64).then(|| t.planes(elems / 32).map(|n| n.next_multiple_of(16)).sum())
}

/// Repacks a whole tensor from the file's layout; `None` as [`lane_bytes`], or if `file` is no whole number of blocks.
pub fn to_lane(q: QuantType, file: &[u8]) -> Option<Vec<u8>> {
    let t = LaneType::of(q)?;
    let (per_block, block_bytes) = (q.block_elems() / 32, q.block_bytes());
    if !file.len().is_multiple_of(block_bytes) {
        return None;
    }
    let units = (file.len() / block_bytes * per_block) as u64;
    let mut planes: Vec<Vec<u8>> = t.planes(units).map(|n| Vec::with_capacity(n as usize + 16)).collect();
    for block in file.chunks_exact(block_bytes) {
        for run in 0..per_block {
            let (low, high) = codes(q, block, run);
            fields(q, block, run, &low, &high, &mut planes);
        }
    }
    for p in &mut planes {
        p.resize(p.len().next_multiple_of(16), 0);
    }
    Some(planes.concat())
}

/// The 32 codes of a run: their low four bits (of `q8_0`: the byte) and what is above.
fn codes(q: QuantType, block: &[u8], run: usize) -> ([u8; 32], [u8; 32]) {
    let k4 = |at: usize, i: usize| block[at + 32 * (run / 2) + i] >> (4 * (run % 2)) & 15;
    let (half, part) = (run / 4, run % 4);
    let low = |i: usize| match q {
        QuantType::Q4_K => k4(16, i),
        QuantType::Q5_K => k4(48, i),
        QuantType::Q6_K => block[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2)) & 15,
        _ => block[2 + i],
    };
    let high = |i: usize| match q {
        QuantType::Q5_K => block[16 + i] >> run & 1,
        QuantType::Q6_K => block[128 + 32 * half + i] >> (2 * part) & 3,
        _ => 0,
    };
    (std::array::from_fn(low), std::array::from_fn(high))
}

/// Appends a unit to each plane.
fn fields(q: QuantType, block: &[u8], run: usize, low: &[u8; 32], high: &[u8; 32], planes: &mut [Vec<u8>]) {
    if q == QuantType::Q8_0 {
        planes[0].extend_from_slice(&low[..16]);
        planes[1].extend_from_slice(&low[16..]);
        planes[2].extend_from_slice(&block[..2]);
        return;
    }
    planes[0].extend((0..16).map(|i| low[i] | low[16 + i] << 4));
    match q {
        QuantType::Q5_K => {
            let bit = |i: usize| u32::from(high[i]) << (8 * (i % 4) + i % 16 / 4 + i / 16 * 4);
            let word = (0..32).map(bit).fold(0, |a, b| a | b);
            planes[1].extend_from_slice(&word.to_le_bytes());
        }
        QuantType::Q6_K => {
            for half in [&high[..16], &high[16..]] {
                let pair = |(i, h): (usize, &u8)| u32::from(*h) << (8 * (i % 4) + 2 * (i / 4));
                let word = half.iter().enumerate().map(pair).fold(0, |a, b| a | b);
                planes[1].extend_from_slice(&word.to_le_bytes());
            }
            planes[2].extend_from_slice(&block[192 + 2 * run..194 + 2 * run]);
        }
        _ => {}
    }
    if run == 0 {
        let header = if q == QuantType::Q6_K { &block[208..210] } else { &block[..16] };
        planes[planes.len() - 1].extend_from_slice(header);
    }
}

/// The kernel that repacks a tensor of this type on the device: from `w` (the file's layout) to `y`. `None` as
/// [`lane_bytes`].
pub fn kernel(ty: &TensorType) -> Option<Generated> {
    let q = ty.elem.storage()?;
    let (t, elems) = (LaneType::of(q)?, ty.elems(&Default::default())?);
    lane_bytes(q, elems)?;
    let units = elems / 32;
    let field = |ident: &str, index, access, layout| Field {
        ident: ident.into(),
        role: Role::Param { index, access, ty: ty.clone(), layout },
    };
    let signature = Signature(vec![field("w", 0, Access::Read, "rows"), field("y", 1, Access::Write, "lane")]);
    let mut inner = signature.render();
    let _ =
        write!(inner, "struct Config {{\n  typedef Args Arguments;\n  static constexpr u64 UNITS = {units};\n}};\n");
    let name = format!("repack_{}_{units}", t.name);
    let mut body = format!(
        "// {ty} from the file's layout to the lane layout, a thread a unit\nnamespace {name}_ {{\n{inner}}}\n"
    );
    let _ = write!(
        body,
        "GLMC_KERNEL({name}, {name}_::Args, 256, 1) {{\n  repack<{}_FILE, {name}_::Config>(args);\n}}\n",
        t.name
    );
    let blocks = units.div_ceil(256).clamp(1, 4096) as u32;
    let shape = LaunchShape { symbol: name.clone(), grid: [blocks, 1, 1], threads: 256, shared: 0 };
    Some(Generated {
        name,
        includes: ["repack.cuh"].into(),
        body,
        signature,
        launches: vec![shape],
        side: None,
        early: Vec::new(),
        config: "a thread a unit".into(),
        rejected: Vec::new(),
    })
}
