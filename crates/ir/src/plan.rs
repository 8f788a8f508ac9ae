//! Owns the plan level: what ranks execute. Plain data that serialises to `plan.json`; the passes make it, the plan
//! verifier judges it, devices execute it. Never owns behaviour.
//!
//! One step list serves all ranks: a rank enters only through the slices of a weight's recipe and through its own
//! bytes, so ranks cannot disagree on the order of steps.

use std::fmt;
use std::str::FromStr;

use cranelift_entity::PrimaryMap;
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::entities::{BufId, ParamId, StateId, WeightId};
use crate::kernel::{Access, Kernel};
use crate::ty::{Axis, Sym, SymValues, TensorType};

/// The version of the plan format. A plan of another version is refused.
pub const FORMAT: u32 = 1;

/// Every buffer of an arena starts at a multiple of this.
pub const ALIGN: u64 = 256;

/// A compiled model: everything a runtime needs but the bytes of the weights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: u32,
    /// The program and version that made it.
    pub producer: String,
    /// The machine it is for.
    pub target: Target,
    /// The model, as far as an engine must know it.
    pub model: Model,
    /// Sizes fixed at compile time.
    pub limits: Limits,
    /// Mesh axes with their sizes; empty for one rank.
    pub mesh: IndexMap<Axis, u64>,
    /// The weight files, part by part.
    pub files: Vec<FileRef>,
    /// How each weight comes to a rank's memory.
    #[serde(with = "as_list")]
    pub weights: PrimaryMap<WeightId, Recipe>,
    /// Cache pools, kept from step to step.
    #[serde(with = "as_list")]
    pub states: PrimaryMap<StateId, State>,
    /// What a runtime may run.
    pub phases: Vec<Phase>,
}

/// The machine a plan is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name of the target description.
    pub name: String,
    /// `cpu`, or a GPU architecture such as `sm_120`.
    pub arch: String,
    /// Number of logical ranks.
    pub ranks: u32,
}

/// What an engine must know of the model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Architecture name of the file.
    pub arch: String,
    /// Name given in the file, or empty.
    pub name: String,
    /// Trunk layers.
    pub layers: u64,
    /// Width of the logits.
    pub vocab: u64,
    /// Longest context the model was trained for.
    pub trained_ctx: u64,
    /// Ids that end a turn.
    pub stop: Vec<u32>,
    /// Ids that stand for no text and are never sampled.
    pub suppress: Vec<u32>,
}

/// Sizes fixed at compile time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Longest sequence.
    pub ctx: u64,
    /// Most sequences decoded at once.
    pub max_batch: u64,
    /// Rows of each cache pool, shared by all sequences.
    pub cache_rows: u64,
    /// Most tokens in one prefill step.
    pub chunk: u64,
}

/// One part of the weight files, with what proves that it is the file the plan was made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRef {
    /// Path, absolute.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Where its data section starts: the bytes before it are the header.
    pub header_bytes: u64,
    /// BLAKE3 of the header, hex.
    pub header_hash: String,
    /// BLAKE3 of a sample of the data, hex.
    pub sample_hash: String,
}

/// How a weight comes to a rank's memory: for each rank, slices of the files, one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name in the IR, such as `blk.0.ffn_gate`.
    pub name: String,
    /// Name of the tensor in the file.
    pub tensor: String,
    /// Element, global dims and placement.
    pub ty: TensorType,
    /// The bytes of the whole tensor in its file.
    pub span: crate::graph::Span,
    /// What each rank reads, in order; their concatenation is the rank's buffer.
    pub slices: Vec<Vec<Slice>>,
}

/// Equal runs of bytes at equal distances in one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Part, counted from 0.
    pub part: u32,
    /// Offset of the first run.
    pub offset: u64,
    /// Bytes of each run.
    pub bytes: u64,
    /// Number of runs.
    pub count: u64,
    /// Distance from one run's start to the next; equal to `bytes` when there is one run.
    pub stride: u64,
}

/// A cache pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Name, such as `blk.0.kv`.
    pub name: String,
    /// `state f32[rows, width]`.
    pub ty: TensorType,
}

