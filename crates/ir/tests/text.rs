//! Text and verifier over random modules: well-typed ones round-trip and are accepted; broken ones never panic.

#[path = "support/random.rs"]
mod random;

use std::collections::BTreeSet;

use cranelift_entity::EntityRef;
use glmc_ir::entities::{FuncId, Inst, Value, WeightId};
use glmc_ir::graph::{InstKind, Module, ValueDef};
use glmc_ir::op::Op;
use glmc_ir::text::{parse_module, parse_module_unchecked, print_module, print_with_errors};
use glmc_ir::ty::{Axis, Dim, Elem, Extent, PendingKind, Split};
use glmc_ir::verify::{CODES, verify_module};
use proptest::prelude::*;
use random::{Choices, module};

fn choices() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_modules_round_trip_and_verify(list in choices()) {
        let m = module(&mut Choices::new(&list));
        let text = print_module(&m);
        if let Err(e) = verify_module(&m) {
            prop_assert!(false, "{}", print_with_errors(&m, &e.0));
        }
        let parsed = parse_module(&text);
        prop_assert!(parsed.is_ok(), "{}\n{text}", parsed.unwrap_err());
        let parsed = parsed.expect("just checked");
        prop_assert_eq!(&parsed, &m.compacted());
        prop_assert_eq!(print_module(&parsed), text);
        prop_assert_eq!(parse_module_unchecked(&print_module(&m)).expect("well-typed text parses"), parsed);
    }

    #[test]
    fn the_verifier_never_panics_on_mutated_modules(list in choices(), edits in prop::collection::vec(any::<u32>(), 1..60)) {
        let mut m = module(&mut Choices::new(&list));
        let mut c = Choices::new(&edits);
        while !c.done() {
            mutate(&mut c, &mut m);
            if let Err(e) = verify_module(&m) {
                let known = |code: &str| CODES.iter().any(|(c, _)| *c == code);
                prop_assert!(e.0.iter().all(|d| known(d.code)), "an undocumented code in {e}");
                print_with_errors(&m, &e.0);
            }
            // Text of a broken module may not parse, but must not panic either.
            let text = print_module(&m);
            if let Ok(m) = parse_module_unchecked(&text) {
                let _ = verify_module(&m);
            }
            let _ = parse_module(&text);
        }
    }

    #[test]
    fn the_parser_never_panics_on_edited_text(list in choices(), edits in prop::collection::vec((any::<u32>(), any::<u8>()), 1..8)) {
        let mut text = print_module(&module(&mut Choices::new(&list))).into_bytes();
        for (at, byte) in edits {
            let at = at as usize % text.len();
            match byte % 4 {
                0 => { text.truncate(at + 1); }
                1 => { text.remove(at); text.push(b' '); }
                2 => { text.insert(at, byte); }
                _ => text[at] = byte,
            }
        }
        let text = String::from_utf8_lossy(&text);
        for m in [parse_module(&text), parse_module_unchecked(&text)] {
            match m {
                Ok(m) => { let _ = verify_module(&m); }
                Err(d) => prop_assert!(d.at.starts_with("line "), "{d}"),
            }
        }
    }

    #[test]
    fn the_parser_never_panics_on_noise(text in "[ -~\n]{0,200}", soup in prop::collection::vec(0usize..SOUP.len(), 0..80)) {
        let words: Vec<&str> = soup.iter().map(|i| SOUP[*i]).collect();
        for text in [text, format!("module m {{ {} }}", words.join(" "))] {
            for m in [parse_module(&text), parse_module_unchecked(&text)] {
                if let Err(d) = m {
                    prop_assert!(d.at.starts_with("line "), "{d}");
                }
            }
        }
    }
}

const SOUP: &[&str] = &[
    "func",
    "entry",
    "@f",
    "(",
    ")",
    "->",
    "{",
    "}",
    "return",
    "%x",
    "%1",
    "=",
    ":",
    ",",
    "f32[4]",
    "state",
    "call",
    "as",
    "\"l\"",
    "add",
    "attention",
    "{parts: 18446744073709551615, scale: 1.0, selected: true}",
    "weight",
    "sym",
    "T",
    "<=",
    "18446744073709551615",
    "part",
    "at",
    "size",
    "0",
    "[",
    "]",
    "{a: 1, a: 2}",
    "f32[{a: 18446744073709551615, b: 1}]",
    "/",
    "+",
    "tp",
    "q4_K[1, 256] rows",
    "-1",
    "1e999",
    "\"",
    ";",
    "\n",
];

#[test]
fn random_modules_hold_every_op() {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut calls = 0;
    let mut state: u32 = 1;
    for _ in 0..300 {
        let list: Vec<u32> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        })
        .take(600)
        .collect();
        let m = module(&mut Choices::new(&list));
        for i in m.funcs.values().flat_map(|f| f.insts.values()) {
            match &i.kind {
                InstKind::Op(op) => drop(seen.insert(op.name())),
                InstKind::Call { .. } => calls += 1,
            }
        }
    }
    // What only sharded modules hold is in tests/ranks.rs.
    let sharded = ["all_gather", "all_reduce", "all_to_all", "attention_part", "reduce_scatter", "shard", "topk_part"];
    let missing: Vec<&&str> = Op::NAMES.iter().filter(|n| !seen.contains(*n) && !sharded.contains(n)).collect();
    assert!(missing.is_empty() && calls > 10, "missing {missing:?}, {calls} calls");
}

