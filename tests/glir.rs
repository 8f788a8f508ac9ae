//! The harness of the text tests: every file under `tests/glir` is one test with one snapshot beside it.
//!
//! A file is parsed, printed, parsed again (both modules equal) and verified; then the module is printed, with its
//! errors under their lines. Directives stand in comments:
//!
//! - `; verify: ok` at the top: the verifier finds nothing.
//! - `; error: CODE` at the end of a line: the parser or the verifier finds this there; at the top: in the module.
//!   All findings must be named, and all that are named must be found.
//! - `; unchecked` at the top: stated types are taken as they are, so that the verifier meets wrong ones.
//! - `; pass: NAME` at the top: the stage runs on the verified module (see [`stages`]): its result is verified, a second
//!   run changes nothing, the meaning in Real stays what it was with any amount of fuel; the snapshot holds the result
//!   (`lower`: launches; `schedule`: the plan).
//!
//! A right file of `sharded/` also runs on every mesh of 1, 2, 4 and 8 ranks with its axes: the types are placed anew,
//! verified, and the ranks compute what the whole module computes, and so do the plans of its entries on as many
//! ranks. All share the one snapshot.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use glmc_ir::diag::{Diagnostic, Diagnostics};
use glmc_ir::op::Op;
use glmc_ir::text::{parse_module, parse_module_unchecked, print_module, print_with_errors};
use glmc_ir::verify::{CODES, verify_module};
use libtest_mimic::{Arguments, Failed, Trial};

#[path = "support/run.rs"]
mod run;
#[path = "../crates/ir/tests/support/sharded.rs"]
mod sharded;
#[path = "support/stages.rs"]
mod stages;
#[path = "../crates/ir/tests/support/values.rs"]
mod values;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/glir");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let mut trials: Vec<Trial> = files.iter().map(|f| trial(&root, f.clone())).collect();
    let ops = Op::NAMES.iter().map(|n| (*n).to_owned()).collect();
    trials.push(complete("every_op_has_a_file", root.join("ops"), ops));
    let codes = CODES.iter().map(|(c, _)| (*c).to_owned()).collect();
    trials.push(complete("every_code_has_a_file", root.join("verify"), codes));
    trials.push(stage_folders(root.join("passes")));
    trials.push(Trial::test("the_page_is_true", page));
    libtest_mimic::run(&args, trials).exit_code()
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("the folder of text tests is readable") {
        let path = entry.expect("its entries are readable").path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "glir") {
            out.push(path);
        }
    }
}

/// The folder holds exactly one file for each name.
fn complete(name: &'static str, dir: PathBuf, want: BTreeSet<String>) -> Trial {
    Trial::test(name, move || {
        let mut files = Vec::new();
        collect(&dir, &mut files);
        let have: BTreeSet<String> = files.iter().map(|f| stem(f)).collect();
        let differ: Vec<&String> = want.symmetric_difference(&have).collect();
        if differ.is_empty() {
            Ok(())
        } else {
            Err(format!("missing or unknown in {}: {differ:?}", dir.display()).into())
        }
    })
}

/// Every stage of the pipeline has files, and no other folder is there.
fn stage_folders(dir: PathBuf) -> Trial {
    Trial::test("every_stage_has_a_file", move || {
        let mut files = Vec::new();
        collect(&dir, &mut files);
        let parent = |f: &PathBuf| f.parent().map(stem).unwrap_or_default();
        let have: BTreeSet<String> = files.iter().map(parent).collect();
        let want: BTreeSet<String> = stages::names().into_iter().map(str::to_owned).collect();
        if have == want { Ok(()) } else { Err(format!("stages {want:?}, folders with files {have:?}").into()) }
    })
}

