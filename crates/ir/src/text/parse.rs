//! Owns the parsing of graph-level modules. Never judges a module beyond names and inferred types; the verifier does.
//!
//! Codes: `syntax`, `unknown-name`, `duplicate-name`, `unknown-op`, `type-mismatch`, and those of the ops' type rules;
//! each error says its line. Memory stays proportional to the text, and the stack does not grow with it.

use std::collections::HashMap;

use super::lexer::{Lexer, Token};
use super::types::tensor_type;
use crate::builder::call_types;
use crate::diag::Diagnostic;
use crate::entities::{FuncId, Inst, Value, WeightId};
use crate::graph::{Function, InstData, InstKind, Module, Span, ValueData, ValueDef, Weight};
use crate::op::Op;
use crate::placement::infer_on;
use crate::ty::{Elem, TensorType};

/// Parses a module. Result types are inferred; a stated type that differs is refused.
pub fn parse_module(text: &str) -> Result<Module, Diagnostic> {
    parse(text, true)
}

/// Parses a module and takes stated types as they are. Values and functions may be used before their definition, a
/// second definition of a value is kept as such: this is how tests write modules that the verifier must refuse.
pub fn parse_module_unchecked(text: &str) -> Result<Module, Diagnostic> {
    parse(text, false)
}

fn parse(text: &str, checked: bool) -> Result<Module, Diagnostic> {
    let mut p = Parser {
        lx: Lexer::new(text)?,
        m: Module::default(),
        checked,
        funcs: HashMap::new(),
        weights: HashMap::new(),
        later: Vec::new(),
    };
    p.module()?;
    Ok(p.m)
}

/// What a value is called in text.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Name(String),
    Number(u64),
}

struct Parser<'a> {
    lx: Lexer<'a>,
    m: Module,
    checked: bool,
    funcs: HashMap<String, FuncId>,
    weights: HashMap<String, WeightId>,
    /// Calls of functions that were not defined yet: caller, instruction, callee, line.
    later: Vec<(FuncId, Inst, String, usize)>,
}

/// The function being parsed.
#[derive(Default)]
struct Body {
    f: Function,
    names: HashMap<Key, Value>,
    weights: HashMap<WeightId, Value>,
    /// Values that were used but not defined yet, with the line of the use.
    undefined: HashMap<Value, usize>,
}

type Parse<T> = Result<T, Diagnostic>;

