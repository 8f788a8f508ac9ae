//! Plans and weight files that changed after compilation: refused, with a sentence that says what to do.

use std::path::Path;

use serde_json::Value;

use super::support::{Ran, glmc, names, own, plan_json, reseal, runs, s, tiny};

fn refused(plan: &Path, what: &str) -> Ran {
    let ran = glmc(&["run", plan.to_str().unwrap(), "--prompt", "1 2 3", "-n", "2", "--json"]);
    assert_eq!(ran.code(), 3, "{what}: {ran:?}");
    let line = ran.error_line();
    assert!(line.contains("compile the model again") || line.contains("compile for"), "{what}: {line}");
    ran
}

#[test]
fn cut_short_or_edited_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, plan) = own(dir.path());
    for name in names(&plan) {
        let path = plan.join(&name);
        let whole = std::fs::read(&path).unwrap();
        // Running reads none of them; `targets.rs` has what reads the last two.
        if ["graph.glir", "target.toml", "decisions.json"].contains(&name.as_str()) {
            continue;
        }
        let must_fail = |what: &str| {
            if name == "chat_template.jinja" {
                let ran = glmc(&["run", plan.to_str().unwrap(), "--prompt", "x", "--chat", "--json"]);
                assert_eq!(ran.code(), 3, "{what}: {ran:?}");
            } else {
                refused(&plan, what);
            }
        };
        for cut in [0, 1, whole.len() / 2, whole.len() - 2] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            must_fail(&format!("{name} cut at {cut}"));
        }
        let mut edited = whole.clone();
        let at = whole.len() / 2;
        edited[at] ^= 1;
        std::fs::write(&path, &edited).unwrap();
        must_fail(&format!("{name} edited"));
        std::fs::remove_file(&path).unwrap();
        if name != "chat_template.jinja" {
            assert_eq!(runs(&plan).code(), 3, "{name} removed");
        }
        std::fs::write(&path, &whole).unwrap();
        runs(&plan).ok();
    }
}

#[test]
fn plans_of_other_versions_and_machines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, plan) = own(dir.path());
    let json = plan_json(&plan);
    let with = |pointer: &str, v: Value| {
        let mut j = json.clone();
        *j.pointer_mut(pointer).unwrap() = v;
        reseal(&plan, &j);
    };
    with("/format", 99.into());
    assert_eq!(refused(&plan, "version").class().1, "plan-version");
    with("/target/arch", "sm_120".into());
    // Sealed again, it is a plan for such a GPU.
    if super::gpu::machine().1 == 0 {
        let ran = runs(&plan);
        assert_eq!((ran.code(), ran.class().0.as_str()), (4, "device"), "{ran:?}");
        assert!(ran.error_line().contains("--device cpu"), "{ran:?}");
    }
    with("/target/ranks", 8.into());
    refused(&plan, "ranks");
    with("/phases/0/steps/3/name", 7.into());
    assert_eq!(refused(&plan, "syntax").class().1, "plan-syntax");
}

#[test]
fn weights_that_changed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (model, plan) = own(dir.path());
    let whole = std::fs::read(&model).unwrap();
    let mut longer = whole.clone();
    longer.push(0);
    let mut header = whole.clone();
    header[40] ^= 1;
    let mut data = whole.clone();
    *data.last_mut().unwrap() ^= 1;
    for (what, bytes) in [("longer", &longer), ("header", &header), ("data", &data)] {
        std::fs::write(&model, bytes).unwrap();
        assert_eq!(refused(&plan, what).class().1, "weights-changed", "{what}");
    }
    std::fs::remove_file(&model).unwrap();
    assert_eq!(refused(&plan, "missing").class().0, "io");
    std::fs::write(&model, &whole).unwrap();
    runs(&plan).ok();
}

#[test]
fn the_runtime_refuses_plans_that_say_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let (_, plan) = own(dir.path());
    let json = plan_json(&plan);
    // A step is dropped.
    let mut dropped = json.clone();
    dropped["phases"][3]["steps"].as_array_mut().unwrap().remove(7);
    reseal(&plan, &dropped);
    assert_eq!(refused(&plan, "dropped").class().1, "plan-invalid");
    // An output goes to another buffer than the one that is read.
    let mut redirected = json.clone();
    let steps = redirected["phases"][3]["steps"].as_array_mut().unwrap();
    let args = steps.iter_mut().skip(9).flat_map(|s| s["args"].as_array_mut().unwrap());
    let out = args.into_iter().find(|a| a["access"] == "write").unwrap();
    out["mem"] = if out["mem"] == "b0" { "b1".into() } else { "b0".into() };
    reseal(&plan, &redirected);
    assert_eq!(refused(&plan, "redirected").class().1, "plan-invalid");
    // Two weights of one type swap their bytes.
    let mut swapped = json.clone();
    let weights = swapped["weights"].as_array_mut().unwrap();
    let same = |a: &Value, b: &Value| a["ty"] == b["ty"] && a["name"] != b["name"];
    let (i, j) = (0..weights.len())
        .flat_map(|i| (i + 1..weights.len()).map(move |j| (i, j)))
        .find(|(i, j)| same(&weights[*i], &weights[*j]))
        .unwrap();
    let (a, b) = (weights[i]["slices"].clone(), weights[j]["slices"].clone());
    (weights[i]["slices"], weights[j]["slices"]) = (b, a);
    reseal(&plan, &swapped);
    assert_eq!(refused(&plan, "swapped").class().1, "plan-invalid");
    reseal(&plan, &json);
    runs(&plan).ok();
}

