//! The contracts of collectives: steps in which ranks meet. Their meaning is the op, so the identity on the value; only
//! they touch the memory of more than one rank.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{AllGather, AllReduce, AllToAll, ReduceScatter, Shard};

macro_rules! collectives {
    ($($(#[$doc:meta])* $kernel:ident = $op:ident, $name:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $kernel(
            /// The attributes.
            pub $op,
        );

        impl KernelDef for $kernel {
            const NAME: &'static str = $name;

            fn params(&self) -> Vec<ParamSpec> {
                [reads(["x"]), writes(["y"])].concat()
            }

            fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
                b.op(self.0.clone(), inputs)
            }
        }
    )*};
}

collectives! {
    /// See [`AllGather`].
    AllGatherKernel = AllGather, "all_gather";
    /// See [`AllReduce`].
    AllReduceKernel = AllReduce, "all_reduce";
    /// See [`AllToAll`].
    AllToAllKernel = AllToAll, "all_to_all";
    /// See [`ReduceScatter`].
    ReduceScatterKernel = ReduceScatter, "reduce_scatter";
    /// See [`Shard`].
    ShardKernel = Shard, "shard";
}
