//! Owns the canonical text of plans: `parse_plan(&print_plan(p)) == p` for every plan, right or wrong.
//! Never judges a plan.
//!
//! One construct a line, nothing hidden. A buffer is stated where the first step that writes it makes it:
//! `y: write b1 = blk.0.q arena[0x400, 1024] : f32[T, 256]`; one that no step writes has a line of its own. Names that
//! are no words are JSON strings. Names inside types (symbols, axes, pieces) are always words.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use cranelift_entity::PrimaryMap;
use indexmap::IndexMap;

use super::lexer::{Lexer, Token, is_word};
use super::types::tensor_type;
use crate::diag::Diagnostic;
use crate::entities::BufId;
use crate::graph::Span;
use crate::kernel::{Access, Kernel};
use crate::plan::{
    Arg, Buffer, FileRef, Limits, Mem, Model, Overlap, Param, Phase, PhaseKind, PhaseResult, Plan, Recipe, Segment,
    Slice, State, Step, Target,
};

/// The canonical text of a plan.
pub fn print_plan(p: &Plan) -> String {
    let mut out = format!("plan {} {{\n", p.format);
    line(&mut out, 1, format_args!("producer {}", quoted(&p.producer)));
    let t = &p.target;
    line(&mut out, 1, format_args!("target {} arch {} ranks {}", name(&t.name), name(&t.arch), t.ranks));
    let m = &p.model;
    let ids = |l: &[u32]| l.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let sizes = format!("layers {} vocab {} ctx {}", m.layers, m.vocab, m.trained_ctx);
    let sizes = format!("{sizes} stop [{}] suppress [{}]", ids(&m.stop), ids(&m.suppress));
    line(&mut out, 1, format_args!("model {} {} {sizes}", name(&m.arch), quoted(&m.name)));
    let l = &p.limits;
    let sizes = format!("ctx {} batch {} cache {} chunk {}", l.ctx, l.max_batch, l.cache_rows, l.chunk);
    line(&mut out, 1, format_args!("limits {sizes}"));
    for (axis, n) in &p.mesh {
        line(&mut out, 1, format_args!("mesh {} {n}", name(axis.as_str())));
    }
    for f in &p.files {
        let hashes = format!("header {} sample {}", quoted(&f.header_hash), quoted(&f.sample_hash));
        line(&mut out, 1, format_args!("file {} {} of {} {hashes}", quoted(&f.path), f.header_bytes, f.bytes));
    }
    for (id, w) in &p.weights {
        let span = format!("part {} [{}, {}]", w.span.part, w.span.offset, w.span.bytes);
        line(&mut out, 1, format_args!("weight {id} {} = {} {span} : {}", name(&w.name), quoted(&w.tensor), w.ty));
        for (rank, slices) in w.slices.iter().enumerate() {
            let slices: Vec<String> = slices.iter().map(slice_text).collect();
            line(&mut out, 2, format_args!("rank {rank}: {}", slices.join(", ")));
        }
    }
    for (id, s) in &p.states {
        line(&mut out, 1, format_args!("state {id} {} : {}", name(&s.name), s.ty));
    }
    for phase in &p.phases {
        print_phase(&mut out, phase);
    }
    out.push_str("}\n");
    out
}

fn line(out: &mut String, depth: usize, text: std::fmt::Arguments<'_>) {
    let start = out.len();
    // Writing to a string cannot fail.
    let _ = write!(out, "{:1$}{text}", "", 2 * depth);
    out.truncate(start + out[start..].trim_end().len());
    out.push('\n');
}

fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

/// A word as it is, anything else as a string.
fn name(s: &str) -> String {
    if is_word(s) { s.to_owned() } else { quoted(s) }
}

fn slice_text(s: &Slice) -> String {
    let runs =
        if s.count == 1 && s.stride == s.bytes { String::new() } else { format!(" x {} every {}", s.count, s.stride) };
    format!("part {} [{}, {}]{runs}", s.part, s.offset, s.bytes)
}

