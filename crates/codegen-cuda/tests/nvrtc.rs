//! Kernels through NVRTC, which needs no GPU: every architecture, resources, the cache, and what is said when something
//! is absent. Without NVRTC the tests that need it say so and pass.
#![allow(clippy::print_stdout, reason = "tests say what they skipped and compiled")]

use std::path::Path;

use glmc_codegen_cuda::nvrtc::{Cache, Compiled, Compiler, NvrtcError, Resources, Unit};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, Request, Storage, emit, generate};
use glmc_ir::kernel::{
    AddKernel, AppendKernel, AttentionKernel, GateUpKernel, GatherKernel, GroupedDownKernel, GroupedGateUpKernel,
    GroupedMatmulKernel, IndexerKernel, JoinKernel, Kernel, LayerNormKernel, MatmulKernel, PagedAttentionKernel,
    PagedIndexerKernel, RmsNormKernel, RopeKernel, RouteKernel, SplitKernel, SwigluKernel, TopKKernel,
};
use glmc_ir::ops::{Attention, Gating, MoeRoute};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, SymValues, TensorType};

fn compiler(cache: Option<Cache>) -> Option<Compiler> {
    match Compiler::find(None, cache) {
        Ok(c) => {
            println!("{c:?}");
            Some(c)
        }
        Err(e) => {
            println!("SKIPPED: {e}");
            None
        }
    }
}

/// A matmul of every type, few tokens and many.
fn matmuls() -> Vec<Generated> {
    let kernel: Kernel = MatmulKernel { spec: "tk,nk->tn".into(), names: vec![] }.into();
    let (syms, options) = (SymValues::default().with("T", 512), Options::default());
    let mut out = Vec::new();
    for q in QuantType::ALL {
        for t in [Dim::new(1), Dim::sym("T")] {
            let inputs = [TensorType::new(QuantType::F32, [t, Dim::new(512)]), TensorType::new(*q, [96u64, 512])];
            let request =
                Request { kernel: &kernel, inputs: &inputs, syms: &syms, arch: Arch::Sm90, options: &options };
            out.push(generate(&request).unwrap_or_else(|e| panic!("{q}: {e}")));
        }
    }
    out
}

#[test]
fn matmuls_of_every_type_compile_for_every_architecture() {
    let Some(compiler) = compiler(None) else { return };
    let kernels = matmuls();
    let unit = Unit { name: "matmuls".into(), source: emit::unit(&kernels) };
    // The oldest and the newest, and the two that the project names; all others only differ in features.
    for arch in [Arch::Sm80, Arch::Sm90, Arch::Sm120] {
        let made = compiler.compile(&unit, arch).unwrap_or_else(|e| panic!("{e}"));
        let launches: usize = kernels.iter().map(|k| k.launches.len()).sum();
        assert_eq!(made.resources.len(), launches, "{arch}");
        assert!(made.cubin.starts_with(b"\x7fELF"), "{arch}");
        let spills: Vec<_> = made.resources.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
        assert!(spills.is_empty(), "{arch}: {spills:#?}");
        let most = made.resources.iter().map(|r| r.registers).max();
        println!("{arch}: {} kernels, {} bytes, at most {most:?} registers", kernels.len(), made.cubin.len());
    }
}

