//! Pass `rotate`. Owns where norms stand relative to calls: the norm with which a function begins moves to the end of
//! the function that makes its operand, so that a residual sum, what ranks merge before it, and the norm after it are in
//! one function, where saturation and placement see them together. Never changes what an entry takes and gives, never adds
//! a norm where none was.
//!
//! Before: `%x = call @layer(.., @norm_0, ..)`, `%y = call @layer(%x, .., @norm_1, ..)`, and each `@layer` norms its
//! operand first. After: the caller norms what the first call takes, `@layer(%x, %normed, ..)` ends with the norm of
//! its result, and the weight of that norm is an operand. A norm in the caller that follows a call, directly or for
//! chosen rows, moves likewise.
//!
//! - Two steps, until nothing moves: norms leave functions upwards ([`hoist`]), and callers' norms of what a call makes
//!   enter the callee downwards ([`sink`]). Calls do not form cycles, so this ends.
//! - Nothing depends on names; a module without such calls stays as it is.
//! - The moved value keeps its name: the caller calls the result of the call by it (`blk.1.attn_norm`). A result that
//!   only the moved norm read is discarded by name.

mod copy;
mod hoist;
mod norm;
mod sink;

use glmc_ir::diag::Diagnostic;
use glmc_ir::graph::Module;

use crate::pass::{Pass, PassCx};

/// What the pass is called.
pub const NAME: &str = "rotate";

/// See the module's page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotate;

impl Pass for Rotate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "before algebra and placement, which look at one function at a time"
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn moves_boundaries(&self) -> bool {
        true
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        let mut moved: Option<Module> = None;
        loop {
            let up = hoist::hoist(moved.as_ref().unwrap_or(m), cx)?;
            let changed = up.is_some();
            moved = up.or(moved);
            let down = sink::sink(moved.as_ref().unwrap_or(m), cx)?;
            if !changed && down.is_none() {
                break;
            }
            moved = down.or(moved);
        }
        Ok(moved.map_or_else(|| m.clone(), |m| m.compacted()))
    }
}