fn print_phase(out: &mut String, p: &Phase) {
    let kind = match p.kind {
        PhaseKind::Decode => "decode",
        PhaseKind::Prefill => "prefill",
    };
    line(out, 1, format_args!("phase {} {kind} {} {{", name(&p.name), p.tokens));
    for (s, bound) in &p.syms {
        line(out, 2, format_args!("sym {} <= {bound}", name(s.as_str())));
    }
    for (id, q) in &p.params {
        line(out, 2, format_args!("param {id} {} : {}", name(&q.name), q.ty));
    }
    line(out, 2, format_args!("arena {}", p.arena_bytes));
    let makers = makers(p);
    for (id, b) in p.buffers.iter().filter(|(id, _)| !makers.contains_key(id)) {
        line(out, 2, format_args!("buffer {id} = {}", buffer_text(b)));
    }
    for (i, step) in p.steps.iter().enumerate() {
        let args: Vec<String> =
            step.args.iter().enumerate().map(|(k, a)| arg_text(p, a, is_maker(&makers, a, i, k))).collect();
        let attrs = attrs_text(&step.kernel);
        let call = format!("{}{attrs} ({})", step.kernel.name(), args.join(", "));
        line(out, 2, format_args!("step {i} {} = {call}", name(&step.name)));
    }
    for s in &p.segments {
        line(out, 2, format_args!("segment [{}, {}]", s.first, s.count));
    }
    for o in &p.overlaps {
        line(out, 2, format_args!("overlap [{}, {}]", o.step, o.done));
    }
    for r in &p.results {
        line(out, 2, format_args!("result {} = {} : {}", name(&r.name), r.mem, r.ty));
    }
    line(out, 1, format_args!("}}"));
}

/// For each buffer the step and argument that first writes it.
fn makers(p: &Phase) -> HashMap<BufId, (usize, usize)> {
    let mut makers = HashMap::new();
    for (i, step) in p.steps.iter().enumerate() {
        for (k, a) in step.args.iter().enumerate() {
            match a.mem {
                Mem::Buf(b) if a.access == Access::Write && p.buffers.get(b).is_some() => {
                    makers.entry(b).or_insert((i, k));
                }
                _ => {}
            }
        }
    }
    makers
}

fn is_maker(makers: &HashMap<BufId, (usize, usize)>, a: &Arg, step: usize, arg: usize) -> bool {
    matches!(a.mem, Mem::Buf(b) if makers.get(&b) == Some(&(step, arg)))
}

fn buffer_text(b: &Buffer) -> String {
    format!("{} arena[{:#x}, {}] : {}", name(&b.name), b.offset, b.bytes, b.ty)
}

fn arg_text(p: &Phase, a: &Arg, maker: bool) -> String {
    let access = match a.access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Update => "update",
    };
    let head = format!("{}: {access} {}", name(&a.name), a.mem);
    match a.mem {
        Mem::Buf(b) if maker && p.buffers[b].ty == a.ty => format!("{head} = {}", buffer_text(&p.buffers[b])),
        Mem::Buf(b) if maker => format!("{head} = {} as {}", buffer_text(&p.buffers[b]), a.ty),
        _ => format!("{head} : {}", a.ty),
    }
}

fn attrs_text(k: &Kernel) -> String {
    let attrs: Vec<String> = k.attrs().iter().map(|(key, v)| format!("{key}: {v}")).collect();
    if attrs.is_empty() { String::new() } else { format!(" {{{}}}", attrs.join(", ")) }
}

/// Parses the text of a plan.
///
/// # Errors
/// `syntax` with the line, or the code of a kernel that does not exist or has other attributes.
pub fn parse_plan(text: &str) -> Result<Plan, Diagnostic> {
    let mut lx = Lexer::new(text)?;
    let plan = plan(&mut lx)?;
    lx.end()?;
    Ok(plan)
}

type Parsed<T> = Result<T, Diagnostic>;

