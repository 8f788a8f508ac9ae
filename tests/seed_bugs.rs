//! Two bugs that a compiler for several devices must never let through, built by hand, with the message a user gets.

#[path = "support/run.rs"]
mod run;

use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::plan::PlanInterp;
use glmc_ir::interp::ranks::RankInterp;
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::plan::{ALIGN, Buffer, Mem, PhaseKind, Plan};
use glmc_ir::tensor::{EvalError, Tensor};
use glmc_ir::text::{parse_module, parse_module_unchecked, print_with_errors};
use glmc_ir::ty::SymValues;
use glmc_ir::verify::plan::verify_plan;
use glmc_ir::verify::verify_module;
use glmc_passes::lower;
use glmc_passes::pass::PassCx;
use glmc_passes::schedule::{self, EntryInfo};

use run::{Files, InModule, Rng, all_differ, operands, run_global, wrap};

/// The module with its errors; fails if the verifier accepts it.
fn refused(text: &str) -> String {
    let m = parse_module_unchecked(text).expect("the text parses");
    let errors = verify_module(&m).expect_err("the verifier must refuse this module");
    print_with_errors(&m, &errors.0)
}

/// Attention writes its output, and the output projection reads another value of the same type: the classic
/// "output goes to another buffer than the one that is read".
#[test]
fn seed_bug_disconnected_output() {
    let text = r#"module attention_layer {
  sym T <= 64
  func @attention(%q: f32[T, 4, 8], %k: f32[1, 64, 4, 8], %v: f32[1, 64, 4, 8], %w: f32[16, 32], %seq: i32[T], %len: i32[T]) -> (y: f32[T, 16]) {
    %o = attention %q, %k, %v, %seq, %len {parts: 1, scale: 0.3535533905932738, selected: false} : f32[T, 4, 8]
    %flat = reshape %q {dims: ["T", "32"]} : f32[T, 32]
    %y = matmul %flat, %w {spec: "tk,nk->tn"} : f32[T, 16]
    return y: %y
  }
}
"#;
    insta::assert_snapshot!(refused(text), @r#"
module attention_layer {
  func @attention(%q: f32[T, 4, 8], %k: f32[1, 64, 4, 8], %v: f32[1, 64, 4, 8], %w: f32[16, 32], %seq: i32[T], %len: i32[T]) -> (y: f32[T, 16]) {
    %o = attention %q, %k, %v, %seq, %len {parts: 1, scale: 0.3535533905932738, selected: false} : f32[T, 4, 8]
    ; ^ error[unused-result]: %o is written, and nothing reads or returns it
    ;   help: connect it, return it, or drop what makes it (a name that starts with `_` discards one result)
    %flat = reshape %q {dims: ["T", "32"]} : f32[T, 32]
    %y = matmul %flat, %w {spec: "tk,nk->tn"} : f32[T, 16]
    return y: %y
  }
}
"#);
    // The same layer, connected, is accepted.
    let good = text.replace("reshape %q", "reshape %o");
    verify_module(&parse_module(&good).expect("the text parses")).expect("the connected layer is right");
}

