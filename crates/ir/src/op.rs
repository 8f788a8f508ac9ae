//! Owns the op trait and the op table: one line an op. Never owns an op's rules; each lives in `ops/<op>.rs`.
//!
//! Dispatch is an enum built by one macro, so an op that lacks a rule does not compile.

use serde::{Deserialize, Serialize};

use crate::collective::Collective;
use crate::diag::Diagnostic;
use crate::ops::*;
use crate::placement::{self, DimRule};
use crate::tensor::{Data, EvalError, Tensor};
use crate::ty::{Elem, SymValues, TensorType};

/// What an op does to memory and arithmetic units, for cost models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// Bytes read, quantised weights as stored.
    pub read: u64,
    /// Bytes written.
    pub write: u64,
    /// Floating-point operations (a multiply and an add are two).
    pub flops: u64,
}

/// One op: everything the IR knows about it.
pub trait OpDef: Clone + PartialEq + std::fmt::Debug + Serialize + for<'de> Deserialize<'de> {
    /// The name in text.
    const NAME: &'static str;

    /// Result types from argument types, global shapes only (placements are stripped before and set after by
    /// [`Op::infer`]). Errors carry the code of the rule that is broken.
    fn infer(&self, args: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic>;

    /// Which dims of arguments and results are the same dim, and what a split of each means. The one source of
    /// sharding propagation, of the sharded verifier and of the rank interpreter.
    fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule;

    /// Reference semantics, in f64, written for clarity.
    fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError>;

    /// Floating-point operations at the given symbol values.
    fn flops(&self, args: &[&TensorType], results: &[TensorType], syms: &SymValues) -> u64;

    /// Bytes read of argument `i`; the whole argument unless the op gathers.
    fn bytes_read(&self, args: &[&TensorType], _results: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        args[i].bytes(syms).unwrap_or(u64::MAX)
    }

    /// Bytes written of result `i`; the whole result unless the op updates state in place.
    fn bytes_written(&self, _args: &[&TensorType], results: &[TensorType], i: usize, syms: &SymValues) -> u64 {
        results[i].bytes(syms).unwrap_or(u64::MAX)
    }

    /// What the op moves between ranks, if it is a collective.
    fn collective(&self) -> Option<Collective> {
        None
    }

    /// Whether the op is linear in argument `i`, so that a pending sum may pass through it.
    fn linear_in(&self, _i: usize) -> bool {
        false
    }

    /// The same on operands of these types, for ops whose attributes alone do not tell.
    fn linear_at(&self, i: usize, _args: &[&TensorType]) -> bool {
        self.linear_in(i)
    }

    /// Whether the op computes each entry from entries at the same place only and gives zero wherever one of them is, so
    /// that parts of which all but one are zero (`own`) stay so.
    fn keeps_zero(&self) -> bool {
        false
    }

    /// Whether operand `i` may be given as stored blocks, which the op decodes on the way: `op(.., w, ..)` means
    /// `op(.., dequant w, ..)`. The one table of what decodes; [`Op::infer`] and [`Op::eval`] apply it.
    fn stored(&self, _i: usize) -> bool {
        false
    }

    /// Whether the op makes a discrete choice (top-k, routing), which amplifies ties.
    fn discrete(&self) -> bool {
        false
    }

    /// The state argument that the op consumes and returns changed, as `(argument, result)`.
    fn consumes(&self) -> Option<(usize, usize)> {
        None
    }
}

/// Serialises a table enum as `{"name": .., "attrs": {..}}`, by its `name`, `attrs` and `from_attrs`.
macro_rules! named_serde {
    ($t:ty) => {
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let mut st = s.serialize_struct("named", 2)?;
                st.serialize_field("name", self.name())?;
                st.serialize_field("attrs", &self.attrs())?;
                st.end()
            }
        }
        impl<'de> serde::Deserialize<'de> for $t {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Named {
                    name: String,
                    attrs: serde_json::Map<String, serde_json::Value>,
                }
                let n = Named::deserialize(d)?;
                <$t>::from_attrs(&n.name, n.attrs).map_err(|e| serde::de::Error::custom(e.message))
            }
        }
    };
}
pub(crate) use named_serde;

