//! Tiles: what multiplies them, and what they take.

use super::cx::Cx;
use crate::request::Activations;

/// Rows of a tile, as in `kernels/tile.cuh`.
pub(super) const TILE: u64 = 64;

/// What multiplies tiles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Math {
    /// f32 on the ordinary units.
    F32,
    /// bf16 columns on tensor cores.
    BF16,
}

impl Math {
    /// Its struct in `kernels/tile.cuh`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Math::F32 => "TileF32",
            Math::BF16 => "TileBF16",
        }
    }

    /// Columns of a tile.
    pub(super) fn columns(self) -> u64 {
        match self {
            Math::F32 => 64,
            Math::BF16 => 128,
        }
    }

    /// Bytes of shared memory: offsets of the columns and both operands.
    pub(super) fn shared(self) -> u64 {
        let operands = match self {
            Math::F32 => 2 * 32 * (TILE + 4) * 4,
            Math::BF16 => 2 * TILE * 40 * 2 + 128 * 40 * 2,
        };
        16 * self.columns() + operands
    }

    /// The kinds that a request allows; the cost of each is in its name's candidate.
    pub(super) fn tensor(cx: &Cx<'_>) -> Result<Math, String> {
        match cx.request.options.activations {
            Activations::BF16 => Ok(Math::BF16),
            _ => Err("activations may not be rounded to bf16".into()),
        }
    }

    /// The arithmetic of a matmul configuration by its name; `None` if it has no tiles.
    pub(super) fn of(name: &str) -> Option<Math> {
        match name {
            "tile" => Some(Math::F32),
            "tensor" => Some(Math::BF16),
            _ => None,
        }
    }
}