/// The kernels of one rank of eight at the sizes of the large model: decode steps of 1 and 8 tokens, and a chunk.
fn real_slices(arch: Arch) -> Vec<Generated> {
    let mut out = Vec::new();
    for tokens in [Dim::new(1), Dim::new(8), Dim::sym("T")] {
        let syms = SymValues::default().with("T", 2048).with("S", 131_072);
        let dims = |list: &[u64]| -> Vec<Dim> {
            std::iter::once(tokens.clone()).chain(list.iter().map(|n| Dim::new(*n))).collect()
        };
        let f = |list: &[u64]| TensorType::new(QuantType::F32, dims(list));
        let i = |list: &[u64]| TensorType::new(Elem::I32, dims(list));
        let w = |q: QuantType, list: &[u64]| TensorType::new(q, list.iter().copied());
        let keys = |n: u64| TensorType::new(QuantType::F32, [Dim::new(1), Dim::sym("S"), Dim::new(n)]);
        let mut add = |kernel: Kernel, inputs: Vec<TensorType>, activations: Activations| {
            let lanes = [QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];
            let fused = matches!(kernel, Kernel::GateUp(_) | Kernel::GroupedGateUp(_) | Kernel::GroupedDown(_));
            let matrix = fused || matches!(kernel, Kernel::Matmul(_) | Kernel::GroupedMatmul(_));
            let lane = |t: &TensorType| matrix && lanes.iter().any(|q| t.elem == Elem::from(*q));
            let storage = inputs.iter().map(|t| if lane(t) { Storage::Lane } else { Storage::Rows }).collect();
            let options = Options { activations, storage, ..Options::default() };
            let request = Request { kernel: &kernel, inputs: &inputs, syms: &syms, arch, options: &options };
            out.push(generate(&request).unwrap_or_else(|e| panic!("{e}")));
        };
        let matmul = |spec: &str| Kernel::from(MatmulKernel { spec: spec.into(), names: vec![] });
        let (q4, q5, q6, q8) = (QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0);
        let exact = Activations::F32;
        for activations in [exact, Activations::Int8, Activations::BF16] {
            for (q, n, k) in [(q8, 2048, 6144), (q8, 2048, 2048), (q8, 6144, 2048), (q8, 576, 6144), (q6, 19_360, 6144)]
            {
                add(matmul("tk,nk->tn"), vec![f(&[k]), w(q, &[n, k])], activations);
            }
            for (q, n, k) in [(q4, 256, 6144), (q5, 6144, 256), (q6, 6144, 256), (q8, 256, 6144)] {
                let x = if k == 256 { f(&[8, k]) } else { f(&[k]) };
                add(GroupedMatmulKernel {}.into(), vec![x, w(q, &[256, n, k]), i(&[8])], activations);
            }
        }
        // Many tokens take the kernels above; fused ones have a shape of their own for few.
        for activations in [exact, Activations::Int8].into_iter().filter(|_| tokens.extent.as_const().is_some()) {
            for q in [q4, q5, q6, q8] {
                let (both, down) = (w(q, &[256, 256, 6144]), w(q, &[256, 6144, 256]));
                let shared = w(q, &[256, 6144]);
                let gate_up = GateUpKernel { spec: "tk,nk->tn".into() };
                add(gate_up.into(), vec![f(&[6144]), shared.clone(), shared], activations);
                add(GroupedGateUpKernel {}.into(), vec![f(&[6144]), both.clone(), both, i(&[8])], activations);
                add(GroupedDownKernel {}.into(), vec![f(&[8, 256]), down, i(&[8]), f(&[8])], activations);
            }
        }
        add(matmul("tk,nk->tn"), vec![f(&[6144]), w(QuantType::F32, &[256, 6144])], exact);
        add(matmul("thn,hcn->thc"), vec![f(&[8, 192]), w(q8, &[8, 512, 192])], exact);
        add(RmsNormKernel { eps: 1e-5 }.into(), vec![f(&[6144]), w(QuantType::F32, &[6144])], exact);
        add(AddKernel {}.into(), vec![f(&[6144]), f(&[6144])], exact);
        let (v, norm) = (w(QuantType::F32, &[128]), f(&[128]));
        add(LayerNormKernel { eps: 1e-6 }.into(), vec![norm, v.clone(), v], exact);
        add(SwigluKernel { pieces: vec![] }.into(), vec![f(&[256]), f(&[256])], exact);
        add(GatherKernel {}.into(), vec![w(q4, &[154_880, 6144]), i(&[])], exact);
        let pool = w(QuantType::F32, &[131_072, 576]).as_state();
        add(AppendKernel {}.into(), vec![pool, i(&[]), f(&[576])], exact);
        let names = vec!["latent".to_owned(), "rope".to_owned()];
        let joined = TensorType::new(QuantType::F32, [tokens.clone(), Dim::joined(&[("latent", 512), ("rope", 64)])]);
        add(SplitKernel { names: names.clone() }.into(), vec![joined], exact);
        add(JoinKernel { names }.into(), vec![f(&[512]), f(&[64])], exact);
        add(RopeKernel { theta: 1e6 }.into(), vec![f(&[8, 64]), i(&[])], exact);
        add(
            TopKKernel { k: 2048 }.into(),
            vec![TensorType::new(QuantType::F32, [tokens.clone(), Dim::sym("S")])],
            exact,
        );
        let index = vec![f(&[32, 128]), keys(128), f(&[32]), i(&[]), i(&[])];
        add(IndexerKernel { scale: 0.088 }.into(), index, exact);
        for selected in [false, true] {
            let op = Attention { parts: 2, scale: 0.0625, selected };
            let mut inputs = vec![f(&[8, 512]), f(&[8, 64]), keys(512), keys(64), keys(512), i(&[]), i(&[])];
            inputs.extend(selected.then(|| i(&[2048])));
            add(AttentionKernel(op).into(), inputs, exact);
        }
        let row = Dim::joined(&[("latent", 512), ("rope", 64)]);
        let kv = TensorType::new(QuantType::F32, [Dim::new(131_072), row]).as_state();
        let table = TensorType::new(Elem::I32, [Dim::new(1), Dim::sym("S")]);
        for selected in [false, true] {
            let keys = vec!["latent".to_owned(), "rope".to_owned()];
            let kernel = PagedAttentionKernel { keys, value: "latent".into(), scale: 0.0625, selected };
            let mut inputs = vec![f(&[8, 512]), f(&[8, 64]), kv.clone(), table.clone(), i(&[]), i(&[])];
            inputs.extend(selected.then(|| i(&[2048])));
            add(kernel.into(), inputs, exact);
        }
        let index = w(QuantType::F32, &[131_072, 128]).as_state();
        let inputs = vec![f(&[32, 128]), index, table, f(&[32]), i(&[]), i(&[])];
        add(PagedIndexerKernel { scale: 0.088 }.into(), inputs, exact);
        let op =
            MoeRoute { gating: Gating::Sigmoid, k: 8, bias: true, groups: 1, groups_used: 1, norm: true, scale: 2.5 };
        add(RouteKernel(op).into(), vec![f(&[256]), w(QuantType::F32, &[256])], exact);
    }
    out
}

