//! `explain` of a value, as a page, and `compile --check`.

use super::support::{glmc, s, tiny, tiny_plan};

#[test]
fn a_value_is_explained_in_every_phase() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let all = glmc(&["explain", s(&plan), "--json"]).ok().json();
    assert!(all["rewrites"].as_u64().is_some_and(|n| n > 0), "{all}");
    for f in all["functions"].as_array().unwrap() {
        assert!(f["after"].as_f64().unwrap() <= f["before"].as_f64().unwrap() * (1.0 + 1e-12), "{f}");
    }
    let rules = all["functions"].as_array().unwrap().iter().map(|f| f["rules"].as_object().unwrap().len());
    assert!(rules.sum::<usize>() > 20);
    // The rules that led to a value are told whole and in order: the last is one of those that made the program.
    let mut longest = Vec::new();
    let mut named = Vec::new();
    for f in all["functions"].as_array().unwrap() {
        for (value, chain) in f["made"].as_object().unwrap() {
            let chain: Vec<&str> = chain.as_array().unwrap().iter().map(|r| r.as_str().unwrap()).collect();
            assert!(f["rules"].get(chain[chain.len() - 1]).is_some(), "{value}: {chain:?} in {f}");
            let once: std::collections::BTreeSet<&str> = chain.iter().copied().collect();
            assert_eq!(once.len(), chain.len(), "{value}: {chain:?}");
            if chain.len() > longest.len() {
                longest = chain.clone();
            }
            if chain.len() > 1 && f["name"].as_str().unwrap().starts_with("decode_1") {
                named.push((value.clone(), chain.iter().map(|r| format!("`{r}`")).collect::<Vec<_>>().join(", then ")));
            }
        }
    }
    println!("the longest chain: {longest:?}");
    assert!(longest.len() >= 3, "{longest:?}");
    let told = named.iter().any(|(value, chain)| {
        let ran = glmc(&["explain", s(&plan), &format!("blk.1.{value}")]);
        ran.code() == 0 && ran.out.contains(&format!("made by rules {chain}"))
    });
    assert!(told, "{named:?}");
    // What reads weights as they are stored comes of a decode that a rule took in.
    let decodes = |f: &serde_json::Value| f["made"].to_string().contains("[\"decode-");
    assert!(all["functions"].as_array().unwrap().iter().any(decodes), "{all}");
    let names = ["blk.1.attn_output", "blk.1.q", "blk.1.kv", "blk.2.ffn_moe_out", "blk.1.attn_norm", "logits"];
    let mut found = 0;
    for name in names {
        let ran = glmc(&["explain", s(&plan), name, "--json"]);
        if ran.code() != 0 {
            assert_eq!(ran.class(), ("usage".into(), "value-unknown".into()));
            continue;
        }
        found += 1;
        let v = ran.json();
        assert_eq!(v["value"], name);
        for p in v["phases"].as_array().unwrap() {
            let touched = p["made_by"].as_array().unwrap().len() + p["read_by"].as_array().unwrap().len();
            assert!(touched > 0, "{name}: {p}");
            for at in p["made_by"].as_array().unwrap().iter().chain(p["read_by"].as_array().unwrap()) {
                assert!(at["cost"]["seconds"].as_f64().is_some_and(|s| s > 0.0), "{at}");
            }
            if p["kind"] == "buffer" {
                let function = p["home"]["function"].as_str().unwrap();
                let (entry, short) = p["phase"]
                    .as_str()
                    .unwrap()
                    .split_once('.')
                    .map_or((p["phase"].as_str().unwrap(), false), |(entry, _)| (entry, true));
                assert!(function.starts_with(entry) && function.contains(".short") == short, "{function}: {p}");
                assert!(!p["home"]["rules"].as_array().unwrap().is_empty(), "{p}");
                assert!(p["offset"].is_number() && p["life"].is_array() && p["bytes"][0].as_u64() > Some(0), "{p}");
            }
        }
    }
    assert!(found >= 3, "{found} of {names:?} are in the plan");
    let text = glmc(&["explain", s(&plan), "blk.1.attn_norm"]).ok().out;
    for word in ["in @", "phase decode_1", "made by", "arena", "bound by"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    let none = glmc(&["explain", s(&plan), "blk.1.attn_nrm"]);
    assert_eq!((none.code(), none.class()), (2, ("usage".into(), "value-unknown".into())));
}

