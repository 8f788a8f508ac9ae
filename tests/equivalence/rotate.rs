//! Random chains of calls: `rotate` keeps what entries compute, moves every norm that it may, and only those.

use std::fmt::Write as _;

use glmc_ir::graph::{InstKind, Module};
use glmc_ir::op::Op;
use glmc_ir::text::{parse_module, print_module};
use glmc_ir::verify::verify_module;
use glmc_passes::pass::{Pass, PassCx};
use glmc_passes::rotate::Rotate;

use crate::run::Rng;
use crate::stages::equivalent;

const CASES: u64 = 300;

/// A norm of `x` by weights of this type, from `w` and `b`: the lines that end in `%normed`, and the parameters' types.
struct Norm {
    elem: &'static str,
    layer: bool,
    eps: &'static str,
}

impl Norm {
    fn random(rng: &mut Rng) -> Norm {
        let elem = *rng.pick(&["f32[8]", "f32[8]", "bf16[8] rows", "f16[8] rows"]);
        Norm { elem, layer: rng.below(4) == 0, eps: ["1e-5", "1e-5", "1e-6"][rng.below(3)] }
    }

    /// Lines that make `%{to}` of `%{x}`; decodes where the type asks for it.
    fn lines(&self, x: &str, dims: &str, to: &str, w: &str, b: &str) -> String {
        let mut out = String::new();
        let mut decoded = |v: &str, name: &str| {
            if self.elem == "f32[8]" {
                return v.to_owned();
            }
            let _ = writeln!(out, "    %{name} = dequant {v} : f32[8]");
            format!("%{name}")
        };
        let w = decoded(w, &format!("{to}_w"));
        let rest = if self.layer {
            format!("layer_norm %{x}, {w}, {}", decoded(b, &format!("{to}_b")))
        } else {
            format!("rms_norm %{x}, {w}")
        };
        let _ = writeln!(out, "    %{to} = {rest} {{eps: {}}} : {dims}", self.eps);
        out
    }

    fn bytes(&self) -> u64 {
        if self.elem == "f32[8]" { 32 } else { 16 }
    }
}

/// A module of up to three kinds of layers in a chain that may fork, and a norm of all or some rows at the end.
fn chain(rng: &mut Rng) -> String {
    let kinds: Vec<Norm> = (0..1 + rng.below(3)).map(|_| Norm::random(rng)).collect();
    let mut funcs = String::new();
    for (i, k) in kinds.iter().enumerate() {
        let bias = if k.layer { format!(", %b: {}", k.elem) } else { String::new() };
        let _ = writeln!(funcs, "  func @layer{i}(%x: f32[T, 8], %w: {}{bias}) -> (x: f32[T, 8]) {{", k.elem);
        funcs += &k.lines("x", "f32[T, 8]", "norm", "%w", "%b");
        let act = rng.pick(&["silu", "relu", "sigmoid"]);
        let _ = writeln!(funcs, "    %a = {act} %norm : f32[T, 8]\n    %out = add %x, %a : f32[T, 8]");
        funcs += "    return x: %out\n  }\n";
    }
    let (mut weights, mut body, mut at, mut count) = (String::new(), String::new(), 0, 0);
    let mut weight = |k: &Norm| {
        let bytes = k.bytes();
        let _ = writeln!(weights, "  weight @w{count} = \"w{count}\" part 0 at {at} size {bytes} : {}", k.elem);
        (at, count) = (at + 32, count + 1);
        format!("@w{}", count - 1)
    };
    let mut values = vec!["x".to_owned()];
    for i in 0..2 + rng.below(5) {
        let kind = rng.below(kinds.len());
        let k = &kinds[kind];
        let from = if rng.below(5) == 0 { rng.pick(&values).clone() } else { values[values.len() - 1].clone() };
        let (w, b) = (weight(k), if k.layer { format!(", {}", weight(k)) } else { String::new() });
        let _ = writeln!(body, "    %v{i} = call @layer{kind}(%{from}, {w}{b}) as \"blk.{i}\" : f32[T, 8]");
        values.push(format!("v{i}"));
    }
    let mut last = values[values.len() - 1].clone();
    let rows = rng.flip();
    if rows {
        let _ = writeln!(body, "    %chosen = gather %{last}, %rows : f32[R, 8]");
        last = "chosen".into();
    }
    let dims = if rows { "f32[R, 8]" } else { "f32[T, 8]" };
    if rng.below(4) > 0 {
        let k = Norm::random(rng);
        let w = weight(&k);
        let b = if k.layer { weight(&k) } else { String::new() };
        body += &k.lines(&last, dims, "final", &w, &b);
        last = "final".into();
    }
    // What a fork left behind is a result too.
    let others: Vec<&String> =
        values[1..].iter().filter(|v| !body.contains(&format!("%{v},")) && **v != last).collect();
    let types: String = others.iter().map(|v| format!(", {v}: f32[T, 8]")).collect();
    let returned: String = others.iter().map(|v| format!(", {v}: %{v}")).collect();
    format!(
        "module chain {{\n  sym T <= 4\n  sym R <= 4\n{weights}{funcs}  entry @step(%x: f32[T, 8], %rows: i32[R]) -> \
         (y: {dims}{types}) {{\n{body}    return y: %{last}{returned}\n  }}\n}}\n"
    )
}

