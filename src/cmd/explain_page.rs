//! `glmc explain PLAN --html FILE`: one page that needs nothing else: memory by rank, the steps of a decoded token, where
//! their time goes, what was rewritten and placed. Every text that comes from a plan is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use glmc_ir::plan::{Phase, Plan};
use glmc_passes::cost::{Bound, StepCost, smallest_decode, step_costs};
use glmc_passes::fit::Need;
use glmc_passes::target::Target;

use super::decisions::Decisions;
use super::figures::human_seconds;
use super::human_bytes;
use crate::error::CliError;
use crate::output::PAGE;

pub(super) const STYLE: &str = include_str!("explain_page.css");

/// Text in which nothing is markup.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::terminal::escaped(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A table with a heading a column; columns from `numbers` on are numbers.
pub(super) fn table(caption: &str, heads: &[&str], numbers: usize, rows: &[Vec<String>]) -> String {
    let mut out = format!("<div class=scroll><table><caption>{}</caption><thead><tr>", escape(caption));
    let class = |i: usize| if i >= numbers { " class=n" } else { "" };
    for (i, h) in heads.iter().enumerate() {
        let _ = write!(out, "<th scope=col{}>{}</th>", class(i), escape(h));
    }
    out += "</tr></thead><tbody>";
    for row in rows {
        out += "<tr>";
        for (i, cell) in row.iter().enumerate() {
            let _ = match i {
                0 => write!(out, "<th scope=row>{}</th>", escape(cell)),
                _ => write!(out, "<td{}>{}</td>", class(i), escape(cell)),
            };
        }
        out += "</tr>";
    }
    out + "</tbody></table></div>\n"
}

/// A bar a rank, of parts whose width is their share of the most that any rank has or needs.
fn memory(needs: &[Need], available: Option<u64>) -> String {
    let most = needs.iter().map(Need::total).chain(available).max().unwrap_or(1).max(1);
    let names: Vec<String> = needs.first().map(|n| n.parts().into_iter().map(|p| p.0).collect()).unwrap_or_default();
    let mut out = String::from("<section aria-labelledby=memory><h2 id=memory>Memory by rank</h2>\n<ul class=legend>");
    let used = |i: usize| needs.iter().any(|n| n.parts().get(i).is_some_and(|p| p.1 > 0));
    for (i, n) in names.iter().enumerate().filter(|(i, _)| used(*i)) {
        let _ = write!(out, "<li><span class=\"key c{}\"></span>{}</li>", i % 8, escape(n));
    }
    out += "</ul>\n";
    for (rank, need) in needs.iter().enumerate() {
        let total = human_bytes(need.total());
        let of = available.map_or_else(String::new, |a| format!(" of {}", human_bytes(a)));
        let parts: Vec<String> =
            need.parts().iter().filter(|p| p.1 > 0).map(|p| format!("{} {}", p.0, human_bytes(p.1))).collect();
        let label = escape(&format!("rank {rank}: {total}{of}: {}", parts.join(", ")));
        let _ = write!(
            out,
            "<div class=row><span class=name>rank {rank}</span><div class=bar role=img aria-label=\"{label}\" title=\"{label}\">"
        );
        for (i, (_, bytes)) in need.parts().iter().enumerate().filter(|(_, p)| p.1 > 0) {
            let width = 100.0 * *bytes as f64 / most as f64;
            let _ = write!(out, "<span class=c{} style=\"width:{width:.3}%\"></span>", i % 8);
        }
        let _ = writeln!(out, "</div><span class=figure>{}</span></div>", escape(&format!("{total}{of}")));
    }
    let rows: Vec<Vec<String>> = needs
        .iter()
        .enumerate()
        .map(|(r, n)| {
            let parts = n.parts().into_iter().map(|p| human_bytes(p.1));
            std::iter::once(format!("rank {r}")).chain(parts).chain([human_bytes(n.total())]).collect()
        })
        .collect();
    let heads: Vec<&str> = std::iter::once("rank").chain(names.iter().map(String::as_str)).chain(["sum"]).collect();
    let _ = writeln!(
        out,
        "<details><summary>As a table</summary>{}</details></section>",
        table("Bytes by rank", &heads, 1, &rows)
    );
    out
}

fn class_of(c: &StepCost) -> usize {
    match c.bound {
        Bound::Link => 2,
        Bound::Launch => 4,
        Bound::Arithmetic => 3,
        Bound::Memory if c.bytes.weights >= c.bytes.caches.max(c.bytes.other) => 0,
        Bound::Memory if c.bytes.caches >= c.bytes.other => 1,
        Bound::Memory => 5,
    }
}

