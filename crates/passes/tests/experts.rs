//! Experts over ranks: cut each, or some to each rank. The search finds which is cheaper, and says what the other costs.

use glmc_ir::text::parse_module;
use glmc_ir::verify::verify_module;
use glmc_passes::cost::TUNE_CTX;
use glmc_passes::egraph::cost::Machine;
use glmc_passes::pass::PassCx;
use glmc_passes::shard::Shard;
use glmc_passes::shard::report::Report;
use glmc_passes::target::Target;

/// Two choices of 16 experts a token, `wide` rows each, in blocks of 32.
fn module(tokens: u64, wide: u64) -> String {
    let bytes = 16 * wide * 512 / 32 * 34;
    format!(
        "module experts {{
  weight @gate = \"gate\" part 0 at 0 size {bytes} : q8_0[16, {wide}, 512] rows
  weight @up = \"up\" part 0 at {bytes} size {bytes} : q8_0[16, {wide}, 512] rows
  weight @down = \"down\" part 0 at {} size {bytes} : q8_0[16, 512, {wide}] rows
  entry @step(%x: f32[{tokens}, 512], %ids: i32[{tokens}, 2], %w: f32[{tokens}, 2]) -> (y: f32[{tokens}, 512]) {{
    %h = fused %x, @gate, @up, %ids {{kernel: {{name: \"grouped_gate_up\", attrs: {{}}}}}} : f32[{tokens}, 2, {wide}]
    %y = fused %h, @down, %ids, %w {{kernel: {{name: \"grouped_down\", attrs: {{}}}}}} : f32[{tokens}, 512]
    return y: %y
  }}
}}
",
        2 * bytes
    )
}

/// Weights are slow to read, and each meeting takes as long as 100 KB of them.
fn target(ranks: u64) -> Target {
    let text = format!(
        "name = \"test\"\ndescription = \"test\"\narch = \"cpu\"\nranks = {ranks}\nmax_batch = 1\nchunk = 8\n[device]\n\
         read_bytes_per_s = 1e9\nf32_flops_per_s = 1e13\nbf16_flops_per_s = 1e13\nint8_ops_per_s = 1e13\n\
         launch_s = 1e-7\ncontext_bytes = 0\ngraph_bytes = 0\ngraph_bytes_per_phase = 0\nreserve_bytes = 0\n\
         [link]\nbytes_per_s = 1e12\nlatency_s = 1e-4\np2p = true\n"
    );
    Target::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// The placed types of the three weights, and the report.
fn placed(tokens: u64, wide: u64, ranks: u64) -> (Vec<String>, Report) {
    let m = parse_module(&module(tokens, wide)).unwrap_or_else(|e| panic!("{e}"));
    verify_module(&m).unwrap_or_else(|e| panic!("{e}"));
    let shard = Shard::new(Machine::new(&target(ranks), TUNE_CTX)).explained();
    let (out, report) = shard.place(&m, &mut PassCx::new(None)).unwrap_or_else(|e| panic!("{e}"));
    verify_module(&out).unwrap_or_else(|e| panic!("{e}"));
    assert!(!report.cut);
    (out.weights.values().map(|w| w.ty.to_string()).collect(), report)
}

#[test]
fn experts_that_divide_evenly_are_cut_each() {
    // 2 choices crowd on a rank: the fullest of 4 has more than an even fourth of each.
    let (types, report) = placed(1, 512, 4);
    assert_eq!(types, ["q8_0[16, 512/tp, 512] rows", "q8_0[16, 512/tp, 512] rows", "q8_0[16, 512, 512/tp] rows"]);
    // The other way stands beside it with what it costs.
    let step = &report.functions[0];
    for (name, other) in [("gate", "q8_0[16/tp, 512, 512] rows"), ("down", "q8_0[16/tp, 512, 512] rows")] {
        let v = step.values.iter().find(|v| v.value == name).unwrap();
        let found = v.others.iter().find(|o| o.ty == other).unwrap_or_else(|| panic!("{name}: {:?}", v.others));
        assert!(found.seconds > step.seconds, "{name}: {found:?}");
    }
}

#[test]
fn experts_that_do_not_divide_go_to_a_rank_each() {
    // One block: `down` cannot be cut along it, so cutting each needs a second meeting. 32 choices even out: each rank reads
    // both experts that it has.
    let (types, report) = placed(16, 32, 8);
    assert_eq!(types, ["q8_0[16/tp, 32, 512] rows", "q8_0[16/tp, 32, 512] rows", "q8_0[16/tp, 512, 32] rows"]);
    // One sum at the end, and nothing between gate and down.
    let moves: Vec<(&str, &str)> =
        report.functions[0].collectives.iter().map(|c| (c.value.as_str(), c.op.as_str())).collect();
    assert_eq!(moves, [("y", "all_reduce")]);
}
