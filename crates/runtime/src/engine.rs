//! Owns sequences: which pool rows they hold, how far they are, and the step parameters of each step. Never samples,
//! never knows text or kernels.
//!
//! Contract: two live sequences never share a pool row, and a row is reused only after its sequence is gone.

use glmc_ir::plan::{PhaseKind, param};
use glmc_ir::ty::SymValues;

use crate::device::{Device, Seen, cpu_of};
use crate::error::RuntimeError;
use crate::load::{Loaded, check_engine};
use crate::scan::Scan;

/// A live sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SeqId(usize);

/// Which logits a feed returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Those of the last token.
    Last,
    /// Those of every token.
    All,
}

/// The step that a device is running.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// Index of the phase.
    pub phase: usize,
    /// Values of its symbols.
    pub syms: &'a SymValues,
    /// Its parameters, whole and in order.
    pub params: &'a [Vec<i32>],
    /// Tokens that are none of padding; they come first.
    pub tokens: usize,
    /// Rows of logits that are wanted; they come first.
    pub rows: usize,
}

/// Called after each step of each rank with what it wrote; an error stops the run.
pub type Watch<'a> = &'a mut (dyn FnMut(&Running<'_>, Seen<'_>) -> Result<(), RuntimeError> + Send);

/// Runs a loaded plan on a device.
#[derive(Debug)]
pub struct Engine {
    loaded: Loaded,
    device: Box<dyn Device>,
    seqs: Vec<Option<Vec<i32>>>,
    /// Rows that ended sequences gave back.
    free: Vec<i32>,
    /// Rows that no sequence ever had: handed out low rows first, so that a pool becomes resident from its start.
    fresh: std::ops::Range<i32>,
    chunk: u64,
    scan: Option<Scan>,
}

impl Engine {
    /// An engine with empty caches on the CPU, whatever the plan's target: launches mean the same everywhere.
    ///
    /// # Errors
    /// A plan whose phases or sizes do not fit the engine, a contract that the CPU does not have, or memory or threads
    /// that the system does not give.
    pub fn new(loaded: Loaded) -> Result<Self, RuntimeError> {
        check_engine(&loaded.plan, &loaded.dir)?;
        let device = cpu_of(&loaded.plan)?;
        Self::on(loaded, device)
    }

    /// An engine with empty caches on a device that was made for the plan.
    ///
    /// # Errors
    /// A plan whose phases or sizes do not fit the engine.
    pub fn on(loaded: Loaded, device: Box<dyn Device>) -> Result<Self, RuntimeError> {
        check_engine(&loaded.plan, &loaded.dir)?;
        let rows = i32::try_from(loaded.plan.limits.cache_rows)
            .map_err(|_| RuntimeError::Request("a cache of more than 2^31 rows".into()))?;
        let chunk = loaded.plan.limits.chunk;
        Ok(Engine { loaded, device, seqs: Vec::new(), free: Vec::new(), fresh: 0..rows, chunk, scan: None })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &glmc_ir::plan::Plan {
        &self.loaded.plan
    }

    /// The loaded plan.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Prefills in chunks of at most `n` tokens (and at most the plan's).
    pub fn set_chunk(&mut self, n: u64) {
        self.chunk = n.clamp(1, self.loaded.plan.limits.chunk);
    }

    /// Fills every output with poison before each launch writes it.
    pub fn set_poison(&mut self, on: bool) {
        self.device.set_poison(on);
    }

    /// Poisons outputs, and scans them after each step ([`crate::scan`]): the first that is no number is an error.
    pub fn set_check(&mut self, on: bool) {
        self.device.set_poison(on);
        self.scan = on.then(|| Scan::new(&self.loaded.plan));
    }

    /// Lets the thread of a rank die in the next run, before this step ([`Device::kill`]).
    ///
    /// # Errors
    /// The device has no such rank, or none with a thread of its own.
    pub fn kill(&mut self, rank: usize, step: usize) -> Result<(), RuntimeError> {
        self.device.kill(rank, step)
    }

    /// A new, empty sequence.
    pub fn start(&mut self) -> SeqId {
        if let Some(i) = self.seqs.iter().position(Option::is_none) {
            self.seqs[i] = Some(Vec::new());
            return SeqId(i);
        }
        self.seqs.push(Some(Vec::new()));
        SeqId(self.seqs.len() - 1)
    }

    /// Ends a sequence; its rows are free again.
    pub fn end(&mut self, seq: SeqId) {
        if let Some(rows) = self.seqs.get_mut(seq.0).and_then(Option::take) {
            self.free.extend(rows.into_iter().rev());
        }
    }

    /// Tokens that the sequence holds.
    pub fn len(&self, seq: SeqId) -> usize {
        self.rows(seq).map_or(0, Vec::len)
    }

    /// Whether the sequence holds no token.
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.len(seq) == 0
    }