/// What a phase is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// One token of each of several sequences; `tokens` is the bucket.
    Decode,
    /// Up to `tokens` tokens of one sequence.
    Prefill,
}

/// One step program: parameters, buffers, launches, results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Name, such as `decode_1`.
    pub name: String,
    /// What it is for.
    pub kind: PhaseKind,
    /// Tokens of one step: exactly (decode) or at most (prefill).
    pub tokens: u64,
    /// Bounds of the symbols. Their values are set a step; memory is sized by the bounds. Phases of one kind and as many
    /// tokens differ in the bound of [`param::VISIBLE`]: what a tighter one computes holds for shorter contexts only.
    pub syms: IndexMap<Sym, u64>,
    /// What the host writes before the step.
    #[serde(with = "as_list")]
    pub params: PrimaryMap<ParamId, Param>,
    /// Buffers of the arena.
    #[serde(with = "as_list")]
    pub buffers: PrimaryMap<BufId, Buffer>,
    /// Bytes of the arena of each rank.
    pub arena_bytes: u64,
    /// Launches in order.
    pub steps: Vec<Step>,
    /// Runs of steps that a device may capture once and replay: every address in them is stable.
    pub segments: Vec<Segment>,
    /// Collectives that ranks need not wait for at once, in the order of their steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<Overlap>,
    /// Named results, a total map.
    pub results: Vec<PhaseResult>,
}

/// A step parameter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Name, such as `tokens`.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
}

/// A buffer of the arena: written by exactly one launch of the step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Provenance of the value it holds, such as `blk.3.q`.
    pub name: String,
    /// The value's type.
    pub ty: TensorType,
    /// Offset in the arena, a multiple of [`ALIGN`].
    pub offset: u64,
    /// Bytes, by the bounds.
    pub bytes: u64,
}

/// One step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Provenance of what it makes, such as `blk.3.attn_norm`.
    pub name: String,
    /// The contract.
    pub kernel: Kernel,
    /// Arguments in the contract's parameter order.
    pub args: Vec<Arg>,
}

/// One argument of a launch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arg {
    /// The contract's parameter.
    pub name: String,
    /// How it is touched.
    pub access: Access,
    /// What it is bound to.
    pub mem: Mem,
    /// How the launch sees it: the memory's type, or a view of equal size.
    pub ty: TensorType,
}

/// A named result of a phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseResult {
    /// Its name, such as `logits`.
    pub name: String,
    /// Where it is.
    pub mem: Mem,
    /// Its type.
    pub ty: TensorType,
}

/// A run of steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Index of the first step.
    pub first: usize,
    /// Number of steps.
    pub count: usize,
}

/// A collective that steps of its own segment run beside. At `step` each rank hands its part over; the result is there
/// before step `done`. In between the operand stays as it is and nothing reads the result. A device may also do all of it
/// at `step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Index of the collective.
    pub step: usize,
    /// Index of the first step that may read the result; the number of steps if none does.
    pub done: usize,
}

/// The memory behind an argument. Its text is the id: `w3`, `s0`, `p1`, `b12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mem {
    /// A weight's buffer.
    Weight(WeightId),
    /// A cache pool.
    State(StateId),
    /// A step parameter.
    Param(ParamId),
    /// A buffer of the arena.
    Buf(BufId),
}

impl fmt::Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mem::Weight(w) => w.fmt(f),
            Mem::State(s) => s.fmt(f),
            Mem::Param(p) => p.fmt(f),
            Mem::Buf(b) => b.fmt(f),
        }
    }
}

impl FromStr for Mem {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("`{s}` is no memory: expected w, s, p or b and a number");
        let n: u32 = s.get(1..).and_then(|n| n.parse().ok()).filter(|n| *n < u32::MAX).ok_or_else(bad)?;
        match s.as_bytes()[0] {
            b'w' => Ok(Mem::Weight(WeightId::from_u32(n))),
            b's' => Ok(Mem::State(StateId::from_u32(n))),
            b'p' => Ok(Mem::Param(ParamId::from_u32(n))),
            b'b' => Ok(Mem::Buf(BufId::from_u32(n))),
            _ => Err(bad()),
        }
    }
}

