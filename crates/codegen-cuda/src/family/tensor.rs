//! Matrices against many vectors on tensor cores: how large tiles are, where vectors are split to, and the constants of
//! `kernels/tensor.cuh` and `kernels/split.cuh`.

use std::fmt::Write as _;

use glmc_ir::ty::Elem;

use super::cx::{Cx, Entry, MOST_BLOCKS, Part};
use crate::request::Activations;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Summed elements of a step, and bytes of a line of them.
const STEP: u64 = 32;
const LINE: u64 = 2 * STEP;

/// One matrix, or as many as there are experts or batches.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) w: &'a Part,
    /// How many, and the rows of each.
    pub(super) count: u64,
    pub(super) rows: u64,
    /// Summed elements, and how many rows are neighbours where an element of one is beside that of the next; else 1.
    pub(super) k: u64,
    pub(super) inner: u64,
}

impl Matrix<'_> {
    /// Whether codes of the lane layout meet vectors; else weights are sums of halves.
    fn codes(&self) -> bool {
        self.w.lane().is_some() && self.inner == 1
    }

    /// Elements that are read at once.
    fn run(&self) -> u64 {
        let along = if self.inner == 1 { self.k } else { self.inner };
        if along.is_multiple_of(8) { 8 } else { 1 }
    }

    fn planes(&self) -> u64 {
        if self.codes() { 1 } else { 2 }
    }

    fn has_min(&self) -> bool {
        use glmc_ir::quant::QuantType::{Q4_K, Q5_K};
        self.codes() && [Elem::Quant(Q4_K), Elem::Quant(Q5_K)].contains(&self.w.ty.elem)
    }

    /// Why there is no tile for it.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.w.lane().is_some() && self.run() == 1 {
            return Err(format!("{} is in the lane layout, its rows are read by element", self.w.ident));
        }
        // Units are counted in 32 bits.
        let elems = self.w.ty.elems(&Default::default()).unwrap_or(u64::MAX);
        if self.codes() && elems / 32 > u64::from(u32::MAX) {
            return Err(format!("{} has {elems} elements", self.w.ident));
        }
        Ok(())
    }
}

/// Sizes of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// 16-row pieces of a warp.
    pub(super) m: u64,
    pub(super) columns: u64,
    /// Halves that an element of a vector is split into.
    parts: u64,
}

impl Tile {
    pub(super) fn rows(self) -> u64 {
        64 * self.m
    }

    /// Bytes of shared memory, as `TileMemory` lays them out.
    fn shared(self, planes: u64) -> u64 {
        let x = 3 * self.parts * self.columns * LINE;
        x + 2 * planes * self.rows() * LINE + 8 * 2 * self.rows() + (8 + 8 + 4 + 4) * self.columns
    }

