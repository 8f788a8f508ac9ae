//! Plans that were edited and sealed again so that they no longer fit the engine: refused with a sentence, never a
//! panic, and what still fits still runs.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::support::{Ran, glmc, own, plan_json, reseal, runs, s};

struct Case {
    _dir: tempfile::TempDir,
    plan: PathBuf,
    json: Value,
    tokens: Value,
}

fn case() -> Case {
    let dir = tempfile::tempdir().unwrap();
    let (_, plan) = own(dir.path());
    let (json, tokens) = (plan_json(&plan), runs(&plan).ok().json()["tokens"].clone());
    Case { _dir: dir, plan, json, tokens }
}

impl Case {
    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut json = self.json.clone();
        edit(&mut json);
        assert_ne!(json, self.json, "nothing was edited");
        reseal(&self.plan, &json);
    }

    fn perplexity(&self) -> Ran {
        let text = self.plan.with_file_name("text");
        std::fs::write(&text, "1 2 3 4 5 6").unwrap();
        glmc(&["perplexity", s(&self.plan), "-f", s(&text), "--window", "6", "--json"])
    }

    /// The error line.
    fn refused(&self, what: &str, edit: impl FnOnce(&mut Value)) -> String {
        self.edit(edit);
        refusal(&runs(&self.plan), what)
    }

    fn accepted(&self, what: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(edit);
        assert_eq!(runs(&self.plan).ok().json()["tokens"], self.tokens, "{what}");
    }
}

fn refusal(ran: &Ran, what: &str) -> String {
    assert_eq!((ran.code(), ran.class()), (3, ("plan".into(), "plan-invalid".into())), "{what}: {ran:?}");
    let line = ran.error_line();
    assert!(line.contains("plan.json: ") && line.ends_with("compile the model again"), "{what}: {line}");
    println!("{what}: {}", &line[line.find("plan.json").unwrap()..]);
    line.to_owned()
}

fn set(json: &mut Value, pointer: &str, v: impl Into<Value>) {
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = v.into();
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let c = case();
    let vocab = c.json["model"]["vocab"].as_u64().unwrap();
    for v in [0, 1, vocab - 1, vocab + 1, 1 << 31, 1 << 40, u64::MAX] {
        c.refused(&format!("vocab {v}"), |j| set(j, "/model/vocab", v));
    }
    let ctx = c.json["limits"]["ctx"].as_u64().unwrap();
    for key in ["ctx", "cache_rows", "chunk", "max_batch"] {
        for v in [0, 1 << 31, 1 << 40, u64::MAX] {
            c.refused(&format!("{key} {v}"), |j| set(j, &format!("/limits/{key}"), v));
        }
        let now = c.json["limits"][key].as_u64().unwrap();
        c.refused(&format!("{key} one more"), |j| set(j, &format!("/limits/{key}"), now + 1));
        if now > 64 {
            c.accepted(&format!("{key} smaller"), |j| set(j, &format!("/limits/{key}"), 64));
        }
    }
    c.accepted("max_batch 1", |j| set(j, "/limits/max_batch", 1));
    assert_eq!(ctx, 256);
    for list in ["stop", "suppress"] {
        for id in [vocab, u64::from(u32::MAX)] {
            c.refused(&format!("{list} {id}"), |j| {
                j["model"][list].as_array_mut().unwrap().push(id.into());
            });
        }
        c.accepted(&format!("no {list} ids but the last"), |j| j["model"][list] = json!([vocab - 1]));
    }
}

fn phases(json: &Value) -> Vec<(String, u64)> {
    let all = json["phases"].as_array().unwrap();
    all.iter().map(|p| (p["name"].as_str().unwrap().to_owned(), p["tokens"].as_u64().unwrap())).collect()
}

