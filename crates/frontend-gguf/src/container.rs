//! Owns the GGUF container: header, key-value table and tensor table of one file, checked against the file's size.
//!
//! It never allocates from a count before that count is bounded by the bytes left, never reads tensor data, and never
//! interprets a key but `general.alignment`. Dims are reversed here, once: from here on the last dim is contiguous.
//! Versions 2 and 3, little-endian. Tensors may have gaps and any order, but never overlap.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::cursor::Cursor;
use crate::error::{Class, InputError, Result, show};
use crate::map::FileMap;
use crate::tensor_table::{check_names, place, read_info};
use crate::value::Value;

/// The alignment of tensor data when the file names none.
pub const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;
const MIN_ALIGNMENT: u64 = 8;
/// More keys or tensors than any model has; bounds what a hostile table can make us hold.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 17;
const MAX_KEY_BYTES: usize = 65_535;
/// The least bytes of a key-value pair and of a tensor info.
const LEAST_KV: u64 = 8 + 1 + 4 + 1;
const LEAST_INFO: u64 = 8 + 1 + 4 + 4 + 8;

/// One entry of a tensor table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name, 1 to 63 bytes.
    pub name: String,
    /// The ggml type id; a known, storable type.
    pub type_id: u32,
    /// The type's name.
    pub type_name: &'static str,
    /// Row-major dims (the file's order reversed): the last one is contiguous. Empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the part's file.
    pub offset: u64,
    /// Bytes of data; `offset + bytes` lies inside the file.
    pub bytes: u64,
}

/// One parsed GGUF file and its mapping.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    map: FileMap,
    version: u32,
    alignment: u64,
    header_len: u64,
    data_start: u64,
    values: IndexMap<String, Value>,
    tensors: Vec<TensorInfo>,
    data_end: u64,
}

impl Part {
    /// Maps and parses one file, without looking at any other.
    ///
    /// # Errors
    /// Class `io`, `format` or `unsupported`; the message names the key or tensor at fault.
    pub fn open(path: &Path) -> Result<Part> {
        let map = FileMap::open(path)?;
        Part::parse(path.to_path_buf(), map)
    }

    fn parse(path: PathBuf, map: FileMap) -> Result<Part> {
        let bytes = map.bytes();
        check_magic(bytes, &path)?;
        let mut cur = Cursor::new(bytes, &path);
        cur.take(4, "the magic")?;
        let version = read_version(&mut cur, &path)?;
        let tensor_count = cur.u64("the tensor count")?;
        let key_count = cur.u64("the key count")?;
        check_count(key_count, LEAST_KV, MAX_KEYS, "keys", &cur, &path)?;
        check_count(tensor_count, LEAST_INFO, MAX_TENSORS, "tensors", &cur, &path)?;
        let mut values = IndexMap::new();
        for index in 0..key_count {
            let key = read_key(&mut cur, index, &path)?;
            let value = Value::parse(&mut cur, &key, &path).map_err(|e| e.within(&key))?;
            if values.contains_key(&key) {
                return Err(InputError::new(
                    Class::Format,
                    "duplicate-key",
                    &path,
                    format!("key {} is there twice", show(&key)),
                )
                .about(&key));
            }
            values.insert(key, value);
        }
        let alignment = read_alignment(&values, &path)?;
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(read_info(&mut cur, index, &path)?);
        }
        let header_len = cur.pos() as u64;
        let data_start = header_len.next_multiple_of(alignment);
        let size = bytes.len() as u64;
        check_names(&tensors, &path)?;
        let data_end = place(&mut tensors, data_start, alignment, size, &path)?;
        let part = Part { path, map, version, alignment, header_len, data_start, values, tensors, data_end };
        if part.trailing_bytes() > 0 {
            tracing::warn!(
                file = %part.path.display(),
                bytes = part.trailing_bytes(),
                "bytes after the last tensor are ignored (a resumed download, or joined files)"
            );
        }
        Ok(part)
    }

    /// The file's path, as given or derived from the part that was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes of the file (mapped).
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data, a power of two.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Bytes up to the end of the tensor table, before the padding: what `header_hash` covers.
    pub fn header_len(&self) -> u64 {
        self.header_len
    }

    /// Where tensor data begins.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Bytes after the last tensor and its padding.
    pub fn trailing_bytes(&self) -> u64 {
        self.size().saturating_sub(self.data_end.next_multiple_of(self.alignment))
    }

    /// The keys and values in file order.
    pub fn values(&self) -> &IndexMap<String, Value> {
        &self.values
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// blake3 of the header, see [`glmc_content::header_hash`].
    ///
    /// # Errors
    /// Class `io`: the file cannot be read again.
    pub fn header_hash(&self) -> Result<String> {
        glmc_content::header_hash(&self.path, self.header_len).map_err(|e| crate::map::io_error(&self.path, &e))
    }

    /// blake3 of sampled data, see [`glmc_content::sample_hash`].
    ///
    /// # Errors
    /// Class `io`: the file cannot be read again.
    pub fn sample_hash(&self) -> Result<String> {
        glmc_content::sample_hash(&self.path, self.header_len).map_err(|e| crate::map::io_error(&self.path, &e))
    }

    /// Whether the bytes after the last tensor look like another GGUF file.
    pub(crate) fn looks_joined(&self) -> bool {
        // The first of them may have been written with or without the padding after its last tensor.
        let starts = [self.data_end, self.data_end.next_multiple_of(self.alignment)];
        starts.iter().any(|&at| self.bytes().get(at as usize..).is_some_and(|rest| rest.starts_with(b"GGUF")))
    }
}

