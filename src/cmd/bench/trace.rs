//! A step as Chrome trace events, which Perfetto shows.

use serde_json::{Value, json};

use super::classes::Class;
use super::measured::Measured;
use super::plan::{Job, Predicted};

/// The events of a decode step: one of each launch, in microseconds, with what it is for.
pub(super) fn events(job: &Job, predicted: &Predicted, m: &Measured) -> Value {
    let phase = &job.plan.phases[job.phase];
    let (scale, rank) = (1e6 * m.decode.scale(), job.rank());
    let event = |p: &super::classes::Piece| {
        let (step, cost) = (&phase.steps[p.step], &predicted.steps[p.step]);
        let class = Class::of(step, cost).name();
        let kernel = p.kernel.and_then(|k| m.decode.names.get(k));
        json!({
            "name": step.name, "cat": class, "ph": "X", "pid": rank, "tid": 0, "ts": p.start * scale,
            "dur": (p.end - p.start) * scale,
            "args": { "contract": step.kernel.name(), "kernel": kernel, "weights": cost.bytes.weights, "caches": cost.bytes.caches },
        })
    };
    let mut all: Vec<Value> = m.decode.pieces.iter().map(event).collect();
    let name = format!("rank {rank}, {}", phase.name);
    all.push(json!({ "name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": { "name": name } }));
    json!({ "displayTimeUnit": "ns", "otherData": { "by": "glmc bench" }, "traceEvents": all })
}