#[test]
fn hostile_nesting_does_not_overflow_the_stack() {
    for open in ["[", "{a: ", "module m { func @f(", "module m { func @f() -> () { add {k: "] {
        let text = open.repeat(200_000);
        assert_eq!(parse_module(&text).expect_err("it does not end").code, "syntax");
    }
    let deep = format!("module m {{ func @f() -> () {{ join {{names: {}", "[".repeat(100_000));
    assert_eq!(parse_module(&deep).expect_err("it nests too deep").code, "syntax");
}

#[test]
fn deep_call_chains_do_not_overflow_the_stack() {
    let mut text = "module m {\n".to_owned();
    for i in 0..20_000 {
        text += &format!("func @f{i}(%x: f32[1]) -> (y: f32[1]) {{ %y = ");
        text += &if i == 0 { "silu %x".into() } else { format!("call @f{}(%x) as \"\"", i - 1) };
        text += " : f32[1] return y: %y }\n";
    }
    let m = parse_module(&(text + "}")).expect("a chain of calls is right");
    verify_module(&m).expect("a chain of calls is right");
}

/// One random edit, of the kinds that buggy passes make.
fn mutate(c: &mut Choices<'_>, m: &mut Module) {
    let kind = c.below(22);
    if kind < 4 {
        return mutate_tables(c, m, kind);
    }
    let funcs = m.funcs.len();
    let Some(f) = m.funcs.get_mut(FuncId::new(c.below(funcs))) else { return };
    let values = f.values.len();
    let wild = |c: &mut Choices<'_>| match c.below(4) {
        0 => Value::from_u32(c.below(u32::MAX as usize - 1) as u32),
        _ => Value::from_u32(c.below(values.max(1)) as u32),
    };
    let v = wild(c);
    let i = Inst::new(c.below(f.insts.len().max(1)));
    match kind {
        4 | 5 => {
            let n = f.insts.get(i).map_or(0, |d| d.args.len());
            if let Some(a) = f.insts.get_mut(i).and_then(|d| d.args.get_mut(c.below(n))) {
                *a = v;
            }
        }
        6 => drop(f.insts.get_mut(i).and_then(|d| d.args.pop())),
        7 => f.insts.get_mut(i).into_iter().for_each(|d| d.args.push(v)),
        8 => f.insts.get_mut(i).into_iter().for_each(|d| d.results.push(v)),
        9 => drop(f.insts.get_mut(i).and_then(|d| d.results.pop())),
        10 => f.insts.get_mut(i).into_iter().for_each(|d| d.args.reverse()),
        11 if !f.body.is_empty() => drop(f.body.remove(c.below(f.body.len()))),
        12 if !f.body.is_empty() => {
            let (a, b) = (c.below(f.body.len()), c.below(f.body.len()));
            f.body.swap(a, b);
        }
        13 => f.body.push(if c.flip() { i } else { Inst::from_u32(u32::MAX - 7) }),
        14 => f.results.push((c.pick(&["r0", "x", ""]).to_string(), v)),
        15 => drop(f.results.pop()),
        16 => f.params.push(v),
        17 => drop(f.params.pop()),
        18 => {
            let def = match c.below(3) {
                0 => ValueDef::Param(c.below(9) as u32),
                1 => ValueDef::Result(i, c.below(3) as u32),
                _ => ValueDef::Weight(WeightId::from_u32(c.below(12) as u32)),
            };
            f.values.get_mut(v).into_iter().for_each(|d| d.def = def);
        }
        19 => {
            let func = FuncId::from_u32(c.below(funcs + 2) as u32);
            f.insts.get_mut(i).into_iter().for_each(|d| d.kind = InstKind::Call { func, label: String::new() });
        }
        20 => f.entry = !f.entry,
        _ => {
            if let Some(d) = f.values.get_mut(v) {
                mutate_type(c, &mut d.ty);
                d.name = Some(c.pick(&["x", "", "\u{e9}\n"]).to_string());
            }
        }
    }
}

fn mutate_tables(c: &mut Choices<'_>, m: &mut Module, kind: usize) {
    let weights = m.weights.len();
    let w = m.weights.get_mut(WeightId::new(c.below(weights)));
    match (kind, w) {
        (0, Some(w)) => mutate_type(c, &mut w.ty),
        (1, Some(w)) => w.span.offset = [0, 64, u64::MAX][c.below(3)],
        (2, Some(w)) => w.span.bytes = [0, 64, u64::MAX][c.below(3)],
        _ => {
            m.syms.insert(c.pick(&["T", "S", "no word"])[..].into(), c.below(2) as u64);
            m.mesh.insert("tp".into(), c.below(3) as u64);
        }
    }
}

fn mutate_type(c: &mut Choices<'_>, t: &mut glmc_ir::ty::TensorType) {
    let d = c.below(t.rank());
    let dim = t.dims.get_mut(d);
    match (c.below(8), dim) {
        (0, _) => t.state = !t.state,
        (1, _) => t.elem = *c.pick(&[Elem::I32, Elem::F32, Elem::F16, Elem::Quant(glmc_ir::quant::QuantType::Q4_K)]),
        (2, _) => t.pending = Some((PendingKind::ALL[c.below(4)].0, Axis::from("tp"))),
        (3, _) => t.dims.push(Dim::new(c.below(3) as u64)),
        (4, _) => drop(t.dims.pop()),
        (5, Some(dim)) => dim.split = Some(Split::new(["tp", "dp"][c.below(2)], 1 + c.below(3) as u64)),
        (6, Some(dim)) => {
            dim.extent = c.pick(&[Extent::Const(0), Extent::Const(u64::MAX), Extent::Sym("U".into())]).clone()
        }
        (_, Some(dim)) => dim.extent = Extent::Joined(vec![("a".into(), u64::MAX), ("a".into(), c.below(3) as u64)]),
        _ => {}
    }
}
