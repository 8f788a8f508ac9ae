//! Owns the rules of the arena: aligned, sized and bounded buffers, and no two live ones on the same bytes.

use std::collections::BTreeMap;

use super::memory::lives;
use super::{Findings, Place};
use crate::diag::Diagnostic;
use crate::entities::BufId;
use crate::plan::{ALIGN, Buffer, Phase, Plan};
use crate::shard_map::largest_bytes;

/// An arena may be larger than all its buffers by this much: allocators round.
const SLACK: u128 = 1 << 16;

pub(super) fn check(plan: &Plan, phase: &Phase, out: &mut Findings) {
    // A list that is full tells nothing about what follows, and the sweep relies on sound buffers.
    if out.full() {
        return;
    }
    let before = out.0.len();
    let syms = phase.bounds();
    let mut sum = 0u128;
    for (id, b) in &phase.buffers {
        let at = format_args!("phase {} buffer {id} `{}`", phase.name, b.name).to_string();
        sum += u128::from(b.bytes).next_multiple_of(u128::from(ALIGN));
        if !b.offset.is_multiple_of(ALIGN) {
            let m = format!("it starts at {}, which is no multiple of {ALIGN}", b.offset);
            out.push(Diagnostic::new("buffer-align", m).at(at.clone()));
        }
        match largest_bytes(&b.ty, &plan.mesh, &syms) {
            Ok(n) if n != b.bytes => {
                let m = format!("it has {} bytes, {} needs {n} at the bounds of its symbols", b.bytes, b.ty);
                out.push(Diagnostic::new("buffer-size", m).at(at.clone()));
            }
            Ok(_) => {}
            Err(d) => out.push(d.at(at.clone())),
        }
        if b.offset.checked_add(b.bytes).is_none_or(|end| end > phase.arena_bytes) {
            let m = format!("{} bytes at {} end outside the arena of {}", b.bytes, b.offset, phase.arena_bytes);
            out.push(Diagnostic::new("buffer-bounds", m).at(at));
        }
        if out.full() {
            return;
        }
    }
    if u128::from(phase.arena_bytes) > sum + SLACK {
        let m = format!("an arena of {} bytes for buffers of {sum}", phase.arena_bytes);
        out.push(Diagnostic::new("arena-size", m).at(Place::phase(phase)).help("no layout needs more than their sum"));
    }
    if out.0.len() == before {
        overlaps(phase, out);
    }
}

/// `live-overlap`: walks the steps with the live buffers in order of offset. A buffer lives from the step that writes it
/// to the last that reads it, both included: a step may read one buffer while it writes another.
fn overlaps(phase: &Phase, out: &mut Findings) {
    let lives = lives(phase);
    let mut born: Vec<(usize, usize, BufId)> = Vec::new();
    for (id, _) in &phase.buffers {
        let life = lives[id.as_u32() as usize];
        if let Some(w) = life.written {
            born.push((w, life.read.unwrap_or(w), id));
        }
    }
    born.sort_unstable();
    let mut live: BTreeMap<u64, BufId> = BTreeMap::new();
    let mut ends: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (start, end, id) in born {
        // What was last read before this step is dead.
        let still = ends.split_off(&start);
        for offset in std::mem::replace(&mut ends, still).into_values().flatten() {
            live.remove(&offset);
        }
        let b = &phase.buffers[id];
        let other = live.range(..b.offset + b.bytes).next_back().map(|(_, o)| *o);
        match other.filter(|o| overlap(&phase.buffers[*o], b)) {
            Some(o) => {
                out.push(told(phase, start, id, o, lives[o.as_u32() as usize].read));
                if out.full() {
                    return;
                }
            }
            None => {
                live.insert(b.offset, id);
                ends.entry(end).or_default().push(b.offset);
            }
        }
    }
}

fn overlap(a: &Buffer, b: &Buffer) -> bool {
    a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

fn told(phase: &Phase, step: usize, id: BufId, other: BufId, read: Option<usize>) -> Diagnostic {
    let (b, o) = (&phase.buffers[id], &phase.buffers[other]);
    let until = match read {
        Some(usize::MAX) => "is a result".to_owned(),
        Some(r) => format!("is read by step {r} `{}`", phase.steps[r].name),
        None => "is written by this very step".to_owned(),
    };
    let m = format!(
        "{id} `{}` is written to bytes {}..{}, where {other} `{}` at {}..{} still lives: it {until}",
        b.name,
        b.offset,
        b.offset + b.bytes,
        o.name,
        o.offset,
        o.offset + o.bytes
    );
    Diagnostic::new("live-overlap", m)
        .at(Place::step(phase, step))
        .help("give one of them bytes of its own while both live")
}
