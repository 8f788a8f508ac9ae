//! `verify`: right plans agree with both references on 1 and 8 ranks; a corrupted block of one rank's weight is named
//! first, with layer, op and rank; what cannot be compared is said.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{Ran, glmc, plan_json, reseal, s, tiny, tiny_plan};

/// The rank of eight that is corrupted.
const RANK: u64 = 5;
/// More tokens than the indexer selects.
const LONG: usize = 70;

fn eight(dir: &Path) -> PathBuf {
    let plan = dir.join("eight");
    glmc(&["compile", s(&tiny()), "-o", s(&plan), "--target", "8x-cpu", "--ctx", "256", "--json"]).ok();
    plan
}

fn verify(plan: &Path, more: &[&str]) -> Ran {
    glmc(&[&["verify", s(plan), "--json"], more].concat())
}

fn long() -> String {
    (0..LONG).map(|i| (20 + 31 * i % 700).to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn right_plans_agree_with_both_references() {
    let dir = tempfile::tempdir().unwrap();
    for (plan, ranks) in [(tiny_plan(dir.path()), 1), (eight(dir.path()), 8)] {
        for (reference, prompt) in [("interpreter", None), ("interpreter", Some(long())), ("plain", None)] {
            let tokens = prompt.as_deref().map_or(vec![], |p| vec!["--tokens", p, "-n", "1"]);
            let r = verify(&plan, &[&["--reference", reference], tokens.as_slice()].concat()).ok().json();
            assert!(r["reference"].as_str().unwrap().starts_with(reference), "{r}");
            assert_eq!((&r["first"], r["devices"].as_array().unwrap().len()), (&Value::Null, ranks));
            assert_eq!(r["parted"].as_array().unwrap().len(), 0, "{r}");
            let runs: Vec<&str> = r["runs"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
            let want: &[&str] = match prompt {
                Some(_) => &["prefill.short", "prefill", "decode_1"],
                None => &["prefill.short", "decode_1.short", "decode_1.short"],
            };
            assert_eq!(runs, want);
            let number = |v: &Value| v.as_u64().unwrap();
            let (compared, launches) = (number(&r["compared"]), number(&r["launches"]));
            println!("{ranks} ranks, {reference}: {compared} values, {launches} launches");
            assert!(
                compared >= 30 * runs.len() as u64 && (launches >= 2 * compared / 3 || reference == "plain"),
                "{r}"
            );
            // Every layer, and what belongs to none; errors of the size of f32.
            let layers: Vec<&Value> = r["layers"].as_array().unwrap().iter().map(|l| &l["layer"]).collect();
            assert_eq!(layers, [&Value::Null, &0.into(), &1.into(), &2.into()]);
            for l in r["layers"].as_array().unwrap() {
                assert!(number(&l["compared"]) > 0 && l["model"]["off"]["l2"].as_f64().unwrap() < 1e-5, "{l}");
            }
            // The names that every plan has.
            let not: Vec<&str> =
                r["not_compared"].as_array().unwrap().iter().map(|v| v["value"].as_str().unwrap()).collect();
            for name in ["attn_norm", "qr", "kqv_out", "attn_out", "ffn_norm", "ffn_out", "kv rows", "index rows"] {
                assert!(!not.contains(&format!("blk.1.{name}").as_str()), "{name}: {r}");
            }
        }
    }
}

#[test]
fn a_corrupted_block_is_named_first() {
    let dir = tempfile::tempdir().unwrap();
    let plans = [(tiny_plan(dir.path()), 0), (eight(dir.path()), RANK)];
    // Attention, shared expert, head, norm, router: weight, block, layer, kernel.
    let cases = [
        ("blk.0.attn_q_a", 0, Some(0), "matmul"),
        ("blk.1.attn_q_b", 5, Some(1), "matmul"),
        ("blk.1.attn_v_b", 0, Some(1), "matmul"),
        ("blk.2.attn_output", 1, Some(2), "matmul"),
        ("blk.1.ffn_gate_shexp", 2, Some(1), "gate_up"),
        ("blk.2.ffn_down_shexp", 2, Some(2), "matmul"),
        ("blk.0.ffn_down", 3, Some(0), "matmul"),
        ("blk.1.ffn_gate_inp", 7, Some(1), "matmul"),
        ("blk.2.attn_norm", 0, Some(2), "add_rms_norm"),
        ("output", 40, None, "matmul"),
    ];
    for (plan, rank) in &plans {
        for (weight, block, layer, kernel) in cases {
            named_first(plan, *rank, weight, block, layer, kernel, "interpreter").unwrap_or_else(|e| panic!("{e}"));
        }
        // Launches between the model's values are searched where the reference is another plan.
        for (weight, block, layer, kernel) in [cases[1], cases[4], cases[9]] {
            named_first(plan, *rank, weight, block, layer, kernel, "plain").unwrap_or_else(|e| panic!("{e}"));
        }
        // The files are whole.
        verify(plan, &[]).ok();
    }
}

/// A routed expert: of those that the prompt uses the fault is named, of the others nothing is wrong.
#[test]
fn a_corrupted_expert_is_named_if_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    // Blocks of one expert on the rank: a row each, of 256 or an eighth of them.
    for (plan, rank, rows) in [(tiny_plan(dir.path()), 0, 256), (eight(dir.path()), RANK, 32)] {
        let used: Vec<usize> = (0..16)
            .step_by(2)
            .filter(|e| {
                let block = e * rows + 1;
                let fault = format!("rank={rank},weight=blk.1.ffn_gate_exps,block={block}");
                let ran = verify(&plan, &["--inject", &fault]);
                let named = || judge(&ran, rank, "blk.1.ffn_gate_exps", Some(1), "grouped_gate_up");
                let right = ran.code() == 0 && ran.json()["first"].is_null();
                assert!(right || named(), "expert {e}: {ran:?}");
                !right
            })
            .collect();
        println!("rank {rank}: experts {used:?} are used");
        assert!(used.len() >= 3, "{used:?}");
    }
}

fn named_first(
    plan: &Path,
    rank: u64,
    weight: &str,
    block: usize,
    layer: Option<u64>,
    kernel: &str,
    reference: &str,
) -> Result<(), String> {
    let fault = format!("rank={rank},weight={weight},block={block}");
    let ran = verify(plan, &["--inject", &fault, "--reference", reference]);
    let right = judge(&ran, rank, weight, layer, kernel);
    if right { Ok(()) } else { Err(format!("{fault}, {reference}: {ran:?}")) }
}

/// Whether a fault is named as what it is.
fn judge(ran: &Ran, rank: u64, weight: &str, layer: Option<u64>, kernel: &str) -> bool {
    let r = ran.json();
    let f = &r["first"];
    let message = r["error"]["message"].as_str().unwrap_or_default();
    let phase = format!("of phase {}", f["phase"].as_str().unwrap_or_default());
    ran.code() == 5
        && ran.class() == ("verification".into(), "diverged".into())
        && f["layer"] == layer.map_or(Value::Null, Value::from)
        && f["kernel"] == kernel
        && (&f["rank"], &f["ranks"]) == (&rank.into(), &vec![rank].into())
        && f["weights"].as_array().is_some_and(|w| w.contains(&weight.into()))
        && f["by"] == "launch"
        && f["inputs"].as_array().is_some_and(|i| !i.is_empty())
        && f["history"].as_array().is_some_and(|h| !h.is_empty())
        && f["buffer"].as_str().is_some_and(|b| b.starts_with('b') && b.contains("arena"))
        && r["error"]["subject"] == f["value"]
        && [kernel, weight, &phase, &format!("rank {rank}")].iter().all(|w| message.contains(w))
}

#[test]
fn nan_is_a_divergence_even_where_the_run_ends() {
    let dir = tempfile::tempdir().unwrap();
    for (plan, rank) in [(tiny_plan(dir.path()), 0), (eight(dir.path()), RANK)] {
        let fault = format!("rank={rank},weight=blk.0.ffn_down,block=0,kind=nan");
        let ran = verify(&plan, &["--inject", &fault]);
        let f = &ran.json()["first"];
        assert_eq!((ran.code(), &f["layer"], &f["rank"]), (5, &0.into(), &rank.into()), "{ran:?}");
        assert_eq!(f["launch"]["off"]["l2"], "no number", "{f}");
    }
}

#[test]
fn a_plan_that_shares_no_name_with_the_model_is_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let mut json = plan_json(&plan);
    for p in json["phases"].as_array_mut().unwrap() {
        for (i, b) in p["buffers"].as_array_mut().unwrap().iter_mut().enumerate() {
            // What nothing reads says so.
            let mark = if b["name"].as_str().unwrap().starts_with('_') { "_" } else { "" };
            b["name"] = format!("{mark}value.{i}").into();
        }
    }
    for (i, s) in json["states"].as_array_mut().unwrap().iter_mut().enumerate() {
        s["name"] = format!("pool.{i}").into();
    }
    reseal(&plan, &json);
    let ran = verify(&plan, &[]);
    assert_eq!((ran.code(), ran.class()), (5, ("verification".into(), "nothing-compared".into())), "{ran:?}");
    assert_eq!(ran.json()["compared"], 0);
}

#[test]
fn the_page_shows_the_divergence_and_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    let (page, bad) = (dir.path().join("page.html"), dir.path().join("bad.html"));
    let ran = glmc(&["verify", s(&plan), "--html", s(&page)]).ok();
    assert!(ran.out.contains("values compared with the model") && ran.out.contains("layer"), "{ran:?}");
    let fault = "rank=0,weight=blk.1.attn_output,block=9";
    assert_eq!(glmc(&["verify", s(&plan), "--html", s(&bad), "--inject", fault]).code(), 5);
    let [page, bad_page] = [&page, &bad].map(|p| std::fs::read_to_string(p).unwrap());
    for text in [&page, &bad_page] {
        assert!(text.starts_with("<!doctype html>\n<!-- glmc verify -->\n") && text.ends_with("</html>\n"));
        for word in ["http:", "https:", "<script", "<link", "src="] {
            assert!(!text.contains(word), "{word}");
        }
        for word in ["attn_out", "ffn_moe_weights", "kqv_out", "Not compared"] {
            assert!(text.contains(word), "no {word}");
        }
    }
    assert!(page.contains("No divergence") && !page.contains("<td class=e3") && !page.contains("<td class=e4"));
    assert!(bad_page.contains("First divergence") && bad_page.contains("weight blk.1.attn_output"));
    assert!(bad_page.contains("<td class=e4"));
    // It is written over itself only.
    let other = dir.path().join("other.txt");
    std::fs::write(&other, "mine").unwrap();
    assert_eq!(glmc(&["verify", s(&plan), "--html", s(&other)]).code(), 2);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
}