const CLASSES: [&str; 6] = ["weights", "caches", "links", "arithmetic", "launches", "activations"];

/// The steps of a phase side by side, as wide as they take.
fn timeline(phase: &str, steps: &[StepCost]) -> String {
    let total: f64 = steps.iter().map(|s| s.seconds).sum();
    let mut out = format!(
        "<h3>Steps of {}</h3>\n<p>{} steps, {} predicted on rank 0. Each is as wide as it takes; its colour says what it \
         waits for. Point at one for its name.</p>\n<ul class=legend>",
        escape(phase),
        steps.len(),
        escape(&human_seconds(total))
    );
    for (i, n) in CLASSES.iter().enumerate() {
        let _ = write!(out, "<li><span class=\"key c{i}\"></span>{n}</li>");
    }
    let label = format!(
        "{} steps of {}, {} in all; the table below lists them by kernel",
        steps.len(),
        phase,
        human_seconds(total)
    );
    let _ = write!(
        out,
        "</ul>\n<svg class=timeline viewBox=\"0 0 1000 60\" preserveAspectRatio=none role=img aria-label=\"{}\">",
        escape(&label)
    );
    let mut at = 0.0;
    for s in steps {
        let width = if total > 0.0 { 1000.0 * s.seconds / total } else { 0.0 };
        let title = escape(&format!("{} ({}): {}", s.step, s.kernel, human_seconds(s.seconds)));
        let _ = write!(
            out,
            "<rect class=c{} x={at:.3} y=0 width={width:.3} height=60><title>{title}</title></rect>",
            class_of(s)
        );
        at += width;
    }
    out + "</svg>\n"
}

/// What each kernel moves, computes and takes, and how near it is to the roof.
fn roofline(target: &Target, steps: &[StepCost]) -> String {
    #[derive(Default)]
    struct Sum {
        steps: usize,
        bytes: u64,
        exchanged: u64,
        flops: u64,
        seconds: f64,
        launch: f64,
        bounds: BTreeMap<Bound, f64>,
    }
    let mut by: BTreeMap<&str, Sum> = BTreeMap::new();
    for s in steps {
        let row = by.entry(s.kernel).or_default();
        row.steps += 1;
        row.bytes += s.bytes.total();
        row.exchanged += s.exchanged;
        row.flops += s.flops;
        row.seconds += s.seconds;
        row.launch += s.launch_s;
        *row.bounds.entry(s.bound).or_default() += s.seconds;
    }
    let total: f64 = steps.iter().map(|s| s.seconds).sum();
    let mut rows: Vec<_> = by.into_iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds).then(a.0.cmp(b.0)));
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(kernel, Sum { steps, bytes, exchanged, flops, seconds, launch, bounds })| {
            let bound = bounds
                .into_iter()
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map_or_else(String::new, |(b, _)| format!("{b:?}"));
            let roof = bytes as f64 / target.device.read_bytes_per_s;
            vec![
                kernel.to_owned(),
                bound.to_lowercase(),
                steps.to_string(),
                if exchanged > 0 { "-".into() } else { human_bytes(bytes) },
                if exchanged > 0 { human_bytes(exchanged) } else { "-".into() },
                format!("{:.3}", flops as f64 / 1e9),
                if bytes > 0 { format!("{:.1}", flops as f64 / bytes as f64) } else { "-".into() },
                human_seconds(seconds),
                human_seconds(launch),
                // The roof is that of a rank's own memory.
                if exchanged > 0 {
                    "-".into()
                } else {
                    format!("{:.0} %", 100.0 * roof / seconds.max(f64::MIN_POSITIVE))
                },
                format!("{:.1} %", if total > 0.0 { 100.0 * seconds / total } else { 0.0 }),
            ]
        })
        .collect();
    let heads = [
        "kernel",
        "bound by",
        "steps",
        "bytes moved",
        "bytes exchanged",
        "GFLOP",
        "flop/byte",
        "time",
        "of it launch",
        "of the byte roof",
        "of the step",
    ];
    format!("<h3>Roofline</h3>\n{}", table("By kernel, the longest first", &heads, 2, &rows))
}

