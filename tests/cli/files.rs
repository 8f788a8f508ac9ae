//! Files that a command writes or misses: nothing else is ever overwritten, and what is missing is named.

use std::path::Path;

use super::support::{Ran, glmc, names, own, runs, s, tiny, tiny_plan};

fn logits(plan: &Path, to: &Path) -> Ran {
    glmc(&["run", s(plan), "--tokens", "1,2,3", "-n", "2", "--ignore-eos", "--json", "--logits", s(to)])
}

/// Refused as usage with this code before anything is computed.
fn refused(ran: &Ran, code: &str, what: &str) {
    assert_eq!((ran.code(), ran.class()), (2, ("usage".into(), code.into())), "{what}: {ran:?}");
    assert!(!ran.err.contains("loading"), "{what}: {ran:?}");
    assert_eq!(ran.json()["error"]["code"], code, "{what}");
}

#[test]
fn logits_never_overwrite_what_is_no_npy_file() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = own(dir.path());
    let at = |n: &str| dir.path().join(n);
    std::fs::write(at("notes.txt"), "mine").unwrap();
    std::fs::write(at("empty.npy"), "").unwrap();
    std::fs::write(at("almost.npy"), b"\x93NUMP").unwrap();
    std::os::unix::fs::symlink(at("notes.txt"), at("link.npy")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling.npy")).unwrap();
    let before = names(dir.path());
    let places = [
        model.clone(),
        plan.clone(),
        plan.join("plan.json"),
        plan.join("manifest.json"),
        at("notes.txt"),
        at("empty.npy"),
        at("almost.npy"),
        at("link.npy"),
        at("dangling.npy"),
        at("new.npy/"),
        "/dev/null".into(),
    ];
    for place in &places {
        let read = |p: &Path| if p.is_file() { std::fs::read(p).ok() } else { None };
        let held = read(place);
        refused(&logits(&plan, place), "output-exists", &place.display().to_string());
        assert_eq!(read(place), held, "{}", place.display());
    }
    for place in [at("no/such/folder/l.npy"), at("notes.txt/l.npy"), at("notes.txt/deeper/l.npy")] {
        refused(&logits(&plan, &place), "output-parent", &place.display().to_string());
    }
    // The place is judged before the plan is even looked at.
    refused(&logits(Path::new("/no/such/plan"), &at("notes.txt")), "output-exists", "first");
    assert_eq!(names(dir.path()), before);
    runs(&plan).ok();
}

#[test]
fn logits_go_to_a_free_place_or_replace_an_npy_file() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let (npy, link) = (dir.path().join("l.npy"), dir.path().join("link"));
    logits(&plan, &npy).ok();
    let first = std::fs::read(&npy).unwrap();
    std::fs::write(&npy, b"\x93NUMPY, but an old one").unwrap();
    logits(&plan, &npy).ok();
    assert_eq!(std::fs::read(&npy).unwrap(), first);
    // Through a link the file itself is written, and the link stays.
    std::fs::write(&npy, b"\x93NUMPY, but an old one").unwrap();
    std::os::unix::fs::symlink(&npy, &link).unwrap();
    logits(&plan, &link).ok();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::read(&npy).unwrap(), first);
    assert_eq!(names(dir.path()), ["l.npy", "link", "plan"]);
}

