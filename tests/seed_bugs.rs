//! Two bugs that a compiler for several devices must never let through, built by hand, with the message a user gets.

use glmc_ir::text::{parse_module, parse_module_unchecked, print_with_errors};
use glmc_ir::verify::verify_module;

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
