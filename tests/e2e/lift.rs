//! The lift of the shipped models: verified, and the same after every pass.

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{Model, open};
use glmc_passes::pipeline;
use glmc_passes::schedule::EntryInfo;

use super::support::fixture;

#[test]
fn the_tiny_models_lift_and_compile() {
    for file in ["models/tiny-Q4_K_M.gguf", "models/tiny-UD-Q4_K_XL-00001-of-00003.gguf"] {
        let set = open(&fixture(file)).unwrap();
        let model = Model::load(&set).unwrap();
        let options = LiftOptions { ctx: 4096, max_batch: 4, cache_rows: 4096, chunk: 512 };
        let lifted = model.lift(&options).unwrap();
        if let Err(e) = glmc_ir::verify::verify_module(&lifted.module) {
            panic!("{file}: {e}");
        }
        let entries: Vec<EntryInfo> =
            lifted.entries.iter().map(|e| EntryInfo { func: e.func.clone(), kind: e.kind, tokens: e.tokens }).collect();
        let cpu = glmc_passes::target::Target::named("cpu").unwrap();
        let machine = glmc_passes::egraph::cost::Machine::new(&cpu, glmc_passes::cost::TUNE_CTX);
        let c = pipeline::run(lifted.module, &entries, &machine, None, &mut |_, _| {}).unwrap();
        let most = c.scheduled.phases.iter().map(|p| (p.name.as_str(), p.visible().unwrap())).collect::<Vec<_>>();
        let names = ["decode_1", "decode_2", "decode_4", "prefill"];
        let short = ["decode_1.short", "decode_2.short", "decode_4.short", "prefill.short"];
        assert_eq!(most, names.map(|n| (n, 4096)).into_iter().chain(short.map(|n| (n, 64))).collect::<Vec<_>>());
    }
}