fn plan(lx: &mut Lexer<'_>) -> Parsed<Plan> {
    lx.expect_word("plan")?;
    let format = small(lx)?;
    lx.expect('{')?;
    lx.expect_word("producer")?;
    let producer = lx.string()?;
    let mut p = Plan {
        format,
        producer,
        target: target(lx)?,
        model: model(lx)?,
        limits: limits(lx)?,
        mesh: IndexMap::new(),
        files: Vec::new(),
        weights: PrimaryMap::new(),
        states: PrimaryMap::new(),
        phases: Vec::new(),
    };
    while lx.eat_word("mesh") {
        let axis = any_name(lx)?;
        let n = lx.int()?;
        if p.mesh.insert(axis.as_str().into(), n).is_some() {
            return Err(lx.error(format!("mesh axis `{axis}` stands twice")));
        }
    }
    while lx.eat_word("file") {
        p.files.push(file(lx)?);
    }
    while lx.eat_word("weight") {
        id(lx, Mem::Weight(p.weights.next_key()))?;
        let w = recipe(lx)?;
        p.weights.push(w);
    }
    while lx.eat_word("state") {
        id(lx, Mem::State(p.states.next_key()))?;
        let name = any_name(lx)?;
        p.states.push(State { name, ty: typed(lx)? });
    }
    while lx.eat_word("phase") {
        p.phases.push(phase(lx)?);
    }
    lx.expect('}')?;
    Ok(p)
}

fn any_name(lx: &mut Lexer<'_>) -> Parsed<String> {
    if matches!(lx.peek(), Some(Token::Str(_))) { lx.string() } else { lx.word("a name") }
}

/// A number of 32 bits.
fn small(lx: &mut Lexer<'_>) -> Parsed<u32> {
    let n = lx.int()?;
    u32::try_from(n).map_err(|_| lx.error(format!("{n} does not fit 32 bits")))
}

fn index(lx: &mut Lexer<'_>) -> Parsed<usize> {
    let n = lx.int()?;
    usize::try_from(n).map_err(|_| lx.error(format!("{n} is no index")))
}

/// A number, hexadecimal after `0x`.
fn address(lx: &mut Lexer<'_>) -> Parsed<u64> {
    let hex = match lx.peek() {
        Some(Token::Number(n)) => n.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()),
        _ => return lx.int(),
    };
    let n = hex.ok_or_else(|| lx.error("expected a number"))?;
    lx.next();
    Ok(n)
}

/// `KEY n`.
fn field(lx: &mut Lexer<'_>, key: &str) -> Parsed<u64> {
    lx.expect_word(key)?;
    lx.int()
}

fn typed(lx: &mut Lexer<'_>) -> Parsed<crate::ty::TensorType> {
    lx.expect(':')?;
    tensor_type(lx)
}

fn mem(lx: &mut Lexer<'_>) -> Parsed<Mem> {
    let word = lx.word("a memory such as b3")?;
    word.parse().map_err(|e: String| lx.error(e))
}

/// The id that is next in its table.
fn id(lx: &mut Lexer<'_>, expected: Mem) -> Parsed<()> {
    let found = mem(lx)?;
    if found == expected { Ok(()) } else { Err(lx.error(format!("expected {expected} instead of {found}"))) }
}

fn target(lx: &mut Lexer<'_>) -> Parsed<Target> {
    lx.expect_word("target")?;
    let name = any_name(lx)?;
    lx.expect_word("arch")?;
    let arch = any_name(lx)?;
    lx.expect_word("ranks")?;
    Ok(Target { name, arch, ranks: small(lx)? })
}

fn model(lx: &mut Lexer<'_>) -> Parsed<Model> {
    lx.expect_word("model")?;
    let (arch, name) = (any_name(lx)?, lx.string()?);
    let (layers, vocab, trained_ctx) = (field(lx, "layers")?, field(lx, "vocab")?, field(lx, "ctx")?);
    let (stop, suppress) = (id_list(lx, "stop")?, id_list(lx, "suppress")?);
    Ok(Model { arch, name, layers, vocab, trained_ctx, stop, suppress })
}

