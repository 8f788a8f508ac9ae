//! The kernels that measure a machine: how fast memory is read, the 100 % that other kernels are compared with, and what a
//! launch costs that does nothing.

use glmc_ir::kernel::Access;
use glmc_ir::ty::{Elem, TensorType};

use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

const THREADS: u32 = 256;
/// Bytes of a block: eight loads of 16 a thread.
const PIECE: u64 = 8 * 16 * THREADS as u64;

/// Reads `bytes` of `x` once (rounded down to 16); `y` has four bytes that are never written.
pub fn kernel(bytes: u64) -> Generated {
    let field = |ident: &str, index, access, words: u64| Field {
        ident: ident.into(),
        role: Role::Param { index, access, ty: TensorType::new(Elem::I32, [words]), layout: "rows" },
    };
    let signature = Signature(vec![field("x", 0, Access::Read, bytes / 4), field("y", 1, Access::Update, 1)]);
    let name = format!("read_{bytes}");
    let body = format!(
        "// {bytes} bytes, a block a piece of {PIECE}\nnamespace {name}_ {{\n{}struct Config {{\n  typedef Args \
         Arguments;\n  static constexpr u64 BYTES = {bytes}ull;\n}};\n}}\nGLMC_KERNEL({name}, {name}_::Args, {THREADS}, \
         1) {{\n  read_all<{name}_::Config>(args);\n}}\n",
        signature.render()
    );
    let blocks = u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX >> 1).max(1);
    Generated {
        includes: ["read.cuh"].into(),
        body,
        signature,
        launches: vec![LaunchShape { symbol: name.clone(), grid: [blocks, 1, 1], threads: THREADS, shared: 0 }],
        side: None,
        early: Vec::new(),
        config: "a block a piece".into(),
        rejected: Vec::new(),
        name,
    }
}

/// Adds one to the word `y`, in one block: what a launch costs that waits for the one before.
pub fn gap() -> Generated {
    let ty = TensorType::new(Elem::I32, [1]);
    let role = Role::Param { index: 0, access: Access::Update, ty, layout: "rows" };
    let signature = Signature(vec![Field { ident: "y".into(), role }]);
    let body = format!(
        "// one word, one block\nnamespace gap_ {{\n{}}}\nGLMC_KERNEL(gap, gap_::Args, 32, 1) {{\n  \
         glmc_launch_wait();\n  glmc_launch_trigger();\n  if (glmc_thread() == 0) *reinterpret_cast<u32*>(args.y) += \
         1;\n}}\n",
        signature.render()
    );
    Generated {
        name: "gap".into(),
        includes: ["prim.cuh"].into(),
        body,
        signature,
        launches: vec![LaunchShape { symbol: "gap".into(), grid: [1, 1, 1], threads: 32, shared: 0 }],
        side: None,
        early: Vec::new(),
        config: "one block".into(),
        rejected: Vec::new(),
    }
}
