//! Owns the table of rules and their check. A rule is data: a name, why it is there, and a body: two patterns with a
//! side condition; a pattern that proposes a kernel contract, which is taken only where the e-graph holds the
//! contract's whole meaning; or a search for products that share an operand.
//!
//! | file | subject |
//! |---|---|
//! | [`decode`] | stored operands straight into ops |
//! | [`absorb`] | weights through attention, both ways |
//! | [`share`] | one input for several products |
//! | [`fold`] | constants, views, joins and pieces |
//! | [`select`] | selections that leave nothing out |
//! | [`fuse`] | kernel contracts |

pub mod absorb;
pub mod decode;
pub mod fold;
pub mod fuse;
pub mod select;
pub mod share;

use egg::Id;
use glmc_ir::diag::Diagnostic;
use glmc_ir::kernel::Kernel;
use glmc_ir::op::Op;

use super::analysis::Graph;
use super::pattern::{Match, Pattern};
use super::saturate::{Share, Step, meaning};

/// One rule as written.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Kebab-case, unique; reports and diagnostics use it.
    pub name: &'static str,
    /// One line.
    pub why: &'static str,
    /// What it does.
    pub what: What,
}

/// The body of a rule as written.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// `left` is `right` where `when` says so.
    Rewrite {
        /// Pattern.
        left: &'static str,
        /// Pattern over what `left` and `when` bind.
        right: &'static str,
        /// What `when` binds: `?x`, `?x*`, `@x`.
        binds: &'static [&'static str],
        /// The side condition.
        when: When,
    },
    /// A launch of the contract that `make` gives on the operands that it gives.
    Contract {
        /// Pattern.
        left: &'static str,
        /// The contract and its operands, if `left` is an instance of it.
        make: Make,
    },
    /// Products to be computed together.
    Search(fn(&Graph) -> Vec<Share>),
}

/// A side condition, which may bind more; `None` where the rule does not hold.
pub type When = fn(&Graph, &mut Match) -> Option<()>;
/// The contract of a match and its operands.
pub type Make = fn(&Graph, &Match) -> Option<(Kernel, Vec<Id>)>;

/// A rule whose patterns are parsed and checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// As in [`Rule`].
    pub name: &'static str,
    /// Its body.
    pub body: Body,
}

/// The body of a checked rule.
#[derive(Clone, Debug)]
pub enum Body {
    /// See [`What::Rewrite`].
    Rewrite {
        /// Parsed.
        left: Pattern,
        /// Parsed; every name bound.
        right: Pattern,
        /// As written.
        when: When,
    },
    /// See [`What::Contract`].
    Contract(Pattern, Make),
    /// See [`What::Search`].
    Search(fn(&Graph) -> Vec<Share>),
}

/// All rules, by subject.
pub fn all() -> Vec<Rule> {
    [decode::RULES, absorb::RULES, share::RULES, fold::RULES, select::RULES, fuse::RULES].concat()
}

/// Parses and checks rules.
///
/// # Errors
/// `bad-pattern`: syntax, an unknown op, a name on the right that nothing binds, an op on the right whose attributes
/// nothing gives, two rules of one name.
pub fn check(rules: &[Rule]) -> Result<Vec<Checked>, Diagnostic> {
    let mut out: Vec<Checked> = Vec::new();
    for rule in rules {
        let bad = |what: String| Diagnostic::new("bad-pattern", format!("rule `{}`: {what}", rule.name));
        if out.iter().any(|r| r.name == rule.name) {
            return Err(bad("there are two of this name".into()));
        }
        let parse = |text| Pattern::parse(text).map_err(|d| bad(d.message));
        let body = match rule.what {
            What::Search(f) => Body::Search(f),
            What::Contract { left, make } => Body::Contract(parse(left)?, make),
            What::Rewrite { left, right, binds, when } => {
                let (left, right) = (parse(left)?, parse(right)?);
                let known = left.names();
                for name in right.names() {
                    // A capture on the right may stand for a new name only where `when` binds it.
                    if !known.contains(&name) && !binds.contains(&name.as_str()) {
                        return Err(bad(format!("nothing binds `{name}`")));
                    }
                }
                for op in right.bare_ops() {
                    Op::from_attrs(op, Default::default()).map_err(|d| bad(d.message))?;
                }
                Body::Rewrite { left, right, when }
            }
        };
        out.push(Checked { name: rule.name, body });
    }
    Ok(out)
}

impl Checked {
    /// Every rewrite that the rule finds in `g`, in the order of classes.
    pub fn find<'r>(&'r self, g: &Graph, out: &mut Vec<(&'r Checked, Step)>) {
        let (left, mut see): (_, Box<dyn FnMut(Id, Match)>) = match &self.body {
            Body::Search(f) => {
                out.extend(f(g).into_iter().map(|s| (self, Step::Share(s))));
                return;
            }
            Body::Rewrite { left, when, right } => (
                left,
                Box::new(|id, mut m| {
                    if when(g, &mut m).is_some() && !right.stands(g, id, &m) {
                        out.push((self, Step::Build(id, m)));
                    }
                }),
            ),
            Body::Contract(left, make) => (
                left,
                Box::new(|_, m| {
                    let Some((kernel, args)) = make(g, &m) else { return };
                    if meaning(g, &kernel, &args).is_some() {
                        out.push((self, Step::Launch(kernel, args)));
                    }
                }),
            ),
        };
        let mut ids: Vec<Id> = g.classes().map(|c| c.id).collect();
        ids.sort();
        for id in ids {
            left.matches(g, id).into_iter().for_each(|m| see(id, m));
        }
    }
}
