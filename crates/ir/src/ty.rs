//! Owns tensor types: element x dims x layout x placement. Never owns data, files or machine numbers.
//!
//! Shapes are *global*: placement says which part each rank holds, so a collective never changes a shape.
//! The last dim is the contiguous one.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::quant::QuantType;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<&str> for $name {
            fn from(s: &str) -> Self {
                Self(s.into())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A bounded symbol: an extent whose current value is a step parameter and whose bound sizes memory.
    Sym
);
impl Sym {
    /// What it counts. Entries of one module may bound one count apart: `S.short` is `S` where it is at most so much.
    pub fn base(&self) -> Sym {
        self.0.split_once('.').map_or_else(|| self.clone(), |(base, _)| base.into())
    }
}

name_type!(
    /// An axis of the device mesh, such as `tp`.
    Axis
);
name_type!(
    /// The name of one piece of a joined dim, such as `gate`.
    Piece
);

/// The element of a tensor: what one entry (or, for quantised types, one block of entries) is stored as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Elem {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `F32`.
    BF16,
    /// 32-bit signed integers: ids, positions, row tables. Negative means "none".
    I32,
    /// A block format. Never holds the three float formats above (`From<QuantType>` normalises).
    Quant(QuantType),
}

impl From<QuantType> for Elem {
    fn from(q: QuantType) -> Self {
        match q {
            QuantType::F32 => Elem::F32,
            QuantType::F16 => Elem::F16,
            QuantType::BF16 => Elem::BF16,
            q => Elem::Quant(q),
        }
    }
}

impl Elem {
    /// The text form: `f32`, `i32`, `q4_K`, ...
    pub fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::I32 => "i32",
            Elem::Quant(q) => q.name(),
        }
    }

    /// The inverse of [`Elem::name`].
    pub fn from_name(s: &str) -> Option<Self> {
        if s == "i32" { Some(Elem::I32) } else { QuantType::from_name(s).map(Elem::from) }
    }

    /// The storage format, or `None` for integers.
    pub fn storage(self) -> Option<QuantType> {
        match self {
            Elem::F32 => Some(QuantType::F32),
            Elem::F16 => Some(QuantType::F16),
            Elem::BF16 => Some(QuantType::BF16),
            Elem::I32 => None,
            Elem::Quant(q) => Some(q),
        }
    }

    /// `(elements, bytes)` of the smallest addressable unit.
    pub fn block(self) -> (u64, u64) {
        match self.storage() {
            None => (1, 4),
            Some(q) => (q.block_elems() as u64, q.block_bytes() as u64),
        }
    }

    /// What a file has for it: of a form that keeps sub-blocks apart the type with its blocks.
    pub fn in_file(self) -> Self {
        match self {
            Elem::Quant(q) => Elem::Quant(q.in_file()),
            other => other,
        }
    }

    /// Whether values of this element take part in float arithmetic without a `dequant`.
    pub fn is_float(self) -> bool {
        matches!(self, Elem::F32 | Elem::F16 | Elem::BF16)
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The size of one dim.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extent {
    /// A constant.
    Const(u64),
    /// A bounded symbol of the module.
    Sym(Sym),
    /// Named pieces in canonical order; the extent is their sum. Pieces are taken by name, never by offset.
    Joined(Vec<(Piece, u64)>),
}

impl Extent {
    /// The constant size, unless it is a symbol or the pieces' sum overflows.
    pub fn as_const(&self) -> Option<u64> {
        match self {
            Extent::Const(n) => Some(*n),
            Extent::Sym(_) => None,
            Extent::Joined(p) => p.iter().try_fold(0u64, |sum, (_, n)| sum.checked_add(*n)),
        }
    }

    /// Whether two extents have the same size, pieces or not.
    pub fn same_size(&self, other: &Extent) -> bool {
        match (self, other) {
            (Extent::Sym(a), Extent::Sym(b)) => a == b,
            _ => self.as_const().is_some() && self.as_const() == other.as_const(),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Const(n) => write!(f, "{n}"),
            Extent::Sym(s) => write!(f, "{s}"),
            Extent::Joined(p) => {
                let parts: Vec<String> = p.iter().map(|(n, s)| format!("{n}: {s}")).collect();
                write!(f, "{{{}}}", parts.join(", "))
            }
        }
    }
}

/// How a dim is split: the ranks of an axis hold consecutive parts of whole units (piece by piece for joined dims), as
/// equal as units allow, larger parts first.
///
/// Dims that an op takes for one dim are cut alike, whatever their elements are, so the unit is part of the type: a
/// stored block of 32 is cut like the 32 columns of the activation that meets them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Split {
    /// The mesh axis.
    pub axis: Axis,
    /// Entries that stay together; 1 unless parts would differ by it ([`crate::shard_map::canonical`]).
    pub unit: u64,
}

