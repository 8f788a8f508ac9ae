//! Caches that fit only in parts: where copies of the pools would not fit a rank's memory, the search splits them over the
//! ranks, each rank attends to the positions it then has, and the parts merge by softmax and by selecting again.

use std::path::{Path, PathBuf};
use std::process::Command;

use glmc_ir::placement::local_type;
use glmc_ir::plan::Plan;
use glmc_ir::ty::{PendingKind, SymValues};

use super::ranks::{Links, goes_on_counting, golden_logits, target};
use super::support::{engine, fixture, glmc, scratch};

const RANKS: u32 = 8;
/// Cache rows: 277 MB of pools, 35 MB a rank in eight parts.
const ROWS: &str = "65536";

/// The eight-rank machine with so much memory a rank.
fn with_memory(bytes: u64) -> PathBuf {
    let text = std::fs::read_to_string(target(RANKS, Links::Shipped)).unwrap();
    let text = text.replace("[device]\n", &format!("[device]\nmemory_bytes = {bytes}\n"));
    let path = scratch().join(format!("memory-{bytes}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

fn arguments(model: &str, target: &Path, plan: &Path) -> Vec<String> {
    let [model, target, plan] = [&fixture(model), target, plan].map(|p| p.to_str().unwrap().to_owned());
    let sizes = ["--ctx", "4096", "--cache", ROWS, "--json"].map(str::to_owned);
    ["compile".into(), model, "-o".into(), plan, "--target".into(), target].into_iter().chain(sizes).collect()
}

fn run(args: &[String]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_glmc")).args(args).output().unwrap()
}

/// Bytes of all pools that a rank holds.
fn pools(plan: &Plan, rank: u64) -> u64 {
    let none = SymValues::default();
    let held = |s: &glmc_ir::plan::State| local_type(&s.ty, &plan.mesh, rank, &none).unwrap().bytes(&none).unwrap();
    plan.states.values().map(held).sum()
}

/// Steps of a phase whose results are pending such a merge.
fn pending(plan: &Plan, phase: &str, kind: PendingKind) -> usize {
    let steps = &plan.phase(phase).unwrap().steps;
    let owes =
        |s: &&glmc_ir::plan::Step| s.args.last().is_some_and(|a| matches!(&a.ty.pending, Some((k, _)) if *k == kind));
    steps.iter().filter(owes).count()
}

#[test]
fn pools_are_split_where_copies_do_not_fit() {
    for (golden, model) in
        [("Q4_K_M", "models/tiny-Q4_K_M.gguf"), ("UD-Q4_K_XL", "models/tiny-UD-Q4_K_XL-00001-of-00003.gguf")]
    {
        // Enough memory: each rank keeps what is fastest, and tells how much that is.
        let roomy = scratch().join(format!("roomy-{golden}"));
        assert!(run(&arguments(model, &with_memory(1 << 30), &roomy)).status.success());
        let most = pools(engine(&roomy).plan(), 0);
        assert_eq!(most, 65536 * 4 * 3 * (288 + 64), "the pools are copied where they fit");

        let tight = scratch().join(format!("tight-{golden}"));
        let args = arguments(model, &with_memory(72 << 20), &tight);
        glmc(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let mut many = engine(&tight);
        let plan = many.plan();
        for rank in 0..u64::from(RANKS) {
            assert_eq!(pools(plan, rank), most / u64::from(RANKS), "rank {rank} of {golden}");
        }
        let merges = [PendingKind::Softmax, PendingKind::TopK].map(|k| pending(plan, "decode_1", k));
        println!("{golden}: merges by softmax and of choices in a decoded token: {merges:?}");
        assert!(merges.iter().all(|n| *n == 3), "{golden}: a layer does not merge: {merges:?}");
        golden_logits(&mut many, golden, "split pools");
        goes_on_counting(&tight, golden, "split pools");
    }
}

#[test]
fn what_does_not_fit_in_parts_either_is_refused() {
    let plan = scratch().join("unfit");
    let out = run(&arguments("models/tiny-Q4_K_M.gguf", &with_memory(20 << 20), &plan));
    assert_eq!(out.status.code(), Some(3));
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("memory") && said.contains("kv") && said.contains("index"), "{said}");
    assert!(!plan.exists());
}
