//! Kernels through NVRTC, which needs no GPU: every architecture, resources, the cache, and what is said when something
//! is absent. Without NVRTC the tests that need it say so and pass.
#![allow(clippy::print_stdout, reason = "tests say what they skipped and compiled")]

use std::path::Path;

use glmc_codegen_cuda::nvrtc::{Cache, Compiler, NvrtcError, Unit};
use glmc_codegen_cuda::{Arch, Generated, Options, Request, emit, generate};
use glmc_ir::kernel::{Kernel, MatmulKernel};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, SymValues, TensorType};

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
        assert_eq!(made.resources.len(), kernels.len(), "{arch}");
        assert!(made.cubin.starts_with(b"\x7fELF"), "{arch}");
        let spills: Vec<_> = made.resources.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
        assert!(spills.is_empty(), "{arch}: {spills:#?}");
        let most = made.resources.iter().map(|r| r.registers).max();
        println!("{arch}: {} kernels, {} bytes, at most {most:?} registers", kernels.len(), made.cubin.len());
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
