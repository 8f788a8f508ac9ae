//! Owns patterns over the op table: their text, the check of it, matching, and building. Never owns a rule.
//!
//! `(matmul@m ?x (dequant ?w))` is a `matmul`, captured as `m` with its attributes, of any value `x` and a `dequant`.
//! `?x*` stands for any number of operands, `_@o` for any op, a variable that comes twice for one value. On a right
//! side a node takes the attributes that its capture is bound to; without a capture the op has none.

use std::sync::Arc;

use egg::Id;
use glmc_ir::diag::Diagnostic;
use glmc_ir::op::Op;

use super::analysis::{Graph, infer};
use super::lang::{ENode, Head, Key};

/// A parsed pattern.
#[derive(Clone, PartialEq, Debug)]
pub enum Pattern {
    /// One value.
    Var(String),
    /// Any number of operands.
    Seq(String),
    /// An op with its operands; `None` is any op.
    Node(Option<String>, String, Vec<Pattern>),
}

/// What the variables and captures of a pattern are.
#[derive(Clone, Default, Debug)]
pub struct Match {
    vars: Vec<(String, Id)>,
    seqs: Vec<(String, Vec<Id>)>,
    ops: Vec<(String, Arc<Op>)>,
    names: Vec<(String, String)>,
    lines: Vec<u32>,
}

impl Match {
    /// The applications that made the nodes that match.
    pub fn lines(&self) -> &[u32] {
        &self.lines
    }

    /// The value of `?name`.
    ///
    /// # Panics
    /// If nothing binds it; the check of rules makes sure that patterns do.
    pub fn var(&self, name: &str) -> Id {
        self.vars.iter().find(|(n, _)| n == name).expect("bound by the pattern").1
    }

    /// The values of `?name*`; panics as [`Match::var`].
    pub fn seq(&self, name: &str) -> &[Id] {
        &self.seqs.iter().find(|(n, _)| n == name).expect("bound by the pattern").1
    }

    /// The op captured as `@name`; panics as [`Match::var`].
    pub fn op(&self, name: &str) -> &Op {
        &self.ops.iter().find(|(n, _)| n == name).expect("bound by the pattern").1
    }

    /// Binds `?name`.
    pub fn bind(&mut self, name: &str, id: Id) {
        self.vars.push((name.into(), id));
    }

    /// Binds `?name*`.
    pub fn bind_seq(&mut self, name: &str, ids: &[Id]) {
        self.seqs.push((name.into(), ids.to_vec()));
    }

    /// Binds `@name`.
    pub fn bind_op(&mut self, name: &str, op: impl Into<Op>) {
        self.ops.push((name.into(), Arc::new(op.into())));
    }

    /// Calls the value of the node captured as `@capture` `name`, if it has no name.
    pub fn call(&mut self, capture: &str, name: String) {
        self.names.push((capture.into(), name));
    }
}

impl Pattern {
    /// Parses and checks a pattern.
    ///
    /// # Errors
    /// `bad-pattern`: syntax, or an op that the table lacks.
    pub fn parse(text: &str) -> Result<Pattern, Diagnostic> {
        let bad = |why: String| Diagnostic::new("bad-pattern", format!("`{text}`: {why}"));
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace();
        let mut open: Vec<(Option<String>, String, Vec<Pattern>)> = Vec::new();
        let mut done: Option<Pattern> = None;
        while let Some(word) = words.next() {
            if done.is_some() {
                return Err(bad(format!("`{word}` after the end")));
            }
            let made = match word {
                "(" => {
                    let head = words.next().ok_or_else(|| bad("no op after `(`".into()))?;
                    let (op, capture) = head.split_once('@').unwrap_or((head, ""));
                    if op != "_" && !Op::NAMES.contains(&op) {
                        return Err(bad(format!("there is no op `{op}`")));
                    }
                    if op == "_" && capture.is_empty() {
                        return Err(bad("`_` needs a capture".into()));
                    }
                    open.push(((op != "_").then(|| op.to_owned()), capture.into(), Vec::new()));
                    continue;
                }
                ")" => {
                    let (op, capture, args) = open.pop().ok_or_else(|| bad("a `)` too many".into()))?;
                    Pattern::Node(op, capture, args)
                }
                word => match word.strip_prefix('?') {
                    Some(v) if v.ends_with('*') && !open.is_empty() => Pattern::Seq(v.trim_end_matches('*').into()),
                    Some(v) if !v.is_empty() && !v.contains('*') => Pattern::Var(v.into()),
                    _ => return Err(bad(format!("`{word}` is no variable"))),
                },
            };
            match open.last_mut() {
                Some((.., args)) => args.push(made),
                None => done = Some(made),
            }
        }
        done.filter(|_| open.is_empty()).ok_or_else(|| bad("it does not end".into()))
    }

    /// The names that the pattern binds: variables as `?x`, sequences as `?x*`, captures as `@x`.
    pub fn names(&self) -> Vec<String> {
        match self {
            Pattern::Var(v) => vec![format!("?{v}")],
            Pattern::Seq(v) => vec![format!("?{v}*")],
            Pattern::Node(_, capture, args) => {
                let own = (!capture.is_empty()).then(|| format!("@{capture}"));
                own.into_iter().chain(args.iter().flat_map(Pattern::names)).collect()
            }
        }
    }