#[test]
fn phases_that_are_missing_are_refused() {
    let c = case();
    let all = phases(&c.json);
    let long = |n: &str| !n.ends_with(".short");
    let decodes = all.iter().filter(|(n, _)| n.starts_with("decode") && long(n));
    let largest = decodes.max_by_key(|(_, n)| *n).unwrap().0.clone();
    assert_eq!(all.iter().filter(|(n, _)| !long(n)).count() * 2, all.len());
    for (i, (name, tokens)) in all.iter().enumerate() {
        let without = |j: &mut Value| {
            j["phases"].as_array_mut().unwrap().remove(i);
        };
        if *name == "prefill" || *name == largest {
            c.refused(&format!("without {name}"), without);
        } else {
            // A larger bucket does what it did, padded, or the phase for any context does.
            c.accepted(&format!("without {name}"), without);
        }
        c.refused(&format!("{name} without tokens"), |j| set(j, &format!("/phases/{i}/tokens"), 0));
        for n in [tokens + 1, 1 << 31, u64::MAX] {
            let edit = |j: &mut Value| set(j, &format!("/phases/{i}/tokens"), n);
            // The prefill's is a bound; the rows of a decode phase are its bucket.
            if name.starts_with("prefill") {
                c.accepted(&format!("{name} of {n} tokens"), edit);
            } else {
                c.refused(&format!("{name} of {n} tokens"), edit);
            }
        }
    }
    // What is for short contexts never stands in for what is for all.
    for kind in ["decode", "prefill"] {
        let line = c.refused(&format!("{kind} for short contexts only"), |j| {
            let phases = j["phases"].as_array_mut().unwrap();
            phases.retain(|p| p["kind"] != kind || p["name"].as_str().unwrap().ends_with(".short"));
        });
        assert!(line.contains("promises a context of 256 and has no") && line.contains(kind), "{line}");
    }
    c.refused("no phases", |j| j["phases"] = json!([]));
    c.refused("prefill of fewer tokens than a chunk", |j| {
        let i = all.iter().position(|(n, _)| n == "prefill").unwrap();
        set(j, &format!("/phases/{i}/tokens"), 1);
    });
    let i = all.iter().position(|(n, _)| n == "prefill").unwrap();
    c.refused("prefill as decode", |j| set(j, &format!("/phases/{i}/kind"), "decode"));
    c.refused("decode as prefill", |j| set(j, "/phases/0/kind", "prefill"));
    c.refused("two phases for one step", |j| {
        let mut twin = j["phases"][0].clone();
        twin["name"] = "twin".into();
        j["phases"].as_array_mut().unwrap().push(twin);
    });
}

#[test]
fn step_parameters_and_results_of_another_kind_are_refused() {
    let c = case();
    let n = c.json["phases"].as_array().unwrap().len();
    for i in [0, n - 1] {
        let params = c.json["phases"][i]["params"].as_array().unwrap().clone();
        for (k, p) in params.iter().enumerate() {
            let at = format!("/phases/{i}/params/{k}");
            let name = p["name"].as_str().unwrap();
            c.refused(&format!("{name} renamed"), |j| set(j, &format!("{at}/name"), "other"));
            c.refused(&format!("{name} removed"), |j| {
                j.pointer_mut(&format!("/phases/{i}/params")).unwrap().as_array_mut().unwrap().remove(k);
            });
            for other in params.iter().filter(|o| o["ty"] != p["ty"]) {
                c.refused(&format!("{name} as {}", other["ty"]), |j| set(j, &format!("{at}/ty"), other["ty"].clone()));
            }
        }
        c.refused("another parameter", |j| {
            let more = json!({ "name": "more", "ty": params[0]["ty"] });
            j.pointer_mut(&format!("/phases/{i}/params")).unwrap().as_array_mut().unwrap().push(more);
        });
        // Two of one type that change places: the steps would read one for the other.
        let results = c.json["phases"][i]["results"].as_array().unwrap().clone();
        for (k, r) in results.iter().enumerate() {
            if r["name"] == "logits" {
                c.refused("no logits", |j| set(j, &format!("/phases/{i}/results/{k}/name"), "numbers"));
            }
        }
        let of = |name: &str| results.iter().position(|r| r["name"] == name).unwrap();
        c.refused("other logits", |j| {
            set(j, &format!("/phases/{i}/results/{}/name", of("logits")), "x");
            set(j, &format!("/phases/{i}/results/{}/name", of("hidden")), "logits");
        });
        let syms: Vec<String> = c.json["phases"][i]["syms"].as_object().unwrap().keys().cloned().collect();
        for sym in syms {
            let at = format!("/phases/{i}/syms/{sym}");
            let bound = c.json.pointer(&at).unwrap().as_u64().unwrap();
            c.refused(&format!("{sym} bounded lower"), |j| set(j, &at, bound - 1));
            c.refused(&format!("no {sym}"), |j| {
                j["phases"][i]["syms"].as_object_mut().unwrap().remove(&sym);
            });
        }
        c.refused("another symbol", |j| j["phases"][i]["syms"]["Z"] = 4.into());
    }
}

