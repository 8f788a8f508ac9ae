//! The kernels that make random weights on the device, a kernel a type: the same bytes as `ir::quant::synth` gives, from
//! the same numbers, so that a host recreates any part of what a device made.

use glmc_ir::kernel::Access;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Elem, TensorType};

use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

/// Threads of a block, and blocks: each thread makes block after block.
const THREADS: u32 = 256;
const BLOCKS: u32 = 2112;

/// The struct of `kernels/synth.cuh` that finishes blocks of this type; `None` for forms that no file has.
fn finisher(q: QuantType) -> Option<String> {
    use QuantType as Q;
    let bytes = q.block_bytes();
    let scale = |at: u32, signed: bool| format!("SCALE_SYNTH<{bytes}, {at}, {signed}>");
    Some(match q {
        Q::F32 | Q::F16 | Q::BF16 | Q::Q2_K | Q::IQ1_M | Q::TQ2_0 => format!("{q:?}_SYNTH"),
        Q::Q4_0 | Q::Q5_0 | Q::Q8_0 | Q::IQ1_S | Q::IQ4_NL | Q::IQ4_XS | Q::Q1_0 | Q::Q2_0 => scale(0, true),
        Q::IQ2_XXS | Q::IQ2_XS | Q::IQ2_S | Q::IQ3_XXS | Q::IQ3_S => scale(0, false),
        Q::Q3_K => scale(108, false),
        Q::Q6_K => scale(208, false),
        Q::TQ1_0 => scale(52, true),
        Q::Q4_1 | Q::Q4_K => format!("{}_SYNTH<{bytes}, 15>", if q == Q::Q4_1 { "MIN" } else { "K" }),
        Q::Q5_1 | Q::Q5_K => format!("{}_SYNTH<{bytes}, 31>", if q == Q::Q5_1 { "MIN" } else { "K" }),
        Q::MXFP4 => format!("CODE_SYNTH<{bytes}, 1>"),
        Q::NVFP4 => format!("CODE_SYNTH<{bytes}, 4>"),
        Q::Q4_K_SUB | Q::Q5_K_SUB | Q::Q6_K_SUB => return None,
    })
}

/// The kernel that makes blocks of this type: from `what` ([`glmc_ir::quant::made::words`]) to `y`. `None` for forms that no file has.
pub fn kernel(q: QuantType) -> Option<Generated> {
    let finisher = finisher(q)?;
    let field = |ident: &str, index, access, ty| Field {
        ident: ident.into(),
        role: Role::Param { index, access, ty, layout: "rows" },
    };
    let signature = Signature(vec![
        field("what", 0, Access::Read, TensorType::new(Elem::I32, [2])),
        field("y", 1, Access::Write, TensorType::new(q, [q.block_elems() as u64])),
    ]);
    let name = format!("synth_{q:?}");
    let body = format!(
        "// random blocks of {q}, a thread a block\nnamespace {name}_ {{\n{}struct Config {{\n  typedef Args Arguments;\n  \
         typedef {finisher} Type;\n}};\n}}\nGLMC_KERNEL({name}, {name}_::Args, {THREADS}, 1) {{\n  \
         synth<{name}_::Config>(args);\n}}\n",
        signature.render()
    );
    let shape = LaunchShape { symbol: name.clone(), grid: [BLOCKS, 1, 1], threads: THREADS, shared: 0 };
    Some(Generated {
        name,
        includes: ["synth.cuh"].into(),
        body,
        signature,
        launches: vec![shape],
        side: None,
        early: Vec::new(),
        config: "a thread a block".into(),
        rejected: Vec::new(),
    })
}
