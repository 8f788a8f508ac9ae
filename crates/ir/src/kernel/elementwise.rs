//! The contracts of single elementwise ops, and `decode`, which materialises a small stored tensor.

use serde::{Deserialize, Serialize};

use super::{KernelDef, ParamSpec, decoded, reads, writes};
use crate::builder::Builder;
use crate::diag::Diagnostic;
use crate::entities::Value;
use crate::ops::{Add, Dequant, Mul, Relu, Scale, Sigmoid, Silu};

macro_rules! elementwise {
    ($($(#[$doc:meta])* $kernel:ident = $op:ident, $name:literal, $inputs:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $kernel {}

        impl KernelDef for $kernel {
            const NAME: &'static str = $name;

            fn params(&self) -> Vec<ParamSpec> {
                [reads($inputs), writes(["y"])].concat()
            }

            fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
                let args = inputs.iter().map(|v| decoded(b, *v)).collect::<Result<Vec<_>, _>>()?;
                b.op($op {}, &args)
            }
        }
    )*};
}

elementwise! {
    /// See [`Add`].
    AddKernel = Add, "add", ["a", "b"];
    /// See [`Mul`].
    MulKernel = Mul, "mul", ["a", "b"];
    /// See [`Relu`].
    ReluKernel = Relu, "relu", ["x"];
    /// See [`Sigmoid`].
    SigmoidKernel = Sigmoid, "sigmoid", ["x"];
    /// See [`Silu`].
    SiluKernel = Silu, "silu", ["x"];
}

/// See [`Scale`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleKernel {
    /// As in [`Scale::factor`].
    pub factor: f64,
}

impl KernelDef for ScaleKernel {
    const NAME: &'static str = "scale";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["x"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(Scale { factor: self.factor }, inputs)
    }
}

/// See [`Dequant`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeKernel {}

impl KernelDef for DecodeKernel {
    const NAME: &'static str = "decode";

    fn params(&self) -> Vec<ParamSpec> {
        [reads(["w"]), writes(["y"])].concat()
    }

    fn meaning(&self, b: &mut Builder<'_>, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        b.op(Dequant {}, inputs)
    }
}