/// The producer joins `{gate, up}`, the consumer takes its parts from `{up, gate}`: with equal sizes no shape differs,
/// and a split over ranks would pair each rank's gate with its up the wrong way round.
#[test]
fn seed_bug_shard_order() {
    let text = r#"module mlp mesh(tp: 2) {
  sym T <= 64
  func @mlp(%x: f32[T, 256], %wg: f32[512/tp, 256], %wu: f32[512/tp, 256]) -> (y: f32[T, 512/tp]) {
    %gu = matmul %x, %wg, %wu {spec: "tk,nk->tn", names: ["gate", "up"]} : f32[T, {gate: 512, up: 512}/tp]
    %g = piece %gu {name: "gate", of: [["up", 512], ["gate", 512]]} : f32[T, 512/tp]
    %u = piece %gu {name: "up", of: [["up", 512], ["gate", 512]]} : f32[T, 512/tp]
    %a = silu %g : f32[T, 512/tp]
    %y = mul %a, %u : f32[T, 512/tp]
    return y: %y
  }
}
"#;
    insta::assert_snapshot!(refused(text), @r#"
module mlp mesh(tp: 2) {
  func @mlp(%x: f32[T, 256], %wg: f32[512/tp, 256], %wu: f32[512/tp, 256]) -> (y: f32[T, 512/tp]) {
    %gu = matmul %x, %wg, %wu {spec: "tk,nk->tn", names: ["gate", "up"]} : f32[T, {gate: 512, up: 512}/tp]
    %g = piece %gu {name: "gate", of: [["up", 512], ["gate", 512]]} : f32[T, 512/tp]
    ; ^ error[piece-order]: `piece` is cut by {up: 512, gate: 512}, its operand is f32[T, {gate: 512, up: 512}]
    ;   help: producer and consumer name the same pieces in the same order
    %u = piece %gu {name: "up", of: [["up", 512], ["gate", 512]]} : f32[T, 512/tp]
    ; ^ error[piece-order]: `piece` is cut by {up: 512, gate: 512}, its operand is f32[T, {gate: 512, up: 512}]
    ;   help: producer and consumer name the same pieces in the same order
    %a = silu %g : f32[T, 512/tp]
    %y = mul %a, %u : f32[T, 512/tp]
    return y: %y
  }
}
"#);
    let good = text.replace(r#"["up", 512], ["gate", 512]"#, r#"["gate", 512], ["up", 512]"#);
    verify_module(&parse_module(&good).expect("the text parses")).expect("one order on both sides is right");
}

/// A layer on eight ranks, with its weights: attention by heads, then a gated feed-forward of one fused weight.
const EIGHT: &str = r#"module layer mesh(tp: 8) {
  sym T <= 4
  weight @wo = "wo" part 0 at 0 size 8704 : q8_0[32, 256/tp] rows
  weight @gate_up = "gate_up" part 0 at 8704 size 17408 : q8_0[{gate: 256, up: 256}/tp, 32] rows
  weight @down = "down" part 0 at 26112 size 8704 : q8_0[32, 256/tp] rows
  entry @step(%x: f32[T, 32], %q: f32[T, 8/tp, 32], %k: f32[1, 7, 32], %seq: i32[T], %len: i32[T]) -> (y: f32[T, 32]) {
    %o = attention %q, %k, %k, %seq, %len {parts: 1, scale: 0.5, selected: false} : f32[T, 8/tp, 32]
    %flat = reshape %o {dims: ["T", "256"]} : f32[T, 256/tp]
    %p = matmul %flat, @wo {spec: "tk,nk->tn"} : f32[T, 32] +tp
    %m = all_reduce %p {axis: "tp"} : f32[T, 32]
    %h = add %x, %m : f32[T, 32]
    %gu = matmul %h, @gate_up {spec: "tk,nk->tn"} : f32[T, {gate: 256, up: 256}/tp]
    %g = piece %gu {name: "gate", of: [["gate", 256], ["up", 256]]} : f32[T, 256/tp]
    %u = piece %gu {name: "up", of: [["gate", 256], ["up", 256]]} : f32[T, 256/tp]
    %a = silu %g : f32[T, 256/tp]
    %b = mul %a, %u : f32[T, 256/tp]
    %d = matmul %b, @down {spec: "tk,nk->tn"} : f32[T, 32] +tp
    %y = all_reduce %d {axis: "tp"} : f32[T, 32]
    return y: %y
  }
}
"#;

/// The layer, its plan, weights, one step's operands and what the step gives.
struct Eight {
    module: Module,
    plan: Plan,
    files: Files,
    syms: SymValues,
    args: Vec<Tensor>,
    right: Vec<Tensor>,
}

fn eight() -> Eight {
    let module = parse_module(EIGHT).unwrap_or_else(|d| panic!("{d}"));
    verify_module(&module).unwrap_or_else(|e| panic!("{e}"));
    let lowered = lower::lower(&module, &mut PassCx::new(None)).unwrap();
    let entries = [EntryInfo { func: "step".into(), kind: PhaseKind::Prefill, tokens: 4 }];
    let scheduled = schedule::schedule(&module, &lowered, &entries).unwrap();
    let files = Files::synth(&module);
    let plan = wrap(&module, scheduled, &files);
    verify_plan(&plan).unwrap_or_else(|e| panic!("{e}"));
    let syms = SymValues::default().with("T", 3);
    let mut args = operands(&module.funcs[module.func_named("step").unwrap()], &syms, &mut Rng(1), 0);
    args[4] = Tensor::i(vec![3], vec![7, 5, 2]);
    let right = run_global(&module, "step", &files, &syms, args.clone()).unwrap();
    Eight { module, plan, files, syms, args, right }
}