macro_rules! ops {
    ($($variant:ident),* $(,)?) => {
        /// Any op, with its attributes.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op { $($variant($variant)),* }

        impl Op {
            /// Every op name, in table order.
            pub const NAMES: &'static [&'static str] = &[$(<$variant as OpDef>::NAME),*];

            /// The name in text.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => <$variant as OpDef>::NAME),* }
            }

            /// The attributes as an object; empty if there are none.
            pub fn attrs(&self) -> serde_json::Map<String, serde_json::Value> {
                let v = match self { $(Op::$variant(o) => serde_json::to_value(o)),* };
                match v { Ok(serde_json::Value::Object(m)) => m, _ => serde_json::Map::new() }
            }

            /// The op called `name` with these attributes.
            pub fn from_attrs(name: &str, attrs: serde_json::Map<String, serde_json::Value>) -> Result<Op, Diagnostic> {
                match name {
                    $(n if n == <$variant as OpDef>::NAME => serde_json::from_value(serde_json::Value::Object(attrs))
                        .map(Op::$variant)
                        .map_err(|e| Diagnostic::new("bad-attribute", format!("attributes of `{name}`: {e}"))),)*
                    _ => Err(Diagnostic::new("unknown-op", format!("there is no op `{name}`"))
                        .help(format!("the ops are {}", Self::NAMES.join(", ")))),
                }
            }

            fn infer_global(&self, args: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic> {
                match self { $(Op::$variant(o) => o.infer(args)),* }
            }

            /// See [`OpDef::dim_rule`].
            pub fn dim_rule(&self, args: &[&TensorType], results: &[TensorType]) -> DimRule {
                match self { $(Op::$variant(o) => o.dim_rule(args, results)),* }
            }

            fn eval_decoded(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
                match self { $(Op::$variant(o) => o.eval(args)),* }
                    .map_err(|e| EvalError::new(format!("{}: {e}", self.name())))
            }

            /// See [`OpDef::bytes_read`].
            pub fn bytes_read(&self, args: &[&TensorType], results: &[TensorType], i: usize, syms: &SymValues) -> u64 {
                match self { $(Op::$variant(o) => o.bytes_read(args, results, i, syms)),* }
            }

            /// See [`OpDef::bytes_written`].
            pub fn bytes_written(&self, args: &[&TensorType], results: &[TensorType], i: usize, syms: &SymValues) -> u64 {
                match self { $(Op::$variant(o) => o.bytes_written(args, results, i, syms)),* }
            }

            /// The cost of one execution at `syms`.
            pub fn work(&self, args: &[&TensorType], results: &[TensorType], syms: &SymValues) -> Work {
                let reads = (0..args.len()).map(|i| self.bytes_read(args, results, i, syms));
                let writes = (0..results.len()).map(|i| self.bytes_written(args, results, i, syms));
                let flops = match self { $(Op::$variant(o) => o.flops(args, results, syms)),* };
                Work { read: reads.fold(0, u64::saturating_add), write: writes.fold(0, u64::saturating_add), flops }
            }

            /// See [`OpDef::collective`].
            pub fn collective(&self) -> Option<Collective> {
                match self { $(Op::$variant(o) => o.collective()),* }
            }

            /// See [`OpDef::linear_in`].
            pub fn linear_in(&self, i: usize) -> bool {
                match self { $(Op::$variant(o) => o.linear_in(i)),* }
            }

            /// See [`OpDef::linear_at`].
            pub fn linear_at(&self, i: usize, args: &[&TensorType]) -> bool {
                match self { $(Op::$variant(o) => o.linear_at(i, args)),* }
            }

            /// See [`OpDef::keeps_zero`].
            pub fn keeps_zero(&self) -> bool {
                match self { $(Op::$variant(o) => o.keeps_zero()),* }
            }

            /// See [`OpDef::stored`].
            pub fn stored(&self, i: usize) -> bool {
                match self { $(Op::$variant(o) => o.stored(i)),* }
            }

            /// See [`OpDef::discrete`].
            pub fn discrete(&self) -> bool {
                match self { $(Op::$variant(o) => o.discrete()),* }
            }

            /// See [`OpDef::consumes`].
            pub fn consumes(&self) -> Option<(usize, usize)> {
                match self { $(Op::$variant(o) => o.consumes()),* }
            }
        }

        $(impl From<$variant> for Op {
            fn from(o: $variant) -> Op { Op::$variant(o) }
        })*
    };
}

ops! {
    Add, AllGather, AllReduce, AllToAll, Append, Attention, AttentionPart, Dequant, Fused, Gather, GroupedMatmul,
    IndexerScores, Join, LayerNorm, Matmul, MoeRoute, Mul, Piece, ReduceScatter, Relu, Reshape, RmsNorm, Rope, Scale,
    Shard, Sigmoid, Silu, TopK, TopKPart,
}

named_serde!(Op);

impl Op {
    /// Result types of this op: global shapes by its type rule, placements by its dim rule.
    pub fn infer(&self, args: &[&TensorType]) -> Result<Vec<TensorType>, Diagnostic> {
        let global: Vec<TensorType> =
            args.iter().enumerate().map(|(i, t)| self.decoded(i, placement::strip(t))).collect();
        let refs: Vec<&TensorType> = global.iter().collect();
        let mut results = self.infer_global(&refs)?;
        match self.collective() {
            Some(c) => results[0] = c.place(self.name(), args[0])?,
            None if args.iter().any(|t| !t.is_replicated()) => placement::propagate(self, args, &mut results)?,
            None => {}
        }
        Ok(results)
    }

    /// See [`OpDef::eval`]; stored operands are decoded first.
    pub fn eval(&self, args: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let blocks = |i: usize, t: &Tensor| matches!(t.data, Data::Q(..)) && self.stored(i);
        if !args.iter().enumerate().any(|(i, t)| blocks(i, t)) {
            return self.eval_decoded(args);
        }
        let decode = |(i, t): (usize, &&Tensor)| -> Result<Tensor, EvalError> {
            if !blocks(i, t) {
                return Ok((*t).clone());
            }
            Dequant {}.eval(&[*t])?.pop().ok_or_else(|| EvalError::new("a decode without a result"))
        };
        let decoded = args.iter().enumerate().map(decode).collect::<Result<Vec<_>, _>>()?;
        self.eval_decoded(&decoded.iter().collect::<Vec<_>>())
    }

    /// The type that the op computes on: that of the decoded entries where operand `i` is stored as blocks.
    fn decoded(&self, i: usize, t: TensorType) -> TensorType {
        if matches!(t.elem, Elem::Quant(_)) && self.stored(i) { t.with_elem(Elem::F32) } else { t }
    }
}
