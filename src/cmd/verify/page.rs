//! `glmc verify --html`: one page that needs nothing else: a map of layers and values, coloured by their errors, and the
//! first divergence. Every text that comes from a plan is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::judge::{Outcome, worst_by};
use super::report::{Report, errors, ranks};
use crate::cmd::explain_page::{STYLE, escape, table};
use crate::output::VERIFY_PAGE;

/// Cells of the map, from far below the bound to far above it.
const MAP: &str = "
.map td{width:1.4rem;height:1.4rem;padding:0;border:1px solid var(--bg)}
.map th{padding:.1rem .4rem;font-size:.8rem}.map thead th{writing-mode:vertical-rl;vertical-align:bottom}
.e0{background:#2f7d4f}.e1{background:#7a9e4b}.e2{background:#b8a13a}.e3{background:#c0693f}.e4{background:#b3262e}
.e5{background:var(--line)}.bad{border-left:.3rem solid #b3262e;padding-left:1rem}";

/// Classes of cells with what they say.
const KEY: [(&str, &str); 6] = [
    ("e0", "below 1 % of the bound"),
    ("e1", "below 10 %"),
    ("e2", "within the bound"),
    ("e3", "beyond it"),
    ("e4", "more than ten times, or no number"),
    ("e5", "looked at in no way"),
];

fn class(o: &Outcome) -> &'static str {
    if o.model.is_none() && o.launch.is_none() {
        return "e5";
    }
    match o.times() {
        t if t < 0.01 => "e0",
        t if t < 0.1 => "e1",
        t if t <= 1.0 => "e2",
        t if t <= 10.0 => "e3",
        _ => "e4",
    }
}

/// The value's column: what it is within its layer.
fn short(o: &Outcome) -> String {
    let name = o.column.trim_start_matches('_');
    match o.layer {
        Some(l) => name.strip_prefix(&format!("blk.{l}.")).unwrap_or(name).to_owned(),
        None => name.to_owned(),
    }
}

fn title(o: &Outcome) -> String {
    let mut t = o.value.clone();
    for (what, w) in [("beside the model", &o.model), ("its launch", &o.launch)] {
        if let Some(w) = w {
            let _ = write!(t, "; {what}: {}, {}", ranks(w), errors(w));
        }
    }
    if let Some(why) = &o.why_not {
        let _ = write!(t, "; not compared with the model: {why}");
    }
    t
}

/// Layers down, values across; the worst of all runs in each cell.
fn map(report: &Report<'_>) -> String {
    let worst =
        worst_by(report.outcomes, |o| Some((o.layer, short(o))), |o| if class(o) == "e5" { -1.0 } else { o.times() });
    let mut columns: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for o in report.outcomes {
        columns.entry(short(o)).or_insert((o.run, o.step));
    }
    let mut columns: Vec<(String, (usize, usize))> = columns.into_iter().collect();
    columns.sort_by_key(|(_, at)| *at);
    let mut layers: Vec<Option<u64>> = worst.keys().map(|(l, _)| *l).collect();
    layers.sort_unstable();
    layers.dedup();
    let mut out = String::from("<section aria-labelledby=map><h2 id=map>Layers and values</h2>\n<ul class=legend>");
    for (c, says) in KEY {
        let _ = write!(out, "<li><span class=\"key {c}\"></span>{says}</li>");
    }
    out += "</ul>\n<div class=scroll><table class=map><thead><tr><th scope=col>layer</th>";
    columns.iter().for_each(|(c, _)| {
        let _ = write!(out, "<th scope=col>{}</th>", escape(c));
    });
    out += "</tr></thead><tbody>";
    for layer in layers {
        let name = layer.map_or_else(|| "-".into(), |l| l.to_string());
        let _ = write!(out, "<tr><th scope=row>{name}</th>");
        for (c, _) in &columns {
            match worst.get(&(layer, c.clone())) {
                Some(o) => {
                    let says = escape(&title(o));
                    let _ = write!(out, "<td class={} title=\"{says}\" aria-label=\"{says}\"></td>", class(o));
                }
                None => out += "<td></td>",
            }
        }
        out += "</tr>";
    }
    out + "</tbody></table></div></section>\n"
}

fn first(report: &Report<'_>) -> String {
    let Some(f) = &report.first else {
        return "<section><h2>No divergence</h2></section>\n".into();
    };
    let mut out = format!(
        "<section aria-labelledby=first class=bad><h2 id=first>First divergence</h2>\n<p>{}</p>\n<p>Buffer {}, run {}</p>\n",
        escape(&f.sentence()),
        escape(&f.buffer),
        f.row.run
    );
    let rows: Vec<Vec<String>> = f.inputs.iter().map(|(n, e)| vec![n.clone(), e.clone()]).collect();
    out += &table("What it read", &["input", "error"], 2, &rows);
    out += "<h3>History</h3><ul>";
    f.history.iter().for_each(|l| {
        let _ = write!(out, "<li>{}</li>", escape(l));
    });
    out + "</ul></section>\n"
}

fn not_compared(report: &Report<'_>) -> String {
    let rows: Vec<Vec<String>> =
        report.not_compared.iter().map(|((v, why), n)| vec![v.clone(), why.clone(), n.to_string()]).collect();
    format!(
        "<section><h2>Not compared with the model</h2><details><summary>{} values</summary>{}</details></section>\n",
        rows.len(),
        table("By name", &["value", "why", "times"], 2, &rows)
    )
}

/// The page.
pub(super) fn page(report: &Report<'_>) -> String {
    let title = escape(&format!("verify {}", report.title));
    let about = escape(&format!(
        "{} tokens, runs {}. Reference {}. The device rounds to {}. {}.",
        report.tokens,
        report.runs.join(", "),
        report.reference,
        report.rounding.name(),
        report.counts()
    ));
    let fault = report.fault.as_ref().map_or_else(String::new, |f| format!("<p>{}</p>\n", escape(&f.line())));
    let body = format!("{fault}{}{}{}", first(report), map(report), not_compared(report));
    format!(
        "{}<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\n\
         <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{STYLE}{MAP}</style></head>\n<body><main><h1>{title}</h1>\n<p>{about}</p>\n\
         {body}</main></body></html>\n",
        VERIFY_PAGE.begins()
    )
}