fn rewrites(d: &Decisions) -> String {
    let row = |f: &super::decisions::Rewritten| {
        let rules: Vec<String> = f.rules.iter().map(|(r, n)| format!("{r} {n}")).collect();
        let next = f.others.first().map_or_else(|| "-".into(), |s| human_seconds(*s));
        vec![f.name.clone(), rules.join(", "), human_seconds(f.before), human_seconds(f.after), next]
    };
    let rows: Vec<Vec<String>> = d.functions.iter().map(row).collect();
    let heads = ["function", "rules and the ops that each made", "before", "after", "next best"];
    format!(
        "<section aria-labelledby=rules><h2 id=rules>Rewrites</h2>\n{}</section>\n",
        table(&format!("Predicted time of one call on {}", super::decisions::ONE_RANK), &heads, 2, &rows)
    )
}

fn placements(d: &Decisions) -> String {
    let Some(p) = &d.placement else { return String::new() };
    let mut out = String::from("<section aria-labelledby=places><h2 id=places>Placements</h2>\n");
    for f in &p.functions {
        let row = |v: &glmc_passes::shard::report::Chosen| {
            let others: Vec<String> = v.others.iter().map(|o| super::decisions::other_line(o, v.seconds)).collect();
            vec![
                v.value.clone(),
                v.ty.clone(),
                if others.is_empty() { "-".into() } else { others.join("; or ") },
                v.bytes.map_or_else(|| "-".into(), human_bytes),
            ]
        };
        // What was decided: weights and pools, and values that had a choice.
        let rows: Vec<Vec<String>> =
            f.values.iter().filter(|v| v.bytes.is_some() || !v.others.is_empty()).map(row).collect();
        let heads = ["value", "placed as", "or", "bytes on a rank"];
        let caption = format!("{}: {} a run", f.name, human_seconds(f.seconds));
        let _ = writeln!(
            out,
            "<details><summary>{}</summary>{}</details>",
            escape(&caption),
            table(&caption, &heads, 3, &rows)
        );
    }
    out + "</section>\n"
}

/// The page.
pub(super) fn page(
    plan: &Plan,
    target: &Target,
    needs: &[Need],
    d: &Decisions,
    tune_ctx: u64,
) -> Result<String, CliError> {
    let mut body = memory(needs, target.device.memory_bytes);
    // The smallest decode step is what a reader mostly looks for: it comes first, and open.
    let first = smallest_decode(plan, tune_ctx).map(|p| &p.name);
    let mut phases: Vec<&Phase> = plan.phases.iter().collect();
    phases.sort_by_key(|p| Some(&p.name) != first);
    body += "<section aria-labelledby=phases><h2 id=phases>Phases</h2>\n";
    for (i, phase) in phases.into_iter().enumerate() {
        let steps = step_costs(plan, phase, target, tune_ctx, 0).map_err(|e| CliError::internal(e.to_string()))?;
        let whole = super::figures::slowest(plan, phase, target, tune_ctx)?;
        let lines = super::figures::step_lines(&whole);
        let _ = writeln!(
            body,
            "<details{}><summary>{}</summary>\n<p>{}</p>\n{}{}</details>",
            if i == 0 { " open" } else { "" },
            escape(&phase.name),
            lines.iter().map(|l| escape(l.trim())).collect::<Vec<_>>().join("<br>"),
            timeline(&phase.name, &steps),
            roofline(target, &steps)
        );
    }
    body += "</section>\n";
    body += &rewrites(d);
    body += &placements(d);
    let name = if plan.model.name.is_empty() { plan.model.arch.clone() } else { plan.model.name.clone() };
    let context = tune_ctx.min(plan.limits.ctx);
    let title = escape(&format!("{name} on {}", target.name));
    let about = escape(&format!(
        "{} layers, {} ranks of {}, context {}, batch {}; costed at context {context}; {}",
        plan.model.layers, plan.target.ranks, plan.target.arch, plan.limits.ctx, plan.limits.max_batch, plan.producer
    ));
    Ok(format!(
        "{}<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\n\
         <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>\n<p>{about}</p>\n{body}</main></body></html>\n",
        PAGE.begins()
    ))
}

#[cfg(test)]
mod tests {
    use super::{escape, table};

    #[test]
    fn names_are_no_markup() {
        let evil = "<script>alert('x')</script>\" onload=\"y&\u{1b}[31m";
        let safe = escape(evil);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{1b}']), "{safe}");
        let t = table("c", &["<b>", "n"], 1, &[vec![evil.into(), evil.into()]]);
        assert!(!t.contains("<script") && !t.contains("<b>") && !t.contains("onload=\""), "{t}");
    }
}
