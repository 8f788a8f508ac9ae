//! Owns the parts of one model: finding them from any part or from their folder, and checking that they belong together.
//!
//! It never opens a file other than the named one and its split parts, and never guesses: a missing, swapped, foreign
//! or joined part is refused by name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::container::{Part, TensorInfo};
use crate::error::{Class, InputError, Result, show};
use crate::map::stat;
use crate::value::Value;

/// All parts of one model. Metadata comes from the first part; tensors from all, in file order.
#[derive(Debug)]
pub struct GgufSet {
    parts: Vec<Part>,
    by_name: HashMap<String, (usize, usize)>,
}

/// A split part's name, taken apart: `PREFIX-00002-of-00003.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartName {
    /// Everything before `-00002-of-`.
    pub prefix: String,
    /// The part's number, from 1.
    pub number: u32,
    /// How many parts the name promises.
    pub count: u32,
}

impl PartName {
    /// Takes a file name apart; `None` when it is not the name of a split part.
    pub fn parse(file_name: &str) -> Option<PartName> {
        let stem = file_name.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok());
        let (number, count) = (digits(number)??, digits(count)??);
        (1..=count).contains(&number).then(|| PartName { prefix: prefix.to_owned(), number, count })
    }

    /// The file name of part `number` of `count`.
    pub fn format(prefix: &str, number: u32, count: u32) -> String {
        format!("{prefix}-{number:05}-of-{count:05}.gguf")
    }

    fn of(path: &Path) -> Option<PartName> {
        PartName::parse(path.file_name()?.to_str()?)
    }
}

/// Opens a model: one GGUF file, any part of a split one, or a folder that holds exactly one model.
///
/// # Errors
/// Class `io`, `format`, `unsupported` or `model`; the message names the part, key or tensor at fault.
pub fn open(path: &Path) -> Result<GgufSet> {
    let path = find(path)?;
    let named = Part::open(&path)?;
    let count = split_int(&named, "split.count")?.unwrap_or(0);
    if count <= 1 {
        if named.looks_joined() {
            return Err(joined(&named, "more than one GGUF file lies behind the other in it"));
        }
        return GgufSet::new(vec![named]);
    }
    let number = split_int(&named, "split.no")?.unwrap_or(0).saturating_add(1);
    let Some(name) = PartName::of(&path) else {
        return Err(joined_or_renamed(&named, number, count));
    };
    if u64::from(name.count) != count {
        let message = format!("split.count is {count}, but the file's name says {} parts", name.count);
        return Err(InputError::new(Class::Model, "split-count", &path, message).about("split.count"));
    }
    let set = GgufSet::new(open_siblings(named, &path, &name)?)?;
    check_total(set.parts())?;
    Ok(set)
}

/// The file that `path` names: itself, or a part of the only model in a folder. Opens nothing.
///
/// # Errors
/// Class `io`: nothing is there, or a folder holds no model or several.
pub fn find(path: &Path) -> Result<PathBuf> {
    if stat(path)?.is_dir() { pick_from_folder(path) } else { Ok(path.to_path_buf()) }
}

fn open_siblings(named: Part, path: &Path, name: &PartName) -> Result<Vec<Part>> {
    let sibling = |number| path.with_file_name(PartName::format(&name.prefix, number, name.count));
    let missing: Vec<u32> =
        (1..=name.count).filter(|&n| n != name.number && stat(&sibling(n)).is_err()).take(4).collect();
    if let Some(&first) = missing.first() {
        let list: Vec<String> = missing.iter().map(u32::to_string).collect();
        let more = if missing.len() > 3 { ", ..." } else { "" };
        let message = format!(
            "part {} of {} is missing beside {}: every part must lie in the same folder, under its own name",
            list[..list.len().min(3)].join(", ") + more,
            name.count,
            path.display()
        );
        return Err(InputError::new(Class::Io, "part-missing", &sibling(first), message));
    }
    let mut parts = Vec::new();
    let mut named = Some(named);
    for number in 1..=name.count {
        let part = match named.take_if(|_| number == name.number) {
            Some(part) => part,
            None => Part::open(&sibling(number))?,
        };
        check_place(&part, number, name.count)?;
        if part.looks_joined() {
            return Err(joined(&part, "another GGUF file lies behind it"));
        }
        parts.push(part);
    }
    check_totals_agree(&parts)?;
    check_same_model(&parts)?;
    Ok(parts)
}