#[test]
fn the_page_stands_alone_and_is_the_same_twice() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let (a, b) = (dir.path().join("a.html"), dir.path().join("b.html"));
    glmc(&["explain", s(&plan), "--html", s(&a)]).ok();
    glmc(&["explain", s(&plan), "--html", s(&b)]).ok();
    let page = std::fs::read_to_string(&a).unwrap();
    assert_eq!(page, std::fs::read_to_string(&b).unwrap());
    for part in [
        "Memory by rank",
        "Steps of decode_1",
        "Roofline",
        "Rewrites",
        "prefers-color-scheme:dark",
        "aria-label",
        "on one rank",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    for outside in ["http:", "https:", "<script", "<link", "<img", "url(", "@import"] {
        assert!(!page.contains(outside), "the page asks for {outside}");
    }
    // Every phase, the decode step open.
    let json = super::support::plan_json(&plan);
    let phases: Vec<&str> = json["phases"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(phases.len() >= 4, "{phases:?}");
    for phase in &phases {
        assert_eq!(page.matches(&format!("<h3>Steps of {phase}</h3>")).count(), 1, "{phase}");
        assert!(page.contains(&format!("<summary>{phase}</summary>")), "{phase}");
    }
    assert_eq!((page.matches("<details open>").count(), page.matches("<svg ").count()), (1, phases.len()));
    // Tags that open are closed.
    for tag in ["section", "table", "tbody", "details", "svg", "main", "div", "tr"] {
        let count = |what: String| page.matches(&what).count();
        let opened = count(format!("<{tag}>")) + count(format!("<{tag} "));
        assert_eq!(opened, count(format!("</{tag}>")), "{tag}");
    }
    let away = dir.path().join("no/such/a.html");
    assert_eq!(glmc(&["explain", s(&plan), "--html", s(&away)]).class(), ("usage".into(), "output-parent".into()));
}

#[test]
fn what_ranks_exchange_has_bytes_and_costs_say_whose_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, page) = (dir.path().join("plan"), dir.path().join("p.html"));
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--target", "8x-cpu", "--json"]).ok();
    let v = glmc(&["explain", s(&plan), "logits", "--json"]).ok().json();
    let at = &v["phases"][0]["made_by"][0];
    let vocab = super::support::plan_json(&plan)["model"]["vocab"].as_u64().unwrap();
    assert_eq!((&at["cost"]["kernel"], &at["cost"]["exchanged"]), (&"all_gather".into(), &(4 * vocab).into()), "{at}");
    let text = glmc(&["explain", s(&plan), "logits"]).ok().out;
    assert!(text.contains("exchanged between ranks") && text.contains("(one rank with the whole model"), "{text}");
    let all = glmc(&["explain", s(&plan)]).ok().out;
    assert!(all.contains("functions before and after saturation, one rank with the whole model"), "{all}");
    glmc(&["explain", s(&plan), "--html", s(&page)]).ok();
    let text = std::fs::read_to_string(&page).unwrap();
    let row =
        text.split("<th scope=row>all_reduce</th>").nth(1).expect("a row of all_reduce").split("</tr>").next().unwrap();
    let cells: Vec<&str> =
        row.split("<td").skip(1).map(|c| c.split('>').nth(1).unwrap().split('<').next().unwrap()).collect();
    // Bound, steps, bytes moved, bytes exchanged.
    assert!(cells[0] == "link" && cells[2] == "-" && !["-", "0 B"].contains(&cells[3]), "{cells:?}");
}

#[test]
fn check_says_what_was_compared() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    let ran = glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--max-batch", "1", "--check", "--json"]);
    let json = ran.ok().json();
    let passes = json["checked"]["passes"].as_array().unwrap();
    let names: Vec<&str> = passes.iter().map(|p| p["pass"].as_str().unwrap()).collect();
    let wanted = ["canonicalise", "rotate", "specialise", "saturate", "prune", "shard", "schedule"];
    assert_eq!(names, wanted);
    let n = |p: &serde_json::Value, key: &str| p[key].as_u64().unwrap_or_else(|| panic!("no {key}: {json}"));
    // Each function is run, or is as it was; one rank leaves nothing to place.
    assert!(passes.iter().all(|p| n(p, "functions") + n(p, "unchanged") >= 2), "{json}");
    assert!(passes.iter().all(|p| n(p, "comparisons") == 2 * n(p, "functions")), "{json}");
    assert!(n(&passes[3], "unchanged") == 0 && n(&passes[5], "functions") == 0, "{json}");
    assert_eq!(json["checked"]["other_rewrites"], serde_json::json!([]));
    let text = glmc(&["compile", s(&tiny()), "-o", s(&plan), "--ctx", "256", "--max-batch", "1", "--check"]).ok().out;
    assert!(text.contains("checked in exact arithmetic") && text.contains("are those of the plan"), "{text}");
}
