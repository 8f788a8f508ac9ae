//! Owns the loading of a plan: its file, its verification, the check that the weight files are those it was made from,
//! and their mapping, or what a rank holds of them. Never executes.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use glmc_ir::entities::WeightId;
use glmc_ir::placement::local_type;
use glmc_ir::plan::{FORMAT, FileRef, Plan, Recipe, Slice};
use glmc_ir::quant::synth::Fill;
use glmc_ir::shard_map::Shard;
use glmc_ir::ty::SymValues;

use crate::error::RuntimeError;
use crate::map::Mapped;

/// Largest `plan.json` that is read: a plan of the largest model known takes a twentieth of it.
const MAX_PLAN_BYTES: u64 = 512 << 20;

/// A plan that passed its checks, with its weight files mapped.
#[derive(Debug)]
pub struct Loaded {
    /// The plan.
    pub plan: Plan,
    /// Its directory.
    pub dir: PathBuf,
    /// The weights of each rank.
    pub weights: Vec<Weights>,
}

/// What `manifest.json` says of the other files of a plan: it is written last and seals them and itself.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// BLAKE3 of each file by name.
    files: std::collections::BTreeMap<String, String>,
    /// BLAKE3 of the list above.
    seal: String,
}

impl Manifest {
    /// The manifest of files with these contents.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), glmc_content::hash(bytes))).collect();
        let seal = Self::seal_of(&files);
        Manifest { files, seal }
    }

    fn seal_of(files: &std::collections::BTreeMap<String, String>) -> String {
        let lines: String = files.iter().map(|(name, hash)| format!("{name}\0{hash}\n")).collect();
        glmc_content::hash(lines.as_bytes())
    }
}

/// Name of the manifest in a plan.
pub const MANIFEST: &str = "manifest.json";
/// Name of the plan proper.
pub const PLAN: &str = "plan.json";

/// Reads a file of a plan and compares it with the plan's manifest.
///
/// # Errors
/// No manifest, a file that is not in it, or one that is gone or has changed since the plan was written.
pub fn read_sealed(dir: &Path, name: &str) -> Result<Vec<u8>, RuntimeError> {
    let path = dir.join(name);
    read_sealed_if_any(dir, name)?.ok_or_else(|| RuntimeError::Plan {
        path,
        code: "plan-incomplete",
        message: "is not in the plan's manifest; compile the model again".into(),
    })
}

