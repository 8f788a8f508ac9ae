//! Owns the refusal of a model that is too large for its target: every part, and the sizes that would fit, each found by
//! compiling at other sizes.

use glmc_ir::plan::Limits;
use glmc_passes::fit::{self, TooLarge};

use super::compile::Job;
use crate::error::CliError;

/// The error for a plan of these sizes that was `refused`.
pub(super) fn refusal(job: &Job<'_>, limits: &Limits, refused: &TooLarge) -> Result<CliError, CliError> {
    let asked = i128::from(refused.need.total()) - i128::from(refused.memory);
    tracing::warn!("too large by {asked} bytes: compiling at other sizes to find what fits");
    let probe = |at: Limits| job.too_large(&at);
    // Steps grow with the context up to the size of a chunk; beyond, only what is cached does.
    let ctx = fit::largest(limits.ctx, asked, &[limits.chunk], |n| probe(at_ctx(limits, n)))?;
    let batch = fit::largest(limits.max_batch, asked, &[], |n| probe(Limits { max_batch: n, ..limits.clone() }))?;
    let mut message = format!("{refused}; ");
    message += &match ctx {
        Some(n) => format!("the largest context that fits is {n}"),
        None if limits.max_batch > 1 => format!("no context fits at batch {}", limits.max_batch),
        None => "no context fits".to_owned(),
    };
    message += &match batch {
        Some(n) => format!(", the largest batch at context {} is {n}", limits.ctx),
        None => format!(", no batch fits at context {}", limits.ctx),
    };
    // Pools that the context does not size.
    if limits.cache_rows != limits.ctx {
        let rows = fit::largest(limits.cache_rows, asked, &[], |n| probe(Limits { cache_rows: n, ..limits.clone() }))?;
        let (asked, bytes) = (limits.cache_rows, refused.need.cache_bytes());
        message += &match rows {
            Some(n) => format!("; the {asked} rows of --cache take {bytes} bytes of it: {n} rows would fit"),
            None => format!("; the {asked} rows of --cache take {bytes} bytes of it"),
        };
    }
    // Arenas and what travels grow with the tokens of a prefill step, which the target states.
    let steps = i128::from(refused.need.arena.saturating_add(refused.need.collectives));
    if limits.chunk > 1 && steps * 100 > i128::from(refused.need.total()) {
        message += &format!(
            "; steps of {} tokens take {steps} bytes of it: `chunk` of the target file makes them smaller",
            limits.chunk
        );
    }
    let subject = Some(format!("rank {}", refused.rank));
    Ok(CliError { subject, ..CliError::usage("too-large", message).class("memory").of(job.file) })
}

/// The sizes with another context: pools follow it unless they were sized apart.
fn at_ctx(limits: &Limits, ctx: u64) -> Limits {
    let cache_rows = if limits.cache_rows == limits.ctx { ctx } else { limits.cache_rows };
    Limits { ctx, cache_rows, chunk: limits.chunk.min(ctx), ..limits.clone() }
}
