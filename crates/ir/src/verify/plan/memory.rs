//! Owns the rules of reads and writes: each buffer has one writer before its readers, nothing written is lost, constants
//! stay constant, and cache pools are appended to before they are read.

use std::collections::HashSet;

use super::{Findings, Place};
use crate::diag::Diagnostic;
use crate::entities::BufId;
use crate::kernel::Access;
use crate::plan::{Arg, Mem, Phase, Plan};

/// When a buffer of a phase is written and last read, by step.
#[derive(Clone, Copy, Default)]
pub(super) struct Life {
    /// The step that writes it.
    pub(super) written: Option<usize>,
    /// The last later step that reads it; `usize::MAX` for a result.
    pub(super) read: Option<usize>,
}

/// The lives of a phase's buffers: first write, last read after it.
pub(super) fn lives(phase: &Phase) -> Vec<Life> {
    let mut lives = vec![Life::default(); phase.buffers.len()];
    for (i, step) in phase.steps.iter().enumerate() {
        for (a, b) in bufs(&step.args) {
            let life = &mut lives[b.as_u32() as usize];
            match life.written {
                None if a.access == Access::Write => life.written = Some(i),
                Some(w) if w < i && a.access != Access::Write => life.read = Some(i),
                _ => {}
            }
        }
    }
    // The operand of a collective that steps run beside is read until it is done.
    for o in &phase.overlaps {
        for (a, b) in phase.steps.get(o.step).into_iter().flat_map(|s| bufs(&s.args)) {
            let life = &mut lives[b.as_u32() as usize];
            if a.access != Access::Write {
                life.read = life.read.max(Some(o.done.min(phase.steps.len()).saturating_sub(1)));
            }
        }
    }
    for r in &phase.results {
        if let Mem::Buf(b) = r.mem
            && let Some(life) = lives.get_mut(b.as_u32() as usize)
        {
            life.read = Some(usize::MAX);
        }
    }
    lives
}

fn bufs(args: &[Arg]) -> impl Iterator<Item = (&Arg, BufId)> {
    args.iter().filter_map(|a| match a.mem {
        Mem::Buf(b) => Some((a, b)),
        _ => None,
    })
}

/// `read-before-write`, `write-twice`, `never-written`, `output-unread`, `write-constant`.
pub(super) fn buffers(phase: &Phase, out: &mut Findings) {
    let lives = lives(phase);
    let mut early = HashSet::new();
    let mut written = HashSet::new();
    for (i, step) in phase.steps.iter().enumerate() {
        let place = Place::step(phase, i);
        for a in &step.args {
            if let Some(why) = forbidden(a) {
                out.push(Diagnostic::new("write-constant", format!("{}: {why}", a.mem)).at(place.arg(&a.name)));
            }
        }
        for (a, b) in bufs(&step.args).filter(|(a, _)| a.access != Access::Write) {
            let life = lives[b.as_u32() as usize];
            if life.written.is_none_or(|w| w >= i) && early.insert(b) {
                out.push(unwritten(phase, b, life).at(place.arg(&a.name)));
            }
        }
        for (a, b) in bufs(&step.args).filter(|(a, _)| a.access == Access::Write) {
            if !written.insert(b) {
                let m = format!("{b} `{}` is written a second time", phase.buffers[b].name);
                let d = Diagnostic::new("write-twice", m).at(place.arg(&a.name));
                out.push(d.help("each launch creates its outputs: give this one a buffer of its own"));
            }
        }
        if out.full() {
            return;
        }
    }
    for (b, buffer) in &phase.buffers {
        let life = lives[b.as_u32() as usize];
        match life.written {
            None if early.contains(&b) || life.read.is_some() => {}
            None => {
                let m = format!("no step writes {b} `{}`", buffer.name);
                let d = Diagnostic::new("never-written", m).at(Place::phase(phase));
                out.push(d.help("remove it from the phase, or bind an output to it"));
            }
            Some(w) if life.read.is_none() && !buffer.name.starts_with('_') => {
                let m = format!("{b} `{}` is written, and no later step or result reads it", buffer.name);
                let d = Diagnostic::new("output-unread", m).at(Place::step(phase, w));
                out.push(d.help(
                    "the output is disconnected: whoever should read it reads another buffer; a value that is really \
                     not needed gets a name that starts with `_`",
                ));
            }
            Some(_) => {}
        }
    }
}

fn unwritten(phase: &Phase, b: BufId, life: Life) -> Diagnostic {
    let name = &phase.buffers[b].name;
    let (m, help) = match life.written {
        Some(w) => (
            format!("{b} `{name}` is read before step {w} `{}` writes it", phase.steps[w].name),
            "put the writing step first, or read the buffer that is meant".to_owned(),
        ),
        None => (
            format!("{b} `{name}` is read, and no step writes it"),
            format!("the step that should make `{name}` writes another buffer: look for an output that nothing reads"),
        ),
    };
    Diagnostic::new("read-before-write", m).help(help)
}

