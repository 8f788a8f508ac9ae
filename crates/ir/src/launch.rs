//! Owns the launch program of a plan: each step as calls of kernels, numbered by whoever makes them, whose arguments name
//! memory. Plain data between what makes kernels and what runs them; never an address, never what a kernel is.

use crate::plan::Mem;
use crate::shard_map::part;

/// Everything that is launched for a plan, and the memory that it needs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Launches {
    /// The phases of the plan, in its order.
    pub phases: Vec<PhaseLaunches>,
    /// For each rank, its weights in the plan's order.
    pub weights: Vec<Vec<WeightForm>>,
    /// For each rank, bytes of its cache pools in the plan's order.
    pub states: Vec<Vec<u64>>,
    /// Bytes of each rank's arena; phases share it.
    pub arena: u64,
    /// Bytes of scratch, which all ranks of a stream share. It holds zeros before the first call.
    pub scratch: u64,
    /// The plan's ranks that are here, in rising order. Everywhere else in the program a rank is an index into this.
    pub ranks: Vec<usize>,
    /// How the device meets others, where the plan's ranks are on several.
    pub meets: Option<Meets>,
}

/// The flags that a device has in the memory of each other, `u64` each, one for each block that raises one.
pub const MOST_FLAGS: u64 = 64;

/// Memory through which the devices of a plan meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meets {
    /// Devices of the plan.
    pub devices: usize,
    /// This one's place among them.
    pub me: usize,
    /// Bytes of each of the two slots.
    pub slot: u64,
}

impl Meets {
    /// Where the first slot starts in a slab.
    pub fn first_slot(&self) -> u64 {
        8 * MOST_FLAGS * self.devices as u64
    }

    /// Bytes of a device's slab: flags, two slots. It holds zeros before the first call.
    pub fn slab(&self) -> u64 {
        8 * MOST_FLAGS * self.devices as u64 + 2 * self.slot
    }

    /// Bytes of the words in host memory: the one that ends every wait, one that is free, two of each device.
    pub fn halt(&self) -> u64 {
        16 + 16 * self.devices as u64
    }

    /// The device's control block before the first call: generation, arrivals, limit of a wait in nanoseconds (0: none),
    /// bytes of a slot, meetings.
    pub fn control(&self, limit: u64) -> [u64; 5] {
        [0, 0, limit, self.slot, 0]
    }
}

/// One phase.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PhaseLaunches {
    /// In order; each may depend on all before it.
    pub calls: Vec<Call>,
    /// What a graph launches in place of the calls, to the same effect; empty if it launches the calls.
    pub graph: Vec<Call>,
    /// For each rank, the values that its kernels read as symbols, in order.
    pub symbols: Vec<Vec<SymbolPart>>,
    /// For each rank, bytes of its step parameters by the bounds, in the plan's order.
    pub params: Vec<Vec<u64>>,
    /// The step of each meeting with other devices, in order: the same on every device.
    pub meetings: Vec<usize>,
    /// What a library moves, in order, where it is asked to.
    pub transfers: Vec<Transfer>,
}

impl PhaseLaunches {
    /// What a graph launches, in order.
    pub fn launched(&self) -> &[Call] {
        if self.graph.is_empty() { &self.calls } else { &self.graph }
    }
}

/// What a library moves between devices, between two calls.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    /// Index of the call that it comes before.
    pub before: usize,
    /// Index of the step in the phase.
    pub step: usize,
    /// What is moved; the other devices move the other ends of it.
    pub moves: Moves,
}

/// See [`Transfer`].
#[derive(Clone, PartialEq, Debug)]
pub enum Moves {
    /// Words of all devices, reduced to all of them.
    Reduce {
        /// This device's.
        from: Place,
        /// The result.
        to: Place,
        /// How many, by the bounds.
        words: u64,
        /// How.
        what: Reduction,
    },
    /// Parts that go to other devices' slabs and come into this one's.
    Parts(Vec<Part>),
}

/// How words are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    /// Sums of floats.
    SumF32,
    /// Sums of integers that wrap.
    SumI32,
    /// The largest float.
    MaxF32,
    /// The largest integer.
    MaxI32,
}

/// A part of a value that one device sends and another receives.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// The rank's memory that goes; `None`: a part that comes.
    pub from: Option<Place>,
    /// Where it lies in the receiver's slab, from the start of its first slot.
    pub at: u64,
    /// Words, by the bounds.
    pub words: u64,
    /// The other device.
    pub peer: usize,
}

/// One run of a kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Call {
    /// Index of the step in the phase; of several that share a launch the first.
    pub step: usize,
    /// Whose step it is; of a step of several ranks the first.
    pub rank: usize,
    /// The kernel's number.
    pub kernel: usize,
    /// What its arguments point at.
    pub args: Vec<Place>,
}

/// Memory that an argument names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// Memory of a rank.
    Mem {
        /// Whose.
        rank: usize,
        /// Which.
        mem: Mem,
    },
    /// The values of a rank's symbols, `u32` each.
    Symbols {
        /// Whose.
        rank: usize,
    },
    /// Scratch, from this byte on.
    Scratch(u64),
    /// The slab of a device: see [`Meets`].
    Slab {
        /// Whose.
        device: usize,
    },
    /// The control block of this device.
    Control,
    /// The words in host memory.
    Halt,
}

/// How a weight lies in a rank's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightForm {
    /// Bytes as the rank's recipe gives them.
    pub stored: u64,
    /// Bytes in the device's memory.
    pub bytes: u64,
    /// The kernel that makes the form, its second argument, from the stored bytes, its first; `None` if it is the
    /// stored bytes.
    pub repack: Option<usize>,
}

/// A value that kernels read as a symbol: a symbol of the phase, or a rank's part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolPart {
    /// Index of the phase's symbol.
    pub symbol: usize,
    /// The part: unit, place, and number of places; `None` is all of it.
    pub part: Option<(u64, u64, u64)>,
}

impl SymbolPart {
    /// The value where the symbols of the phase have these.
    pub fn value(&self, symbols: &[u64]) -> u64 {
        let whole = symbols.get(self.symbol).copied().unwrap_or(0);
        match self.part {
            None => whole,
            Some((unit, at, size)) => {
                let r = part(whole, unit, at, size);
                r.end - r.start
            }
        }
    }
}
