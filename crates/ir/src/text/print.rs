//! Owns the printing of graph-level modules: canonical text, and text with errors under their lines.
//! Never decides what is wrong, never changes a module, never panics on a broken one (`%?7` is a value that is not
//! there).

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::lexer::is_word;
use crate::diag::Diagnostic;
use crate::entities::{Inst, Value};
use crate::graph::{Function, InstKind, Module, ValueDef, Weight};

/// The canonical text of a module: `parse_module(&print_module(m)) == m.compacted()` for every verified `m`.
pub fn print_module(m: &Module) -> String {
    let mut lines = vec![header(m)];
    lines.extend(m.syms.iter().map(|(s, bound)| Line::at(format!("  sym {s} <= {bound}"), format!("sym {s}"))));
    lines.extend(m.weights.values().map(weight_line));
    for f in m.funcs.values() {
        lines.extend(function_lines(m, f));
    }
    lines.push(Line::plain("}"));
    join(&lines)
}

/// The text of one function of `m`, indented as in its module.
pub fn print_function(m: &Module, f: &Function) -> String {
    join(&function_lines(m, f))
}

/// The symbols, weights and functions that `errors` are about, each error as a comment under its line. Errors that
/// belong to no line stand at the top. The result still parses as text does.
pub fn print_with_errors(m: &Module, errors: &[Diagnostic]) -> String {
    let mut groups: Vec<Vec<Line>> = Vec::new();
    groups.extend(m.syms.iter().map(|(s, bound)| vec![Line::at(format!("  sym {s} <= {bound}"), format!("sym {s}"))]));
    groups.extend(m.weights.values().map(|w| vec![weight_line(w)]));
    groups.extend(m.funcs.values().map(|f| function_lines(m, f)));
    // The first line that a place names gets its errors; a place that names none is the module's.
    let mut first: HashMap<&str, (usize, usize)> = HashMap::new();
    for (g, lines) in groups.iter().enumerate() {
        for (l, line) in lines.iter().enumerate() {
            for p in &line.places {
                first.entry(p).or_insert((g, l));
            }
        }
    }
    let mut by_line: HashMap<(usize, usize), Vec<&Diagnostic>> = HashMap::new();
    let mut homeless = Vec::new();
    for e in errors {
        match first.get(e.at.as_str()) {
            Some(at) => by_line.entry(*at).or_default().push(e),
            None => homeless.push(e),
        }
    }
    let mut out = header(m).text + "\n";
    homeless.into_iter().for_each(|e| write_error(&mut out, "  ", e, true));
    for (g, lines) in groups.iter().enumerate() {
        if !(0..lines.len()).any(|l| by_line.contains_key(&(g, l))) {
            continue;
        }
        for (l, line) in lines.iter().enumerate() {
            out.push_str(&line.text);
            out.push('\n');
            let indent = &line.text[..line.text.len() - line.text.trim_start().len()];
            for e in by_line.get(&(g, l)).into_iter().flatten() {
                write_error(&mut out, indent, e, false);
            }
        }
    }
    out.push_str("}\n");
    out
}

fn write_error(out: &mut String, indent: &str, e: &Diagnostic, with_place: bool) {
    let place = if with_place && !e.at.is_empty() { format!(" (at {})", e.at) } else { String::new() };
    let mark = if with_place { "" } else { "^ " };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{indent}; {mark}error[{}]: {}{place}", e.code, e.message.replace('\n', " "));
    if let Some(h) = &e.help {
        let _ = writeln!(out, "{indent};   help: {}", h.replace('\n', " "));
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_module(self))
    }
}

/// What values of a function are called in text and in the places of diagnostics: `%name`, `%3` for the fourth value
/// without a name in text order, `@name` for a weight.
pub struct Names<'m> {
    module: &'m Module,
    func: &'m Function,
    numbers: HashMap<Value, usize>,
}

impl<'m> Names<'m> {
    /// The names of `func`, a function of `module`.
    pub fn new(module: &'m Module, func: &'m Function) -> Self {
        let results = func.body.iter().filter_map(|i| func.insts.get(*i)).flat_map(|i| &i.results);
        let mut numbers = HashMap::new();
        for v in func.params.iter().chain(results) {
            if func.values.get(*v).is_some_and(|d| d.name.is_none()) {
                let next = numbers.len();
                numbers.entry(*v).or_insert(next);
            }
        }
        Names { module, func, numbers }
    }

    /// `%x`, or `@w` for a weight.
    pub fn value(&self, v: Value) -> String {
        let missing = || format!("%?{}", v.as_u32());
        let Some(data) = self.func.values.get(v) else { return missing() };
        if let ValueDef::Weight(w) = data.def {
            return self.module.weights.get(w).map_or_else(missing, |w| format!("@{}", ident(&w.name)));
        }
        match &data.name {
            Some(n) => format!("%{}", ident(n)),
            None => self.numbers.get(&v).map_or_else(missing, |n| format!("%{n}")),
        }
    }

    /// The place of the function in diagnostics: `@f`.
    pub fn func(&self) -> String {
        format!("@{}", ident(&self.func.name))
    }

    /// The place of a value in diagnostics: `@f %x`.
    pub fn place(&self, v: Value) -> String {
        format!("{} {}", self.func(), self.value(v))
    }