#[test]
fn what_cannot_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for (args, class, code, exit) in [
        (&["--tokens", "5000"] as &[&str], "usage", "tokens", 2),
        (&["-n", "400"], "usage", "context", 2),
        (&["--prompt", ""], "usage", "empty-prompt", 2),
        (&["--reference", "other"], "usage", "arguments", 2),
        (&["--inject", "rank=0"], "usage", "arguments", 2),
        (&["--inject", "rank=3,weight=output,block=0"], "usage", "request", 2),
        (&["--inject", "rank=0,weight=nothing,block=0"], "usage", "request", 2),
        (&["--inject", "rank=0,weight=output,block=99999999"], "usage", "request", 2),
        (&["--device", "cuda:99"], "device", "", 4),
    ] {
        let ran = verify(&plan, args);
        assert_eq!((ran.code(), ran.class().0.as_str()), (exit, class), "{args:?} {ran:?}");
        assert!(code.is_empty() || ran.class().1 == code, "{args:?} {ran:?}");
    }
    assert_eq!(glmc(&["verify", s(&tiny())]).code(), 3);
    let help = glmc(&["verify", "--help"]).ok().out;
    assert!(!help.contains("inject") && help.contains("--reference"), "{help}");
}

/// The fault's object in a report that found no divergence.
fn unseen(plan: &Path, fault: &str) -> Value {
    let v = verify(plan, &["--inject", fault]).ok().json();
    assert!(v["first"].is_null(), "{v}");
    v["fault"].clone()
}