impl Split {
    /// A split over `axis` in units of `unit` entries.
    pub fn new(axis: &str, unit: u64) -> Self {
        Split { axis: axis.into(), unit }
    }
}

impl From<Axis> for Split {
    fn from(axis: Axis) -> Self {
        Split { axis, unit: 1 }
    }
}

impl From<&str> for Split {
    fn from(axis: &str) -> Self {
        Split::new(axis, 1)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unit == 1 { write!(f, "{}", self.axis) } else { write!(f, "{}:{}", self.axis, self.unit) }
    }
}

/// One dim: its extent and how it is split, if it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Dim {
    /// Global size.
    pub extent: Extent,
    /// How ranks hold parts of it, or `None`: whole on each rank.
    pub split: Option<Split>,
}

impl Dim {
    /// A constant, unsplit dim.
    pub fn new(n: u64) -> Self {
        Dim { extent: Extent::Const(n), split: None }
    }

    /// A symbolic, unsplit dim.
    pub fn sym(s: &str) -> Self {
        Dim { extent: Extent::Sym(s.into()), split: None }
    }

    /// The axis it is split over, if it is.
    pub fn axis(&self) -> Option<&Axis> {
        self.split.as_ref().map(|s| &s.axis)
    }

    /// A joined, unsplit dim.
    pub fn joined(pieces: &[(&str, u64)]) -> Self {
        Dim { extent: Extent::Joined(pieces.iter().map(|(n, s)| (Piece::from(*n), *s)).collect()), split: None }
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Self {
        Dim::new(n)
    }
}

impl From<&str> for Dim {
    fn from(s: &str) -> Self {
        Dim::sym(s)
    }
}

impl From<Vec<(Piece, u64)>> for Dim {
    fn from(pieces: Vec<(Piece, u64)>) -> Self {
        Dim { extent: Extent::Joined(pieces), split: None }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.split {
            Some(s) => write!(f, "{}/{s}", self.extent),
            None => write!(f, "{}", self.extent),
        }
    }
}

/// What is still to be merged over the ranks of an axis before a nonlinear use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PendingKind {
    /// The value is the sum of the ranks' parts.
    Sum,
    /// Such a sum, and each entry is zero on all ranks but one: the one that holds the position which was named for the
    /// entry. What maps zeros to zeros may be done to the parts; see [`crate::placement::Owner`].
    Owned,
    /// The value is the maximum of the ranks' parts.
    Max,
    /// Attention split over context: parts merge by (max, sum, weighted value).
    Softmax,
    /// Top-k over a split dim: parts merge by re-selection.
    TopK,
}

impl PendingKind {
    /// All kinds with their text forms.
    pub const ALL: [(PendingKind, &'static str); 5] = [
        (PendingKind::Sum, "+"),
        (PendingKind::Owned, "own+"),
        (PendingKind::Max, "max+"),
        (PendingKind::Softmax, "softmax+"),
        (PendingKind::TopK, "topk+"),
    ];

    /// Whether the value is the sum of its parts.
    pub fn is_sum(self) -> bool {
        matches!(self, PendingKind::Sum | PendingKind::Owned)
    }

    /// The text form, directly followed by the axis: `+tp`, `max+tp`, ...
    pub fn sigil(self) -> &'static str {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or("+", |(_, s)| s)
    }
}

/// How the entries lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Layout {
    /// Row-major; quantised blocks as in the file, along the last dim.
    #[default]
    Rows,
}