#[test]
fn logits_that_cannot_be_written_leave_the_old_file() {
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let npy = dir.path().join("l.npy");
    for old in [None, Some(&b"\x93NUMPY old"[..])] {
        if let Some(bytes) = old {
            std::fs::write(&npy, bytes).unwrap();
        }
        let mut c = std::process::Command::new(super::support::GLMC);
        c.args(["run", s(&plan), "--tokens", "1,2,3", "-n", "4", "--ignore-eos", "--json", "--logits", s(&npy)]);
        // SAFETY: between fork and exec only async-signal-safe calls are made.
        unsafe {
            c.pre_exec(|| {
                let limit = libc::rlimit { rlim_cur: 9000, rlim_max: 9000 };
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let ran = super::support::run(c);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{ran:?}");
        assert_eq!(std::fs::read(&npy).ok().as_deref(), old);
    }
    assert_eq!(names(dir.path()), ["l.npy", "plan"]);
}

#[test]
fn a_deleted_file_of_a_plan_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for name in ["plan.json", "tokenizer.json", "chat_template.jinja"] {
        let bytes = std::fs::read(plan.join(name)).unwrap();
        std::fs::remove_file(plan.join(name)).unwrap();
        let ran = glmc(&["run", s(&plan), "--chat", "--prompt", "Hello", "-n", "2", "--json"]);
        assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-incomplete".into())), "{name}: {ran:?}");
        let line = ran.error_line();
        assert!(line.contains(&format!("{name}: ")) && line.contains("compile the model again"), "{line}");
        if name != "chat_template.jinja" {
            let text = dir.path().join("text");
            std::fs::write(&text, "1 2 3 4").unwrap();
            let ran = glmc(&["perplexity", s(&plan), "-f", s(&text), "--window", "8"]);
            assert_eq!(ran.class().1, "plan-incomplete", "{name}: {ran:?}");
        }
        std::fs::write(plan.join(name), bytes).unwrap();
    }
    runs(&plan).ok();
}

#[test]
fn a_plan_below_a_file_is_a_mistake_of_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for place in [file.join("plan"), file.join("deeper/plan")] {
        let ran = glmc(&["compile", s(&tiny()), "-o", s(&place), "--json"]);
        refused(&ran, "output-parent", s(&place));
    }
    assert_eq!((names(dir.path()), std::fs::read(&file).unwrap()), (vec!["file".to_owned()], b"mine".to_vec()));
}

fn page(plan: &Path, to: &Path) -> Ran {
    glmc(&["explain", s(plan), "--json", "--html", s(to)])
}

#[test]
fn a_page_overwrites_nothing_but_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = own(dir.path());
    let at = |n: &str| dir.path().join(n);
    std::fs::write(at("other.html"), "<!doctype html>\n<p>mine").unwrap();
    std::os::unix::fs::symlink(&model, at("link.html")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let before = names(dir.path());
    let places = [
        model.clone(),
        plan.clone(),
        plan.join("plan.json"),
        at("other.html"),
        at("link.html"),
        at("fifo"),
        "/dev/null".into(),
    ];
    for place in &places {
        let read = |p: &Path| if p.is_file() { std::fs::read(p).ok() } else { None };
        let held = read(place);
        refused(&page(&plan, place), "output-exists", s(place));
        assert_eq!(read(place), held, "{}", place.display());
    }
    refused(&page(&plan, &at("no/such/a.html")), "output-parent", "no folder");
    assert_eq!(names(dir.path()), before);
    // An older page is replaced; of a failed one nothing is left, and the older stays.
    page(&plan, &at("a.html")).ok();
    let whole = std::fs::read(at("a.html")).unwrap();
    for old in [true, false] {
        if !old {
            std::fs::remove_file(at("a.html")).unwrap();
        }
        let mut c = std::process::Command::new("/bin/sh");
        c.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", super::support::GLMC, "explain", s(&plan), "--html"]);
        c.arg(at("a.html"));
        let ran = super::support::run(c);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{ran:?}");
        assert_eq!(std::fs::read(at("a.html")).ok(), old.then(|| whole.clone()));
    }
    page(&plan, &at("a.html")).ok();
    page(&plan, &at("a.html")).ok();
    assert_eq!(std::fs::read(at("a.html")).unwrap(), whole);
    assert_eq!(names(dir.path()).len(), before.len() + 1);
}

#[test]
fn nothing_is_put_into_a_plan() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let before = names(&plan);
    std::os::unix::fs::symlink(&plan, dir.path().join("link")).unwrap();
    for folder in [&plan, &dir.path().join("link")] {
        refused(&logits(&plan, &folder.join("l.npy")), "output-in-plan", "logits");
        refused(&page(&plan, &folder.join("a.html")), "output-in-plan", "page");
    }
    assert_eq!(names(&plan), before);
    super::support::compile(&tiny(), &plan).ok();
}

#[test]
fn a_place_that_takes_nothing_is_refused_before_anything_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let long = dir.path().join(format!("{}.npy", "n".repeat(300)));
    for place in [Path::new("/proc/l.npy"), &long] {
        for ran in [logits(&plan, place), page(&plan, place)] {
            assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{ran:?}");
        }
        // Before the plan is even looked at.
        let ran = logits(Path::new("/no/such/plan"), place);
        assert_eq!(ran.json()["error"]["file"], s(place), "{ran:?}");
    }
    // A name that is just short enough can be written.
    let long = dir.path().join(format!("{}.npy", "n".repeat(251)));
    logits(&plan, &long).ok();
    assert_eq!(names(dir.path()).len(), 2);
}
