//! Split models: any part or the folder opens all; a missing, foreign, renamed or joined part is refused by name.

mod common;

use std::path::{Path, PathBuf};

use common::{fixture, folder, load, open_fixture};
use glmc_frontend_gguf::open;
use glmc_frontend_gguf::write::GgufWriter;

const NAME: &str = "tiny-UD-Q4_K_XL";

fn part(folder: &Path, n: u32) -> PathBuf {
    folder.join(format!("{NAME}-{n:05}-of-00003.gguf"))
}

fn copy() -> tempfile::TempDir {
    let dir = folder();
    for n in 1..=3 {
        std::fs::copy(part(&fixture("models"), n), part(dir.path(), n)).expect("copy");
    }
    dir
}

fn error(path: &Path) -> (String, String) {
    let e = open(path).err().unwrap_or_else(|| panic!("{} opens", path.display()));
    (format!("{}/{}", e.class, e.code), e.line())
}

#[test]
fn any_part_or_the_folder_opens_all() {
    let dir = copy();
    let paths = [part(dir.path(), 1), part(dir.path(), 2), part(dir.path(), 3), dir.path().to_path_buf()];
    for path in paths {
        let set = open(&path).unwrap_or_else(|e| panic!("{}", e.line()));
        assert_eq!((set.parts().len(), set.tensor_count()), (3, 94), "{}", path.display());
        assert_eq!(set.path(), part(dir.path(), 1));
        let model = load(&path).unwrap_or_else(|e| panic!("{}", e.line()));
        assert!(model.weights.mtp.is_some());
        assert_eq!(model.weights.iter().count() + model.report.unused.len(), 94);
    }
}

#[test]
fn a_missing_part_is_named_whichever_part_is_given() {
    for gone in 1..=3 {
        let dir = copy();
        std::fs::remove_file(part(dir.path(), gone)).expect("remove");
        let given = part(dir.path(), if gone == 2 { 3 } else { 2 });
        for path in [given.as_path(), dir.path()] {
            let (code, line) = error(path);
            assert_eq!(code, "io/part-missing", "{line}");
            assert!(
                line.contains(&format!("part {gone} of 3")) && line.contains(&format!("{gone:05}-of-00003")),
                "{line}"
            );
        }
    }
}

#[test]
fn a_renamed_part_and_joined_parts_are_refused() {
    let dir = copy();
    let renamed = dir.path().join("renamed.gguf");
    std::fs::rename(part(dir.path(), 2), &renamed).expect("rename");
    let (code, line) = error(&renamed);
    assert_eq!(code, "model/part-renamed", "{line}");
    assert!(line.contains("part 2 of 3"), "{line}");

    let dir = copy();
    let joined: Vec<u8> = (1..=3).flat_map(|n| std::fs::read(part(dir.path(), n)).expect("read")).collect();
    let path = dir.path().join("joined.gguf");
    std::fs::write(&path, &joined).expect("write");
    let (code, line) = error(&path);
    assert_eq!(code, "model/joined-parts", "{line}");
    // Also when the joined file took the first part's name.
    std::fs::rename(&path, part(dir.path(), 1)).expect("rename");
    assert_eq!(error(&part(dir.path(), 1)).0, "model/joined-parts");
}

#[test]
fn a_part_of_another_model_is_refused() {
    let set = open_fixture("gguf-bad/ok-base.gguf");
    let dir = folder();
    let mut writer = GgufWriter::from_set(&set).expect("a copy");
    writer.retain_tensors(|name| !name.starts_with("blk.2."));
    let foreign = writer.write_split(dir.path(), "other", 3).expect("write");
    let home = copy();
    std::fs::copy(&foreign[1], part(home.path(), 2)).expect("copy");
    let (code, line) = error(&part(home.path(), 1));
    assert_eq!(code, "model/split-tensors", "{line}");
    assert!(line.contains("94") && line.contains("part 1"), "{line}");
}

#[test]
fn a_folder_with_several_models_is_refused() {
    let dir = copy();
    std::fs::copy(fixture("gguf-bad/ok-base.gguf"), dir.path().join("base.gguf")).expect("copy");
    let (code, line) = error(dir.path());
    assert_eq!(code, "io/is-a-directory", "{line}");
    assert!(line.contains("2 models") && line.contains("base.gguf") && line.contains(NAME), "{line}");
}