fn check_place(part: &Part, number: u32, count: u32) -> Result<()> {
    let found = split_int(part, "split.no")?;
    if found != Some(u64::from(number - 1)) {
        let found = found.map_or("missing".to_owned(), |n| n.to_string());
        let message = format!(
            "this is part {number} by its name, but its split.no is {found} ({} expected): renamed, or of another model",
            number - 1
        );
        return Err(InputError::new(Class::Model, "split-no", part.path(), message).about("split.no"));
    }
    let found = split_int(part, "split.count")?;
    if found != Some(u64::from(count)) {
        let found = found.map_or("missing".to_owned(), |n| n.to_string());
        let message = format!("part {number}: split.count is {found}, but the set has {count} parts");
        return Err(InputError::new(Class::Model, "split-count", part.path(), message).about("split.count"));
    }
    Ok(())
}

/// Every key that a later part shares with the first must have the same value.
fn check_same_model(parts: &[Part]) -> Result<()> {
    let first = &parts[0];
    for (index, part) in parts.iter().enumerate().skip(1) {
        let differs = part.values().iter().find(|(key, value)| {
            let own = key.starts_with("split.") || key.as_str() == "general.alignment";
            !own && first.values().get(*key).is_some_and(|other| !same_value(first, other, part, value))
        });
        if let Some((key, _)) = differs {
            let message =
                format!("part {} is of another model than part 1: key {} differs between them", index + 1, show(key));
            return Err(InputError::new(Class::Model, "foreign-part", part.path(), message).about(key));
        }
    }
    Ok(())
}

fn same_value(a_part: &Part, a: &Value, b_part: &Part, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(x), Value::Str(y)) => x.of(a_part.bytes()) == y.of(b_part.bytes()),
        (Value::Array { elem: e, count: n, span: x }, Value::Array { elem: f, count: m, span: y }) => {
            e == f && n == m && x.of(a_part.bytes()) == y.of(b_part.bytes())
        }
        _ => match (a.as_int(), b.as_int()) {
            (Some(x), Some(y)) => x == y,
            // Floats by their bits, so that a NaN equals itself.
            _ => match (a, b) {
                (Value::F32(x), Value::F32(y)) => x.to_bits() == y.to_bits(),
                (Value::F64(x), Value::F64(y)) => x.to_bits() == y.to_bits(),
                _ => a == b,
            },
        },
    }
}

const TOTAL: &str = "split.tensors.count";

fn tensors_in(parts: &[Part]) -> u64 {
    parts.iter().map(|p| p.tensors().len() as u64).sum()
}

/// The total that each part states must be the same: parts of two models seldom agree on it.
fn check_totals_agree(parts: &[Part]) -> Result<()> {
    let Some(first) = split_int(&parts[0], TOTAL)? else { return Ok(()) };
    for (index, part) in parts.iter().enumerate().skip(1) {
        if let Some(other) = split_int(part, TOTAL)?
            && other != first
        {
            let message = format!(
                "{TOTAL} is {other} in part {} and {first} in part 1 (the parts hold {} tensors): a part is of another model",
                index + 1,
                tensors_in(parts)
            );
            return Err(InputError::new(Class::Model, "split-tensors", part.path(), message).about(TOTAL));
        }
    }
    Ok(())
}

/// The stated total must be what the parts hold.
fn check_total(parts: &[Part]) -> Result<()> {
    let found = tensors_in(parts);
    match split_int(&parts[0], TOTAL)? {
        Some(total) if total != found => {
            let message = format!(
                "{TOTAL} is {total}, but the {} parts hold {found} tensors: a part is of another model, or incomplete",
                parts.len()
            );
            Err(InputError::new(Class::Model, "split-tensors", parts[0].path(), message).about(TOTAL))
        }
        _ => Ok(()),
    }
}

fn split_int(part: &Part, key: &str) -> Result<Option<u64>> {
    let Some(value) = part.values().get(key) else { return Ok(None) };
    let refuse = |found: String| {
        let message = format!("key {key} must be a count, not {found}");
        InputError::new(Class::Model, "key-type", part.path(), message).about(key)
    };
    let int = value.as_int().ok_or_else(|| refuse(value.describe()))?;
    u64::try_from(int).map(Some).map_err(|_| refuse(int.to_string()))
}

