//! Extraction against an integer program: nodes and levels as variables, exact, and far too slow for anything but
//! tests. Tests only.

use glmc_ir::text::parse_module;
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, variable};

use super::Saturator;
use super::cost::Machine;
use super::extract::Problem;
use super::rules;
use super::saturate::saturate;
use super::skeleton::Skeleton;
use crate::pass::Answer;
use crate::target::Target;

/// The cost of the cheapest acyclic choice.
fn optimum(p: &Problem) -> f64 {
    let unit = p.nodes.iter().map(|n| n.cost).fold(0.0, f64::max).max(1e-30) / 1000.0;
    let classes = p.of_class.len();
    let mut vars = ProblemVariables::new();
    let take: Vec<_> = p.nodes.iter().map(|_| vars.add(variable().binary())).collect();
    let level: Vec<_> = (0..classes).map(|_| vars.add(variable().min(0.0).max(classes as f64))).collect();
    let cost: Expression = p.nodes.iter().zip(&take).map(|(n, x)| n.cost / unit * *x).sum();
    let mut model = vars.minimise(cost).using(good_lp::microlp);
    let of = |c: usize| -> Expression { p.of_class[c].iter().map(|n| Expression::from(take[*n])).sum() };
    model = model.with((of(p.root)).geq(1.0));
    for (n, x) in p.nodes.iter().zip(&take) {
        for a in &n.args {
            model = model.with((of(*a) - *x).geq(0.0));
            // What a taken node needs lies below it.
            let far = classes as f64 + 1.0;
            model = model.with((level[n.class] - level[*a] - far * *x).geq(1.0 - far));
        }
    }
    let answer = model.solve().expect("every function has a program");
    p.nodes.iter().zip(&take).map(|(n, x)| n.cost * answer.value(*x).round()).sum()
}

#[test]
fn extraction_of_small_functions_is_optimal() {
    let texts = [
        include_str!("../../../../tests/glir/passes/saturate/absorb.glir"),
        include_str!("../../../../tests/glir/passes/saturate/cache_row.glir"),
        include_str!("../../../../tests/glir/passes/saturate/decode.glir"),
        include_str!("../../../../tests/glir/passes/saturate/experts.glir"),
        include_str!("../../../../tests/glir/passes/saturate/mlp.glir"),
        include_str!("../../../../tests/glir/passes/saturate/share.glir"),
    ];
    let saturator = Saturator::new(&rules::all()).expect("the rules are well-formed");
    let mut compared = 0;
    for text in texts {
        let m = parse_module(text).expect("a module");
        for launch_s in [0.0, 1e-6, 1e-3] {
            let mut target = Target::named("cpu").expect("a shipped target");
            target.device.read_bytes_per_s = 1e9;
            target.device.f32_flops_per_s = 1e9;
            target.device.launch_s = launch_s;
            let mut machine = Machine::new(&target, 1);
            machine.syms = m.bounds();
            for f in m.funcs.values() {
                let (s, mut g) = Skeleton::of(&m, f).expect("a function");
                saturate(&mut g, &saturator.rules, &mut || Answer::Yes).expect("right rules");
                let p = Problem::new(&g, &s, &machine);
                let (found, best) = (p.best(1)[0].cost, optimum(&p));
                assert!(found <= best * (1.0 + 1e-6) + 1e-12, "@{} launch {launch_s}: {found} against {best}", f.name);
                assert!(best <= found * (1.0 + 1e-6), "@{}: the oracle missed {found}: {best}", f.name);
                compared += 1;
            }
        }
    }
    assert!(compared >= 18, "{compared}");
}
