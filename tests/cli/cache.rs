//! Plans in the user's cache: damaged ones are made again, those that a user names himself are not.

use std::path::Path;
use std::process::Command;

use super::support::{GLMC, Ran, names, run, s, tiny};

fn go(cache: &Path, args: &[&str]) -> Ran {
    let mut c = Command::new(GLMC);
    c.args(["run", s(&tiny()), "--ctx", "256", "-n", "3", "--json"]).args(args).env("XDG_CACHE_HOME", cache);
    run(c)
}

/// Damages a plan, or what is in its place.
type Damage = fn(&Path);

const DAMAGES: [(&str, Damage); 13] = [
    ("tokenizer emptied", |p| std::fs::write(p.join("tokenizer.json"), "").unwrap()),
    ("tokenizer gone", |p| std::fs::remove_file(p.join("tokenizer.json")).unwrap()),
    ("template edited", |p| std::fs::write(p.join("chat_template.jinja"), "x").unwrap()),
    ("template gone", |p| std::fs::remove_file(p.join("chat_template.jinja")).unwrap()),
    ("manifest gone", |p| std::fs::remove_file(p.join("manifest.json")).unwrap()),
    ("manifest and plan gone", |p| {
        std::fs::remove_file(p.join("manifest.json")).unwrap();
        std::fs::remove_file(p.join("plan.json")).unwrap();
    }),
    ("stray file, plan emptied", |p| {
        std::fs::write(p.join(".nfs001"), "").unwrap();
        std::fs::write(p.join("plan.json"), "").unwrap();
    }),
    ("stray folder, plan emptied", |p| {
        std::fs::create_dir(p.join("deep")).unwrap();
        std::fs::write(p.join("deep/x"), "").unwrap();
        std::fs::write(p.join("plan.json"), "").unwrap();
    }),
    ("emptied", |p| {
        std::fs::remove_dir_all(p).unwrap();
        std::fs::create_dir(p).unwrap();
    }),
    ("a file", |p| {
        std::fs::remove_dir_all(p).unwrap();
        std::fs::write(p, "x").unwrap();
    }),
    ("a link to nothing", |p| {
        std::fs::remove_dir_all(p).unwrap();
        std::os::unix::fs::symlink("/no/such/place", p).unwrap();
    }),
    ("a FIFO for the plan", |p| {
        std::fs::remove_file(p.join("plan.json")).unwrap();
        assert!(Command::new("mkfifo").arg(p.join("plan.json")).status().unwrap().success());
    }),
    ("a FIFO for the manifest", |p| {
        std::fs::remove_file(p.join("manifest.json")).unwrap();
        assert!(Command::new("mkfifo").arg(p.join("manifest.json")).status().unwrap().success());
    }),
];

#[test]
fn a_damaged_cached_plan_is_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let first = go(cache.path(), &["--prompt", "1 2 3"]).ok();
    assert!(!first.err.contains("again"), "{first:?}");
    let plans = cache.path().join("glmc/plans");
    let made = names(&plans);
    let place = plans.join(&made[0]);
    let whole = names(&place);
    for (what, damage) in DAMAGES {
        damage(&place);
        for args in [&["--prompt", "1 2 3"][..], &["--chat", "--prompt", "1"]] {
            let ran = go(cache.path(), args);
            assert_eq!(ran.code(), 0, "{what}: {ran:?}");
            let told = ran.err.lines().filter(|l| l.contains("the cached plan is compiled again: ")).count();
            // The first run heals it for the second.
            assert_eq!(told, usize::from(args.len() == 2), "{what}: {ran:?}");
        }
        assert_eq!((names(&plans), names(&place)), (made.clone(), whole.clone()), "{what}");
    }
    assert_eq!(go(cache.path(), &["--prompt", "1 2 3"]).ok().json()["tokens"], first.json()["tokens"]);
    // Named by its user, the same plan is refused.
    std::fs::write(place.join("tokenizer.json"), "").unwrap();
    let ran = super::support::glmc(&["run", s(&place), "--prompt", "1", "--json"]);
    assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-changed".into())), "{ran:?}");
}

#[test]
fn a_link_in_the_cache_is_replaced_not_followed() {
    let cache = tempfile::tempdir().unwrap();
    go(cache.path(), &["--prompt", "1 2 3"]).ok();
    let plans = cache.path().join("glmc/plans");
    let place = plans.join(&names(&plans)[0]);
    let other = cache.path().join("mine");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("notes"), "mine").unwrap();
    std::fs::remove_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(&other, &place).unwrap();
    go(cache.path(), &["--prompt", "1 2 3"]).ok();
    assert!(std::fs::symlink_metadata(&place).unwrap().is_dir());
    assert_eq!(
        (names(&other), std::fs::read(other.join("notes")).unwrap()),
        (vec!["notes".to_owned()], b"mine".to_vec())
    );
}

#[test]
fn a_second_model_in_the_folder_is_an_error_with_and_without_a_cached_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, cache, empty) = (dir.path().join("model"), dir.path().join("cache"), dir.path().join("empty"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(tiny(), folder.join("a.gguf")).unwrap();
    let go = |cache: &Path| {
        let mut c = Command::new(GLMC);
        c.args(["run", s(&folder), "--ctx", "64", "--tokens", "1", "-n", "1", "--json"]).env("XDG_CACHE_HOME", cache);
        run(c)
    };
    go(&cache).ok();
    std::fs::copy(tiny(), folder.join("b.gguf")).unwrap();
    let (cached, fresh) = (go(&cache), go(&empty));
    assert_eq!((cached.code(), cached.class()), (3, ("io".into(), "is-a-directory".into())), "{cached:?}");
    assert_eq!((cached.json(), cached.error_line()), (fresh.json(), fresh.error_line()));
    std::fs::remove_file(folder.join("a.gguf")).unwrap();
    go(&cache).ok();
}

#[test]
fn a_cache_that_takes_no_plan_is_answered_with_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    std::fs::create_dir(cache.path().join("glmc")).unwrap();
    // A folder that is there and takes nothing, whoever asks.
    std::os::unix::fs::symlink("/proc", cache.path().join("glmc/plans")).unwrap();
    let ran = go(cache.path(), &["--prompt", "1 2 3"]);
    assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "{ran:?}");
    assert!(ran.error_line().contains("XDG_CACHE_HOME"), "{ran:?}");
}