#[test]
fn the_large_models_slices_compile_without_spills() {
    let Some(compiler) = compiler(None) else { return };
    for arch in [Arch::Sm90, Arch::Sm120] {
        let kernels = real_slices(arch);
        let chunk = kernels.len().div_ceil(8);
        let units: Vec<Unit> =
            kernels.chunks(chunk).map(|c| Unit { name: "slices".into(), source: emit::unit(c) }).collect();
        let made = compiler.compile_all(&units, arch, 2, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
        for (c, m) in kernels.chunks(chunk).zip(&made) {
            m.check(c, arch).unwrap_or_else(|e| panic!("{e}"));
        }
        let all: Vec<_> = made.iter().flat_map(|m| &m.resources).collect();
        let spills: Vec<_> = all.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
        for (k, l) in kernels.iter().flat_map(|k| k.launches.iter().map(move |l| (k, l))) {
            let r = all.iter().find(|r| r.kernel == l.symbol).expect("each kernel is reported");
            let (grid, shared) = (l.grid, l.shared);
            println!(
                "{arch} {}: {} registers, {shared} B shared, {grid:?} blocks; {}",
                l.symbol, r.registers, k.config
            );
        }
        assert!(spills.is_empty(), "{arch}: {spills:#?}");
    }
}

#[test]
fn small_units_compile_for_all_and_come_from_the_cache() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(compiler) = compiler(Some(Cache::new(dir.path()))) else { return };
    let kernels = matmuls();
    let units: Vec<Unit> =
        kernels[..2].iter().map(|k| Unit { name: k.name.clone(), source: emit::unit([k]) }).collect();
    for arch in Arch::ALL {
        let first = compiler.compile_all(&units, *arch, 2, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
        let second = compiler.compile_all(&units, *arch, 2, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
        for (a, b) in first.iter().zip(&second) {
            assert!(!a.cached && b.cached, "{arch}");
            assert_eq!((&a.cubin, &a.resources), (&b.cubin, &b.resources), "{arch}");
        }
    }
}

#[test]
fn a_kernel_that_asks_for_too_much_is_refused() {
    let k = &matmuls()[0];
    let used = |registers, shared| Compiled {
        cubin: vec![],
        resources: vec![Resources { kernel: k.name.clone(), registers, shared, ..Resources::default() }],
        cached: false,
    };
    used(64, 0).check([k], Arch::Sm120).expect("it fits");
    for (registers, shared, why) in [(512, 0, "registers"), (64, 200_000, "shared memory")] {
        let text = used(registers, shared).check([k], Arch::Sm120).expect_err("too much").to_string();
        assert!(text.contains(&k.name) && text.contains("sm_120") && text.contains(why), "{text}");
    }
    let none = Compiled { cubin: vec![], resources: vec![], cached: false };
    assert!(none.check([k], Arch::Sm90).expect_err("nothing").to_string().contains("not in the compiled unit"));
}

#[test]
fn a_source_that_does_not_compile_is_named() {
    let Some(compiler) = compiler(None) else { return };
    let unit = Unit { name: "broken".into(), source: "__global__ void k( {".into() };
    let error = compiler.compile(&unit, Arch::Sm90).expect_err("it is no program");
    assert!(matches!(&error, NvrtcError::Unit { error, .. } if matches!(**error, NvrtcError::Compile { .. })));
    let text = error.to_string();
    assert!(text.contains("unit broken for sm_90") && text.contains("error"), "{text}");
}

#[test]
fn an_absent_library_is_an_error_that_says_where_it_looked() {
    let error = Compiler::find(Some(Path::new("/nonexistent/libnvrtc.so")), None).expect_err("nothing is there");
    let text = error.to_string();
    assert!(text.contains("NVRTC was not found (1 places tried)") && text.contains("--nvrtc PATH"), "{text}");
    assert!(matches!(error, NvrtcError::NotFound { tried } if tried[0].contains("/nonexistent/libnvrtc.so")));
    // A library that is something else.
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("libnvrtc.so.13");
    std::fs::write(&path, b"no library").expect("a file");
    for given in [path.as_path(), dir.path()] {
        assert!(matches!(Compiler::find(Some(given), None), Err(NvrtcError::NotFound { .. })));
    }
}

/// What the self-test runs, compiled as it compiles it. Minutes on few cores: run it with `--ignored`.
#[test]
#[ignore = "compiles thousands of kernels"]
fn every_checked_kernel_compiles() {
    use glmc_codegen_cuda::cases::{checks, large, matrices};
    let Some(compiler) = compiler(None) else { return };
    let rounded = Options { activations: Activations::BF16, ..Options::default() };
    let mut list: Vec<_> = Kernel::NAMES.iter().flat_map(|n| checks(n, 1, &Options::default())).collect();
    list.extend(["matmul", "grouped_matmul"].iter().flat_map(|n| checks(n, 1, &rounded)));
    list.extend(matrices(1, None).into_iter().chain(matrices(1, Some(1))).chain(large(1)));
    for arch in [Arch::Sm90, Arch::Sm120] {
        let kernels: std::collections::BTreeMap<String, Generated> = list
            .iter()
            .map(|c| c.kernel(arch).unwrap_or_else(|e| panic!("{}: {e}", c.what)))
            .map(|k| (k.name.clone(), k))
            .collect();
        let kernels: Vec<Generated> = kernels.into_values().collect();
        let groups: Vec<&[Generated]> = kernels.chunks(24).collect();
        let unit = |g: &&[Generated]| Unit { name: g[0].name.clone(), source: emit::unit(*g) };
        let units: Vec<Unit> = groups.iter().map(unit).collect();
        let start = std::time::Instant::now();
        let progress = |n: usize| {
            if n.is_multiple_of(10) {
                println!("{n} of {} units, {:.0} s", units.len(), start.elapsed().as_secs_f64());
            }
        };
        let made = compiler.compile_all(&units, arch, 2, &progress).unwrap_or_else(|e| panic!("{e}"));
        for (g, m) in groups.iter().zip(&made) {
            m.check(*g, arch).unwrap_or_else(|e| panic!("{e}"));
        }
        println!("{arch}: {} checks, {} kernels, {:.0} s", list.len(), kernels.len(), start.elapsed().as_secs_f64());
    }
}
