//! Owns the verifiers: what a module must satisfy before anything relies on it. Collects every finding, never mends,
//! never panics, whatever the module holds.
//!
//! Each code has one meaning and one sentence, in [`CODES`]; `structure`, `types`, `weights`, `calls`, `state`, `owners` hold
//! one function a rule. Places of findings: `@func %value`, `@func return`, `@func`, `weight @name`, `sym S`, or empty
//! for the module.

mod calls;
mod graph;
mod owners;
pub mod plan;
mod state;
mod structure;
mod types;
mod weights;

pub use graph::verify_module;

/// Every code of the graph verifier with its sentence. The codes of the ops' type rules and of the placement rules
/// are among them: the verifier reports what inference says.
pub const CODES: &[(&str, &str)] = &[
    ("axis-twice", "a type splits two dims over one mesh axis, or a dim over the axis of its pending merge"),
    ("bad-arity", "an op has another number of operands than it takes"),
    ("bad-attribute", "an attribute of an op is outside its domain"),
    ("bad-def", "a value is not what its definition says: defined twice, misplaced, or not there at all"),
    ("bad-elem", "an operand's element type is not one that the op takes"),
    (
        "bad-entry",
        "an entry takes stored blocks as a step parameter, takes or returns what is pending, renames state, or is called",
    ),
    ("bad-extent", "a dim is empty, its size overflows, or its pieces are not named apart"),
    ("bad-mesh", "a mesh axis has no ranks"),
    ("bad-rank", "an operand has another number of dims than the op takes"),
    ("bad-state", "state is an operand of an op that may not take it, or is missing where it must be"),
    ("bad-symbol", "a symbol's bound is 0, or its name is no word"),
    (
        "bad-weight",
        "a weight's type is not one that stored bytes have, or needs another number of bytes than its span has",
    ),
    ("call-cycle", "a function calls itself, by way of others or not"),
    ("call-mismatch", "a call's operands do not fit the callee's parameters"),
    ("call-order", "a function calls one that stands after it"),
    ("duplicate-name", "two functions, weights, results or values have one name"),
    ("gather-not-split", "a value is gathered or re-split over an axis that it is not split over"),
    ("owner-mismatch", "values of which each entry lies on one rank meet, and not the same one"),
    ("pending-nonlinear", "a value that is still to be merged over ranks meets an op that needs the merged value"),
    ("piece-order", "producer and consumer of a joined dim name other pieces or another order"),
    ("piece-unknown", "a piece is taken that the operand does not have"),
    ("reduce-not-pending", "a value is merged over an axis that it is not pending over"),
    ("shape-mismatch", "two dims that must be of one size are not"),
    ("shard-cuts-block", "a split of a quantised dim cuts what its layout keeps together"),
    ("split-mismatch", "operands of an op are split in ways that do not fit together"),
    ("split-twice", "a collective splits a dim that is split, or over an axis that splits another dim"),
    ("split-unit", "a split states a unit of 0, or one that changes no cut"),
    ("split-whole-dim", "an op needs a dim whole that is split"),
    ("stale-state", "state is read after something has consumed it"),
    ("state-dropped", "state is neither consumed nor returned"),
    ("state-reused", "state is consumed twice"),
    ("type-mismatch", "a stated type is not the one that inference gives"),
    ("unknown-axis", "a type names a mesh axis that the module lacks"),
    ("unknown-symbol", "a type names a symbol that the module lacks"),
    ("unused-result", "a result of an instruction is neither used nor returned"),
    ("use-before-def", "a value is used before the line that defines it"),
    ("weight-overlap", "two weights claim some of the same bytes"),
    ("weight-twice", "two weights claim the same range of bytes"),
    ("weight-unused", "no function uses a weight"),
];
