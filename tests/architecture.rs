//! Who may know what: reads the crates' manifests and sources, and fails on a breach of the table in
//! `docs/architecture.md`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of a crate's dependencies (not of its tests').
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(manifest)).expect("the manifest is there");
    let table: toml::Table = toml::from_str(&text).expect("the manifest parses");
    let keys = |name: &str| table.get(name).and_then(toml::Value::as_table).map(|t| t.keys().cloned().collect());
    [keys("dependencies"), keys("build-dependencies")].into_iter().flatten().flat_map(|k: Vec<String>| k).collect()
}

/// Every Rust file under `dir`, with its path from the root.
fn sources(dir: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).expect("the folder is readable") {
            let path: PathBuf = entry.expect("its entries are readable").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root()).expect("it lies below the root").display().to_string();
                out.push((name, std::fs::read_to_string(&path).expect("sources are text")));
            }
        }
    }
    out.sort();
    assert!(!out.is_empty(), "no sources under {dir}");
    out
}

/// The lines of code of a file with their numbers: no comments, nothing from the unit tests at its end on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().take_while(|(_, l)| l.trim() != "#[cfg(test)]");
    lines.map(|(i, l)| (i + 1, l.split("//").next().unwrap_or_default())).filter(|(_, l)| !l.trim().is_empty())
}

/// Whether the file holds tests only.
fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.ends_with("/testing.rs")
}

/// Lines of code under `dir` that hold one of `words`.
fn mentions(dir: &str, words: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for (name, text) in sources(dir).iter().filter(|(n, _)| !is_test(n)) {
        for (n, line) in code(text) {
            for word in words.iter().filter(|w| line.contains(**w)) {
                out.push(format!("{name}:{n} mentions {word}"));
            }
        }
    }
    out
}

const OURS: [&str; 6] =
    ["glmc-ir", "glmc-content", "glmc-frontend-gguf", "glmc-passes", "glmc-codegen-cuda", "glmc-runtime"];

/// Which of our crates each crate may depend on.
const MAY: [(&str, &[&str]); 6] = [
    ("ir", &[]),
    ("content", &[]),
    ("frontend-gguf", &["glmc-ir", "glmc-content"]),
    ("passes", &["glmc-ir"]),
    ("codegen-cuda", &["glmc-ir"]),
    ("runtime", &["glmc-ir", "glmc-content"]),
];

#[test]
fn crates_depend_on_what_they_may() {
    let folders: BTreeSet<String> = std::fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    let known: BTreeSet<String> = MAY.iter().map(|(c, _)| (*c).to_owned()).collect();
    assert_eq!(folders, known, "a crate is not in the table");
    for (name, may) in MAY {
        let found = dependencies(&format!("crates/{name}/Cargo.toml"));
        for ours in OURS.iter().filter(|o| found.contains(**o)) {
            assert!(may.contains(ours), "{name} must not depend on {ours}");
        }
        // A path in the sources names no crate that the manifest lacks.
        for ours in OURS.iter().filter(|o| !may.contains(*o) && **o != format!("glmc-{name}")) {
            let path = format!("{}::", ours.replace('-', "_"));
            assert_eq!(mentions(&format!("crates/{name}/src"), &[&path]), [""; 0], "{name}");
        }
    }
}

#[test]
fn only_the_root_depends_on_all() {
    let found = dependencies("Cargo.toml");
    assert!(OURS.iter().all(|o| found.contains(*o)), "the root wires every crate");
}

#[test]
fn machines_and_files_stay_where_they_belong() {
    let forbidden: [(&str, &[&str]); 4] = [
        ("ir", &["memmap2", "cudarc", "libc", "rayon", "rustix", "tempfile", "tokenizers"]),
        ("passes", &["memmap2", "cudarc", "libc", "rayon", "rustix", "tokenizers"]),
        ("frontend-gguf", &["cudarc", "rayon", "petgraph"]),
        ("runtime", &["petgraph"]),
    ];
    for (name, list) in forbidden {
        let found = dependencies(&format!("crates/{name}/Cargo.toml"));
        assert!(list.iter().all(|d| !found.contains(*d)), "{name} depends on one of {list:?}: {found:?}");
    }
    let files = ["std::fs", "File::open", "std::net", "std::process", "cuda"];
    assert_eq!(mentions("crates/ir/src", &files), [""; 0]);
    assert_eq!(mentions("crates/passes/src", &["std::fs", "File::open", "std::net", "std::process"]), [""; 0]);
}

#[test]
fn tensor_names_stay_in_the_frontend() {
    let names = ["\"blk.", "\"attn_", "\"ffn_", "\"token_embd", "\"output_norm", "\"exp_probs", "_exps", "indexer.k"];
    for dir in ["crates/ir/src", "crates/passes/src", "crates/runtime/src", "crates/codegen-cuda/src"] {
        assert_eq!(mentions(dir, &names), [""; 0]);
        assert_eq!(mentions(dir, &["\"glm-", "\"glm_", "glm_dsa", "glm-dsa", "\"glm4"]), [""; 0]);
    }
}

/// The only files that may hold `unsafe`.
const UNSAFE: [&str; 7] = [
    "src/bus.rs",
    "crates/codegen-cuda/src/nvrtc/library.rs",
    "crates/frontend-gguf/src/map.rs",
    "crates/runtime/src/map.rs",
    "crates/runtime/src/device/cpu/arena.rs",
    "crates/runtime/src/device/cuda/api.rs",
    "crates/runtime/src/device/cuda/nccl.rs",
];

#[test]
fn unsafe_stands_in_a_few_files_with_its_reasons() {
    let mut found = 0;
    for (name, text) in sources("crates").into_iter().chain(sources("src")) {
        let blocks = code(&text).filter(|(_, l)| l.split_whitespace().any(|w| w == "unsafe" || w == "(unsafe")).count();
        if blocks == 0 || name.contains("/tests/") {
            continue;
        }
        let allowed = UNSAFE.contains(&name.as_str()) || name.starts_with("crates/runtime/src/device/cpu/simd/");
        assert!(allowed, "{name} holds unsafe code");
        assert!(text.contains("SAFETY"), "{name} gives no reason");
        found += 1;
    }
    assert!(found >= UNSAFE.len(), "the list names files without unsafe code");
}

#[test]
fn the_device_shares_no_evaluation_with_the_interpreters() {
    let words = ["interp", ".eval(", "meaning(", "ops::matmul", "tensor::Tensor"];
    let found: Vec<String> = mentions("crates/runtime/src/device", &words);
    assert_eq!(found, [""; 0]);
    assert_eq!(mentions("crates/ir/src/interp", &["rayon", "core::arch", "std::arch", "simd"]), [""; 0]);
}

/// Words that would tie the repository to the machine it was written on.
#[test]
fn no_file_points_outside_the_repository() {
    let words = [concat!("..", "/shared"), concat!("shared", "/spec"), concat!("shared", "/models")];
    let mut read = 0;
    let mut open = vec![root().to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).expect("the folder is readable") {
            let path = entry.expect("its entries are readable").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["target", ".git", "shared", "fixtures"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            read += 1;
            let word = words.iter().find(|w| text.contains(**w));
            assert!(word.is_none(), "{} mentions {word:?}", path.display());
        }
    }
    assert!(read > 100, "only {read} files were read");
}