fn id_list(lx: &mut Lexer<'_>, word: &str) -> Parsed<Vec<u32>> {
    lx.expect_word(word)?;
    lx.expect('[')?;
    let mut ids = Vec::new();
    while !lx.eat(']') {
        if !ids.is_empty() {
            lx.expect(',')?;
        }
        ids.push(small(lx)?);
    }
    Ok(ids)
}

fn limits(lx: &mut Lexer<'_>) -> Parsed<Limits> {
    lx.expect_word("limits")?;
    let (ctx, max_batch) = (field(lx, "ctx")?, field(lx, "batch")?);
    Ok(Limits { ctx, max_batch, cache_rows: field(lx, "cache")?, chunk: field(lx, "chunk")? })
}

fn file(lx: &mut Lexer<'_>) -> Parsed<FileRef> {
    let path = lx.string()?;
    let header_bytes = lx.int()?;
    let bytes = field(lx, "of")?;
    lx.expect_word("header")?;
    let header_hash = lx.string()?;
    lx.expect_word("sample")?;
    Ok(FileRef { path, bytes, header_bytes, header_hash, sample_hash: lx.string()? })
}

/// `part P [offset, bytes]`.
fn span(lx: &mut Lexer<'_>) -> Parsed<Span> {
    lx.expect_word("part")?;
    let part = small(lx)?;
    lx.expect('[')?;
    let offset = lx.int()?;
    lx.expect(',')?;
    let bytes = lx.int()?;
    lx.expect(']')?;
    Ok(Span { part, offset, bytes })
}

fn recipe(lx: &mut Lexer<'_>) -> Parsed<Recipe> {
    let name = any_name(lx)?;
    lx.expect('=')?;
    let tensor = lx.string()?;
    let whole = span(lx)?;
    let mut w = Recipe { name, tensor, ty: typed(lx)?, span: whole, slices: Vec::new() };
    while lx.eat_word("rank") {
        if index(lx)? != w.slices.len() {
            return Err(lx.error("ranks stand in order"));
        }
        lx.expect(':')?;
        let mut slices = Vec::new();
        while matches!(lx.peek(), Some(Token::Word(w)) if w == "part") {
            let Span { part, offset, bytes } = span(lx)?;
            let (mut count, mut stride) = (1, bytes);
            if lx.eat_word("x") {
                count = lx.int()?;
                stride = field(lx, "every")?;
            }
            slices.push(Slice { part, offset, bytes, count, stride });
            if !lx.eat(',') {
                break;
            }
        }
        w.slices.push(slices);
    }
    Ok(w)
}

/// Buffers by number, as they are met.
#[derive(Default)]
struct Buffers(BTreeMap<u32, Buffer>);

impl Buffers {
    /// `NAME arena[offset, bytes] : type`
    fn define(&mut self, lx: &mut Lexer<'_>, mem: Mem) -> Parsed<crate::ty::TensorType> {
        let Mem::Buf(b) = mem else { return Err(lx.error(format!("{mem} is no buffer"))) };
        let name = any_name(lx)?;
        lx.expect_word("arena")?;
        lx.expect('[')?;
        let offset = address(lx)?;
        lx.expect(',')?;
        let bytes = lx.int()?;
        lx.expect(']')?;
        let ty = typed(lx)?;
        if self.0.insert(b.as_u32(), Buffer { name, ty: ty.clone(), offset, bytes }).is_some() {
            return Err(lx.error(format!("{b} is made twice")));
        }
        Ok(ty)
    }

    fn table(self, lx: &Lexer<'_>) -> Parsed<PrimaryMap<BufId, Buffer>> {
        let mut table = PrimaryMap::new();
        for (n, b) in self.0 {
            let next: BufId = table.next_key();
            if n != next.as_u32() {
                return Err(lx.error(format!("{next} is never made")));
            }
            table.push(b);
        }
        Ok(table)
    }
}

