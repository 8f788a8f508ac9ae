//! The models that the tests run: the shipped ones, and every GGUF of the folder that `GLMC_MODELS` names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use glmc_frontend_gguf::set::PartName;
use glmc_frontend_gguf::write::{GgufWriter, TensorData};
use glmc_ir::quant::{QuantType, encode::encode};

use super::support::{compile, fixture, golden_json, scratch};

/// One model: what the goldens call it, and the file to open.
#[derive(Debug)]
pub(crate) struct TestModel {
    pub(crate) golden: String,
    pub(crate) path: PathBuf,
    /// Made here from the bf16 file, not found: HF was not run on it with forced ids.
    pub(crate) retyped: bool,
    plan: OnceLock<PathBuf>,
}

impl TestModel {
    fn new(golden: &str, path: PathBuf, retyped: bool) -> Self {
        TestModel { golden: golden.to_owned(), path, retyped, plan: OnceLock::new() }
    }

    /// Its plan, compiled once.
    pub(crate) fn plan(&self) -> &Path {
        self.plan.get_or_init(|| compile(&self.path))
    }
}

/// The shipped bf16 model, decompressed once.
pub(crate) fn bf16() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = scratch().join("tiny-bf16.gguf");
        let packed = std::fs::File::open(fixture("models/tiny-bf16.gguf.zst")).unwrap();
        let mut stream = ruzstd::decoding::StreamingDecoder::new(std::io::BufReader::new(packed)).unwrap();
        std::io::copy(&mut stream, &mut std::fs::File::create(&path).unwrap()).unwrap();
        path
    })
    .clone()
}

fn shipped() -> Vec<TestModel> {
    let folder = fixture("models");
    vec![
        TestModel::new("bf16", bf16(), false),
        TestModel::new("Q4_K_M", folder.join("tiny-Q4_K_M.gguf"), false),
        TestModel::new("UD-Q4_K_XL", folder.join("tiny-UD-Q4_K_XL-00001-of-00003.gguf"), false),
    ]
}

/// The shipped models; with `GLMC_MODELS` also what that folder holds, and the bf16 model stored as f32 and as f16.
pub(crate) fn models() -> &'static [TestModel] {
    static ALL: OnceLock<Vec<TestModel>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = shipped();
        let Some(folder) = std::env::var_os("GLMC_MODELS") else { return all };
        all.extend(found_in(Path::new(&folder)).unwrap_or_else(|e| panic!("{e}")));
        for (golden, to) in [("f32", QuantType::F32), ("f16", QuantType::F16)] {
            if all.iter().all(|m| m.golden != golden) && check_goldens(golden).is_ok() {
                all.push(TestModel::new(golden, retyped(golden, to), true));
            }
        }
        let names: Vec<&str> = all.iter().map(|m| m.golden.as_str()).collect();
        println!("models: {}", names.join(", "));
        all
    })
}

