//! The one-page layers of a shipped model after saturation: what a person reads first, and what they must show.

use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_ir::text::print_function;

use super::compile::compile;

#[test]
fn the_optimised_layer_fits_on_a_page() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-Q4_K_M.gguf");
    let options = LiftOptions { ctx: 4096, max_batch: 1, cache_rows: 4096, chunk: 256 };
    let c = compile(&model, &options).expect("the model compiles");
    let (_, m) = c.stages.iter().find(|(name, _)| name == "saturate").expect("the stage");
    let layers: Vec<_> = m.funcs.values().filter(|f| f.name.starts_with("decode_1.moe")).collect();
    assert!(!layers.is_empty(), "there is a layer with experts");
    for f in &layers {
        let text = print_function(m, f);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let made = |what: &str| lines.iter().any(|l| l.contains(what));
        assert!(lines.len() <= 50, "{} lines", lines.len());
        assert!(!made("= dequant "), "every decode is in its consumer:\n{text}");
        assert!(made("%q_nope_absorbed = matmul "), "decode is absorbed:\n{text}");
        assert!(!made("qsc,"), "nothing is expanded:\n{text}");
        assert!(made("\"add_rms_norm\"") && made("\"grouped_gate_up\"") && made("\"grouped_down\""), "{text}");
        assert!(lines.iter().any(|l| l.contains("= matmul %attn_norm, ") && l.contains("names: [")), "shared:\n{text}");
    }
    insta::assert_snapshot!(print_function(m, layers[0]));
}
