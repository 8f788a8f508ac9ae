//! Owns the verifier of plans: proves of a plan, whoever made it, that running it means what its contracts mean.
//!
//! A plan may come from a file that was edited or made by an enemy: nothing here panics on one or allocates by a number
//! in it, and the time is linear in its length up to sorting. Structure comes first ([`structure`]); only a plan whose
//! ids, types and arguments are in order is judged further:
//!
//! - [`args`]: each argument is what the kernel's contract says (invariant 7);
//! - [`memory`]: each byte that is read was written before, by one writer, and nothing that is written is lost
//!   (invariant 1); [`arena`]: no two live buffers overlap;
//! - [`weights`]: the ranks' slices of each weight are an exact partition in canonical order, each weight is used, none
//!   twice (invariants 2 and 6);
//! - [`overlap`]: what runs beside a collective does not read its result; its operand lives until it is done;
//! - segments partition the steps; a captured address is stable since a step can name only weights, states, buffers of
//!   the arena and parameters, all of which keep their place for the life of the plan (invariant 5).
//!
//! That all ranks run the same collectives (invariant 3) needs no rule: one step list serves all ranks. That pending
//! values are merged once (invariant 4) is part of the ops' type rules, which [`args`] applies.
//!
//! Findings of an op's type rule carry the op's own code; findings on a cut that cannot be made carry a code of
//! [`crate::shard_map`]. All others are listed in [`CODES`].

mod arena;
mod args;
mod memory;
mod overlap;
mod owners;
mod structure;
mod weights;

use std::fmt;

use crate::diag::{Diagnostic, Diagnostics};
use crate::plan::{Phase, Plan, Step};

/// The codes of this verifier, each with what it means.
pub const CODES: &[(&str, &str)] = &[
    ("plan-format", "the format version, the number of ranks and the mesh do not fit this program or each other"),
    ("bad-limits", "a size fixed at compile time is 0 or does not fit a 32-bit row number"),
    ("bad-type", "a type is empty, too large, is no whole number of blocks, or is state where it may not be"),
    ("unknown-symbol", "a type uses a symbol that its phase does not declare with a bound of at least 1"),
    ("duplicate-name", "two weights, two states, or two parameters of a phase have one name"),
    ("bad-phase", "phases are missing, share a name or a decode bucket and its bound, or have no tokens"),
    ("plan-bad-id", "an argument or result names a memory that the plan does not have"),
    ("kernel-attribute", "an attribute of a kernel is out of range"),
    ("arg-mismatch", "the arguments of a step are not the kernel's parameters in number, name or access"),
    ("arg-type", "an output has another type than the kernel gives"),
    ("arg-view", "an argument sees its memory as another element, size, placement or order of pieces"),
    ("weight-type", "a step sees a weight as another type than its recipe makes"),
    ("read-before-write", "a step reads a buffer that no earlier step of the phase has written"),
    ("write-twice", "two steps write one buffer"),
    ("never-written", "no step writes a buffer, and nothing reads it"),
    ("output-unread", "what a step writes is neither read later nor a result: a disconnected output"),
    ("write-constant", "a step writes a weight or a parameter, or a state other than by update"),
    (
        "stale-state",
        "a phase reads a state before it has appended its own rows to it, appends twice, or appends nothing where others do",
    ),
    ("state-never-written", "a phase reads a state that no phase appends to"),
    ("state-unread", "no phase reads a state"),
    ("state-rows", "a state has fewer rows than the engine may use"),
    ("buffer-align", "a buffer's offset is not aligned"),
    ("buffer-size", "a buffer has another size than its type at the bounds of the symbols"),
    ("buffer-bounds", "a buffer ends outside the arena"),
    ("arena-size", "the arena is larger than all its buffers side by side"),
    ("live-overlap", "two buffers that live at the same time share bytes"),
    ("bad-result", "results are missing, share a name, or are not a written buffer with its own type"),
    ("bad-segment", "segments do not partition the steps in order"),
    ("bad-overlap", "what steps run beside is no collective, or does not end after them in its own segment"),
    ("overlap-read", "a step reads what a collective that it runs beside has yet to make"),
    ("weight-size", "a weight's span has another size than its type"),
    ("weight-bounds", "a weight's span lies outside the data of its file"),
    (
        "weight-slices",
        "the ranks' slices of a weight are not the exact partition, in canonical order, that its placement means",
    ),
    ("weight-cut", "a rank's slice of a weight begins or ends inside a stored block"),
    ("weight-order", "a rank reads the slices of a weight that another rank should"),
    ("weight-twice", "two weights are the same bytes"),
    ("weight-overlap", "the bytes of two weights overlap"),
    ("weight-unused", "no phase reads a weight"),
];

