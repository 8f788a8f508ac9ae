//! Every shipped description is valid, and every way to get one wrong is refused by the name of its key.

use super::*;

fn two_sockets() -> &'static str {
    SHIPPED.iter().find(|t| t.contains("[sockets]")).unwrap()
}

#[test]
fn every_shipped_target_parses_and_comes_back_from_its_text() {
    let mut names = Vec::new();
    for text in SHIPPED {
        let t = Target::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(Target::parse(&t.to_toml().unwrap()).as_ref(), Ok(&t));
        assert_eq!(Target::named(&t.name), Ok(t.clone()));
        names.push(t.name);
    }
    let expected = [
        "cpu",
        "8x-cpu",
        "8x-rtx-pro-6000",
        "8x-rtx-pro-6000-two-sockets",
        "1x-h200",
        "2x-h200",
        "8x-h200",
        "8x-h100",
        "8x-a100",
    ];
    assert_eq!(names, expected);
    assert!(matches!(Target::named("9x-abacus"), Err(TargetError::Unknown { .. })));
}

/// The key that an edited description is refused for.
fn refused(text: &str) -> String {
    match Target::parse(text) {
        Err(TargetError::Schema { key, why }) => {
            assert!(!why.is_empty());
            key
        }
        other => panic!("{other:?}\n{text}"),
    }
}

/// The lines of `text`, each with its key as an error names it.
fn keys(text: &str) -> Vec<(String, &str)> {
    let mut table = String::new();
    let mut out = Vec::new();
    for line in text.lines() {
        if let Some(t) = line.strip_prefix('[') {
            table = format!("{}.", t.trim_end_matches(']'));
        } else if let Some((key, _)) = line.split_once(" = ") {
            out.push((format!("{table}{key}"), line));
        }
    }
    out
}

#[test]
fn each_key_is_refused_when_missing_or_of_another_type() {
    let text = two_sockets();
    let keys = keys(text);
    assert_eq!(keys.len(), 6 + 12 + 3 + 4);
    for (name, line) in keys {
        let key = line.split(" = ").next().unwrap();
        assert_eq!(refused(&text.replace(&format!("{line}\n"), "")), name);
        for wrong in ["[true]", "{ a = 1 }", "2026-11-30"] {
            assert_eq!(refused(&text.replace(line, &format!("{key} = {wrong}"))), name);
        }
        if !matches!(key, "name" | "description" | "arch" | "p2p") {
            for wrong in ["-1", "nan", "inf", "1e300", "\"8\""] {
                assert_eq!(refused(&text.replace(line, &format!("{key} = {wrong}"))), name);
            }
        }
    }
}

#[test]
fn unknown_keys_and_what_does_not_fit_together_are_refused() {
    let text = two_sockets();
    assert_eq!(refused(&format!("cores = 3\n{text}")), "cores");
    for table in ["device", "link", "sockets"] {
        let head = format!("[{table}]\n");
        assert_eq!(refused(&text.replace(&head, &format!("{head}colour = 1\n"))), format!("{table}.colour"));
        assert_eq!(refused(&format!("{table} = 1\n{}", text.replace(&head, "[other]\n"))), table);
    }
    assert_eq!(refused(&text.replace("sm_120", "vax")), "arch");
    let groups = "ranks = [[0, 1, 2, 3], [4, 5, 6, 7]]";
    assert!(text.contains(groups));
    for wrong in
        ["[[0, 1, 2, 3], [4, 5, 6]]", "[[0, 1, 2, 3], [4, 5, 6, 6]]", "[[0], [8]]", "[[0, 1, 2, 3, 4, 5, 6, 7]]"]
    {
        assert_eq!(refused(&text.replace(groups, &format!("ranks = {wrong}"))), "sockets.ranks");
    }
    let one = SHIPPED[0];
    assert_eq!(refused(&one.replace("ranks = 1", "ranks = 2")), "link");
    assert_eq!(refused(&one.replace("ranks = 1", "ranks = 17")), "ranks");
    assert_eq!(refused(&format!("{one}\n[link]\nbytes_per_s = 1\nlatency_s = 0\np2p = true\n")), "link");
    assert!(matches!(Target::parse("name = "), Err(TargetError::Syntax(_))));
}