fn check_magic(bytes: &[u8], path: &Path) -> Result<()> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    if bytes.len() < 4 {
        let what = if bytes.is_empty() { "is empty" } else { "is too short for a header" };
        let message = format!("the file {what} ({} bytes); download it again", bytes.len());
        return Err(InputError::new(Class::Format, "too-short", path, message));
    }
    let head = &bytes[..bytes.len().min(64)];
    let hint = if head.starts_with(b"version https://git-lfs") {
        "; it looks like a git-lfs pointer: fetch the file itself (git lfs pull)"
    } else if head.trim_ascii_start().starts_with(b"<") {
        "; it looks like an HTML or XML page: the download failed"
    } else if head.len() > 9 && head[8..10] == *b"{\"" {
        "; it looks like a safetensors file: convert it to GGUF first"
    } else if [&b"tjgg"[..], b"fmgg", b"lmgg", b"algg"].iter().any(|m| head.starts_with(m)) {
        "; it is an old ggml file from before GGUF: convert the model again"
    } else if head.starts_with(b"PK") {
        "; it looks like a zip archive (a PyTorch checkpoint?): convert it to GGUF first"
    } else if head.starts_with(b"FUGG") {
        "; the bytes are in swapped order"
    } else {
        ""
    };
    let message = format!("not a GGUF file: it begins with '{}', not 'GGUF'{hint}", head[..4].escape_ascii());
    Err(InputError::new(Class::Format, "bad-magic", path, message))
}

fn read_version(cur: &mut Cursor<'_>, path: &Path) -> Result<u32> {
    let version = cur.u32("the version")?;
    if version == 2 || version == 3 {
        return Ok(version);
    }
    let (code, message) = if version & 0xFFFF == 0 && version != 0 {
        (
            "big-endian",
            format!(
                "a big-endian file (version {}): only little-endian GGUF is supported; convert it",
                version.swap_bytes()
            ),
        )
    } else {
        (
            "unsupported-version",
            format!("GGUF version {version} is not supported (2 and 3 are); convert the model again"),
        )
    };
    Err(InputError::new(Class::Unsupported, code, path, message))
}

fn check_count(count: u64, least: u64, most: u64, what: &str, cur: &Cursor<'_>, path: &Path) -> Result<()> {
    if count <= cur.left() / least && count <= most {
        return Ok(());
    }
    if count > 0 && cur.left() == 0 {
        let message = format!(
            "unexpected end of file at offset {}: the header promises {count} {what} and the file ends",
            cur.pos()
        );
        return Err(InputError::new(Class::Format, "truncated", path, message));
    }
    let message = format!(
        "{count} {what} cannot be in the {} bytes after the header (at most {most} are read); the file is corrupt",
        cur.left()
    );
    Err(InputError::new(Class::Format, "bad-count", path, message))
}

fn read_key(cur: &mut Cursor<'_>, index: u64, path: &Path) -> Result<String> {
    let (offset, bytes) = cur.string("a key's text")?;
    let bad = |code, what: &str| {
        let e = InputError::new(Class::Format, code, path, format!("key {index} at offset {offset} {what}"));
        if bytes.is_empty() { e } else { e.about(shown(bytes)) }
    };
    if bytes.is_empty() {
        return Err(bad("empty-key", "is empty"));
    }
    if bytes.len() > MAX_KEY_BYTES {
        return Err(bad("bad-key", "is longer than 65535 bytes"));
    }
    match std::str::from_utf8(bytes) {
        Ok(key) => Ok(key.to_owned()),
        Err(_) => Err(bad("bad-utf8", &format!("is not UTF-8: '{}'", show(&shown(bytes))))),
    }
}

/// The start of text that may be no text; a hostile length costs nothing.
pub(crate) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}

fn read_alignment(values: &IndexMap<String, Value>, path: &Path) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let Some(value) = values.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let refuse = |found: String| {
        let message = format!("key {KEY}: {found}; it must be a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}");
        InputError::new(Class::Format, "bad-alignment", path, message).about(KEY)
    };
    let Some(int) = value.as_int() else { return Err(refuse(format!("it is {}", value.describe()))) };
    match u64::try_from(int) {
        Ok(a) if a.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&a) => Ok(a),
        _ => Err(refuse(format!("it is {int}"))),
    }
}
