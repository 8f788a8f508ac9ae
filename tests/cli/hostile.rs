//! Files that are broken, made to break readers, or merely odd: one clear line, exit code 3, little memory and time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::support::{Ran, compile, fixture, names, runs};

/// Beside the file's own size.
const MEMORY: u64 = 64 << 20;
const TIME: Duration = Duration::from_secs(2);

fn entries() -> Vec<Value> {
    let index = std::fs::read(fixture("gguf-bad/index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    index["entries"].as_array().unwrap().clone()
}

/// The classes that are a right answer.
fn allowed(e: &Value) -> Vec<&str> {
    let also = e["also_ok"].as_array().unwrap().iter().filter_map(Value::as_str);
    std::iter::once(e["class"].as_str().unwrap()).chain(also).collect()
}

fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

/// What holds of every refusal.
fn check_refusal(ran: &Ran, path: &Path, bytes: u64, allowed: &[&str]) {
    let name = path.display().to_string();
    assert_eq!(ran.code(), 3, "{name}: {ran:?}");
    let (class, _) = ran.class();
    assert!(allowed.contains(&class.as_str()), "{name}: {class} is none of {allowed:?}: {}", ran.err);
    let stem = path.file_name().unwrap().to_string_lossy().into_owned();
    let family = stem.split("-0000").next().unwrap();
    assert!(ran.error_line().contains(family), "{name}: the message does not name the file: {}", ran.err);
    let error = &ran.json()["error"];
    assert_eq!(error["class"], class.as_str());
    let message = error["message"].as_str().unwrap();
    assert!(message.len() > 8, "{name}");
    check_subject(message, &error["subject"], &name);
    check_cost(ran, &name, bytes);
}

/// A message that names a key or tensor has it as its subject too.
fn check_subject(message: &str, subject: &Value, name: &str) {
    let words: Vec<&str> = message.split(' ').collect();
    if words.windows(2).any(|w| ["key", "tensor"].contains(&w[0]) && w[1].contains(['.', '_'])) {
        let subject = subject.as_str().unwrap_or_else(|| panic!("{name}: no subject: {message}"));
        assert!(message.contains(subject), "{name}: {subject} is not in: {message}");
    }
}

fn check_cost(ran: &Ran, name: &str, bytes: u64) {
    assert!(ran.peak <= bytes + MEMORY, "{name}: {} bytes resident for a file of {bytes}", ran.peak);
    assert!(ran.time < TIME, "{name}: {:?}", ran.time);
}

#[test]
fn every_bad_file_gets_its_class() {
    let (mut refused, mut accepted) = (0, 0);
    for e in entries() {
        let open = e["open"].as_str().unwrap();
        let path = fixture("gguf-bad").join(open);
        if e["files"].as_array().unwrap().is_empty() && open != "no-such-file.gguf" {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let plan = dir.path().join("plan");
        let ran = compile(&path, &plan);
        let bytes = e["files"].as_array().unwrap().iter().filter_map(|f| f["bytes"].as_u64()).sum::<u64>();
        let allowed = allowed(&e);
        if ran.code() == 0 {
            assert!(allowed.contains(&"ok"), "{open} was accepted");
            check_cost(&ran, open, bytes.max(size_of(&path)));
            // An odd file that is accepted must run too, or say what is wrong with its numbers.
            let ran = runs(&plan);
            if ran.code() != 0 {
                assert!(open.starts_with("odd-"), "{open}: {ran:?}");
                assert_eq!(ran.class(), ("model".into(), "numbers".into()), "{open}: {ran:?}");
            }
            accepted += 1;
        } else {
            check_refusal(&ran, &path, bytes, &allowed);
            assert!(names(dir.path()).is_empty(), "{open} left {:?}", names(dir.path()));
            refused += 1;
        }
    }
    println!("{refused} refused, {accepted} accepted");
    assert!(refused > 60 && accepted >= 8);
}

#[test]
fn every_control_file_compiles_and_runs() {
    for e in entries().iter().filter(|e| e["kind"] == "control") {
        let dir = tempfile::tempdir().unwrap();
        let plan = dir.path().join("plan");
        compile(&fixture("gguf-bad").join(e["open"].as_str().unwrap()), &plan).ok();
        let out = runs(&plan).ok().json();
        assert_eq!(out["tokens"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn every_cut_is_refused() {
    let layout: Value =
        serde_json::from_slice(&std::fs::read(fixture("gguf-bad/ok-one-layer.layout.json")).unwrap()).unwrap();
    let whole = std::fs::read(fixture("gguf-bad/ok-one-layer.gguf")).unwrap();
    let mut offsets = Vec::new();
    collect_offsets(&layout, &mut offsets);
    offsets.sort_unstable();
    offsets.dedup();
    assert!(offsets.len() > 50, "{} cut points", offsets.len());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let mut cuts = 0;
    for cut in offsets.into_iter().flat_map(|o| [o, o + 1]).filter(|c| *c < whole.len()) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let ran = compile(&path, &dir.path().join("plan"));
        check_refusal(&ran, &path, cut as u64, &["format", "io"]);
        assert_eq!(names(dir.path()), ["cut.gguf"]);
        cuts += 1;
    }
    println!("{cuts} cuts");
}

/// Every number under a key `offset`.
fn collect_offsets(v: &Value, out: &mut Vec<usize>) {
    match v {
        Value::Object(m) => {
            out.extend(m.get("offset").and_then(Value::as_u64).map(|n| n as usize));
            m.values().for_each(|v| collect_offsets(v, out));
        }
        Value::Array(l) => l.iter().for_each(|v| collect_offsets(v, out)),
        _ => {}
    }
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let place = |n: &str| dir.path().join(n);
    let fifo: PathBuf = place("fifo.gguf");
    let c = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a system call on a path that lives through it.
    assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink(place("link-loop.gguf"), place("link-loop.gguf")).unwrap();
    std::fs::create_dir(place("folder.gguf")).unwrap();
    for name in ["fifo.gguf", "link-loop.gguf", "folder.gguf", "missing.gguf"] {
        let ran = compile(&place(name), &place("plan"));
        check_refusal(&ran, &place(name), 0, &["io"]);
    }
    check_refusal(&compile(Path::new("/dev/null"), &place("plan")), Path::new("/dev/null"), 0, &["io"]);
    assert!(!place("plan").exists());
}
