//! GPU commands on whatever machine the tests run on: without a GPU each says so, with its own exit code.

use super::support::{glmc, s, tiny_plan};

/// The driver's version and the number of devices, if the machine has them.
pub(crate) fn machine() -> (bool, usize) {
    let found = glmc(&["devices", "--json"]).ok().json();
    let devices = found["devices"].as_array().unwrap().len();
    for library in ["driver", "nvrtc", "nccl"] {
        let l = &found[library];
        assert!(l["error"].is_string() != (l["version"].is_string() && l["path"].is_string()), "{found}");
    }
    let driver = found["driver"]["version"].is_string();
    assert!(driver || devices == 0, "{found}");
    (driver, devices)
}

#[test]
fn devices_are_listed_or_said_to_be_absent() {
    let (_, devices) = machine();
    let ran = glmc(&["devices"]).ok();
    assert_eq!(ran.out.lines().filter(|l| l.starts_with("cuda:")).count(), devices);
    assert_eq!(ran.out.contains("no GPU"), devices == 0, "{}", ran.out);
    for word in ["driver", "NVRTC", "NCCL"] {
        assert_eq!(ran.out.lines().filter(|l| l.starts_with(word)).count(), 1, "{}", ran.out);
    }
    assert_eq!(ran.err, "");
}

/// A driver made of `source`, in a folder; none without a C compiler.
fn fake_driver(dir: &std::path::Path, source: &str) -> bool {
    let (file, library) = (dir.join("cuda.cpp"), dir.join("libcuda.so.1"));
    std::fs::write(&file, source).unwrap();
    let made = std::process::Command::new("g++").args(["-shared", "-fPIC", "-w", "-o", s(&library), s(&file)]).status();
    let there = made.is_ok_and(|m| m.success());
    if !there {
        println!("SKIPPED: no g++");
    }
    there
}

#[test]
fn an_old_driver_is_said_to_be_old_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let api = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/crates/runtime/src/device/cuda/api.rs"));
    let api = api.unwrap();
    // Every entry point that is asked for.
    let names: std::collections::BTreeSet<&str> = api
        .split('"')
        .filter(|n| n.starts_with("cu") && n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        .collect();
    assert!(names.len() > 20 && names.contains("cuInit"), "{names:?}");
    let one = |n: &&str| match *n {
        "cuDriverGetVersion" => "extern \"C\" int cuDriverGetVersion(int* v) { *v = 12040; return 0; }\n".to_owned(),
        n => format!("extern \"C\" int {n}(...) {{ return 0; }}\n"),
    };
    let whole: String = names.iter().map(one).collect();
    for (source, said) in [("extern \"C\" int cuInit(unsigned) { return 0; }", "older"), (whole.as_str(), "CUDA 12.4")]
    {
        let folder = tempfile::tempdir().unwrap();
        if !fake_driver(folder.path(), source) {
            return;
        }
        for args in [
            &["run", s(&plan), "--tokens", "1", "-n", "1", "--device", "cuda:0", "--json"][..],
            &["selftest", "--json"],
            &["bench", s(&plan), "--device", "cuda:0", "--json"],
            &["verify", s(&plan), "--device", "cuda:0", "--json"],
        ] {
            let mut c = std::process::Command::new(super::support::GLMC);
            c.args(args).env("LD_LIBRARY_PATH", folder.path());
            let ran = super::support::run(c);
            assert_eq!((ran.code(), ran.class()), (4, ("device".into(), "old-driver".into())), "{args:?}: {ran:?}");
            let line = ran.error_line();
            assert!(line.contains(said) && line.contains("580"), "{line}");
            assert!(ran.time < std::time::Duration::from_secs(5), "{ran:?}");
        }
        let mut c = std::process::Command::new(super::support::GLMC);
        c.args(["devices", "--json"]).env("LD_LIBRARY_PATH", folder.path());
        let found = super::support::run(c).ok().json();
        assert!(found["driver"]["error"].as_str().unwrap().contains(said), "{found}");
    }
}

#[test]
fn an_nvrtc_that_is_named_is_never_replaced() {
    let found = glmc(&["devices", "--json", "--nvrtc", "/nowhere/libnvrtc.so"]).ok().json();
    assert!(found["nvrtc"]["error"].as_str().unwrap().contains("not found"), "{found}");
}