    /// Tokens that still fit: what the context and the free rows allow.
    pub fn room(&self, seq: SeqId) -> usize {
        (self.loaded.plan.limits.ctx as usize).saturating_sub(self.len(seq)).min(self.free.len() + self.fresh.len())
    }

    fn rows(&self, seq: SeqId) -> Result<&Vec<i32>, RuntimeError> {
        let rows = self.seqs.get(seq.0).and_then(Option::as_ref);
        rows.ok_or_else(|| RuntimeError::Request("the sequence has ended".into()))
    }

    /// Appends `tokens` to a sequence, chunk by chunk, and returns the wanted logits, row-major `[rows, vocab]`.
    ///
    /// # Errors
    /// No tokens, an id outside the vocabulary, no room, no phase for so many positions, or a launch that failed.
    pub fn feed(&mut self, seq: SeqId, tokens: &[u32], want: Want) -> Result<Vec<f32>, RuntimeError> {
        self.feed_observed(seq, tokens, want, None)
    }

    /// [`Engine::feed`], showing every output of every step on every rank.
    ///
    /// # Errors
    /// As for [`Engine::feed`].
    pub fn feed_observed(
        &mut self,
        seq: SeqId,
        tokens: &[u32],
        want: Want,
        mut see: Option<Watch<'_>>,
    ) -> Result<Vec<f32>, RuntimeError> {
        self.check(seq, tokens)?;
        let mut logits = Vec::new();
        let chunks = tokens.len().div_ceil(self.chunk as usize);
        for (i, chunk) in tokens.chunks(self.chunk as usize).enumerate() {
            let start = self.len(seq);
            let index = self.phase(PhaseKind::Prefill, chunk.len(), start + chunk.len())?;
            let batch = Batch {
                tokens: chunk.iter().map(|t| *t as i32).collect(),
                owners: chunk.iter().enumerate().map(|(k, _)| Some((seq, start + k))).collect(),
                seqs: vec![seq],
                // A middle chunk only fills the caches.
                out: match want {
                    Want::All => (0..chunk.len() as i32).collect(),
                    Want::Last if i + 1 == chunks => vec![chunk.len() as i32 - 1],
                    Want::Last => vec![],
                },
            };
            self.grow(seq, chunk.len())?;
            let result = self.run(index, &batch, see.as_mut().map(|s| &mut **s as Watch<'_>)).and_then(finite);
            if result.is_err() {
                self.shrink(seq, start);
            }
            logits.extend(result?);
        }
        Ok(logits)
    }

    /// One decode step: a token for each of several sequences; returns logits `[n, vocab]`.
    ///
    /// # Errors
    /// More sequences than the plan's largest bucket, one sequence twice, an id outside the vocabulary, no room, no phase
    /// for so many positions, or a launch that failed.
    pub fn decode(&mut self, next: &[(SeqId, u32)]) -> Result<Vec<f32>, RuntimeError> {
        self.decode_observed(next, None)
    }

    /// [`Engine::decode`], showing every output of every step on every rank.
    ///
    /// # Errors
    /// As for [`Engine::decode`].
    pub fn decode_observed(&mut self, next: &[(SeqId, u32)], see: Option<Watch<'_>>) -> Result<Vec<f32>, RuntimeError> {
        for (i, (seq, token)) in next.iter().enumerate() {
            self.check(*seq, &[*token])?;
            if next[..i].iter().any(|(s, _)| s == seq) {
                return Err(RuntimeError::Request("one sequence twice in a decode step".into()));
            }
        }
        let starts: Vec<usize> = next.iter().map(|(s, _)| self.len(*s)).collect();
        let index = self.phase(PhaseKind::Decode, next.len(), starts.iter().max().map_or(0, |n| n + 1))?;
        let bucket = self.loaded.plan.phases[index].tokens as usize;
        let pad = bucket - next.len();
        let owners = next.iter().zip(&starts).map(|((s, _), at)| Some((*s, *at))).chain(vec![None; pad]).collect();
        let batch = Batch {
            tokens: next.iter().map(|(_, t)| *t as i32).chain(vec![-1; pad]).collect(),
            owners,
            seqs: next.iter().map(|(s, _)| *s).collect(),
            out: (0..next.len() as i32).chain(vec![-1; pad]).collect(),
        };
        let grown = next.iter().try_for_each(|(s, _)| self.grow(*s, 1));
        let wanted = next.len() * self.loaded.plan.model.vocab as usize;
        let result = grown.and_then(|()| self.run(index, &batch, see)).and_then(|mut logits| {
            logits.truncate(wanted);
            finite(logits)
        });
        if result.is_err() {
            next.iter().zip(&starts).for_each(|((s, _), at)| self.shrink(*s, *at));
        }
        result
    }

    fn check(&self, seq: SeqId, tokens: &[u32]) -> Result<(), RuntimeError> {
        self.rows(seq)?;
        if tokens.is_empty() {
            return Err(RuntimeError::Request("there are no tokens to run".into()));
        }
        let vocab = self.loaded.plan.model.vocab;
        if let Some(t) = tokens.iter().find(|t| u64::from(**t) >= vocab) {
            return Err(RuntimeError::Request(format!("token id {t} is outside the vocabulary of {vocab}")));
        }
        let (have, room) = (self.len(seq), self.room(seq));
        if tokens.len() > room {
            let ctx = self.loaded.plan.limits.ctx;
            return Err(RuntimeError::Context(format!(
                "{} tokens after {have} do not fit: the plan's context is {ctx}, {room} are left; compile with a larger --ctx",
                tokens.len()
            )));
        }
        Ok(())
    }

    fn grow(&mut self, seq: SeqId, n: usize) -> Result<(), RuntimeError> {
        if self.free.len() + self.fresh.len() < n {
            return Err(RuntimeError::Context("the cache has no free rows".into()));
        }
        if let Some(s) = self.seqs.get_mut(seq.0).and_then(Option::as_mut) {
            let back = self.free.split_off(self.free.len().saturating_sub(n));
            let missing = n - back.len();
            s.extend(back.into_iter().rev());
            s.extend(self.fresh.by_ref().take(missing));
        }
        Ok(())
    }

    fn shrink(&mut self, seq: SeqId, len: usize) {
        if let Some(s) = self.seqs.get_mut(seq.0).and_then(Option::as_mut)
            && s.len() > len
        {
            self.free.extend(s.drain(len..).rev());
        }
    }

    /// The cheapest phase for a step of `tokens` tokens whose longest sequence sees `visible` positions: never one that is
    /// bounded below that.
    fn phase(&self, kind: PhaseKind, tokens: usize, visible: usize) -> Result<usize, RuntimeError> {
        let plan = &self.loaded.plan;
        let (tokens, visible) = (tokens as u64, visible as u64);
        if let Some(index) = plan.phase_for(kind, tokens, visible) {
            return Ok(index);
        }
        Err(match kind {
            PhaseKind::Decode if tokens > plan.limits.max_batch => {
                let most = plan.limits.max_batch;
                RuntimeError::Request(format!("the plan runs {most} sequences at once, not {tokens}"))
            }
            _ => RuntimeError::NoPhase { kind, tokens, visible },
        })
    }

    fn run(&mut self, index: usize, batch: &Batch, mut see: Option<Watch<'_>>) -> Result<Vec<f32>, RuntimeError> {
        let phase = &self.loaded.plan.phases[index];
        let lens: Vec<usize> = batch.owners.iter().map(|o| o.map_or(0, |(_, at)| at + 1)).collect();
        let visible = lens.iter().copied().max().unwrap_or(0);
        let syms = SymValues::default()
            .with("T", batch.tokens.len() as u64)
            .with(param::VISIBLE, visible as u64)
            .with("R", batch.out.len() as u64);
        let per_token = |f: &dyn Fn(SeqId, usize) -> i32, none: i32| -> Vec<i32> {
            batch.owners.iter().map(|o| o.map_or(none, |(s, at)| f(s, at))).collect()
        };
        let mut params = Vec::with_capacity(phase.params.len());
        for p in phase.params.values() {
            params.push(match p.name.as_str() {
                param::TOKENS => batch.tokens.clone(),
                param::POS => per_token(&|_, at| at as i32, 0),
                param::ROW => per_token(&|s, at| self.seqs[s.0].as_ref().map_or(-1, |r| r[at]), -1),
                param::SEQ => per_token(&|s, _| batch.seqs.iter().position(|x| *x == s).map_or(0, |i| i as i32), 0),
                param::LEN => lens.iter().map(|n| *n as i32).collect(),
                param::TABLE => self.table(batch, p.ty.shape(&syms).map_or(1, |s| s[0] as usize), visible),
                param::OUT => batch.out.clone(),
                other => return Err(RuntimeError::Request(format!("the plan asks for a step parameter `{other}`"))),
            });
        }
        let running = Running {
            phase: index,
            syms: &syms,
            params: &params,
            tokens: batch.owners.iter().flatten().count(),
            rows: batch.out.iter().filter(|i| **i >= 0).count(),
        };
        let (plan, weights, scan) = (&self.loaded.plan, &self.loaded.weights, self.scan.as_ref());
        if see.is_none() && scan.is_none() {
            self.device.run(plan, index, weights, &syms, &params, None)?;
        } else {
            let mut both = |seen: Seen<'_>| {
                scan.map_or(Ok(()), |s| s.judge(plan, &running, &seen))?;
                see.as_mut().map_or(Ok(()), |see| see(&running, seen))
            };
            self.device.run(plan, index, weights, &syms, &params, Some(&mut both))?;
        }
        if batch.out.is_empty() {
            return Ok(Vec::new());
        }
        let phase = &self.loaded.plan.phases[index];
        Ok(self.device.result(&self.loaded.plan, phase, param::LOGITS, &syms)?.to_vec())
    }

    /// `[seqs, visible]` pool rows, -1 where a sequence is shorter.
    fn table(&self, batch: &Batch, seqs: usize, visible: usize) -> Vec<i32> {
        let mut table = vec![-1; seqs * visible];
        for (row, s) in table.chunks_exact_mut(visible.max(1)).zip(&batch.seqs) {
            if let Some(rows) = &self.seqs[s.0] {
                let n = rows.len().min(visible);
                row[..n].copy_from_slice(&rows[..n]);
            }
        }
        table
    }
}

/// The logits, if each is a number: anything else is a fault of the model or the device, never a choice.
fn finite(logits: Vec<f32>) -> Result<Vec<f32>, RuntimeError> {
    match logits.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(RuntimeError::Numbers(format!("entry {i} of {} is {}", logits.len(), logits[i]))),
        None => Ok(logits),
    }
}

/// The tokens of one step.
struct Batch {
    tokens: Vec<i32>,
    /// The sequence and position of each token; `None` for padding.
    owners: Vec<Option<(SeqId, usize)>>,
    seqs: Vec<SeqId>,
    out: Vec<i32>,
}