fn rotated(m: &Module, fuel: Option<u64>) -> (Module, u64) {
    let mut cx = PassCx::new(fuel);
    let out = Rotate.run(m, &mut cx).unwrap_or_else(|d| panic!("{d}\n{}", print_module(m)));
    (out, cx.rewrites)
}

/// Norms in functions that are called, of what they take and of what they make.
fn norms(m: &Module) -> (usize, usize) {
    let (mut taken, mut made) = (0, 0);
    for f in m.funcs.values().filter(|f| !f.entry) {
        for data in f.body.iter().map(|i| &f.insts[*i]) {
            if let InstKind::Op(Op::RmsNorm(_) | Op::LayerNorm(_)) = data.kind {
                if f.params.contains(&data.args[0]) { taken += 1 } else { made += 1 }
            }
        }
    }
    (taken, made)
}

#[test]
fn random_chains_mean_the_same_when_rotated() {
    let (mut moved, mut runs, mut ends) = (0, 0, 0);
    for seed in 0..CASES {
        let text = chain(&mut Rng(seed));
        let m = parse_module(&text).unwrap_or_else(|d| panic!("seed {seed}: {d}\n{text}"));
        verify_module(&m).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        let (after, rewrites) = rotated(&m, None);
        for fuel in [Some(0), Some(1), Some(rewrites / 2), None] {
            let (after, _) = rotated(&m, fuel);
            verify_module(&after)
                .unwrap_or_else(|e| panic!("seed {seed}, fuel {fuel:?}: {e}\n{}", print_module(&after)));
            runs += equivalent(&m, &after, false).unwrap_or_else(|e| panic!("seed {seed}, fuel {fuel:?}: {e}\n{text}"));
        }
        assert_eq!(rotated(&m, Some(0)).0, m, "seed {seed}: no fuel, no change");
        assert_eq!(rotated(&after, None), (after.clone(), 0), "seed {seed}: a second run changes something\n{text}");
        if rewrites == 0 {
            assert_eq!(after, m, "seed {seed}");
            continue;
        }
        moved += 1;
        let (before, now) = (norms(&m), norms(&after));
        assert!(before.1 == 0 && now.0 < before.0 || now.1 > 0, "seed {seed}: {before:?}, {now:?}\n{text}");
        ends += now.1;
    }
    println!("{CASES} chains, {moved} of them rotated: {ends} functions end with a norm; {runs} runs compared");
    assert!(moved > CASES / 2 && moved < CASES && ends > 200 && runs > 4000, "{moved} {ends} {runs}");
}