/// [`read_sealed`] of a file that not every plan has: `None` if the plan was made without it.
///
/// # Errors
/// As for [`read_sealed`].
pub fn read_sealed_if_any(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, RuntimeError> {
    let path = dir.join(name);
    let refuse =
        |path: &Path, code, message: &str| RuntimeError::Plan { path: path.into(), code, message: message.into() };
    let manifest_path = dir.join(MANIFEST);
    // A folder that may not be searched is not one without a manifest.
    if std::fs::metadata(dir).is_ok_and(|m| m.is_dir()) && matches!(manifest_path.try_exists(), Ok(false)) {
        return Err(refuse(
            dir,
            "plan-incomplete",
            "is no plan, or an incomplete one (it has no manifest.json); compile the model again",
        ));
    }
    let manifest: Manifest = serde_json::from_slice(&read_bounded(&manifest_path, 1 << 20)?)
        .map_err(|_| refuse(&manifest_path, "plan-syntax", "is cut short or edited; compile the model again"))?;
    if Manifest::seal_of(&manifest.files) != manifest.seal {
        return Err(refuse(
            &manifest_path,
            "plan-changed",
            "was edited after the plan was made; compile the model again",
        ));
    }
    let Some(hash) = manifest.files.get(name) else { return Ok(None) };
    if matches!(path.try_exists(), Ok(false)) {
        let what = "is missing: the plan was made with this file; put it back or compile the model again";
        return Err(refuse(&path, "plan-incomplete", what));
    }
    let bytes = read_bounded(&path, MAX_PLAN_BYTES)?;
    if glmc_content::hash(&bytes) != *hash {
        return Err(refuse(
            &path,
            "plan-changed",
            "was cut short or edited after the plan was made; compile the model again",
        ));
    }
    Ok(Some(bytes))
}

/// Reads and verifies the plan of `dir`, not its weight files.
///
/// # Errors
/// A directory without a plan, a plan that is cut short, edited, of another version, or refused by the verifier.
pub fn read_plan(dir: &Path) -> Result<Plan, RuntimeError> {
    parse_plan(&read_sealed(dir, PLAN)?, &dir.join(PLAN))
}

/// Parses and verifies the text of a plan; `path` is for messages.
///
/// # Errors
/// Another version, bad syntax, or findings of the verifier.
pub fn parse_plan(text: &[u8], path: &Path) -> Result<Plan, RuntimeError> {
    let refuse = |code, message: String| RuntimeError::Plan { path: path.into(), code, message };
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
        producer: String,
    }
    let v: Version = serde_json::from_slice(text)
        .map_err(|e| refuse("plan-syntax", format!("is no plan, or cut short ({e}); compile the model again")))?;
    if v.format != FORMAT {
        let message = format!(
            "is a plan of format {} (made by {}), this program runs format {FORMAT}; compile the model again with it",
            v.format, v.producer
        );
        return Err(refuse("plan-version", message));
    }
    let plan: Plan = serde_json::from_slice(text)
        .map_err(|e| refuse("plan-syntax", format!("is no valid plan ({e}); compile the model again")))?;
    if let Err(found) = glmc_ir::verify::plan::verify_plan(&plan) {
        let first = found.0.first().map(ToString::to_string).unwrap_or_default();
        let more = match found.0.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        let message = format!("was edited or damaged, the verifier refuses it: {first}{more}; compile the model again");
        return Err(refuse("plan-invalid", message.replace('\n', " ")));
    }
    Ok(plan)
}

/// Reads the plan of `dir` that is to run, not its weight files.
///
/// # Errors
/// See [`read_plan`]; also a plan whose phases or sizes the engine cannot run.
pub fn read_runnable(dir: &Path) -> Result<Plan, RuntimeError> {
    let plan = read_plan(dir)?;
    check_engine(&plan, dir)?;
    Ok(plan)
}

/// Reads a plan and maps the weight files it names.
///
/// # Errors
/// See [`read_runnable`] and [`map_weights`].
pub fn load(dir: &Path) -> Result<Loaded, RuntimeError> {
    map_weights(read_runnable(dir)?, dir)
}

/// Refuses a plan that the verifier accepts and the engine cannot run.
pub(crate) fn check_engine(plan: &Plan, dir: &Path) -> Result<(), RuntimeError> {
    crate::engine_can_run::engine_can_run(plan).map_err(|what| RuntimeError::Plan {
        path: dir.join(PLAN),
        code: "plan-invalid",
        message: format!("was edited or damaged: the plan {what}; compile the model again"),
    })
}

/// Compares the weight files with those that the plan was made from, by their headers and samples; maps none.
///
/// # Errors
/// A weight file that is missing or is another one.
pub fn check_weights(plan: &Plan) -> Result<(), RuntimeError> {
    plan.files.iter().try_for_each(|f| check_part(f).map(drop))
}

/// Maps the weight files of a plan that passed its checks, and gathers for each rank what lies in pieces.
///
/// # Errors
/// A weight file that is missing or is not the one the plan was made from, or memory that the system does not give.
pub fn map_weights(plan: Plan, dir: &Path) -> Result<Loaded, RuntimeError> {
    let files: Arc<[Mapped]> = plan.files.iter().map(open_part).collect::<Result<_, _>>()?;
    let ranks = 0..plan.target.ranks as usize;
    let weights = ranks.map(|r| Weights::new(Arc::clone(&files), &plan, r)).collect::<Result<_, _>>()?;
    Ok(Loaded { plan, dir: dir.into(), weights })
}

