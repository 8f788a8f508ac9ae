//! What saturation decides: absorption by cost alone, nothing without the rule, the same bytes every time, wrong merges
//! reported, limits kept.
#![allow(clippy::print_stdout, reason = "tests say what they measured")]

use glmc_ir::graph::Module;
use glmc_ir::text::{parse_module, print_module};
use glmc_ir::ty::SymValues;
use glmc_passes::cost::TUNE_CTX;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::egraph::rules::{self, Rule};
use glmc_passes::egraph::saturate::End;
use glmc_passes::egraph::{BEST, Saturate, Saturated, Saturator};
use glmc_passes::pass::{Answer, Pass, PassCx};
use glmc_passes::target::Target;

/// GLM-5's attention over `s` cached rows: `t` queries, which see `k` rows each, or all.
fn mla(t: u64, s: u64, k: Option<u64>) -> Module {
    let (sel, arg) = k.map_or((String::new(), ""), |k| (format!(", %sel: i32[{t}, {k}]"), ", %sel"));
    let selected = k.is_some();
    let text = format!(
        "module m {{
  func @mla(%q_nope: f32[{t}, 64, 192], %q_rope: f32[{t}, 64, 64], %lat: f32[1, {s}, 512], %k_rope: f32[1, {s}, 64], \
         %wk: f32[64, 512, 192], %wv: f32[64, 256, 512], %seq: i32[{t}], %len: i32[{t}]{sel}) -> (o: f32[{t}, 64, 256]) {{
    %k = matmul %lat, %wk {{spec: \"qsc,hcn->qshn\"}} : f32[1, {s}, 64, 192]
    %v = matmul %lat, %wv {{spec: \"qsc,hvc->qshv\"}} : f32[1, {s}, 64, 256]
    %o = attention %q_nope, %q_rope, %k, %k_rope, %v, %seq, %len{arg} {{parts: 2, scale: 0.0625, selected: {selected}}} \
         : f32[{t}, 64, 256]
    return o: %o
  }}
}}"
    );
    parse_module(&text).expect("the text of the test")
}

fn saturated(m: &Module, rules: &[Rule], machine: &Machine) -> Saturated {
    let f = m.funcs.values().next().expect("a function");
    let s = Saturator::new(rules).expect("the rules are well-formed");
    s.function(m, f, machine, BEST, &mut || Answer::Yes).expect("the rules are right")
}

fn flops_only() -> Machine {
    let mut target = cpu();
    target.device.read_bytes_per_s = f64::INFINITY;
    target.device.f32_flops_per_s = 1.0;
    target.device.launch_s = 0.0;
    let mut machine = Machine::new(&target, 1);
    machine.syms = SymValues::default();
    machine
}

fn cpu() -> Target {
    Target::named("cpu").expect("a shipped target")
}

fn pass() -> Saturate {
    Saturate::new(Machine::new(&cpu(), TUNE_CTX))
}

/// Whether the key's and the value's weight are absorbed.
fn absorbed(m: &Module, rules: &[Rule]) -> [bool; 2] {
    let mut out = m.clone();
    let id = out.funcs.keys().next().expect("a function");
    out.funcs[id] = saturated(m, rules, &flops_only()).best[0].function.clone();
    let text = print_module(&out);
    let has = |s: &str| text.contains(s);
    assert!(has("thn,hcn->thc") != has("qsc,hcn->qshn") && has("thc,hvc->thv") != has("qsc,hvc->qshv"), "{text}");
    [has("thn,hcn->thc"), has("thc,hvc->thv")]
}

#[test]
fn absorption_flips_where_the_hand_calculation_says() {
    let rules = rules::all();
    // (queries, rows that each sees): P = T K, or P = T S where all are seen.
    let points = [
        (300, Some(100)),
        (512, Some(64)),
        (1000, Some(16)),
        (2000, Some(32)),
        (4096, Some(48)),
        (40, None),
        (64, None),
    ];
    for (t, k) in points {
        // The least S at which 29.36M S + 65536 P > 29.36M T + 139264 P.
        let pairs = |s: u64| (t * k.unwrap_or(s).min(s)) as f64;
        let cost = |rows: u64, s: u64, pair: f64| 29_360_128.0 * rows as f64 + pair * pairs(s);
        let want = (t..).find(|s| cost(*s, *s, 65_536.0) > cost(t, *s, 139_264.0)).expect("it flips");
        // Each weight goes on its own; the flip lies between the first and the second.
        let flip = |of: &dyn Fn([bool; 2]) -> bool| {
            let (mut low, mut high) = (t, 4 * want);
            while low + 1 < high {
                let s = low.midpoint(high);
                if of(absorbed(&mla(t, s, k), &rules)) { high = s } else { low = s }
            }
            high
        };
        let (first, both) = (flip(&|a| a[0] || a[1]), flip(&|a| a[0] && a[1]));
        println!("T {t}, K {k:?}: by hand at S = {want}, found {first} (one weight) to {both} (both)");
        let near = |s: u64| (s as f64 / want as f64 - 1.0).abs() <= 0.1;
        assert!(first <= want && want <= both && near(first) && near(both), "{first} {want} {both}");
        assert_eq!(absorbed(&mla(t, t, k), &rules), [false, false], "as many rows as queries");
    }
    assert_eq!(absorbed(&mla(1, 4096, Some(2048)), &rules), [true, true], "decode");
}

#[test]
fn without_the_rules_decode_stays_expanded() {
    let rest: Vec<Rule> = rules::all().into_iter().filter(|r| !r.name.starts_with("absorb-")).collect();
    assert!(rest.len() + 2 == rules::all().len());
    assert_eq!(absorbed(&mla(1, 4096, Some(2048)), &rest), [false, false]);
    for one in ["absorb-key-weight", "absorb-value-weight"] {
        let rest: Vec<Rule> = rules::all().into_iter().filter(|r| r.name != one).collect();
        let want = if one == "absorb-key-weight" { [false, true] } else { [true, false] };
        assert_eq!(absorbed(&mla(1, 4096, Some(2048)), &rest), want, "without {one}");
    }
}

#[test]
fn the_programs_are_distinct_and_sorted_and_the_first_is_no_dearer_than_the_function() {
    let m = mla(1, 4096, Some(2048));
    let found = saturated(&m, &rules::all(), &flops_only());
    assert_eq!(found.end, End::Saturated);
    assert_eq!(found.best.len(), BEST);
    assert!(found.best[0].cost <= found.before);
    for (i, p) in found.best.iter().enumerate() {
        assert!(i == 0 || found.best[i - 1].cost <= p.cost);
        assert!(found.best[..i].iter().all(|q| q.function != p.function), "two programs are one");
    }
}

#[test]
fn the_same_bytes_every_time() {
    let m = mla(2, 100, None);
    let run = || print_module(&pass().run(&m, &mut PassCx::new(None)).expect("it runs"));
    let first = run();
    assert!(first.contains("q_nope_absorbed"), "{first}");
    assert!((0..5).all(|_| run() == first));
    let again = parse_module(&first).expect("its own text");
    let second = pass().run(&again, &mut PassCx::new(None)).expect("it runs");
    assert_eq!(print_module(&second), first, "nothing is left to do");
}

#[test]
fn fuel_stops_it() {
    let m = mla(1, 4096, None);
    let mut cx = PassCx::new(Some(0));
    let same = pass().run(&m, &mut cx).expect("it runs");
    assert_eq!(print_module(&same), print_module(&m));
    assert_eq!((cx.rewrites, cx.saturated[0].end), (0, End::Fuel));
}

#[test]
fn a_runaway_is_stopped_and_reported() {
    use glmc_ir::op::Op;
    use glmc_passes::egraph::rules::What;
    use glmc_passes::egraph::saturate::ROUNDS;
    let text = "module m {\n func @f(%x: f32[4]) -> (y: f32[4]) {\n %y = scale %x {factor: 1.0} : f32[4]\n return y: %y\n }\n}";
    let m = parse_module(text).expect("the text of the test");
    // Each round finds a constant that no round before had.
    let grows = Rule {
        name: "grows",
        why: "the test",
        what: What::Rewrite {
            left: "(scale@a ?x)",
            right: "(scale@b ?x)",
            binds: &["@b"],
            when: |_, m| {
                let Op::Scale(s) = m.op("a") else { return None };
                let factor = s.factor + 1.0;
                m.bind_op("b", glmc_ir::ops::Scale { factor });
                Some(())
            },
        },
    };
    let found = saturated(&m, &[grows], &flops_only());
    assert_eq!((found.end, found.rounds), (End::Rounds, ROUNDS));
    // Two new ones for each: the number doubles, and the nodes run out first.
    let doubles = Rule {
        name: "doubles",
        why: "the test",
        what: What::Rewrite {
            left: "(scale@a ?x)",
            right: "(add (scale@b ?x) (scale@c ?x))",
            binds: &["@b", "@c"],
            when: |_, m| {
                let Op::Scale(s) = m.op("a") else { return None };
                let (b, c) = (s.factor * 2.0, s.factor * 2.0 + 1.0);
                m.bind_op("b", glmc_ir::ops::Scale { factor: b });
                m.bind_op("c", glmc_ir::ops::Scale { factor: c });
                Some(())
            },
        },
    };
    assert_eq!(saturated(&m, &[doubles], &flops_only()).end, End::Nodes);
}

#[test]
fn unequal_types_that_a_rule_makes_one_are_reported_with_its_name() {
    use glmc_passes::egraph::rules::What;
    let text = "module m {\n func @f(%x: f32[4], %y: f32[3]) -> (y: f32[4], z: f32[3]) {\n %a = silu %x : f32[4]\n \
                %b = silu %y : f32[3]\n return y: %a, z: %b\n }\n}";
    let m = parse_module(text).expect("the text of the test");
    // `silu` of anything is `silu` of whichever class comes last.
    let rule = Rule {
        name: "all-one",
        why: "the test",
        what: What::Rewrite {
            left: "(silu ?x)",
            right: "?y",
            binds: &["?y"],
            when: |g, m| {
                let last = g.classes().map(|c| c.id).max()?;
                m.bind("y", last);
                Some(())
            },
        },
    };
    let s = Saturator::new(&[rule]).expect("well-formed");
    let f = m.funcs.values().next().expect("a function");
    let e = s.function(&m, f, &flops_only(), BEST, &mut || Answer::Yes).expect_err("two types");
    assert!(e.code == "rule-type" && e.message.contains("all-one") && e.message.contains("f32[3]"), "{e}");
}
