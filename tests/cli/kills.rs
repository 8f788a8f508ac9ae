//! Compilations that die, or whose writes fail, at any moment: the old plan, no plan or a whole one, never half a one.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};

use super::support::{GLMC, compile, fixture, names, run, runs, tiny};

const KILLS: usize = 100;
const FAILING_WRITES: usize = 20;

fn compiling(plan: &Path) -> Command {
    let mut c = Command::new(GLMC);
    c.args([
        Path::new("compile"),
        &tiny(),
        Path::new("-o"),
        plan,
        Path::new("--ctx"),
        Path::new("256"),
        Path::new("--json"),
    ]);
    c
}

/// No plan, or one that runs.
fn check(plan: &Path, what: &str) -> bool {
    if !plan.exists() {
        return false;
    }
    let ran = runs(plan);
    assert_eq!(ran.code(), 0, "{what}: {ran:?}");
    true
}

fn seeded(test: u64) -> rand_chacha::ChaCha8Rng {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() ^ test;
    println!("seed {seed}");
    rand_chacha::ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn kills_leave_no_half_plan() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    let start = Instant::now();
    compile(&tiny(), &plan).ok();
    let usual = start.elapsed();
    std::fs::remove_dir_all(&plan).unwrap();
    let mut rng = seeded(1);
    let (mut whole, mut killed) = (0, 0);
    for i in 0..KILLS {
        let old = i % 2 == 1;
        if old && !plan.exists() {
            compile(&fixture("gguf-bad/ok-base.gguf"), &plan).ok();
        }
        let mut child = compiling(&plan).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(usual.mul_f64(rng.random_range(0.0..1.1)));
        let _ = child.kill();
        killed += usize::from(child.wait().unwrap().code().is_none());
        let there = check(&plan, &format!("kill {i}"));
        assert!(there || !old, "kill {i} lost the old plan");
        whole += usize::from(there);
        if !old && there {
            std::fs::remove_dir_all(&plan).unwrap();
        }
    }
    println!("{KILLS} runs of {usual:?}, {killed} killed before their end, a plan after {whole}");
    assert!(killed > KILLS / 4, "only {killed} runs were killed before their end");
    // What they left behind goes with the next compilation.
    compile(&tiny(), &plan).ok();
    assert_eq!(names(dir.path()), ["plan"]);
}

#[test]
fn failing_writes_leave_no_half_plan() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    compile(&tiny(), &plan).ok();
    let largest = names(&plan).iter().map(|n| std::fs::metadata(plan.join(n)).unwrap().len()).max().unwrap();
    let mut rng = seeded(2);
    for i in 0..FAILING_WRITES {
        let old = i % 2 == 0;
        if !old {
            std::fs::remove_dir_all(&plan).unwrap();
        }
        let limit = rng.random_range(0..largest);
        let mut c = compiling(&plan);
        // SAFETY: between fork and exec only async-signal-safe calls are made.
        unsafe {
            c.pre_exec(move || {
                let rlimit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                if libc::setrlimit(libc::RLIMIT_FSIZE, &rlimit) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let ran = run(c);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "io"), "limit {limit}: {ran:?}");
        assert!(ran.time < Duration::from_secs(5));
        assert_eq!(check(&plan, &format!("limit {limit}")), old);
        assert_eq!(names(dir.path()), if old { vec!["plan"] } else { vec![] });
        if !old {
            compile(&tiny(), &plan).ok();
        }
    }
}
