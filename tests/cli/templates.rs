//! Chat templates that are meant to do harm: refused in one line, in little time and memory, never an abort.

use std::path::Path;
use std::time::Duration;

use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;

use super::support::{Ran, compile, glmc, s, tiny};

const MEMORY: u64 = 256 << 20;
/// The template's two seconds of computing, on a machine that computes for others too.
const TIME: Duration = Duration::from_secs(20);

/// A plan of the tiny model with another template.
fn plan(dir: &Path, template: &str) -> std::path::PathBuf {
    let (model, plan) = (dir.join("model.gguf"), dir.join("plan"));
    let set = open(&tiny()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("tokenizer.chat_template", template);
    w.write(&model).unwrap();
    compile(&model, &plan).ok();
    plan
}

/// Puts another template into a plan, as if the plan had been made with it.
fn put(plan: &Path, template: &str) {
    std::fs::write(plan.join("chat_template.jinja"), template).unwrap();
    let json = super::support::plan_json(plan);
    super::support::reseal(plan, &json);
}

fn chat(plan: &Path) -> Ran {
    glmc(&["run", s(plan), "--chat", "--prompt", "1 2 3", "-n", "2", "--ignore-eos", "--json"])
}

/// Templates by name. Each is refused, or runs to its end within its limits.
fn hostile() -> Vec<(&'static str, String)> {
    let loops = |n: u32, set: &str| {
        format!(
            "{{% set ns = namespace(s=[1], t=[1], x='xxxxxxxxxxxxxxxx') %}}{{% for i in range({n}) %}}{set}{{% endfor %}}"
        )
    };
    let cycle = "{% set ns = namespace() %}{% set ns.a = ns %}{% set m = namespace() %}{% set m.a = m %}";
    let deep = loops(99_999, "{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}");
    let wide = loops(60, "{% set ns.s = [ns.s, ns.s] %}");
    let sum = loops(40, "{% set ns.s = ns.s + ns.s %}");
    let mut all: Vec<(&'static str, String)> = vec![
        ("cycle", format!("{cycle}{{{{ ns }}}}")),
        ("cycle to JSON", format!("{cycle}{{{{ ns|tojson }}}}")),
        ("cycles compared", format!("{cycle}{{{{ ns == m }}}}")),
        ("cycle joined", format!("{cycle}{{{{ ns ~ '' }}}}")),
        ("cycle sorted", format!("{cycle}{{{{ [ns, m]|sort|length }}}}")),
        ("cycle found", format!("{cycle}{{{{ ns in [m] }}}}")),
        ("cycle as text", format!("{cycle}{{{{ ns|string|length }}}}")),
        ("cycle, pretty", format!("{cycle}{{{{ ns|pprint }}}}")),
        ("cycle in debug", format!("{cycle}{{{{ debug() }}}}")),
        ("cycle as a key", format!("{cycle}{{{{ {{ns: 1}} }}}}")),
        ("cycle in %", format!("{cycle}{{{{ '%s'|format(ns) }}}}")),
        ("cycle counted", format!("{cycle}{{{{ [m].count(ns) }}}}")),
        ("deep", format!("{deep}{{{{ ns.s }}}}")),
        ("deep to JSON", format!("{deep}{{{{ ns.s|tojson }}}}")),
        ("deep compared", format!("{deep}{{{{ ns.s == ns.t }}}}")),
        ("deep joined", format!("{deep}{{{{ (ns.s ~ '')|length }}}}")),
        ("wide", format!("{wide}{{{{ ns.s }}}}")),
        ("wide joined", format!("{wide}{{{{ (ns.s ~ '')|length }}}}")),
        ("wide as text", format!("{wide}{{{{ ns.s|string|length }}}}")),
        ("lists doubled", format!("{sum}{{{{ ns.s|length }}}}")),
        ("lists doubled, then listed", format!("{sum}{{{{ ns.s|list|length }}}}")),
        ("lists doubled, then sorted", format!("{sum}{{{{ ns.s|sort|length }}}}")),
        ("texts doubled", loops(34, "{% set ns.x = ns.x ~ ns.x %}") + "{{ ns.x|length }}"),
        ("texts replaced", loops(34, "{% set ns.x = ns.x|replace('x','xx') %}") + "{{ ns.x|length }}"),
        ("slices of slices", loops(99_999, "{% set ns.s = ns.s[0:] %}") + "{{ ns.s|length }}"),
        ("wide format", "{{ '{:>100000000000000}'.format('a') }}".into()),
        ("wider format", "{{ '{:>4000000000}'.format('a')|length }}".into()),
        ("precise format", "{{ '{:.4000000000f}'.format(1.5)|length }}".into()),
        ("formats in a loop", "{% for i in range(99999) %}{{ '{:>9999}'.format('a')|length }}{% endfor %}".into()),
        ("% format", "{{ '%100000000000d'|format(1) }}".into()),
        ("% precision", "{{ '%.4000000000f'|format(1.0) }}".into()),
        ("text times", "{{ 'a' * 1000000000000 }}".into()),
        ("text times, set", "{% set a = 'x' * 4611686018427387904 %}{{ a|length }}".into()),
        ("list times", "{% set a = [1,2,3] * 1000000000 %}{{ a|list|length }}".into()),
        ("center", "{{ 'a'|center(1000000000000) }}".into()),
        ("ljust", "{{ 'x'.ljust(10000000000) }}".into()),
        ("indent", "{{ 'a\nb'|indent(100000000000) }}".into()),
        ("range", "{{ range(1000000000)|list|length }}".into()),
        ("long range", "{{ range(0, 9223372036854775807, 1) }}".into()),
        ("batch", "{{ [1]|batch(4000000000, 0)|list|length }}".into()),
        ("slice", "{{ [1]|slice(100000000000)|list|length }}".into()),
        ("round", "{{ 1.5|round(100000000000) }}".into()),
        ("join", "{{ range(100000)|join('y' * 1000000)|length }}".into()),
        ("replaced by much", "{{ ('x' * 1000000)|replace('', 'y' * 100000)|length }}".into()),
        ("JSON indent", "{{ [1]|tojson(indent=1000000000000) }}".into()),
        ("output", format!("{{% for a in range(60000) %}}{}{{% endfor %}}", "x ".repeat(500))),
        (
            "captured output",
            format!("{{% set x %}}{{% for a in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(40_000)),
        ),
        ("sorts", "{% for i in range(99999) %}{{ range(99999)|sort|length }}{% endfor %}".into()),
        (
            "filters",
            "{% set a = range(99999)|list %}{% for i in range(99999) %}{% set b = a|reverse|unique|list %}{% endfor %}"
                .into(),
        ),
        ("upper", "{% set a = 'x' * 60000000 %}{% for i in range(99999) %}{% set b = a|upper %}{% endfor %}".into()),
        ("splits", "{% for i in range(9999) %}{{ ('a' * 100000).split('')|length }}{% endfor %}".into()),
        ("macros", "{% macro f(x) %}{{ f([x, x]) }}{% endmacro %}{{ f(1) }}".into()),
        ("calls", "{% macro f(x) %}{% call f(x) %}{% endcall %}{% endmacro %}{{ f(0) }}".into()),
        ("loops", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into()),
        ("a long refusal", "{{ raise_exception('x' * 1000000) }}".into()),
        ("too long", "x".repeat(70_000)),
    ];
    for (name, head, link, tail) in [
        ("not", "{{ ", "not ", "1 }}"),
        ("minus", "{{ ", "-", "1 }}"),
        ("dot", "{{ a", ".a", " }}"),
        ("filter", "{{ 1", "|int", " }}"),
        ("plus", "{{ 1", "+1", " }}"),
        ("power", "{{ 1", "**1", " }}"),
        ("tilde", "{{ 1", "~1", " }}"),
        ("if", "{{ ", "1 if 1 else ", "1 }}"),
        ("and", "{{ 1", " and 1", " }}"),
        ("elif", "{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("list", "{{ ", "[", "}}"),
        ("nested for", "", "{% for y in [[y,y]] %}", "{{ y }}"),
        ("nested set", "{% set y = 1 %}", "{% set y = [y, y] %}", "{{ y ~ '' }}"),
    ] {
        // As long as is read at all, and far longer.
        for links in [(65_000 - head.len() - tail.len()) / link.len(), 80_000] {
            all.push((name, format!("{head}{}{tail}", link.repeat(links))));
        }
    }
    all
}

#[test]
fn hostile_templates_end_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), "x");
    let (mut refused, mut ran_on) = (0, Vec::new());
    for (name, template) in hostile() {
        put(&plan, &template);
        let ran = chat(&plan);
        assert!(ran.peak < MEMORY && ran.time < TIME, "{name}: {} bytes, {:?}: {}", ran.peak, ran.time, ran.err);
        if ran.code() == 0 {
            ran_on.push(name);
            continue;
        }
        // What it renders may be too long for the plan, which is not the template's fault.
        let class = ran.class();
        let known = [("model", "text", 3), ("usage", "context", 2), ("usage", "empty-prompt", 2)];
        assert!(known.contains(&(&class.0, &class.1, ran.code())), "{name}: {ran:?}");
        assert!(ran.error_line().len() < 4000, "{name}: {}", ran.err);
        assert!(ran.error_line().contains("plan"), "{name}: {}", ran.err);
        refused += 1;
    }
    println!("{refused} refused, {} ran: {ran_on:?}", ran_on.len());
    assert!(refused > 60, "{refused}");
    put(&plan, "{% for m in messages %}{{ m.content }}{% endfor %}");
    chat(&plan).ok();
}

/// What the templates of large models are made of.
#[test]
fn templates_of_large_models_work() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"[gMASK]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- macro schema(s, depth) -%}
    {%- for k, v in s|dictsort -%}{{ k }}:{%- if v is mapping and depth < 20 -%}{{ schema(v, depth + 1) }}{%- else -%}{{ v }}{%- endif -%}{%- endfor -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1, tools=[], depth={'a': {'b': {'c': 1}}}) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
    {%- set ns.tools = ns.tools + [m.role] -%}
{%- endfor -%}
{%- for m in messages recursive -%}
    <|{{ m['role'] }}|>{{ visible(m.content).strip() }}
{%- endfor -%}
{{ schema(ns.depth, 0) }}{{ ns.tools|join(',') }}{{ '{:>3}'.format(ns.last) }}{{ ns.tools|tojson }}
{%- if add_generation_prompt -%}<|assistant|>{{ '</think>' if (enable_thinking is defined and not enable_thinking) else '' }}{%- endif -%}"#;
    // As long as the longest known, by a comment.
    let plan = plan(dir.path(), &format!("{{# {} #}}{source}", "long ".repeat(4000)));
    let ran =
        glmc(&["run", s(&plan), "--chat", "--system", "be", "--prompt", " 1 2 ", "-n", "2", "--ignore-eos", "--json"])
            .ok();
    assert!(ran.json()["prompt_tokens"].as_u64().unwrap() > 20, "{ran:?}");
}

#[test]
fn a_template_that_does_not_parse_is_told_of_when_the_model_is_compiled() {
    let dir = tempfile::tempdir().unwrap();
    let (model, to) = (dir.path().join("model.gguf"), dir.path().join("plan"));
    let set = open(&tiny()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.set("tokenizer.chat_template", "{% if %}");
    w.write(&model).unwrap();
    let ran = compile(&model, &to).ok();
    assert!(ran.err.contains("chat template") && ran.err.contains("--chat"), "{ran:?}");
    super::support::runs(&to).ok();
    assert_eq!((chat(&to).code(), chat(&to).class()), (3, ("model".into(), "text".into())));
}