#[test]
fn without_a_device_the_self_test_and_the_measurement_say_so() {
    let (driver, devices) = machine();
    for args in [&["selftest", "--quick"] as &[&str], &["bench", "--kernels"]] {
        if devices == 0 {
            let ran = glmc(args);
            assert_eq!(ran.code(), 4, "{ran:?}");
            if !driver {
                assert_eq!(ran.class(), ("device".to_owned(), "no-driver".to_owned()));
            }
            assert_eq!(ran.out, "");
        }
        let ran = glmc(&[args, &["--device", "cuda:99", "--json"]].concat());
        assert_eq!(ran.code(), 4, "{ran:?}");
        assert_eq!(ran.json()["error"]["class"], "device");
    }
}

#[test]
fn what_is_no_gpu_is_a_usage_error() {
    for device in ["cuda:x", "cuda:", "cuda:-1", "cpu", ""] {
        let ran = glmc(&["selftest", "--device", device]);
        assert_eq!(ran.code(), 2, "{device} {ran:?}");
    }
    assert_eq!(glmc(&["bench"]).code(), 2);
}

#[test]
fn a_map_of_other_ranks_or_gpus_is_refused() {
    let (_, devices) = machine();
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let run = |more: &[&str]| glmc(&[&["run", s(&plan), "--tokens", "1,2,3", "-n", "1", "--json"], more].concat());
    for (more, code, said) in [
        (&["--map", "0,0"] as &[&str], 2, "2 ranks, the plan has 1"),
        (&["--map", "0,x"], 2, "is no map"),
        (&["--map", "0", "--device", "cpu"], 2, "--map names GPUs"),
        (&["--map", "1", "--device", "cuda:0"], 2, "--map names cuda:1"),
        (&["--device", "cuda:0,0"], 2, "twice"),
        (&["--collectives", "smoke"], 2, "p2p"),
        (&["--device", "cpu", "--collectives", "host"], 2, "--collectives is for GPUs"),
        (&["--step-timeout", "3"], 2, "--step-timeout is for GPUs"),
        (&["--eager"], 2, "--eager is for GPUs"),
        (&["--nvrtc", "/lib"], 2, "--nvrtc is for GPUs"),
        (&["--step-timeout", "0"], 2, "no time"),
    ] {
        let ran = run(more);
        assert_eq!(ran.code(), code, "{more:?} {ran:?}");
        assert!(format!("{}{}", ran.out, ran.err).contains(said), "{more:?} {ran:?}");
    }
    let ran = run(&["--map", "63"]);
    assert_eq!(ran.code(), 4, "{ran:?}");
    if devices > 0 {
        assert!(ran.json()["error"]["message"].as_str().unwrap().contains("cuda:63"), "{ran:?}");
    }
    // The self-test of collectives needs a GPU, and replays need it.
    assert_eq!(glmc(&["selftest", "--replays", "5"]).code(), 2);
    assert!(devices > 0 || glmc(&["selftest", "--collectives"]).code() == 4);
    assert!(devices > 1 || glmc(&["devices", "--measure"]).code() == 4);
}

#[test]
fn a_plan_for_a_gpu_that_is_not_there_never_runs_elsewhere() {
    let (driver, devices) = machine();
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let text = dir.path().join("ids.json");
    std::fs::write(&text, "[1, 2, 3]").unwrap();
    let run = ["run", s(&plan), "--tokens", "1,2,3", "-n", "2", "--json"];
    let perplexity = ["perplexity", s(&plan), "-f", s(&text), "--window", "3", "--json"];
    for args in [&run as &[&str], &perplexity] {
        let ran = glmc(&[args, &["--device", "cuda:99"]].concat());
        assert_eq!(ran.code(), 4, "{ran:?}");
        let error = ran.json()["error"].clone();
        assert_eq!(error["class"], "device", "{error}");
        if devices == 0 {
            let ran = glmc(&[args, &["--device", "cuda:0"]].concat());
            assert_eq!(ran.code(), 4, "{ran:?}");
            assert!(driver || ran.json()["error"]["code"] == "no-driver", "{ran:?}");
            // The same device by its short name.
            let short = glmc(&[args, &["--device", "cuda"]].concat());
            assert_eq!((short.code(), short.json()), (4, ran.json()));
        }
        for device in ["gpu", "cuda:", "cuda:-1", ""] {
            assert_eq!(glmc(&[args, &["--device", device]].concat()).code(), 2, "{device}");
        }
        let ran = glmc(&[args, &["--device", "cpu"]].concat()).ok().json();
        assert_eq!(ran["devices"][0]["device"], "cpu", "{ran}");
    }
}
