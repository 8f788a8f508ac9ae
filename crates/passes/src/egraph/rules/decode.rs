//! Stored operands straight into the ops that decode them on the way. Which ops do is the op table's to say
//! ([`glmc_ir::op::OpDef::stored`]), and that they mean the same is its definition.

use super::{Rule, What};
use crate::egraph::analysis::{infer, ty};
use glmc_ir::ty::Elem;

/// The rules.
pub const RULES: &[Rule] = &[Rule {
    name: "decode-in-consumer",
    why: "a decoded weight is never written to memory",
    what: What::Rewrite {
        left: "(_@o ?pre* (dequant ?w) ?post*)",
        right: "(_@o ?pre* ?w ?post*)",
        binds: &[],
        when: |g, m| {
            let (i, w) = (m.seq("pre").len(), m.var("w"));
            let blocks = matches!(ty(g, w)?.elem, Elem::Quant(_));
            let args = [m.seq("pre"), &[w], m.seq("post")].concat();
            (blocks && m.op("o").stored(i) && infer(g, m.op("o"), &args).is_ok()).then_some(())
        },
    },
}];