/// Findings are not collected beyond this number.
const MOST: usize = 64;

/// Judges a plan.
///
/// # Errors
/// What is wrong, by the codes of [`CODES`], of [`crate::shard_map::CODES`] and of the ops; at most a few dozen
/// findings.
pub fn verify_plan(plan: &Plan) -> Result<(), Diagnostics> {
    let mut out = Findings::default();
    structure::check(plan, &mut out);
    if out.is_empty() {
        for phase in &plan.phases {
            args::check(plan, phase, &mut out);
            owners::check(plan, phase, &mut out);
            memory::buffers(phase, &mut out);
            memory::results(phase, &mut out);
            arena::check(plan, phase, &mut out);
            segments(phase, &mut out);
            overlap::check(phase, &mut out);
        }
        memory::states(plan, &mut out);
        weights::check(plan, &mut out);
    }
    Diagnostics(out.0).into_result()
}

/// `bad-segment`: segments partition the steps in order.
fn segments(phase: &Phase, out: &mut Findings) {
    let mut next = 0;
    for (i, s) in phase.segments.iter().enumerate() {
        if s.first != next || s.count == 0 || s.count > phase.steps.len() - next {
            let m = format!(
                "segment {i} is {} steps from step {}, expected it to start at step {next} and to end within {} steps",
                s.count,
                s.first,
                phase.steps.len()
            );
            out.push(
                Diagnostic::new("bad-segment", m)
                    .at(Place::phase(phase))
                    .help("segments cover every step exactly once, in order: what is left out would never run"),
            );
            return;
        }
        next += s.count;
    }
    if next != phase.steps.len() {
        let m = format!("the segments end at step {next} of {}", phase.steps.len());
        let d = Diagnostic::new("bad-segment", m).at(Place::phase(phase));
        out.push(d.help("segments cover every step exactly once, in order: what is left out would never run"));
    }
}

/// Findings up to [`MOST`].
#[derive(Default)]
struct Findings(Vec<Diagnostic>);

impl Findings {
    fn push(&mut self, d: Diagnostic) {
        if !self.full() {
            self.0.push(d);
        }
    }

    /// Whether more findings would be dropped.
    fn full(&self) -> bool {
        self.0.len() >= MOST
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where in a plan; only turned into text when there is a finding.
#[derive(Clone, Copy)]
struct Place<'a> {
    phase: &'a Phase,
    step: Option<(usize, &'a Step)>,
    arg: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn phase(phase: &'a Phase) -> Self {
        Place { phase, step: None, arg: None }
    }

    fn step(phase: &'a Phase, index: usize) -> Self {
        Place { phase, step: phase.steps.get(index).map(|s| (index, s)), arg: None }
    }

    fn arg(self, name: &'a str) -> Self {
        Place { arg: Some(name), ..self }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "phase {}", self.phase.name)?;
        if let Some((i, step)) = &self.step {
            write!(f, " step {i} `{}` ({})", step.name, step.kernel.name())?;
        }
        if let Some(arg) = self.arg {
            write!(f, " arg {arg}")?;
        }
        Ok(())
    }
}

impl From<Place<'_>> for String {
    fn from(p: Place<'_>) -> String {
        p.to_string()
    }
}