/// `docs/glir.md` has every op and every code with its sentence, and its example is right.
fn page() -> Result<(), Failed> {
    const MARKS: [&str; 2] = ["<!-- codes: begin -->\n", "<!-- codes: end -->"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/glir.md");
    let page = std::fs::read_to_string(&path)?;
    let missing: Vec<&&str> =
        Op::NAMES.iter().filter(|n| !page.contains(&format!("`{n}`")) && !page.contains(&format!("`{n} {{"))).collect();
    if !missing.is_empty() {
        return Err(format!("docs/glir.md lacks the ops {missing:?}").into());
    }
    let example: String = page
        .lines()
        .skip_while(|l| !l.starts_with("    module "))
        .take_while(|l| l.starts_with("    "))
        .map(|l| format!("{}\n", &l[4..]))
        .collect();
    let m = parse_module(&example).map_err(|d| format!("the page's example: {d}"))?;
    verify_module(&m).map_err(|e| print_with_errors(&m, &e.0))?;
    if print_module(&m) != example {
        return Err(format!("the page's example prints as\n{}", print_module(&m)).into());
    }
    let (begin, rest) = page.split_once(MARKS[0]).ok_or("the page lacks the mark of its tables")?;
    let (have, end) = rest.split_once(MARKS[1]).ok_or("the page lacks the second mark of its tables")?;
    let want = codes();
    if have == want {
        Ok(())
    } else if std::env::var_os("GLMC_BLESS").is_some() {
        Ok(std::fs::write(&path, format!("{begin}{}{want}{}{end}", MARKS[0], MARKS[1]))?)
    } else {
        Err("the codes of docs/glir.md are not those of the code: run again with GLMC_BLESS=1".into())
    }
}

/// The tables of codes as Markdown.
fn codes() -> String {
    use std::fmt::Write as _;
    let tables = [
        ("Modules", CODES),
        ("Plans", glmc_ir::verify::plan::CODES),
        ("Parts of ranks, in both", glmc_ir::shard_map::CODES),
    ];
    let mut out = String::new();
    for (title, codes) in tables {
        let _ = writeln!(out, "\n**{title}**\n\n| code | meaning |\n|---|---|");
        for (code, meaning) in codes {
            let _ = writeln!(out, "| `{code}` | {meaning} |");
        }
    }
    out + "\n"
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn trial(root: &Path, path: PathBuf) -> Trial {
    let name = path.strip_prefix(root).unwrap_or(&path).with_extension("").display().to_string();
    Trial::test(name, move || {
        let text = std::fs::read_to_string(&path)?;
        let out = run(&text, &path)?;
        let mut settings = insta::Settings::new();
        settings.set_snapshot_path(path.parent().unwrap_or(Path::new(".")));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(stem(&path), out));
        Ok(())
    })
}

/// What a file's comments ask for.
#[derive(Default)]
struct Directives {
    unchecked: bool,
    ok: bool,
    pass: Option<String>,
    /// `(line, code)`; line 0 is the module.
    errors: BTreeSet<(usize, String)>,
}

impl Directives {
    fn read(text: &str) -> Result<Self, Failed> {
        let mut d = Directives::default();
        let mut top = true;
        for (i, line) in text.lines().enumerate() {
            top &= line.starts_with(';');
            let Some((_, comment)) = line.split_once(';') else { continue };
            let comment = comment.trim();
            if let Some(code) = comment.strip_prefix("error: ") {
                d.errors.insert((if top { 0 } else { i + 1 }, code.to_owned()));
            } else if top {
                match comment.split_once(": ") {
                    Some(("verify", "ok")) => d.ok = true,
                    Some(("pass", name)) => d.pass = Some(name.to_owned()),
                    _ if comment == "unchecked" => d.unchecked = true,
                    _ => {}
                }
            }
        }
        if d.ok == d.errors.is_empty() { Ok(d) } else { Err("a file says `; verify: ok` or names errors".into()) }
    }
}

/// The text that the snapshot holds, or what is wrong.
fn run(text: &str, path: &Path) -> Result<String, Failed> {
    let want = Directives::read(text)?;
    let in_verify = path.parent().is_some_and(|p| p.ends_with("verify"));
    if in_verify && want.errors.iter().any(|(_, code)| *code != stem(path)) {
        return Err("a file of verify/ names its own code only".into());
    }
    let parse = if want.unchecked { parse_module_unchecked } else { parse_module };
    let m = match parse(text) {
        Ok(m) => m,
        Err(d) => {
            compare(&want, text, std::slice::from_ref(&d))?;
            return Ok(format!("{d}\n"));
        }
    };
    let printed = print_module(&m);
    let again = parse(&printed).map_err(|d| format!("the printed text does not parse: {d}\n{printed}"))?;
    if again != m {
        return Err(format!("the printed text parses to another module:\n{printed}").into());
    }
    if print_module(&again) != printed {
        return Err("printing is not canonical".into());
    }
    let errors = verify_module(&m).err().unwrap_or(Diagnostics(Vec::new())).0;
    compare(&want, text, &errors)?;
    if !errors.is_empty() {
        return Ok(print_with_errors(&m, &errors));
    }
    if path.parent().is_some_and(|p| p.ends_with("sharded")) {
        sharded::check(&m)?;
        stages::plans_on_ranks(&m)?;
    }
    let folder = path.parent().filter(|p| p.parent().is_some_and(|p| p.ends_with("passes"))).map(stem);
    match (want.pass, folder) {
        (None, None) => Ok(printed),
        (Some(pass), Some(folder)) if pass == folder => Ok(stages::run(&pass, &m)?),
        (pass, folder) => Err(format!("`; pass: {pass:?}` in the folder of {folder:?}").into()),
    }
}

/// Found and expected errors, by line.
fn compare(want: &Directives, text: &str, found: &[Diagnostic]) -> Result<(), Failed> {
    let places = places(text);
    let line = |d: &Diagnostic| match d.at.strip_prefix("line ") {
        Some(n) => n.parse().unwrap_or(0),
        None => places.get(&d.at).copied().unwrap_or(0),
    };
    let found_at: BTreeSet<(usize, String)> = found.iter().map(|d| (line(d), d.code.to_owned())).collect();
    if found_at == want.errors {
        return Ok(());
    }
    let all: Vec<String> = found.iter().map(Diagnostic::to_string).collect();
    Err(format!("expected {:?}\nfound {found_at:?}\n{}", want.errors, all.join("\n")).into())
}

/// The first line of each place that a finding may name.
fn places(text: &str) -> HashMap<String, usize> {
    let mut out = HashMap::new();
    let mut func = String::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split(';').next().unwrap_or_default().trim();
        let mut add = |place: String| {
            out.entry(place).or_insert(i + 1);
        };
        if let Some(rest) = line.strip_prefix("func ").or(line.strip_prefix("entry ")) {
            rest.split('(').next().unwrap_or_default().clone_into(&mut func);
            add(func.clone());
            line.split('%').skip(1).filter_map(|p| p.split(':').next()).for_each(|p| add(format!("{func} %{p}")));
        } else if line.starts_with("return") {
            add(format!("{func} return"));
        } else if line.starts_with('%') {
            let results = line.split('=').next().unwrap_or_default();
            results.split(',').for_each(|r| add(format!("{func} {}", r.trim())));
        } else if line.starts_with("weight ") || line.starts_with("sym ") {
            let words: Vec<&str> = line.split(' ').take(2).collect();
            add(words.join(" "));
        }
    }
    out
}