#[test]
fn a_fault_that_nothing_reads_is_said_to_be_unread() {
    let dir = tempfile::tempdir().unwrap();
    for (plan, rank) in [(tiny_plan(dir.path()), 0), (eight(dir.path()), RANK)] {
        // The embedding of a token that the prompt does not have, and the last row of the head's table of each rank.
        let fault = unseen(&plan, &format!("rank={rank},weight=token_embd,block=3"));
        assert_eq!(fault["read"], false, "{fault}");
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains("not read by these tokens") && message.contains("token_embd"), "{message}");
        assert!(verify(&plan, &[]).ok().json()["fault"].is_null());
    }
    // In the lines and on the page too.
    let (plan, page) = (tiny_plan(dir.path()), dir.path().join("p.html"));
    let fault = "rank=0,weight=token_embd,block=3";
    let ran = glmc(&["verify", s(&plan), "--inject", fault, "--html", s(&page)]).ok();
    assert!(ran.out.contains("not read by these tokens"), "{ran:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("not read by these tokens"));
}

#[test]
fn a_plan_without_its_module_is_refused_before_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny_plan(dir.path());
    for name in ["graph.glir", "decisions.json"] {
        let path = plan.join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let ran = verify(&plan, &[]);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "plan"), "{ran:?}");
        assert!(ran.error_line().contains(name), "{ran:?}");
        std::fs::write(&path, "no module").unwrap();
        let ran = verify(&plan, &[]);
        assert_eq!((ran.code(), ran.class().0.as_str()), (3, "plan"), "{ran:?}");
        std::fs::write(&path, bytes).unwrap();
    }
    verify(&plan, &[]).ok();
}

