//! How long a launch of the lane kernels takes: a sum of terms, each a measure of its work times a constant of the weight's
//! type and of the rounding of activations. The constants are fitted to launches timed on an H200 (docs/cuda.md).

/// What a multiprocessor does in a launch.
pub(super) struct Load {
    pub(super) lane: &'static str,
    pub(super) digits: u64,
    /// Of a block.
    pub(super) warps: u64,
    /// Of a multiprocessor.
    pub(super) blocks: u64,
    /// Pieces of a block, and of the warp with the most.
    pub(super) pieces: u64,
    pub(super) copies: u64,
    /// Rows of a piece, of all matrices, and those that a lane multiplies at once.
    pub(super) group: u64,
    pub(super) pass: u64,
    /// Passes of a piece, steps of a pass, lanes of a row.
    pub(super) passes: u64,
    pub(super) steps: u64,
    pub(super) lanes: u64,
    /// Units of activations that a block rounds.
    pub(super) units: u64,
    /// Bulk copies of a piece.
    pub(super) bulk: u64,
    pub(super) stages: u64,
    /// Whether pieces leave partial sums.
    pub(super) partial: bool,
    /// Bytes of the weight that the multiprocessor reads.
    pub(super) bytes: u64,
    /// Whether copies start before the launch that makes the activations has ended.
    pub(super) ahead: bool,
    /// Whether no block of the next launch fits beside these.
    pub(super) alone: bool,
}

/// Constants, in the order of [`Load::terms`].
type Fit = [f64; 10];

/// Bytes a microsecond of plain reading.
const READ: f64 = 4.695e6;

/// What a microsecond of reading costs that no launch hides: also the latency of its start.
const BEHIND: f64 = 1.5;

/// A type, digits of activations, and what fits them.
const FITS: [(&str, u64, Fit); 8] = [
    ("Q8_0", 1, [0.717, 0.592, 0.137, 0.0, 2.118, 8.809, 0.0, 0.0, 5.063, 0.265]),
    ("Q8_0", 3, [1.06, 0.0, 0.235, 0.048, 4.962, 1.746, 3.284, 0.0, 10.218, 0.447]),
    ("Q4_K", 1, [0.925, 0.359, 0.0, 0.0, 4.618, 6.554, 1.732, 0.258, 2.834, 0.433]),
    ("Q4_K", 3, [1.201, 0.0, 0.314, 0.0, 0.0, 2.854, 0.0, 0.3, 9.699, 0.277]),
    ("Q5_K", 1, [0.714, 0.5, 0.0, 0.338, 4.974, 3.276, 4.698, 0.08, 7.742, 0.0]),
    ("Q5_K", 3, [0.891, 0.015, 0.15, 0.278, 8.499, 1.481, 6.876, 0.0, 15.673, 0.331]),
    ("Q6_K", 1, [1.164, 0.35, 0.329, 0.0, 0.0, 5.183, 5.659, 0.0, 8.504, 0.405]),
    ("Q6_K", 3, [0.995, 0.234, 0.139, 0.0, 7.31, 1.796, 8.442, 0.013, 7.594, 0.216]),
];

impl Load {
    /// What is counted: the launch; thousands of units multiplied; units of activations read for them, in thousands of
    /// digits; units that warps idle through while others work; rows times steps of the warp with the most; units
    /// rounded by a warp; bulk copies of a warp; whether there are partial sums; how often a ring of stages is filled again; the read's
    /// microseconds if no next launch hides its start.
    fn terms(&self) -> Fit {
        let f = |n: u64| n as f64;
        let of_piece = f(self.group * self.steps * self.lanes) / 1e3;
        let work = f(self.blocks * self.pieces) * of_piece;
        let read = f(self.bytes) * 132.0 / READ;
        [
            1.0,
            work,
            work / f(self.pass) * f(self.digits),
            f(self.blocks * self.copies * self.warps) * of_piece - work,
            f(self.copies * self.passes * self.steps * self.pass) / 1e2,
            f(self.units * self.digits) / f(self.warps) / 1e2,
            f(self.copies * self.bulk) / 1e2,
            f(u64::from(self.partial)),
            f(self.copies.saturating_sub(self.stages)) / f(self.stages) / 10.0,
            if self.alone { read } else { 0.0 },
        ]
    }

    pub(super) fn microseconds(&self) -> f64 {
        let fit = FITS.iter().find(|(name, digits, _)| *name == self.lane && *digits == self.digits);
        // Types without a fit are near the one of whole bytes.
        let (_, _, fit) = fit.unwrap_or(&FITS[0]);
        // In a plan the launch before leaves time for what is ahead; the rest is read when it has ended. Launches of one
        // kernel, which the constants are fitted to, do not show it.
        let behind = self.copies.saturating_sub(self.stages) as f64 / self.copies.max(1) as f64;
        let waits = if self.ahead { BEHIND * behind * self.bytes as f64 * 132.0 / READ } else { 0.0 };
        self.terms().iter().zip(fit).map(|(t, c)| t * c).sum::<f64>() + waits
    }
}
