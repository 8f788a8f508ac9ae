//! What is run: prompts, then decode steps of different tokens, timed, then watched.

use std::time::Instant;

use glmc_ir::plan::Plan;
use glmc_runtime::device;
use glmc_runtime::engine::{Engine, Running, SeqId, Want};

use super::bytes::{Touch, Touched};
use super::plan::Job;
use crate::error::CliError;

/// Prompts that are timed.
const PROMPTS: usize = 3;

/// Ids that do not repeat until all have been given.
struct Tokens {
    next: u64,
    stride: u64,
    vocab: u64,
}

impl Tokens {
    fn of(plan: &Plan) -> Tokens {
        let vocab = plan.model.vocab.max(1);
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let stride = (7919..).find(|s| gcd(*s, vocab) == 1).unwrap_or(1);
        Tokens { next: 11 % vocab, stride, vocab }
    }

    fn take(&mut self) -> u32 {
        let id = self.next;
        self.next = (id + self.stride) % self.vocab;
        id as u32
    }

    fn list(&mut self, n: u64) -> Vec<u32> {
        (0..n).map(|_| self.take()).collect()
    }
}

/// What a session saw.
#[derive(Default)]
pub(super) struct Seen {
    /// Seconds of each prompt.
    pub(super) prompts: Vec<f64>,
    /// Seconds of each decode step.
    pub(super) steps: Vec<f64>,
    /// Different tokens that were decoded in them.
    pub(super) tokens: u64,
    /// Seconds of a watched step, in the mean.
    pub(super) watched_s: f64,
    /// What the watched steps read.
    pub(super) touched: Touched,
    /// Of watched steps, the mean seconds after the start at which each step of the plan ended, where it wrote something
    /// that is shown.
    pub(super) ends: Vec<Option<f64>>,
}

/// Runs all of it. `look` is called with the phase whose step ran last, after the prompts and after the timed steps.
pub(super) fn run(
    job: &Job,
    engine: &mut Engine,
    look: &mut dyn FnMut(usize) -> Result<(), CliError>,
) -> Result<Seen, CliError> {
    let (mut tokens, pace) = (Tokens::of(&job.plan), job.pace);
    let mut seen = Seen::default();
    for round in 0..=PROMPTS {
        let prompt = tokens.list(job.prompt);
        let seq = engine.start();
        let start = Instant::now();
        engine.feed(seq, &prompt, Want::Last)?;
        if round > 0 {
            seen.prompts.push(start.elapsed().as_secs_f64());
        }
        engine.end(seq);
    }
    look(job.prefill)?;
    let seqs: Vec<SeqId> = (0..job.batch).map(|_| engine.start()).collect();
    for seq in &seqs {
        if pace.prompt() > 0 {
            engine.feed(*seq, &tokens.list(pace.prompt()), Want::Last)?;
        }
    }
    let mut different = std::collections::BTreeSet::new();
    for step in 0..pace.warm + pace.steps {
        let next: Vec<(SeqId, u32)> = seqs.iter().map(|s| (*s, tokens.take())).collect();
        let start = Instant::now();
        engine.decode(&next)?;
        if step >= pace.warm {
            seen.steps.push(start.elapsed().as_secs_f64());
            different.extend(next.iter().map(|n| n.1));
        }
    }
    seen.tokens = different.len() as u64;
    look(job.phase)?;
    let mut touch = Touch::of(job)?;
    let mut ends = vec![(0.0, 0u32); job.plan.phases[job.phase].steps.len()];
    for _ in 0..pace.steps {
        let next: Vec<(SeqId, u32)> = seqs.iter().map(|s| (*s, tokens.take())).collect();
        let start = Instant::now();
        let mut see = |_: &Running<'_>, s: device::Seen<'_>| {
            let (step, k) = (s.step, s.output);
            // Times and ids are those of one rank; all choose alike.
            if s.rank != job.rank.unwrap_or(0) {
                return Ok(());
            }
            if let Some(end) = ends.get_mut(step) {
                // The last of several outputs counts.
                if k == 0 {
                    end.1 += 1;
                    end.0 += start.elapsed().as_secs_f64();
                }
            }
            if let device::Output::I32(ids) = s.data {
                touch.see(step, k, ids);
            }
            Ok(())
        };
        engine.decode_observed(&next, Some(&mut see))?;
        seen.watched_s += start.elapsed().as_secs_f64() / pace.steps as f64;
        touch.end_of_step();
    }
    seen.touched = touch.result();
    seen.ends = ends.into_iter().map(|(sum, n)| (n > 0).then(|| sum / f64::from(n))).collect();
    Ok(seen)
}