impl Layout {
    /// The text form.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Rows => "rows",
        }
    }

    /// The inverse of [`Layout::name`].
    pub fn from_name(s: &str) -> Option<Self> {
        (s == "rows").then_some(Layout::Rows)
    }
}

/// The type of a value: element, global dims, layout, placement, and whether it is linear state.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorType {
    /// What is stored.
    pub elem: Elem,
    /// Global dims, outermost first.
    pub dims: Vec<Dim>,
    /// Memory order.
    pub layout: Layout,
    /// A merge that is still owed, with its axis.
    pub pending: Option<(PendingKind, Axis)>,
    /// A cache pool: linear, consumed by what changes it.
    pub state: bool,
}

impl TensorType {
    /// A replicated row-major tensor.
    pub fn new(elem: impl Into<Elem>, dims: impl IntoIterator<Item = impl Into<Dim>>) -> Self {
        let dims = dims.into_iter().map(Into::into).collect();
        TensorType { elem: elem.into(), dims, layout: Layout::Rows, pending: None, state: false }
    }

    /// The same with other dims.
    pub fn with_dims(&self, dims: Vec<Dim>) -> Self {
        TensorType { dims, ..self.clone() }
    }

    /// The same with another element.
    pub fn with_elem(&self, elem: Elem) -> Self {
        TensorType { elem, ..self.clone() }
    }

    /// The same as linear state.
    pub fn as_state(&self) -> Self {
        TensorType { state: true, ..self.clone() }
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The last dim, if any.
    pub fn last(&self) -> Option<&Dim> {
        self.dims.last()
    }

    /// Whether no part is split or pending.
    pub fn is_replicated(&self) -> bool {
        self.pending.is_none() && self.dims.iter().all(|d| d.split.is_none())
    }

    /// The concrete shape under `syms` (a symbol that is missing gives `None`).
    pub fn shape(&self, syms: &SymValues) -> Option<Vec<u64>> {
        self.dims
            .iter()
            .map(|d| match &d.extent {
                Extent::Sym(s) => syms.get(s),
                e => e.as_const(),
            })
            .collect()
    }

    /// Number of elements under `syms`, or `None` on overflow or an unknown symbol.
    pub fn elems(&self, syms: &SymValues) -> Option<u64> {
        self.shape(syms)?.into_iter().try_fold(1u64, u64::checked_mul)
    }

    /// Bytes of the whole (global) tensor under `syms`: blocks run along the last dim.
    /// `None` on overflow, an unknown symbol, or a last dim that is no whole number of blocks.
    pub fn bytes(&self, syms: &SymValues) -> Option<u64> {
        let (elems, bytes) = self.elem.block();
        let last = self.shape(syms)?.last().copied().unwrap_or(1);
        if last % elems != 0 {
            return None;
        }
        (self.elems(syms)? / elems).checked_mul(bytes)
    }

    /// The size as (constant factor, sorted symbols): equal sizes compare equal for every symbol value.
    pub fn size_monomial(&self) -> Option<(u64, Vec<Sym>)> {
        let mut constant = 1u64;
        let mut syms = Vec::new();
        for d in &self.dims {
            match &d.extent {
                Extent::Sym(s) => syms.push(s.clone()),
                e => constant = constant.checked_mul(e.as_const()?)?,
            }
        }
        syms.sort();
        Some((constant, syms))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.state {
            f.write_str("state ")?;
        }
        let dims: Vec<String> = self.dims.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.elem, dims.join(", "))?;
        if matches!(self.elem, Elem::Quant(_)) {
            write!(f, " {}", self.layout.name())?;
        }
        if let Some((kind, axis)) = &self.pending {
            write!(f, " {}{axis}", kind.sigil())?;
        }
        Ok(())
    }
}

/// Values (or bounds) of symbols.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SymValues(pub IndexMap<Sym, u64>);

impl SymValues {
    /// The value of `s`.
    pub fn get(&self, s: &Sym) -> Option<u64> {
        self.0.get(s).copied()
    }

    /// The same with `s` set to `n`.
    pub fn with(mut self, s: &str, n: u64) -> Self {
        self.0.insert(s.into(), n);
        self
    }
}