/// A plan with weights that are made on the host, by `fills` in the order of its weights; its files are not looked at.
///
/// # Errors
/// Another number of fills than weights, or slices that cut blocks.
pub fn make_weights(plan: Plan, dir: &Path, fills: &[Fill]) -> Result<Loaded, RuntimeError> {
    let ranks = 0..plan.target.ranks as usize;
    let weights = ranks.map(|r| Weights::made(&plan, r, fills)).collect::<Result<_, _>>()?;
    Ok(Loaded { plan, dir: dir.into(), weights })
}

/// What one rank holds of the weight files of a plan that passed its checks.
///
/// # Errors
/// As for [`map_weights`]; there is no such rank.
pub fn map_rank(plan: &Plan, rank: usize) -> Result<Weights, RuntimeError> {
    let files: Arc<[Mapped]> = plan.files.iter().map(open_part).collect::<Result<_, _>>()?;
    Weights::new(files, plan, rank)
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, RuntimeError> {
    let file = glmc_content::open_regular(path).map_err(|e| RuntimeError::io(path, &e))?;
    let mut text = Vec::new();
    file.take(limit + 1).read_to_end(&mut text).map_err(|e| RuntimeError::io(path, &e))?;
    if text.len() as u64 > limit {
        return Err(RuntimeError::Io { path: path.into(), message: format!("is larger than {limit} bytes") });
    }
    Ok(text)
}

fn open_part(f: &FileRef) -> Result<Mapped, RuntimeError> {
    Mapped::open(check_part(f)?)
}

fn check_part(f: &FileRef) -> Result<&Path, RuntimeError> {
    let path = Path::new(&f.path);
    let changed = |code, what: String| RuntimeError::Plan {
        path: path.into(),
        code,
        message: format!("{what}; the plan was made from another file: compile the model again"),
    };
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => RuntimeError::Io {
            path: path.into(),
            message: "the plan's weights are not there; put the file back or compile the model again".into(),
        },
        _ => RuntimeError::io(path, &e),
    })?;
    if !meta.is_file() {
        return Err(RuntimeError::Io { path: path.into(), message: "is not a regular file".into() });
    }
    if meta.len() != f.bytes {
        return Err(changed("weights-changed", format!("has {} bytes, the plan expects {}", meta.len(), f.bytes)));
    }
    let read = |r: std::io::Result<String>| r.map_err(|e| RuntimeError::io(path, &e));
    if read(glmc_content::header_hash(path, f.header_bytes))? != f.header_hash {
        return Err(changed("weights-changed", "its header has changed".into()));
    }
    if read(glmc_content::sample_hash(path, f.header_bytes))? != f.sample_hash {
        return Err(changed("weights-changed", "its data has changed".into()));
    }
    Ok(path)
}

/// Whether these bytes of a rank stay in their file: they are one piece, in the file's own form.
pub(crate) fn is_mapped(recipe: &Recipe, slices: &[Slice]) -> bool {
    is_as_in_file(recipe) && matches!(slices, [s] if s.count == 1)
}

/// Whether a weight is kept in the form that its file has.
fn is_as_in_file(recipe: &Recipe) -> bool {
    recipe.ty.elem == recipe.ty.elem.in_file()
}

/// The weights of one rank: mapped where a recipe is one slice, gathered where it is several or where the
/// rank holds sub-blocks of the file's blocks.
#[derive(Debug)]
pub struct Weights {
    files: Arc<[Mapped]>,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) bytes: Bytes,
    /// Entries decoded to floats, for kernels that take no stored operand.
    pub(crate) floats: OnceLock<Vec<f32>>,
    pub(crate) elem: glmc_ir::ty::Elem,
    elems: usize,
}

impl Entry {
    fn new(plan: &Plan, recipe: &Recipe, rank: usize, bytes: Bytes) -> Result<Entry, RuntimeError> {
        let none = SymValues::default();
        let local = local_type(&recipe.ty, &plan.mesh, rank as u64, &none);
        let local = local.map_err(|d| RuntimeError::Request(format!("weight `{}`: {}", recipe.name, d.message)))?;
        let elems = local.elems(&none).unwrap_or(0) as usize;
        Ok(Entry { bytes, floats: OnceLock::new(), elem: recipe.ty.elem, elems })
    }
}