    /// The place of an instruction in diagnostics: that of its first result, else of its function.
    pub fn inst_place(&self, i: Inst) -> String {
        match self.func.insts.get(i).and_then(|d| d.results.first()) {
            Some(v) => self.place(*v),
            None => self.func(),
        }
    }

    /// The place of the `return` line in diagnostics.
    pub fn return_place(&self) -> String {
        format!("{} return", self.func())
    }
}

/// The place of a weight in diagnostics: `weight @w`.
pub fn weight_place(w: &Weight) -> String {
    format!("weight @{}", ident(&w.name))
}

/// A line of text, with the places in diagnostics that mean it.
struct Line {
    text: String,
    places: Vec<String>,
}

impl Line {
    fn plain(text: impl Into<String>) -> Self {
        Line { text: text.into(), places: Vec::new() }
    }

    fn at(text: String, place: String) -> Self {
        Line { text, places: vec![place] }
    }
}

fn join(lines: &[Line]) -> String {
    lines.iter().fold(String::new(), |out, l| out + &l.text + "\n")
}

fn header(m: &Module) -> Line {
    let axes: Vec<String> = m.mesh.iter().map(|(a, n)| format!("{a}: {n}")).collect();
    let mesh = if axes.is_empty() { String::new() } else { format!(" mesh({})", axes.join(", ")) };
    Line::plain(format!("module {}{mesh} {{", ident(&m.name)))
}

fn weight_line(w: &Weight) -> Line {
    let (name, s) = (ident(&w.name), w.span);
    let tensor = Json::from(w.tensor.as_str());
    let text = format!("  weight @{name} = {tensor} part {} at {} size {} : {}", s.part, s.offset, s.bytes, w.ty);
    Line::at(text, weight_place(w))
}

fn function_lines(m: &Module, f: &Function) -> Vec<Line> {
    let names = Names::new(m, f);
    let ty = |v: Value| f.values.get(v).map_or_else(|| "?".to_owned(), |d| d.ty.to_string());
    let params: Vec<String> = f.params.iter().map(|p| format!("{}: {}", names.value(*p), ty(*p))).collect();
    let results: Vec<String> = f.results.iter().map(|(n, v)| format!("{}: {}", ident(n), ty(*v))).collect();
    let kind = if f.entry { "entry" } else { "func" };
    let text = format!("  {kind} {}({}) -> ({}) {{", names.func(), params.join(", "), results.join(", "));
    let places = std::iter::once(names.func()).chain(f.params.iter().map(|p| names.place(*p))).collect();
    let mut lines = vec![Line { text, places }];
    lines.extend(f.body.iter().map(|i| inst_line(m, f, &names, *i)));
    let returned: Vec<String> = f.results.iter().map(|(n, v)| format!("{}: {}", ident(n), names.value(*v))).collect();
    let space = if returned.is_empty() { "" } else { " " };
    lines.push(Line::at(format!("    return{space}{}", returned.join(", ")), names.return_place()));
    lines.push(Line::plain("  }"));
    lines
}

fn inst_line(m: &Module, f: &Function, names: &Names<'_>, i: Inst) -> Line {
    let Some(inst) = f.insts.get(i) else { return Line::plain(format!("    ?{}", i.as_u32())) };
    let list = |vs: &[Value]| vs.iter().map(|v| names.value(*v)).collect::<Vec<_>>().join(", ");
    let mut text = "    ".to_owned();
    if !inst.results.is_empty() {
        text += &format!("{} = ", list(&inst.results));
    }
    match &inst.kind {
        InstKind::Op(op) => {
            text += op.name();
            if !inst.args.is_empty() {
                text += &format!(" {}", list(&inst.args));
            }
            let attrs = op.attrs();
            if !attrs.is_empty() {
                let attrs: Vec<String> = attrs.iter().map(|(k, v)| format!("{k}: {}", json(v))).collect();
                text += &format!(" {{{}}}", attrs.join(", "));
            }
        }
        InstKind::Call { func, label } => {
            let callee = m.funcs.get(*func).map_or_else(|| format!("?{}", func.as_u32()), |c| ident(&c.name));
            text += &format!("call @{callee}({}) as {}", list(&inst.args), Json::from(label.as_str()));
        }
    }
    if !inst.results.is_empty() {
        let types: Vec<String> = inst
            .results
            .iter()
            .map(|v| f.values.get(*v).map_or_else(|| "?".to_owned(), |d| d.ty.to_string()))
            .collect();
        text += &format!(" : {}", types.join(", "));
    }
    Line { text, places: inst.results.iter().map(|v| names.place(*v)).collect() }
}

/// A name as a bare word where it is one, else as a string.
fn ident(s: &str) -> String {
    if is_word(s) { s.to_owned() } else { Json::from(s).to_string() }
}

/// JSON on one line with a space after each comma, object keys bare: what the lexer reads back.
fn json(v: &Json) -> String {
    match v {
        Json::Array(a) => format!("[{}]", a.iter().map(json).collect::<Vec<_>>().join(", ")),
        Json::Object(o) => {
            let fields: Vec<String> = o.iter().map(|(k, v)| format!("{k}: {}", json(v))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        v => v.to_string(),
    }
}
