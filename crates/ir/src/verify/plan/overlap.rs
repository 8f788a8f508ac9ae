//! Owns the rules of collectives that steps run beside: `bad-overlap`, `overlap-read`. The operand is a buffer, which
//! has one writer; that its bytes stay its own until the collective is done, [`super::memory::lives`] says and the rule
//! of the arena checks. Ranks begin and end collectives in the order of the one step list.

use super::{Findings, Place};
use crate::diag::Diagnostic;
use crate::kernel::Access;
use crate::plan::{Overlap, Phase, Segment, Step};

pub(super) fn check(phase: &Phase, out: &mut Findings) {
    let mut last = None;
    for o in &phase.overlaps {
        if let Some(why) = wrong(phase, o, last) {
            let d = Diagnostic::new("bad-overlap", format!("overlap [{}, {}]: {why}", o.step, o.done));
            out.push(d.at(Place::phase(phase)).help("a collective is done after the steps beside it, in its segment"));
            return;
        }
        last = Some(o.step);
        let step = &phase.steps[o.step];
        for i in o.step + 1..o.done {
            beside(phase, step, i, out);
            if out.full() {
                return;
            }
        }
    }
}

/// What is wrong with an overlap alone; `last` is the step of the one before it.
fn wrong(phase: &Phase, o: &Overlap, last: Option<usize>) -> Option<String> {
    let Some(step) = phase.steps.get(o.step) else { return Some("there is no such step".into()) };
    if last.is_some_and(|l| l >= o.step) {
        return Some("it does not stand behind the overlap of an earlier step".into());
    }
    if step.kernel.collective().is_none() {
        return Some(format!("step {} `{}` is no collective", o.step, step.name));
    }
    if o.done <= o.step + 1 {
        return Some("no step runs beside it".into());
    }
    let inside = |s: &&Segment| s.first <= o.step && o.step - s.first < s.count;
    let end = phase.segments.iter().find(inside).map_or(0, |s| s.first.saturating_add(s.count));
    (o.done > end).then(|| "it does not end in its segment".into())
}

/// `overlap-read`: step `i`, which runs beside `collective`, reads what that makes.
fn beside(phase: &Phase, collective: &Step, i: usize, out: &mut Findings) {
    for a in phase.steps[i].args.iter().filter(|a| a.access != Access::Write) {
        if collective.args.iter().any(|c| c.access == Access::Write && c.mem == a.mem) {
            let m = format!("{} is made by `{}`, which is not done before this step", a.mem, collective.name);
            let d = Diagnostic::new("overlap-read", m).at(Place::step(phase, i).arg(&a.name));
            out.push(d.help("a collective must be done before what reads it"));
        }
    }
}