    /// Blocks that a multiprocessor is to hold: what registers allow.
    pub(super) fn resident(self, list: &[Matrix<'_>]) -> u32 {
        if self.m * self.columns <= 128 && list.iter().all(Matrix::codes) { 2 } else { 1 }
    }

    /// The cheapest tile for these matrices against `columns` vectors each: waves of blocks, and a step of each.
    pub(super) fn choose(cx: &Cx<'_>, list: &[Matrix<'_>], columns: u64) -> Result<Tile, String> {
        let parts = if cx.request.options.activations == Activations::BF16 { 1 } else { 2 };
        let machine = u64::from(cx.request.options.multiprocessors());
        let most = u64::from(cx.request.arch.shared_per_block());
        let planes = list.iter().map(Matrix::planes).max().unwrap_or(1);
        // What registers hold beside weights in two planes; from sm_100 on the compiler takes some more.
        let sums = if planes > 1 || cx.request.arch.number() >= 100 { 256 } else { 512 };
        let mut best: Option<(f64, Tile)> = None;
        for m in [4, 2] {
            for tile in [128, 64].map(|columns| Tile { m, columns, parts }) {
                if tile.shared(planes) > most || m * tile.columns > sums {
                    continue;
                }
                let across = columns.div_ceil(tile.columns).max(1);
                let blocks: u64 = list.iter().map(|w| w.count * w.rows.div_ceil(tile.rows())).sum::<u64>() * across;
                let together = u64::from(tile.resident(list));
                let used = columns.clamp(1, tile.columns) as f64;
                let step = (5 * m) as f64 + (parts * m) as f64 * used / 2.0 + 40.0;
                let cost = (blocks.div_ceil(machine * together) * together) as f64 * step;
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, tile));
                }
            }
        }
        best.map(|(_, t)| t).ok_or_else(|| format!("no tile fits {most} bytes of shared memory"))
    }

    /// Shared memory of a launch over these matrices.
    pub(super) fn bytes(self, list: &[Matrix<'_>]) -> u64 {
        list.iter().map(|m| self.shared(m.planes())).max().unwrap_or(0)
    }

    pub(super) fn words(self) -> String {
        let Tile { columns, parts, .. } = self;
        format!("tensor cores, {} rows by {columns} columns, vectors in {parts} parts", self.rows())
    }

    /// The members of a config that say how its matrix meets the vectors.
    pub(super) fn members(self, m: &Matrix<'_>) -> String {
        let Matrix { w, k, inner, .. } = m;
        let units = w.ty.elems(&Default::default()).unwrap_or(0) / 32;
        let policy = match w.lane().filter(|_| m.codes()) {
            Some(l) => format!("Codes<{}_LANE, {units}ull, {k}, {}>", l.name, self.m),
            None => format!("Floats<{}, {}, {k}, {inner}, {}>", w.decoder(), m.run(), self.m),
        };
        format!(
            "  typedef Vectors V;\n  typedef {policy} W;\n  static constexpr u32 M = {}, COLUMNS = {};\n  GLMC_DEVICE \
             static const u8* w(const Args& args) {{ return args.{}; }}\n",
            self.m, self.columns, w.ident
        )
    }
}

/// The launch that splits vectors, and where in scratch it leaves them.
pub(super) struct Split {
    /// `struct Vectors`.
    pub(super) text: String,
    pub(super) entry: Entry,
    /// Where scratch ends.
    pub(super) end: u64,
}

impl Split {
    /// Of at most `bound` vectors of `x`, `count` as an expression over `args`, into scratch from byte `at` on.
    pub(super) fn new(x: &Part, list: &[Matrix<'_>], tile: Tile, bound: u64, count: &str, at: u64) -> Split {
        let k = list.first().map_or(1, |m| m.k);
        let padded = k.next_multiple_of(STEP);
        let sums = list.iter().any(Matrix::has_min);
        let plane = (bound * padded * 2).next_multiple_of(256);
        let mut end = at.next_multiple_of(256);
        let mut place = |wanted: bool, bytes: u64| {
            let from = end;
            end += if wanted { bytes.next_multiple_of(256) } else { 0 };
            from
        };
        let halves = place(true, tile.parts * plane);
        let floats = [("inverse", place(true, 4 * bound)), ("sums", place(sums, bound * padded / STEP * 4))];
        let mut t = format!("struct Vectors {{\n  typedef {} X;\n", x.decoder());
        let run = if k.is_multiple_of(8) { 8 } else { 1 };
        for (name, value) in [("K", k), ("RUN", run), ("PADDED", padded), ("COUNT", bound), ("PARTS", tile.parts)] {
            let _ = writeln!(t, "  static constexpr u32 {name} = {value};");
        }
        let _ = writeln!(t, "  static constexpr bool SUMS = {sums};");
        let _ = writeln!(t, "  GLMC_DEVICE static u32 vectors(const Args& args) {{ return {count}; }}");
        let _ = writeln!(t, "  GLMC_DEVICE static const u8* x(const Args& args) {{ return args.{}; }}", x.ident);
        let _ = writeln!(
            t,
            "  GLMC_DEVICE static u8* halves(const Args& args, u32 part) {{ return args.scratch + {halves}ull + part * \
             {plane}ull; }}"
        );
        for (name, at) in floats {
            let _ = writeln!(
                t,
                "  GLMC_DEVICE static f32* {name}(const Args& args) {{ return reinterpret_cast<f32*>(args.scratch + \
                 {at}ull); }}"
            );
        }
        t.push_str("};\n");
        let mut entry =
            Entry::only("split_vectors<Vectors>(args);", [bound.clamp(1, MOST_BLOCKS), 1, 1], THREADS, 4 * 8);
        entry.suffix = "split".into();
        Split { text: t, entry, end }
    }
}