/// Every model of a folder but copies of shipped ones, by name. The parts of a split model are one.
fn found_in(folder: &Path) -> Result<Vec<TestModel>, String> {
    let at = |what: String| format!("GLMC_MODELS: {}: {what}", folder.display());
    let mut sets: BTreeMap<(String, u32), Vec<PathBuf>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| at(e.to_string()))? {
        let path = entry.map_err(|e| at(e.to_string()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((stem, "gguf")) = name.rsplit_once('.') else { continue };
        let model = PartName::parse(&name).map_or((stem.to_owned(), 1), |p| (p.prefix, p.count));
        sets.entry(model).or_default().push(path);
    }
    if sets.is_empty() {
        return Err(at("there is no .gguf file".into()));
    }
    let own = shipped();
    let mut found = Vec::new();
    for ((model, _), mut parts) in sets {
        parts.sort();
        let golden = model.strip_prefix("tiny-").unwrap_or(&model);
        if own.iter().any(|s| s.golden == golden && same_files(&s.path, &parts)) {
            continue;
        }
        check_goldens(golden).map_err(|e| at(format!("{model}: {e}")))?;
        found.push(TestModel::new(golden, parts.swap_remove(0), false));
    }
    Ok(found)
}

/// Whether these are the bytes of the shipped model.
fn same_files(shipped: &Path, parts: &[PathBuf]) -> bool {
    let name = shipped.file_name().unwrap_or_default().to_string_lossy();
    let own: Vec<PathBuf> = match PartName::parse(&name) {
        Some(p) => (1..=p.count).map(|n| shipped.with_file_name(PartName::format(&p.prefix, n, p.count))).collect(),
        None => vec![shipped.to_owned()],
    };
    let hash = |p: &PathBuf| std::fs::read(p).map(|b| blake3::hash(&b)).ok();
    own.len() == parts.len() && own.iter().zip(parts).all(|(a, b)| hash(a).is_some() && hash(a) == hash(b))
}

/// A sentence when the goldens that every model needs are not all there.
fn check_goldens(golden: &str) -> Result<(), String> {
    let goldens = fixture("models/goldens");
    let files = [format!("logits-{golden}.npy"), format!("gen-{golden}.json")];
    if let Some(missing) = files.iter().find(|f| !goldens.join(f).is_file()) {
        return Err(format!("the goldens lack {missing}: a file tiny-NAME.gguf is compared with those of NAME"));
    }
    match golden_json("summary.json")[golden]["ppl_hf"].as_f64() {
        Some(_) => Ok(()),
        None => Err(format!("summary.json lacks the perplexity of {golden}")),
    }
}

/// The bf16 model with other numbers in one of its f32 tensors, as `dir/NAME.gguf`.
pub(crate) fn with_floats(dir: &Path, name: &str, tensor: &str, edit: impl FnOnce(&mut [f32])) -> PathBuf {
    let set = glmc_frontend_gguf::open(&bf16()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.retain_tensors(|n| n != tensor);
    let (part, t) = set.tensor(tensor).unwrap();
    assert_eq!(QuantType::from_ggml_id(t.type_id).unwrap(), QuantType::F32);
    let bytes = set.tensor_bytes(part, t.offset, t.bytes).unwrap();
    let mut floats: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    edit(&mut floats);
    let bytes = floats.into_iter().flat_map(f32::to_le_bytes).collect();
    w.tensor(tensor, QuantType::F32, &t.shape, TensorData::Bytes(bytes)).unwrap();
    let path = dir.join(format!("{name}.gguf"));
    w.write(&path).unwrap();
    path
}

/// The bf16 model with its bf16 tensors stored as another type.
fn retyped(golden: &str, to: QuantType) -> PathBuf {
    let path = scratch().join(format!("tiny-{golden}.gguf"));
    let set = glmc_frontend_gguf::open(&bf16()).unwrap();
    let mut w = GgufWriter::from_set(&set).unwrap();
    w.retain_tensors(|_| false);
    for (part, t) in set.tensors() {
        let bytes = set.tensor_bytes(part, t.offset, t.bytes).unwrap();
        let from = QuantType::from_ggml_id(t.type_id).unwrap();
        let (ty, data) = if from == QuantType::BF16 {
            let mut values = vec![0.0; bytes.len() / 2];
            from.decode(bytes, &mut values);
            (to, encode(to, &values).unwrap())
        } else {
            (from, bytes.to_vec())
        };
        w.tensor(&t.name, ty, &t.shape, TensorData::Bytes(data)).unwrap();
    }
    w.write(&path).unwrap();
    path
}

#[test]
fn a_folder_gives_each_model_once() {
    let dir = tempfile::tempdir().unwrap();
    let found = || found_in(dir.path()).map(|all| all.iter().map(|m| m.golden.clone()).collect::<Vec<_>>());
    assert!(found().unwrap_err().ends_with("there is no .gguf file"));
    // Copies of shipped models, and what is no model.
    std::fs::write(dir.path().join("README.md"), "text").unwrap();
    std::fs::copy(bf16(), dir.path().join("tiny-bf16.gguf")).unwrap();
    for part in 1..=3 {
        let name = PartName::format("tiny-UD-Q4_K_XL", part, 3);
        std::fs::copy(fixture("models").join(&name), dir.path().join(&name)).unwrap();
    }
    assert_eq!(found().unwrap(), [""; 0]);
    // Another file under a shipped name is another model; parts count once.
    std::fs::copy(bf16(), dir.path().join("tiny-Q8_0.gguf")).unwrap();
    let part = dir.path().join(PartName::format("tiny-UD-Q4_K_XL", 2, 3));
    let mut bytes = std::fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&part).unwrap();
    std::fs::write(&part, bytes).unwrap();
    assert_eq!(found().unwrap(), ["Q8_0", "UD-Q4_K_XL"]);
    assert!(found_in(dir.path()).unwrap()[1].path.ends_with("tiny-UD-Q4_K_XL-00001-of-00003.gguf"));
    // A model that nothing can be compared with is no silent skip.
    std::fs::copy(bf16(), dir.path().join("tiny-IQ1_S.gguf")).unwrap();
    let error = found().unwrap_err();
    assert!(error.contains("tiny-IQ1_S: the goldens lack logits-IQ1_S.npy"), "{error}");
    assert!(found_in(&dir.path().join("nowhere")).is_err());
}
