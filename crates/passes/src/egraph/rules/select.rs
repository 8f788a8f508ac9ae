//! Selections that leave nothing out. The best `k` of at most `k` positions are all of them, whatever the scores are; a
//! position counts where it is visible, and scores are above `-inf` exactly there. So attention to the selection is
//! attention to what is visible, and nothing needs to be scored.
//!
//! How many positions there are at most is in the types: the bound of their symbol.

use glmc_ir::op::Op;
use glmc_ir::ops::Attention;

use super::{Rule, What};
use crate::egraph::analysis::{most, ty};

/// The rules.
pub const RULES: &[Rule] = &[Rule {
    name: "attend-to-all",
    why: "the visible context fits in the selection: what would be left out is not there",
    what: What::Rewrite {
        left: "(attention@a ?pre* ?seq ?len (topk@t (indexer_scores ?q ?k ?w ?seq ?len)))",
        right: "(attention@all ?pre* ?seq ?len)",
        binds: &["@all"],
        when: |g, m| {
            let (Op::Attention(a), Op::TopK(t)) = (m.op("a"), m.op("t")) else { return None };
            let positions = most(g, ty(g, m.var("k"))?.dims.get(1)?)?;
            let all = Attention { selected: false, ..a.clone() };
            (a.selected && positions <= t.k).then(|| m.bind_op("all", all))
        },
    },
}];