/// Why an argument may not change its memory, if it may not.
pub(super) fn forbidden(a: &Arg) -> Option<&'static str> {
    match (a.access, a.mem) {
        (Access::Read, _) | (Access::Write, Mem::Buf(_)) | (Access::Update, Mem::State(_)) => None,
        (_, Mem::Weight(_)) => Some("a weight is only read"),
        (_, Mem::Param(_)) => Some("a parameter is written by the host and only read by steps"),
        (Access::Write, Mem::State(_)) => Some("a state changes by update, never by a plain write"),
        (Access::Update, Mem::Buf(_)) => Some("only a state is updated in place, a buffer is written once"),
    }
}

/// `bad-result`: at least one, of unique names, each a buffer that a step writes.
pub(super) fn results(phase: &Phase, out: &mut Findings) {
    let place = |name: &str| format!("phase {} result `{name}`", phase.name);
    if phase.results.is_empty() {
        out.push(Diagnostic::new("bad-result", "the phase has no results").at(Place::phase(phase)));
    }
    let lives = lives(phase);
    let mut names = HashSet::new();
    for r in &phase.results {
        let bad = |m: String| Diagnostic::new("bad-result", m).at(place(&r.name));
        if !names.insert(r.name.as_str()) {
            out.push(bad("two results have this name".into()));
        }
        match r.mem {
            Mem::Buf(b) if phase.buffers.get(b).is_none() => out.push(bad(format!("there is no {b}"))),
            Mem::Buf(b) if lives[b.as_u32() as usize].written.is_none() => {
                let m = format!("no step writes {b} `{}`", phase.buffers[b].name);
                out.push(bad(m).help("the step that should make it writes another buffer"));
            }
            Mem::Buf(_) => {}
            m => out.push(bad(format!("{m} is no buffer of the arena")).help("a result is what a step writes")),
        }
    }
}

/// `stale-state`, `state-never-written`, `state-unread`.
pub(super) fn states(plan: &Plan, out: &mut Findings) {
    let n = plan.states.len();
    let (mut appended, mut read) = (vec![false; n], vec![false; n]);
    for (a, s) in plan.phases.iter().flat_map(|p| &p.steps).flat_map(|s| &s.args).filter_map(state) {
        let seen = if a.access == Access::Update { &mut appended } else { &mut read };
        seen[s] = true;
    }
    for phase in &plan.phases {
        let mut here = vec![false; n];
        let mut told = vec![false; n];
        for (i, step) in phase.steps.iter().enumerate() {
            for (a, s) in step.args.iter().filter_map(state) {
                let place = Place::step(phase, i).arg(&a.name);
                let name = &plan.states[crate::entities::StateId::from_u32(s as u32)].name;
                let what = match (a.access, here[s]) {
                    (Access::Update, true) => "is appended to a second time in this phase",
                    (Access::Read, false) if appended[s] => "is read before this phase appends its own rows to it",
                    (Access::Read, false) => {
                        if !std::mem::replace(&mut told[s], true) {
                            let m = format!("state `{name}` is read, and no phase appends to it");
                            out.push(Diagnostic::new("state-never-written", m).at(place));
                        }
                        continue;
                    }
                    _ => continue,
                };
                if !std::mem::replace(&mut told[s], true) {
                    let d = Diagnostic::new("stale-state", format!("state `{name}` {what}")).at(place);
                    out.push(d.help("append once, then read: a token must see its own row"));
                }
            }
            for (_, s) in step.args.iter().filter_map(state).filter(|(a, _)| a.access == Access::Update) {
                here[s] = true;
            }
        }
        // A sequence's tokens run in any phase that keeps rows: those that one leaves out are missing when another reads.
        let keeps = here.contains(&true);
        for (s, state) in plan.states.iter().filter(|_| keeps) {
            let s = s.as_u32() as usize;
            if appended[s] && !here[s] && !told[s] {
                let m = format!("this phase appends nothing to state `{}`, and others do", state.name);
                let d = Diagnostic::new("stale-state", m).at(Place::phase(phase));
                out.push(
                    d.help("a phase that keeps rows keeps them in every cache, also in those that it does not read"),
                );
            }
        }
    }
    for (s, state) in plan.states.iter().filter(|(_, s)| !s.name.starts_with('_')) {
        if !read[s.as_u32() as usize] {
            let d = Diagnostic::new("state-unread", format!("no phase reads the state `{}`", state.name));
            out.push(d.help("a cache that nothing reads is a lost output: remove it, or start its name with `_`"));
        }
    }
}

fn state(a: &Arg) -> Option<(&Arg, usize)> {
    match a.mem {
        Mem::State(s) => Some((a, s.as_u32() as usize)),
        _ => None,
    }
}