impl Serialize for Mem {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mem {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Maps as plain lists: entry `i` is the entity of number `i`.
mod as_list {
    use cranelift_entity::{EntityRef, PrimaryMap};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: EntityRef, V: Serialize, S: Serializer>(
        m: &PrimaryMap<K, V>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_seq(m.values())
    }

    pub(super) fn deserialize<'de, K: EntityRef, V: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<PrimaryMap<K, V>, D::Error> {
        Ok(Vec::<V>::deserialize(d)?.into_iter().collect())
    }
}

impl Recipe {
    /// Bytes that `rank` keeps: those of its slices, or of the sub-blocks taken out of them.
    pub fn held(&self, mesh: &IndexMap<Axis, u64>, rank: usize) -> u64 {
        if self.ty.elem != self.ty.elem.in_file() {
            let shard = crate::shard_map::Shard::of(&self.ty, mesh, rank as u64, &SymValues::default());
            return shard.map_or(0, |s| s.bytes());
        }
        let slices = self.slices.get(rank).into_iter().flatten();
        slices.map(|s| s.bytes.saturating_mul(s.count)).fold(0, u64::saturating_add)
    }
}

impl Plan {
    /// The phase called `name`.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }

    /// The index of the phase of this kind for a step of `tokens` tokens whose longest sequence sees `visible` positions:
    /// of those that admit it, the one with the fewest tokens, then with the tightest bound of visible positions.
    pub fn phase_for(&self, kind: PhaseKind, tokens: u64, visible: u64) -> Option<usize> {
        let fit = self.phases.iter().enumerate().filter(|(_, p)| p.kind == kind && p.admits(tokens, visible));
        fit.min_by_key(|(_, p)| (p.tokens, p.visible().unwrap_or(u64::MAX))).map(|(i, _)| i)
    }

    /// Bytes of all weights of one rank.
    pub fn weight_bytes(&self, rank: usize) -> u64 {
        self.weights.values().map(|w| w.held(&self.mesh, rank)).fold(0, u64::saturating_add)
    }
}

impl Phase {
    /// The bounds as symbol values.
    pub fn bounds(&self) -> SymValues {
        SymValues(self.syms.clone())
    }

    /// When the collective `step` is done, if steps run beside it.
    pub fn done(&self, step: usize) -> Option<usize> {
        self.overlaps.iter().find(|o| o.step == step).map(|o| o.done)
    }

    /// The most positions that a token of a step may see; none where nothing depends on their number.
    pub fn visible(&self) -> Option<u64> {
        self.syms.get(&Sym::from(param::VISIBLE)).copied()
    }

    /// Whether a step of so many tokens, the longest sequence of which sees `visible` positions, may run as this phase.
    pub fn admits(&self, tokens: u64, visible: u64) -> bool {
        tokens <= self.tokens && self.visible().is_none_or(|most| visible <= most)
    }

    /// The parameter called `name`.
    pub fn param_named(&self, name: &str) -> Option<ParamId> {
        self.params.iter().find(|(_, p)| p.name == name).map(|(id, _)| id)
    }
}

/// The names of step parameters: the contract between whoever makes phases and the engine that runs them.
///
/// All are `i32`. `T` tokens are processed, of `Q` sequences; the longest of them has `S` visible positions; logits are
/// wanted for `R` tokens. A padded token has row -1 and length 0.
pub mod param {
    /// The symbol that counts visible positions.
    pub const VISIBLE: &str = "S";
    /// `[T]` token ids.
    pub const TOKENS: &str = "tokens";
    /// `[T]` positions in their sequences.
    pub const POS: &str = "pos";
    /// `[T]` the pool row that each token's cache entry is written to; -1: not written.
    pub const ROW: &str = "row";
    /// `[T]` which of the `Q` sequences each token belongs to.
    pub const SEQ: &str = "seq";
    /// `[T]` how many positions each token sees, itself included.
    pub const LEN: &str = "len";
    /// `[Q, S]` the pool row of each position of each sequence; -1 past its end.
    pub const TABLE: &str = "table";
    /// `[R]` the tokens whose logits are wanted; -1: a padded row.
    pub const OUT: &str = "out";
    /// The result `f32[R, V]`.
    pub const LOGITS: &str = "logits";
}