/// The two bugs that a compiler for several devices must never let through, as plans of eight ranks edited by hand: every
/// command that would run them refuses them before a weight is read.
#[test]
fn an_output_that_goes_elsewhere_and_shards_in_file_order_are_refused_on_eight_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("eight");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--target", "8x-cpu", "--ctx", "256", "--json"]).ok();
    let json = plan_json(&plan);
    let refused = |json: &Value, codes: &[&str], what: &str| {
        reseal(&plan, json);
        for command in ["run", "verify"] {
            let ran = glmc(&[command, s(&plan), "--tokens", "1,2,3", "-n", "1", "--json"]);
            assert_eq!((ran.code(), ran.class().1.as_str()), (3, "plan-invalid"), "{command} {what}: {ran:?}");
            assert!(codes.iter().any(|c| ran.error_line().contains(c)), "{command} {what}: {ran:?}");
        }
    };
    // The attention of a layer writes a buffer of its own, of the right type and size, that nothing reads.
    let mut redirected = 0;
    for (p, phase) in json["phases"].as_array().unwrap().iter().enumerate() {
        let steps = phase["steps"].as_array().unwrap();
        let attends = |step: &&Value| step["kernel"]["name"].as_str().is_some_and(|n| n.ends_with("attention"));
        let Some((i, step)) = steps.iter().enumerate().filter(|(_, s)| attends(s)).nth(1) else { continue };
        let args = step["args"].as_array().unwrap();
        let k = args.iter().position(|a| a["access"] == "write").unwrap();
        let old: usize = args[k]["mem"].as_str().unwrap()[1..].parse().unwrap();
        let mut fresh = phase["buffers"][old].clone();
        let end = phase["arena_bytes"].as_u64().unwrap().next_multiple_of(256);
        fresh["offset"] = end.into();
        let mut json = json.clone();
        let of = &mut json["phases"][p];
        of["arena_bytes"] = (end + fresh["bytes"].as_u64().unwrap()).into();
        let buffers = of["buffers"].as_array_mut().unwrap();
        buffers.push(fresh);
        let new = format!("b{}", buffers.len() - 1);
        of["steps"][i]["args"][k]["mem"] = new.into();
        refused(&json, &["output-unread", "read-before-write"], phase["name"].as_str().unwrap());
        redirected += 1;
    }
    assert_eq!(redirected, json["phases"].as_array().unwrap().len(), "a phase without attention");
    // Each rank takes the next eighth of the file where it should hold columns of every row; and ranks in another order.
    let (mut in_file_order, mut swapped) = (0, 0);
    for (w, weight) in json["weights"].as_array().unwrap().iter().enumerate() {
        let slices = weight["slices"].as_array().unwrap();
        if slices[0] == slices[1] {
            continue;
        }
        let name = weight["name"].as_str().unwrap();
        if swapped < 6 {
            let mut json = json.clone();
            json["weights"][w]["slices"].as_array_mut().unwrap().reverse();
            refused(&json, &["weight-"], name);
            swapped += 1;
        }
        let span = &weight["span"];
        let (each, start) = (span["bytes"].as_u64().unwrap() / 8, span["offset"].as_u64().unwrap());
        let scattered = slices[0].as_array().unwrap().iter().any(|s| s["count"].as_u64() > Some(1));
        if scattered && in_file_order < 6 {
            let mut json = json.clone();
            for (rank, of) in json["weights"][w]["slices"].as_array_mut().unwrap().iter_mut().enumerate() {
                let at = start + rank as u64 * each;
                *of = serde_json::json!([{ "part": of[0]["part"], "offset": at, "bytes": each, "count": 1, "stride": each }]);
            }
            refused(&json, &["weight-"], name);
            in_file_order += 1;
        }
    }
    assert!(in_file_order > 1 && swapped > 3, "{in_file_order} {swapped}");
    reseal(&plan, &json);
    runs(&plan).ok();
}