impl Eight {
    /// What eight ranks give that run `m` as it is written.
    fn ranks(&self, m: &Module) -> Result<Vec<Tensor>, EvalError> {
        let source = InModule(m, &self.files);
        let id = m.func_named("step").unwrap();
        RankInterp::new(m, Arith::Real, self.syms.clone(), &source).unverified().run(id, self.args.clone())
    }

    /// What a plan gives that runs as it is written.
    fn steps(&self, plan: &Plan) -> Result<Vec<Tensor>, EvalError> {
        PlanInterp::new(plan, Arith::Real, &self.files)?.unverified().run(&plan.phases[0], &self.syms, &self.args)
    }

    fn wrong(&self, got: Result<Vec<Tensor>, EvalError>) -> bool {
        match got {
            Ok(got) => all_differ(&got, &self.right, 1e-9).is_some(),
            Err(e) => e.to_string().contains("poison"),
        }
    }
}

fn codes(plan: &Plan) -> Vec<&'static str> {
    let mut codes: Vec<&str> =
        verify_plan(plan).expect_err("the verifier must refuse this plan").0.iter().map(|d| d.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn the_layer_on_eight_ranks_is_right() {
    let e = eight();
    assert!(!e.wrong(e.ranks(&e.module)) && !e.wrong(e.steps(&e.plan)));
    assert_eq!(e.plan.target.ranks, 8);
}

/// The merged attention output goes to a buffer of its own; whoever should read it reads what is not written.
#[test]
fn seed_bug_disconnected_output_on_eight_ranks() {
    let e = eight();
    let m = parse_module_unchecked(&EIGHT.replace("add %x, %m", "add %x, %x")).unwrap();
    assert!(e.wrong(e.ranks(&m)), "the ranks show it");
    let found = verify_module(&m).expect_err("the verifier must refuse this module");
    assert_eq!(found.0.iter().map(|d| d.code).collect::<Vec<_>>(), ["unused-result"], "{found}");
    let mut plan = e.plan.clone();
    let phase = &mut plan.phases[0];
    let merge = phase.steps.iter().position(|s| matches!(s.kernel, Kernel::AllReduce(_))).unwrap();
    let out = phase.steps[merge].args.iter().position(|a| a.access == Access::Write).unwrap();
    let Mem::Buf(old) = phase.steps[merge].args[out].mem else { panic!("a step writes buffers") };
    let offset = phase.arena_bytes.next_multiple_of(ALIGN);
    let fresh = Buffer { offset, ..phase.buffers[old].clone() };
    phase.arena_bytes = offset + fresh.bytes;
    phase.steps[merge].args[out].mem = Mem::Buf(phase.buffers.push(fresh));
    assert!(e.wrong(e.steps(&plan)), "the ranks show it");
    assert_eq!(codes(&plan), ["output-unread", "read-before-write"]);
}

/// The fused weight is cut across its seam, as if it were one dim: half of the ranks hold gates, half ups.
#[test]
fn seed_bug_shard_order_on_eight_ranks() {
    let e = eight();
    let m = parse_module_unchecked(
        &EIGHT.replace("q8_0[{gate: 256, up: 256}/tp, 32]", "q8_0[512/tp, 32]").replace(
            "%gu = matmul %h, @gate_up {spec: \"tk,nk->tn\"} : f32[T, {gate: 256, up: 256}/tp]",
            "%fl = matmul %h, @gate_up {spec: \"tk,nk->tn\"} : f32[T, 512/tp]\n    %gu = reshape %fl {dims: [\"T\", \"{gate: 256, up: 256}\"]} : f32[T, {gate: 256, up: 256}/tp]",
        ),
    )
    .unwrap();
    assert!(e.wrong(e.ranks(&m)), "the ranks show it");
    let found = verify_module(&m).expect_err("the verifier must refuse this module");
    assert!(found.0.iter().all(|d| ["split-whole-dim", "type-mismatch"].contains(&d.code)), "{found}");
    let mut plan = e.plan.clone();
    let recipe = plan.weights.values_mut().find(|w| w.name == "gate_up").unwrap();
    let each = recipe.span.bytes / 8;
    for (rank, slices) in recipe.slices.iter_mut().enumerate() {
        let s = slices[0];
        *slices = vec![glmc_ir::plan::Slice {
            offset: recipe.span.offset + rank as u64 * each,
            bytes: each,
            count: 1,
            stride: each,
            ..s
        }];
    }
    assert!(e.wrong(e.steps(&plan)), "the ranks show it");
    assert_eq!(codes(&plan), ["weight-slices"]);
}