fn phase(lx: &mut Lexer<'_>) -> Parsed<Phase> {
    let name = any_name(lx)?;
    let kind = if lx.eat_word("decode") {
        PhaseKind::Decode
    } else {
        lx.expect_word("prefill")?;
        PhaseKind::Prefill
    };
    let tokens = lx.int()?;
    lx.expect('{')?;
    let mut syms = IndexMap::new();
    while lx.eat_word("sym") {
        let s = any_name(lx)?;
        lx.expect('<')?;
        lx.expect('=')?;
        let bound = lx.int()?;
        if syms.insert(s.as_str().into(), bound).is_some() {
            return Err(lx.error(format!("symbol `{s}` stands twice")));
        }
    }
    let mut params = PrimaryMap::new();
    while lx.eat_word("param") {
        id(lx, Mem::Param(params.next_key()))?;
        let name = any_name(lx)?;
        params.push(Param { name, ty: typed(lx)? });
    }
    let arena_bytes = field(lx, "arena")?;
    let mut buffers = Buffers::default();
    while lx.eat_word("buffer") {
        let b = mem(lx)?;
        lx.expect('=')?;
        buffers.define(lx, b)?;
    }
    let (mut steps, mut segments, mut results) = (Vec::new(), Vec::new(), Vec::new());
    let mut overlaps = Vec::new();
    while lx.eat_word("step") {
        if index(lx)? != steps.len() {
            return Err(lx.error(format!("expected step {}", steps.len())));
        }
        steps.push(step(lx, &mut buffers)?);
    }
    while lx.eat_word("segment") {
        lx.expect('[')?;
        let first = index(lx)?;
        lx.expect(',')?;
        segments.push(Segment { first, count: index(lx)? });
        lx.expect(']')?;
    }
    while lx.eat_word("overlap") {
        lx.expect('[')?;
        let step = index(lx)?;
        lx.expect(',')?;
        overlaps.push(Overlap { step, done: index(lx)? });
        lx.expect(']')?;
    }
    while lx.eat_word("result") {
        let name = any_name(lx)?;
        lx.expect('=')?;
        let mem = mem(lx)?;
        results.push(PhaseResult { name, mem, ty: typed(lx)? });
    }
    lx.expect('}')?;
    let buffers = buffers.table(lx)?;
    Ok(Phase { name, kind, tokens, syms, params, buffers, arena_bytes, steps, segments, overlaps, results })
}

fn step(lx: &mut Lexer<'_>, buffers: &mut Buffers) -> Parsed<Step> {
    let name = any_name(lx)?;
    lx.expect('=')?;
    let line = lx.line();
    let kernel = lx.word("a kernel")?;
    let attrs = lx.object()?;
    let kernel = Kernel::from_attrs(&kernel, attrs).map_err(|d| d.at(format!("line {line}")))?;
    lx.expect('(')?;
    let mut args = Vec::new();
    while !lx.eat(')') {
        if !args.is_empty() {
            lx.expect(',')?;
        }
        args.push(arg(lx, buffers)?);
    }
    Ok(Step { name, kernel, args })
}

fn arg(lx: &mut Lexer<'_>, buffers: &mut Buffers) -> Parsed<Arg> {
    let name = any_name(lx)?;
    lx.expect(':')?;
    let access = match lx.word("read, write or update")?.as_str() {
        "read" => Access::Read,
        "write" => Access::Write,
        "update" => Access::Update,
        a => return Err(lx.error(format!("`{a}` is not read, write or update"))),
    };
    let mem = mem(lx)?;
    let mut ty = if lx.eat('=') { buffers.define(lx, mem)? } else { typed(lx)? };
    if lx.eat_word("as") {
        ty = tensor_type(lx)?;
    }
    Ok(Arg { name, access, mem, ty })
}