/// `from` as a whole word in every type, and as a key, becomes `to`.
fn rename(v: &mut Value, from: &str, to: &str) {
    match v {
        Value::String(s) if s.contains('[') => {
            let words = s.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_');
            let word = |w: &str| match w.strip_prefix(from) {
                Some(rest) if rest.chars().all(|c| !c.is_alphanumeric()) => format!("{to}{rest}"),
                _ => w.to_owned(),
            };
            *s = words.map(word).collect();
        }
        Value::Array(l) => l.iter_mut().for_each(|v| rename(v, from, to)),
        Value::Object(m) => {
            if let Some(bound) = m.remove(from) {
                m.insert(to.into(), bound);
            }
            m.values_mut().for_each(|v| rename(v, from, to));
        }
        _ => {}
    }
}

/// The verifier knows but the name of what is visible; the engine sets three symbols.
#[test]
fn symbols_under_other_names_are_refused() {
    let c = case();
    for sym in ["S", "T", "R"] {
        // In one phase, where without it two would be for the same step.
        let edit = |j: &mut Value| rename(if sym == "S" { &mut j["phases"][0] } else { j }, sym, "U");
        let line = c.refused(&format!("{sym} called U"), edit);
        assert!(line.contains("has a symbol U, which nothing sets"), "{line}");
    }
    let line = c.refused("S called U in all phases", |j| rename(j, "S", "U"));
    assert!(line.contains("two decode phases are for 1 tokens"), "{line}");
    // Both are bounded by the chunk, and the engine tells them apart by name.
    c.refused("T and R exchanged", |j| {
        rename(j, "T", "U");
        rename(j, "R", "T");
        rename(j, "U", "R");
    });
}

/// Parameters of one type under each other's names: the engine writes what the names say. It may be nonsense; it is
/// no crash.
#[test]
fn exchanged_parameters_do_no_harm() {
    let c = case();
    let n = c.json["phases"].as_array().unwrap().len();
    let (mut ran, mut failed) = (0, 0);
    for i in [0, n - 1] {
        let params = c.json["phases"][i]["params"].as_array().unwrap().clone();
        for (a, b) in (0..params.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            if params[a]["ty"] != params[b]["ty"] {
                continue;
            }
            c.edit(|j| {
                set(j, &format!("/phases/{i}/params/{a}/name"), params[b]["name"].clone());
                set(j, &format!("/phases/{i}/params/{b}/name"), params[a]["name"].clone());
            });
            let run = runs(&c.plan);
            match run.code() {
                0 => ran += 1,
                code => {
                    assert!([3, 4].contains(&code), "{a} and {b}: {run:?}");
                    run.error_line();
                    failed += 1;
                }
            }
        }
    }
    println!("{ran} ran, {failed} failed");
    assert!(ran + failed >= 20);
}

/// Fewer rows of the embedding than ids of the vocabulary.
#[test]
fn an_embedding_without_a_row_for_each_id_is_refused() {
    let c = case();
    let weights = c.json["weights"].as_array().unwrap();
    let at = weights.iter().position(|w| w["tensor"] == "token_embd.weight").unwrap();
    let whole = weights[at]["ty"].as_str().unwrap().to_owned();
    let half = whole.replace("[2048, ", "[1024, ");
    assert_ne!(whole, half);
    let line = c.refused("half an embedding", |j| {
        let w = &mut j["weights"][at];
        let bytes = w["span"]["bytes"].as_u64().unwrap() / 2;
        w["ty"] = half.clone().into();
        w["span"]["bytes"] = bytes.into();
        w["slices"][0][0]["bytes"] = bytes.into();
        w["slices"][0][0]["stride"] = bytes.into();
        let args = j["phases"].as_array_mut().unwrap().iter_mut().flat_map(|p| p["steps"].as_array_mut().unwrap());
        for a in args.flat_map(|s| s["args"].as_array_mut().unwrap()).filter(|a| a["mem"] == format!("w{at}")) {
            a["ty"] = half.clone().into();
        }
    });
    assert!(line.contains("looks token ids up in fewer rows"), "{line}");
}

#[test]
fn perplexity_refuses_the_same_plans() {
    let c = case();
    reseal(&c.plan, &c.json);
    c.perplexity().ok();
    let edits: [(&str, &str, u64); 3] =
        [("vocabulary", "/model/vocab", 2047), ("context", "/limits/ctx", 257), ("stop ids", "/model/stop/0", 2048)];
    for (what, pointer, v) in edits {
        c.edit(|j| set(j, pointer, v));
        refusal(&c.perplexity(), what);
    }
    c.edit(|j| set(j, "/limits/ctx", 64));
    c.perplexity().ok();
}