    /// Ops without a capture, which must have no attributes to be built.
    pub fn bare_ops(&self) -> Vec<&str> {
        match self {
            Pattern::Node(op, capture, args) => {
                let own = op.as_deref().filter(|_| capture.is_empty());
                own.into_iter().chain(args.iter().flat_map(Pattern::bare_ops)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Every way in which class `id` matches.
    pub fn matches(&self, g: &Graph, id: Id) -> Vec<Match> {
        one(g, self, id, Match::default())
    }

    /// Whether class `root` holds the pattern with the bindings of `m` already.
    pub fn stands(&self, g: &Graph, root: Id, m: &Match) -> bool {
        self.find(g, m).is_some_and(|id| g.find(id) == g.find(root))
    }

    fn find(&self, g: &Graph, m: &Match) -> Option<Id> {
        match self {
            Pattern::Var(v) => Some(g.find(m.var(v))),
            Pattern::Seq(_) => None,
            Pattern::Node(op, capture, args) => {
                let mut ids = Vec::new();
                for a in args {
                    match a {
                        Pattern::Seq(v) => ids.extend(m.seq(v).iter().map(|i| g.find(*i))),
                        a => ids.push(a.find(g, m)?),
                    }
                }
                let op = match (op, capture.as_str()) {
                    (Some(op), "") => Op::from_attrs(op, Default::default()).ok()?,
                    (_, c) => m.op(c).clone(),
                };
                g.lookup(ENode::new(Head::Op(Key::new(op)), ids))
            }
        }
    }

    /// Adds the pattern with the bindings of `m`.
    ///
    /// # Errors
    /// A type rule that is broken.
    pub fn build(&self, g: &mut Graph, m: &Match) -> Result<Id, Diagnostic> {
        match self {
            Pattern::Var(v) => Ok(m.var(v)),
            Pattern::Seq(v) => Err(Diagnostic::new("bad-pattern", format!("`?{v}*` is not one value"))),
            Pattern::Node(op, capture, args) => {
                let mut ids = Vec::new();
                for a in args {
                    match a {
                        Pattern::Seq(v) => ids.extend(m.seq(v)),
                        a => ids.push(a.build(g, m)?),
                    }
                }
                let op = match (op, capture.as_str()) {
                    (Some(op), "") => Op::from_attrs(op, Default::default())?,
                    (_, c) => m.op(c).clone(),
                };
                let id = add(g, op, ids)?;
                if let Some((_, name)) = m.names.iter().find(|(c, _)| c == capture) {
                    call(g, id, name);
                }
                Ok(id)
            }
        }
    }
}

/// Adds an op as the current rule's work.
///
/// # Errors
/// Its type rule.
pub fn add(g: &mut Graph, op: impl Into<Op>, args: Vec<Id>) -> Result<Id, Diagnostic> {
    let op = op.into();
    infer(g, &op, &args)?;
    let (rule, line) = (g.analysis.rule, g.analysis.line);
    Ok(g.add(ENode { head: Head::Op(Key::new(op)), args, rule, line }))
}

/// Part `i` of a tuple.
pub fn get(g: &mut Graph, of: Id, i: usize) -> Id {
    let (rule, line) = (g.analysis.rule, g.analysis.line);
    g.add(ENode { head: Head::Get(i as u32), args: vec![of], rule, line })
}

/// Calls a class `name`, if it has no name.
fn call(g: &mut Graph, id: Id, name: &str) {
    if g[id].data.name.is_none() {
        let mut data = g[id].data.clone();
        data.name = Some((usize::MAX, name.into()));
        g.set_analysis_data(id, data);
    }
}

fn one(g: &Graph, p: &Pattern, id: Id, m: Match) -> Vec<Match> {
    let id = g.find(id);
    match p {
        Pattern::Seq(_) => Vec::new(),
        Pattern::Var(v) => match m.vars.iter().find(|(n, _)| n == v) {
            Some((_, there)) if *there != id => Vec::new(),
            Some(_) => vec![m],
            None => {
                let mut m = m;
                m.bind(v, id);
                vec![m]
            }
        },
        Pattern::Node(name, capture, args) => {
            let mut out = Vec::new();
            for node in &g[id].nodes {
                let (Some(op), ids) = (node.op(), node.args.as_slice()) else { continue };
                if name.as_deref().is_some_and(|n| n != op.name()) {
                    continue;
                }
                let mut m = m.clone();
                if !capture.is_empty() {
                    m.ops.push((capture.clone(), Arc::new(op.clone())));
                }
                m.lines.push(node.line);
                many(g, args, ids, m, &mut out);
            }
            out
        }
    }
}

fn many(g: &Graph, patterns: &[Pattern], ids: &[Id], m: Match, out: &mut Vec<Match>) {
    match patterns {
        [] if ids.is_empty() => out.push(m),
        [] => {}
        [Pattern::Seq(v), rest @ ..] => {
            let least = rest.iter().filter(|p| !matches!(p, Pattern::Seq(_))).count();
            for n in 0..=ids.len().saturating_sub(least) {
                let mut m = m.clone();
                let some: Vec<Id> = ids[..n].iter().map(|i| g.find(*i)).collect();
                m.bind_seq(v, &some);
                many(g, rest, &ids[n..], m, out);
            }
        }
        [first, rest @ ..] => {
            if let [id, more @ ..] = ids {
                for m in one(g, first, *id, m) {
                    many(g, rest, more, m, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_patterns_are_refused() {
        for text in ["", "(", "(matmul ?x", "(matmull ?x)", "(_ ?x)", "(matmul ?x) ?y", "x", "?", "?x*", "(add ?x))"] {
            assert_eq!(Pattern::parse(text).expect_err(text).code, "bad-pattern", "{text}");
        }
        let p = Pattern::parse("(matmul@m ?x* (dequant ?w) (_@o ?y))").expect("a pattern");
        assert_eq!(p.names(), ["@m", "?x*", "?w", "@o", "?y"]);
        assert_eq!(p.bare_ops(), ["dequant"]);
    }
}