#[test]
fn the_heads_part_has_a_name_and_columns_are_those_of_every_layer() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, page) = (eight(dir.path()), dir.path().join("p.html"));
    let fault = format!("rank={RANK},weight=output,block=40");
    let ran = glmc(&["verify", s(&plan), "--inject", &fault, "--json", "--html", s(&page)]);
    let first = &ran.json()["first"];
    let value = first["value"].as_str().unwrap();
    assert!(value.starts_with("logits ("), "{value}");
    let told = first["history"].to_string();
    assert!(told.contains("in @decode_1") || told.contains("in @prefill"), "{told}");
    let text = std::fs::read_to_string(&page).unwrap();
    let heads: Vec<&str> = text.split("<th scope=col>").skip(1).map(|h| h.split('<').next().unwrap()).collect();
    let numbered =
        |h: &&str| h.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let found: Vec<&str> = heads.iter().copied().filter(numbered).collect();
    assert!(heads.len() > 20 && found.is_empty(), "{found:?} of {heads:?}");
    assert!(heads.contains(&"attn_norm") && heads.contains(&"logits on the way"), "{heads:?}");
    // Layers of one kind have the same columns: most cells of the map hold something.
    let map = &text[text.find("<table class=map>").unwrap()..];
    let map = &map[..map.find("</table>").unwrap()];
    let (empty, full) = (map.matches("<td></td>").count(), map.matches("<td class=").count());
    println!("{} columns, {full} cells, {empty} empty", heads.len());
    assert!(full > 80 && empty < 2 * full, "{full} cells, {empty} empty");
}