#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped { part: usize, start: usize, end: usize },
    Owned(Vec<u8>),
}

impl Weights {
    fn new(files: Arc<[Mapped]>, plan: &Plan, rank: usize) -> Result<Self, RuntimeError> {
        let mut entries = Vec::with_capacity(plan.weights.len());
        for recipe in plan.weights.values() {
            let bytes = Self::bytes_of(&files, recipe, plan, rank)?;
            entries.push(Entry::new(plan, recipe, rank, bytes)?);
        }
        Ok(Weights { files, entries })
    }

    fn made(plan: &Plan, rank: usize, fills: &[Fill]) -> Result<Self, RuntimeError> {
        if fills.len() != plan.weights.len() {
            let (have, want) = (fills.len(), plan.weights.len());
            return Err(RuntimeError::Request(format!("{have} fills for {want} weights")));
        }
        let mut entries = Vec::with_capacity(fills.len());
        for (recipe, fill) in plan.weights.values().zip(fills) {
            let bytes = Bytes::Owned(crate::made::stored(plan, recipe, rank, fill)?);
            entries.push(Entry::new(plan, recipe, rank, bytes)?);
        }
        Ok(Weights { files: Vec::new().into(), entries })
    }

    /// A rank's bytes. The verifier has checked the slices against the sizes that the plan states; the files have them.
    fn bytes_of(files: &[Mapped], recipe: &Recipe, plan: &Plan, rank: usize) -> Result<Bytes, RuntimeError> {
        let outside = || RuntimeError::Request(format!("weight `{}` lies outside its file", recipe.name));
        let slices = recipe.slices.get(rank).ok_or_else(outside)?;
        if let ([s], true) = (slices.as_slice(), is_mapped(recipe, slices)) {
            let (part, start) = (s.part as usize, s.offset as usize);
            let end = start.checked_add(s.bytes as usize).ok_or_else(outside)?;
            files.get(part).and_then(|f| f.bytes().get(start..end)).ok_or_else(outside)?;
            return Ok(Bytes::Mapped { part, start, end });
        }
        let bytes = slices.iter().map(|s| s.bytes.saturating_mul(s.count)).fold(0, u64::saturating_add);
        let mut out = Vec::new();
        out.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX))
            .map_err(|_| RuntimeError::weight_memory(format!("weight `{}`", recipe.name), bytes))?;
        for s in slices {
            let file = files.get(s.part as usize).ok_or_else(outside)?.bytes();
            for i in 0..s.count {
                let start = (s.offset + i * s.stride) as usize;
                out.extend_from_slice(file.get(start..start + s.bytes as usize).ok_or_else(outside)?);
            }
        }
        if is_as_in_file(recipe) {
            return Ok(Bytes::Owned(out));
        }
        let shard = Shard::of(&recipe.ty, &plan.mesh, rank as u64, &SymValues::default());
        let shard = shard.map_err(|d| RuntimeError::Request(format!("weight `{}`: {}", recipe.name, d.message)))?;
        Ok(Bytes::Owned(shard.stored(out)))
    }

    /// The stored bytes of a weight.
    pub fn bytes(&self, w: WeightId) -> &[u8] {
        match &self.entries[w.as_u32() as usize].bytes {
            Bytes::Mapped { part, start, end } => &self.files[*part].bytes()[*start..*end],
            Bytes::Owned(v) => v,
        }
    }

    /// The entries of a weight as floats, decoded once.
    pub fn floats(&self, w: WeightId) -> &[f32] {
        let e = &self.entries[w.as_u32() as usize];
        e.floats.get_or_init(|| {
            let mut out = vec![0.0; e.elems];
            if let Some(q) = e.elem.storage() {
                q.decode(self.bytes(w), &mut out);
            }
            out
        })
    }

    /// Bytes of all weights together.
    pub fn total_bytes(&self) -> u64 {
        (0..self.entries.len()).map(|i| self.bytes(WeightId::from_u32(i as u32)).len() as u64).sum()
    }
}
