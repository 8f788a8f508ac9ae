//! What the tests of this crate share: fixtures, and loading as a command does it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of this module")]

use std::path::{Path, PathBuf};

use glmc_frontend_gguf::write::GgufWriter;
use glmc_frontend_gguf::{GgufSet, InputError, Model, open};

/// A file under `tests/fixtures` of the repository.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/")).join(name)
}

/// Opens and loads everything.
pub fn load(path: &Path) -> Result<Model, InputError> {
    Model::load(&open(path)?)
}

/// Opens a fixture that must be good.
pub fn open_fixture(name: &str) -> GgufSet {
    open(&fixture(name)).unwrap_or_else(|e| panic!("{}", e.line()))
}

/// A temporary folder.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// Writes an edited copy of a fixture and loads it.
pub fn edited(name: &str, edit: impl FnOnce(&mut GgufWriter<'_>)) -> Result<Model, InputError> {
    let set = open_fixture(name);
    let mut writer = GgufWriter::from_set(&set).expect("a copy");
    edit(&mut writer);
    let dir = folder();
    let path = dir.path().join("edited.gguf");
    writer.write(&path).expect("write");
    load(&path)
}

/// The error's class, code and line; panics with the line when there is none.
pub fn refused(result: Result<Model, InputError>) -> (String, String) {
    match result {
        Ok(model) => panic!("loaded: {:?}", model.config),
        Err(e) => (format!("{}/{}", e.class, e.code), e.line()),
    }
}