impl Parser<'_> {
    fn module(&mut self) -> Parse<()> {
        self.lx.expect_word("module")?;
        self.m.name = self.ident("the module's name")?;
        if self.lx.eat_word("mesh") {
            self.mesh()?;
        }
        self.lx.expect('{')?;
        while !self.lx.eat('}') {
            let line = self.lx.line();
            match self.lx.word("`sym`, `weight`, `func` or `entry`")?.as_str() {
                "sym" => self.sym()?,
                "weight" => self.weight()?,
                "func" => self.function(false)?,
                "entry" => self.function(true)?,
                w => return Err(syntax(line, format!("expected `sym`, `weight`, `func` or `entry`, found `{w}`"))),
            }
        }
        self.lx.end()?;
        self.resolve_later_calls()
    }

    fn mesh(&mut self) -> Parse<()> {
        self.lx.expect('(')?;
        while !self.lx.eat(')') {
            if !self.m.mesh.is_empty() {
                self.lx.expect(',')?;
            }
            let line = self.lx.line();
            let axis = self.lx.word("a mesh axis")?;
            self.lx.expect(':')?;
            let size = self.lx.int()?;
            if self.m.mesh.insert(axis.as_str().into(), size).is_some() {
                return Err(duplicate(line, format!("two mesh axes are called `{axis}`")));
            }
        }
        Ok(())
    }

    fn sym(&mut self) -> Parse<()> {
        let line = self.lx.line();
        let name = self.lx.word("a symbol")?;
        self.lx.expect('<')?;
        self.lx.expect('=')?;
        let bound = self.lx.int()?;
        match self.m.syms.insert(name.as_str().into(), bound) {
            None => Ok(()),
            Some(_) => Err(duplicate(line, format!("two symbols are called `{name}`"))),
        }
    }

    fn weight(&mut self) -> Parse<()> {
        let line = self.lx.line();
        self.lx.expect('@')?;
        let name = self.ident("a weight's name")?;
        self.lx.expect('=')?;
        let tensor = self.lx.string()?;
        self.lx.expect_word("part")?;
        let part = self.lx.int()?;
        let part = u32::try_from(part).map_err(|_| syntax(line, format!("there is no part {part}")))?;
        self.lx.expect_word("at")?;
        let offset = self.lx.int()?;
        self.lx.expect_word("size")?;
        let bytes = self.lx.int()?;
        self.lx.expect(':')?;
        let ty = tensor_type(&mut self.lx)?;
        if self.checked && self.weights.contains_key(&name) {
            return Err(duplicate(line, format!("two weights are called @{name}")));
        }
        let span = Span { part, offset, bytes };
        let id = self.m.weights.push(Weight { name: name.clone(), tensor, span, ty });
        self.weights.entry(name).or_insert(id);
        Ok(())
    }

    fn function(&mut self, entry: bool) -> Parse<()> {
        let line = self.lx.line();
        self.lx.expect('@')?;
        let name = self.ident("a function's name")?;
        if self.checked && self.funcs.contains_key(&name) {
            return Err(duplicate(line, format!("two functions are called @{name}")));
        }
        let mut b = Body { f: Function { name: name.clone(), entry, ..Function::default() }, ..Body::default() };
        self.params(&mut b)?;
        let declared = self.declared_results()?;
        self.lx.expect('{')?;
        while !self.lx.eat_word("return") {
            self.inst(&mut b)?;
        }
        self.returned(&mut b, declared)?;
        self.lx.expect('}')?;
        if let Some(line) = b.undefined.values().min() {
            return Err(unknown(*line, "a value is used here and defined nowhere".into()));
        }
        let id = self.m.funcs.push(b.f);
        self.funcs.entry(name).or_insert(id);
        Ok(())
    }

    fn params(&mut self, b: &mut Body) -> Parse<()> {
        self.lx.expect('(')?;
        while !self.lx.eat(')') {
            if !b.f.params.is_empty() {
                self.lx.expect(',')?;
            }
            let line = self.lx.line();
            let key = self.value_key()?;
            self.lx.expect(':')?;
            let ty = tensor_type(&mut self.lx)?;
            let def = ValueDef::Param(b.f.params.len() as u32);
            let v = self.define(b, key, def, ty, line)?;
            b.f.params.push(v);
        }
        Ok(())
    }

    /// `-> (name: type, ..)`.
    fn declared_results(&mut self) -> Parse<Vec<(String, TensorType)>> {
        self.lx.expect('-')?;
        self.lx.expect('>')?;
        self.lx.expect('(')?;
        let mut out = Vec::new();
        while !self.lx.eat(')') {
            if !out.is_empty() {
                self.lx.expect(',')?;
            }
            let name = self.ident("a result's name")?;
            self.lx.expect(':')?;
            out.push((name, tensor_type(&mut self.lx)?));
        }
        Ok(out)
    }

    fn returned(&mut self, b: &mut Body, declared: Vec<(String, TensorType)>) -> Parse<()> {
        let line = self.lx.last_line();
        let mut seen = std::collections::HashSet::new();
        for (i, (name, ty)) in declared.into_iter().enumerate() {
            if i > 0 {
                self.lx.expect(',')?;
            }
            let found = self.ident("a result's name")?;
            if found != name {
                return Err(unknown(line, format!("the function declares result `{name}` here, found `{found}`")));
            }
            if self.checked && !seen.insert(name.clone()) {
                return Err(duplicate(line, format!("two results are called `{name}`")));
            }
            self.lx.expect(':')?;
            let v = self.operand(b)?;
            if b.f.ty(v) != &ty && !b.undefined.contains_key(&v) {
                return Err(mismatch(line, format!("result `{name}` is {}, declared {ty}", b.f.ty(v))));
            }
            b.f.results.push((name, v));
        }
        Ok(())
    }

    fn inst(&mut self, b: &mut Body) -> Parse<()> {
        let line = self.lx.line();
        let keys = self.result_keys()?;
        let word = self.lx.word("an op, `call` or `return`")?;
        let (kind, args) = if word == "call" { self.call(b, line)? } else { self.op(b, &word, line)? };
        let stated = self.stated_types(keys.len())?;
        if self.checked {
            self.check_types(b, &kind, &args, &stated, line)?;
        }
        let inst = b.f.insts.push(InstData { kind, args, results: Vec::new() });
        b.f.body.push(inst);
        for (k, (key, ty)) in keys.into_iter().zip(stated).enumerate() {
            let v = self.define(b, key, ValueDef::Result(inst, k as u32), ty, line)?;
            b.f.insts[inst].results.push(v);
        }
        Ok(())
    }

    /// `%a, %b =`, or nothing.
    fn result_keys(&mut self) -> Parse<Vec<Key>> {
        let mut keys = Vec::new();
        if self.lx.peek() == Some(&Token::Punct('%')) {
            keys.push(self.value_key()?);
            while self.lx.eat(',') {
                keys.push(self.value_key()?);
            }
            self.lx.expect('=')?;
        }
        Ok(keys)
    }

    fn op(&mut self, b: &mut Body, name: &str, line: usize) -> Parse<(InstKind, Vec<Value>)> {
        let mut args = Vec::new();
        if matches!(self.lx.peek(), Some(Token::Punct('%' | '@'))) {
            args.push(self.operand(b)?);
            while self.lx.eat(',') {
                args.push(self.operand(b)?);
            }
        }
        let attrs = self.lx.object()?;
        let op = Op::from_attrs(name, attrs).map_err(|d| d.at(place(line)))?;
        Ok((InstKind::Op(op), args))
    }

    fn call(&mut self, b: &mut Body, line: usize) -> Parse<(InstKind, Vec<Value>)> {
        self.lx.expect('@')?;
        let name = self.ident("a function's name")?;
        let func = match self.funcs.get(&name) {
            Some(f) => *f,
            None if self.checked => {
                return Err(unknown(line, format!("there is no function @{name} before this line")));
            }
            None => {
                let caller = self.m.funcs.next_key();
                self.later.push((caller, b.f.insts.next_key(), name, line));
                FuncId::from_u32(u32::MAX - 1)
            }
        };
        self.lx.expect('(')?;
        let mut args = Vec::new();
        while !self.lx.eat(')') {
            if !args.is_empty() {
                self.lx.expect(',')?;
            }
            args.push(self.operand(b)?);
        }
        self.lx.expect_word("as")?;
        let label = self.lx.string()?;
        Ok((InstKind::Call { func, label }, args))
    }

    fn stated_types(&mut self, n: usize) -> Parse<Vec<TensorType>> {
        let mut out = Vec::new();
        for i in 0..n {
            self.lx.expect(if i == 0 { ':' } else { ',' })?;
            out.push(tensor_type(&mut self.lx)?);
        }
        Ok(out)
    }

    fn check_types(&self, b: &Body, kind: &InstKind, args: &[Value], stated: &[TensorType], line: usize) -> Parse<()> {
        let types: Vec<&TensorType> = args.iter().map(|a| b.f.ty(*a)).collect();
        let inferred = match kind {
            InstKind::Op(op) => infer_on(op, &types, &self.m.mesh),
            InstKind::Call { func, .. } => call_types(&self.m, *func, &types),
        };
        let inferred = inferred.map_err(|d| d.at(place(line)))?;
        if inferred.len() != stated.len() {
            return Err(mismatch(line, format!("{} results are named, it has {}", stated.len(), inferred.len())));
        }
        match inferred.iter().zip(stated).find(|(i, s)| i != s) {
            None => Ok(()),
            Some((i, s)) => Err(mismatch(line, format!("the result is {i}, stated {s}"))),
        }
    }

    fn operand(&mut self, b: &mut Body) -> Parse<Value> {
        let line = self.lx.line();
        if self.lx.eat('@') {
            let name = self.ident("a weight's name")?;
            let w = *self.weights.get(&name).ok_or_else(|| unknown(line, format!("there is no weight @{name}")))?;
            let (values, ty) = (&mut b.f.values, &self.m.weights[w].ty);
            let make = || values.push(ValueData { ty: ty.clone(), def: ValueDef::Weight(w), name: None });
            return Ok(*b.weights.entry(w).or_insert_with(make));
        }
        let key = self.value_key()?;
        match b.names.get(&key) {
            Some(v) => Ok(*v),
            None if self.checked => Err(unknown(line, format!("there is no value {} before this line", show(&key)))),
            None => {
                // The definition sets type and origin.
                let name = name_of(&key);
                let def = ValueDef::Result(Inst::from_u32(u32::MAX - 1), 0);
                let v = b.f.values.push(ValueData { ty: TensorType::new(Elem::F32, [0u64; 0]), def, name });
                b.names.insert(key, v);
                b.undefined.insert(v, line);
                Ok(v)
            }
        }
    }

    fn define(&self, b: &mut Body, key: Key, def: ValueDef, ty: TensorType, line: usize) -> Parse<Value> {
        match b.names.get(&key) {
            Some(_) if self.checked => Err(duplicate(line, format!("two values are called {}", show(&key)))),
            Some(v) => {
                if b.undefined.remove(v).is_some() {
                    b.f.values[*v].ty = ty;
                    b.f.values[*v].def = def;
                }
                Ok(*v)
            }
            None => {
                let v = b.f.values.push(ValueData { ty, def, name: name_of(&key) });
                b.names.insert(key, v);
                Ok(v)
            }
        }
    }

    fn value_key(&mut self) -> Parse<Key> {
        self.lx.expect('%')?;
        if let Some(Token::Int(n)) = self.lx.peek() {
            let n = *n;
            self.lx.next();
            return Ok(Key::Number(n));
        }
        self.ident("a value's name").map(Key::Name)
    }

    /// A bare word or a string.
    fn ident(&mut self, what: &str) -> Parse<String> {
        if matches!(self.lx.peek(), Some(Token::Str(_))) { self.lx.string() } else { self.lx.word(what) }
    }

    fn resolve_later_calls(&mut self) -> Parse<()> {
        for (caller, inst, name, line) in std::mem::take(&mut self.later) {
            let callee =
                *self.funcs.get(&name).ok_or_else(|| unknown(line, format!("there is no function @{name}")))?;
            if let InstKind::Call { func, .. } = &mut self.m.funcs[caller].insts[inst].kind {
                *func = callee;
            }
        }
        Ok(())
    }
}

fn name_of(key: &Key) -> Option<String> {
    match key {
        Key::Name(n) => Some(n.clone()),
        Key::Number(_) => None,
    }
}

fn show(key: &Key) -> String {
    match key {
        Key::Name(n) => format!("%{n}"),
        Key::Number(n) => format!("%{n}"),
    }
}

fn place(line: usize) -> String {
    format!("line {line}")
}

fn syntax(line: usize, m: String) -> Diagnostic {
    Diagnostic::new("syntax", m).at(place(line))
}

fn unknown(line: usize, m: String) -> Diagnostic {
    Diagnostic::new("unknown-name", m).at(place(line))
}

fn duplicate(line: usize, m: String) -> Diagnostic {
    Diagnostic::new("duplicate-name", m).at(place(line))
}

fn mismatch(line: usize, m: String) -> Diagnostic {
    Diagnostic::new("type-mismatch", m).at(place(line))
}
