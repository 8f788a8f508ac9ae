//! A plan on the processor: all its ranks in this process.

use glmc_runtime::engine::Engine;
use glmc_runtime::load::{make_weights, map_weights};
use serde_json::json;

use super::classes::Piece;
use super::machine::Machine;
use super::measured::{Measured, Timed, median};
use super::plan::Job;
use super::session;
use crate::bus;
use crate::error::CliError;
use crate::memory;

pub(super) fn measure(job: &Job) -> Result<Measured, CliError> {
    memory::check(&job.plan, true)?;
    super::super::start_threads()?;
    let machine = Machine::of_cpu();
    let loaded = match &job.fills {
        Some(fills) => make_weights(job.plan.clone(), &job.dir, fills)?,
        None => {
            bus::reading_files(&job.plan.files);
            map_weights(job.plan.clone(), &job.dir)?
        }
    };
    let mut engine = Engine::new(loaded)?;
    let seen = session::run(job, &mut engine, &mut |_| Ok(()))?;
    let mut before = 0.0;
    let mut pieces = Vec::new();
    for (step, end) in seen.ends.iter().enumerate() {
        // A step that shows nothing ends with the next one; collectives that others run beside end late.
        let Some(end) = *end else { continue };
        pieces.push(Piece { step, kernel: None, start: before, end: end.max(before) });
        before = end.max(before);
    }
    // Watched steps are those that are cut into pieces, and being watched takes time: a piece's share of such a step is
    // taken to be its share of any. What is left of it before the first and after the last piece is the host's.
    let share = before / seen.watched_s.max(f64::MIN_POSITIVE);
    let device_s = share.min(1.0) * median(&seen.steps);
    let decode = Timed { phase: job.phase, device_s, traced_s: before, pieces, ..Timed::default() };
    let device = json!({ "device": "cpu", "arch": std::env::consts::ARCH });
    Ok(Measured { device, machine, seen, decode, prefill: None, memory: None })
}