fn joined(part: &Part, why: &str) -> InputError {
    let message = format!(
        "{why}: GGUF parts must not be joined with cat; keep them as separate files, or merge them with a GGUF tool"
    );
    InputError::new(Class::Model, "joined-parts", part.path(), message)
}

fn joined_or_renamed(part: &Part, number: u64, count: u64) -> InputError {
    if part.looks_joined() {
        let why = format!("this is part {number} of {count} with other parts behind it");
        return joined(part, &why).about("split.count");
    }
    let message = format!(
        "this is part {number} of {count}, under a name that hides it: give the parts back their names (NAME-{number:05}-of-{count:05}.gguf) in one folder"
    );
    InputError::new(Class::Model, "part-renamed", part.path(), message).about("split.count")
}

/// The one model of a folder: one `.gguf` file, or the parts of one split set.
fn pick_from_folder(folder: &Path) -> Result<PathBuf> {
    let io = |e: std::io::Error| crate::map::io_error(folder, &e);
    let mut models: Vec<(String, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if !is_gguf || !stat(&path).is_ok_and(|m| m.is_file()) {
            continue;
        }
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let model = PartName::parse(&name).map_or(name, |p| format!("{}-of-{:05}", p.prefix, p.count));
        models.push((model, path));
    }
    models.sort();
    models.dedup_by(|b, a| a.0 == b.0);
    match models.as_slice() {
        [(_, path)] => Ok(path.clone()),
        [] => Err(InputError::new(
            Class::Io,
            "is-a-directory",
            folder,
            "this is a directory and holds no .gguf file; name a GGUF file or a folder with one model",
        )),
        several => {
            let names: Vec<String> = several.iter().take(4).map(|m| show(&m.0)).collect();
            let message = format!(
                "this directory holds {} models ({}{}): name one of them",
                several.len(),
                names.join(", "),
                if several.len() > 4 { ", ..." } else { "" }
            );
            Err(InputError::new(Class::Io, "is-a-directory", folder, message))
        }
    }
}

impl GgufSet {
    fn new(parts: Vec<Part>) -> Result<GgufSet> {
        let mut by_name = HashMap::new();
        for (p, part) in parts.iter().enumerate() {
            for (t, tensor) in part.tensors().iter().enumerate() {
                if let Some((other, _)) = by_name.insert(tensor.name.clone(), (p, t)) {
                    let message =
                        format!("tensor {} is in part {} and again in part {}", show(&tensor.name), other + 1, p + 1);
                    return Err(
                        InputError::new(Class::Model, "duplicate-tensor", part.path(), message).about(&tensor.name)
                    );
                }
            }
        }
        Ok(GgufSet { parts, by_name })
    }

    /// The parts in order; at least one.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The file that holds the metadata, which errors about keys name.
    pub fn path(&self) -> &Path {
        self.parts[0].path()
    }

    /// All tensors with the index of their part, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.parts.iter().enumerate().flat_map(|(p, part)| part.tensors().iter().map(move |t| (p, t)))
    }

    /// Number of tensors in all parts.
    pub fn tensor_count(&self) -> usize {
        self.by_name.len()
    }

    /// A tensor by name, with the index of its part.
    pub fn tensor(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        self.by_name.get(name).map(|&(p, t)| (p, &self.parts[p].tensors()[t]))
    }

    /// The tensor's bytes as they lie in the file: possibly at an odd address, so copy, never cast.
    pub fn tensor_bytes(&self, part: usize, offset: u64, bytes: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        self.parts.get(part)?.bytes().get(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names() {
        let name = PartName::parse("a-00001-of-2-00002-of-00003.gguf").expect("a part's name");
        assert_eq!((name.prefix.as_str(), name.number, name.count), ("a-00001-of-2", 2, 3));
        assert_eq!(PartName::format(&name.prefix, 2, 3), "a-00001-of-2-00002-of-00003.gguf");
        for no in ["a.gguf", "a-1-of-3.gguf", "a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-00003"] {
            assert_eq!(PartName::parse(no), None, "{no}");
        }
    }
}
