//! Owns writing GGUF files (version 3, little-endian), for tests and synthetic models.
//!
//! It never overwrites: a destination that exists is refused before a byte is written. Each file is written without a
//! name, synced and then named, so that a process that dies on the way leaves nothing (`place`).

mod encode;
mod place;
pub mod synth;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use glmc_ir::quant::QuantType;
use indexmap::IndexMap;

use crate::container::DEFAULT_ALIGNMENT;
use crate::set::{GgufSet, PartName};
use crate::value::{Value, ValueType};
use place::Unnamed;
pub use place::temporary;

/// A metadata value to write. Arrays hold values of one kind; an empty one is written as an array of its own kind.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each name is the type's own name")]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    /// A value as it lies in a file, from its type id on.
    Raw(Vec<u8>),
}

macro_rules! from_value {
    ($($from:ty => $variant:ident),*) => { $(
        impl From<$from> for MetaValue {
            fn from(v: $from) -> Self { MetaValue::$variant(v) }
        }
    )* };
}
from_value!(u8 => U8, u16 => U16, u32 => U32, i32 => I32, u64 => U64, f32 => F32, bool => Bool, String => Str,
            Vec<String> => Strs, Vec<u32> => U32s, Vec<i32> => I32s, Vec<bool> => Bools);

impl From<&str> for MetaValue {
    fn from(v: &str) -> Self {
        MetaValue::Str(v.to_owned())
    }
}

/// A closure that writes a tensor's data in pieces.
pub type Stream<'a> = Box<dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a>;

/// Where a tensor's data comes from.
pub enum TensorData<'a> {
    /// The bytes as they will lie in the file.
    Bytes(Vec<u8>),
    /// Written piece by piece when its turn comes; must write exactly the tensor's bytes.
    Stream(Stream<'a>),
    /// Zeros, as a hole where the file system has them.
    Zeros,
}

struct Tensor<'a> {
    name: String,
    quant: QuantType,
    /// Row-major.
    shape: Vec<u64>,
    bytes: u64,
    data: TensorData<'a>,
}

/// Collects metadata and tensors, then writes one file or a split set.
#[derive(Default)]
pub struct GgufWriter<'a> {
    values: IndexMap<String, MetaValue>,
    tensors: Vec<Tensor<'a>>,
    alignment: Option<u64>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of a model: its metadata but the split keys, and its tensors, streamed from the parts when written.
    ///
    /// # Errors
    /// A tensor has a type that no weight has.
    pub fn from_set(set: &'a GgufSet) -> io::Result<Self> {
        let mut out = GgufWriter::new();
        for (key, value) in set.values().filter(|(key, _)| !key.starts_with("split.")) {
            out.set(key, raw(value, set.parts()[0].bytes()));
        }
        out.alignment = Some(set.parts()[0].alignment());
        for (part, info) in set.tensors() {
            let quant =
                QuantType::from_ggml_id(info.type_id).map_err(|e| invalid(format!("tensor {}: {e}", info.name)))?;
            let bytes = set.tensor_bytes(part, info.offset, info.bytes).unwrap_or_default();
            let data = TensorData::Stream(Box::new(move |w| w.write_all(bytes)));
            out.tensor(info.name.clone(), quant, &info.shape, data)?;
        }
        Ok(out)
    }

    /// Keeps only the tensors whose name satisfies `keep`.
    pub fn retain_tensors(&mut self, mut keep: impl FnMut(&str) -> bool) -> &mut Self {
        self.tensors.retain(|t| keep(&t.name));
        self
    }

    /// Turns the order of the tensors round.
    pub fn reverse_tensors(&mut self) -> &mut Self {
        self.tensors.reverse();
        self
    }

    /// Sets a key, replacing an earlier value in place.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<MetaValue>) -> &mut Self {
        self.values.insert(key.into(), value.into());
        self
    }

    /// Removes a key.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.values.shift_remove(key);
        self
    }

    /// Sets the alignment of tensor data (and its key).
    ///
    /// # Errors
    /// Not a power of two of at least 8.
    pub fn alignment(&mut self, alignment: u32) -> io::Result<&mut Self> {
        if !alignment.is_power_of_two() || alignment < 8 {
            return Err(invalid(format!("alignment {alignment} is not a power of two of at least 8")));
        }
        self.alignment = Some(u64::from(alignment));
        Ok(self.set("general.alignment", alignment))
    }

    /// Adds a tensor with a row-major shape.
    ///
    /// # Errors
    /// Rows that are no multiple of the type's block, a size that overflows, a doubled or unusable name, more than four
    /// dims, or data of the wrong length.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        quant: QuantType,
        shape: &[u64],
        data: TensorData<'a>,
    ) -> io::Result<&mut Self> {
        let name = name.into();
        if name.is_empty() || name.len() > 63 || self.tensors.iter().any(|t| t.name == name) {
            return Err(invalid(format!("tensor {name}: the name is unusable or doubled")));
        }
        let (&row, outer) = shape
            .split_last()
            .filter(|_| shape.len() <= 4)
            .ok_or_else(|| invalid(format!("tensor {name}: 1 to 4 dims")))?;
        let bytes = outer.iter().try_fold(quant.row_bytes(row), |n, &d| Some(n?.checked_mul(d))).flatten();
        let Some(bytes) = bytes else {
            return Err(invalid(format!("tensor {name}: {shape:?} is no shape for {quant}")));
        };
        if let TensorData::Bytes(b) = &data
            && b.len() as u64 != bytes
        {
            return Err(invalid(format!("tensor {name}: {} bytes given, {bytes} needed", b.len())));
        }
        self.tensors.push(Tensor { name, quant, shape: shape.to_vec(), bytes, data });
        Ok(self)
    }

    /// Bytes of the file: the header, and the tensors with the padding behind each.
    pub fn bytes(&self) -> u64 {
        let alignment = self.alignment.unwrap_or(DEFAULT_ALIGNMENT);
        let tensors = self.tensors.iter().map(|t| t.bytes.next_multiple_of(alignment));
        tensors.fold(encode::header(&self.values, &self.tensors, alignment).len() as u64, u64::saturating_add)
    }

    /// Bytes that are written: those of the file that are no hole.
    pub fn disk_bytes(&self) -> u64 {
        let holes = self.tensors.iter().filter(|t| matches!(t.data, TensorData::Zeros)).map(|t| t.bytes);
        self.bytes() - holes.sum::<u64>()
    }

    /// Makes every tensor a hole: the header of the same model.
    pub fn hollow(&mut self) -> &mut Self {
        self.tensors.iter_mut().for_each(|t| t.data = TensorData::Zeros);
        self
    }

    /// Writes one file.
    ///
    /// # Errors
    /// The destination exists, the system refuses, or a stream writes another number of bytes than its tensor has.
    pub fn write(mut self, path: &Path) -> io::Result<()> {
        refuse_existing(path)?;
        let alignment = self.alignment.unwrap_or(DEFAULT_ALIGNMENT);
        write_file(path, &self.values, &mut self.tensors, alignment)
    }

    /// Writes `parts` files `PREFIX-0000N-of-0000M.gguf` into `folder`, tensors in order and about equally many each;
    /// the first carries the metadata. Returns the paths.
    ///
    /// # Errors
    /// As [`GgufWriter::write`], for any part.
    pub fn write_split(mut self, folder: &Path, prefix: &str, parts: u16) -> io::Result<Vec<PathBuf>> {
        if parts == 0 {
            return Err(invalid("a model has at least one part".to_owned()));
        }
        let paths: Vec<PathBuf> =
            (1..=parts).map(|n| folder.join(PartName::format(prefix, n.into(), parts.into()))).collect();
        paths.iter().try_for_each(|p| refuse_existing(p))?;
        let alignment = self.alignment.unwrap_or(DEFAULT_ALIGNMENT);
        let total = self.tensors.len();
        let each = total.div_ceil(parts.into()).max(1);
        let mut rest = self.tensors.as_mut_slice();
        for (no, path) in paths.iter().enumerate() {
            let (mine, later) = rest.split_at_mut(each.min(rest.len()));
            rest = later;
            let mut values = if no == 0 { self.values.clone() } else { IndexMap::new() };
            if let Some(value) = self.values.get("general.alignment") {
                values.insert("general.alignment".to_owned(), value.clone());
            }
            values.insert("split.no".to_owned(), MetaValue::U16(no as u16));
            values.insert("split.count".to_owned(), MetaValue::U16(parts));
            values.insert("split.tensors.count".to_owned(), MetaValue::I32(total as i32));
            write_file(path, &values, mine, alignment)?;
        }
        Ok(paths)
    }
}

/// A parsed value as it lies in the file.
fn raw(value: &Value, file: &[u8]) -> MetaValue {
    match *value {
        Value::U8(v) => MetaValue::U8(v),
        Value::I8(v) => MetaValue::I8(v),
        Value::U16(v) => MetaValue::U16(v),
        Value::I16(v) => MetaValue::I16(v),
        Value::U32(v) => MetaValue::U32(v),
        Value::I32(v) => MetaValue::I32(v),
        Value::U64(v) => MetaValue::U64(v),
        Value::I64(v) => MetaValue::I64(v),
        Value::F32(v) => MetaValue::F32(v),
        Value::F64(v) => MetaValue::F64(v),
        Value::Bool(v) => MetaValue::Bool(v),
        Value::Str(span) => {
            let mut out = (ValueType::Str as u32).to_le_bytes().to_vec();
            out.extend((span.len as u64).to_le_bytes());
            out.extend(span.of(file));
            MetaValue::Raw(out)
        }
        Value::Array { elem, count, span } => {
            let mut out = (ValueType::Array as u32).to_le_bytes().to_vec();
            out.extend((elem as u32).to_le_bytes());
            out.extend(count.to_le_bytes());
            out.extend(span.of(file));
            MetaValue::Raw(out)
        }
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn refuse_existing(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        let message = format!("{} exists and is not overwritten", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    Ok(())
}

fn write_file(
    path: &Path,
    values: &IndexMap<String, MetaValue>,
    tensors: &mut [Tensor<'_>],
    alignment: u64,
) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(invalid(format!("{} is no file name", path.display())));
    }
    let mut unnamed = Unnamed::new(path)?;
    write_all(unnamed.file(), values, tensors, alignment)?;
    unnamed.name()
}

fn write_all(
    file: &mut File,
    values: &IndexMap<String, MetaValue>,
    tensors: &mut [Tensor<'_>],
    alignment: u64,
) -> io::Result<()> {
    let header = encode::header(values, tensors, alignment);
    let mut out = BufWriter::new(file);
    out.write_all(&header)?;
    let mut at = header.len() as u64;
    for tensor in tensors.iter_mut() {
        match &mut tensor.data {
            TensorData::Bytes(bytes) => out.write_all(bytes)?,
            TensorData::Zeros => skip(&mut out, at + tensor.bytes)?,
            TensorData::Stream(stream) => {
                let mut counted = Counted { out: &mut out, left: tensor.bytes };
                stream(&mut counted)?;
                if counted.left != 0 {
                    let message = format!("tensor {}: its stream ended {} bytes early", tensor.name, counted.left);
                    return Err(invalid(message));
                }
            }
        }
        at += tensor.bytes;
        let padding = at.next_multiple_of(alignment) - at;
        out.write_all(&vec![0; padding as usize])?;
        at += padding;
    }
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_len(at)?;
    file.sync_all()
}

/// Moves the position to `to` and makes the file that long, leaving a hole.
fn skip(out: &mut BufWriter<&mut File>, to: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    out.seek(SeekFrom::Start(to))?;
    out.get_ref().set_len(to)
}

struct Counted<'a, 'b> {
    out: &'a mut BufWriter<&'b mut File>,
    left: u64,
}

impl Write for Counted<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(invalid("a tensor's stream wrote more bytes than the tensor has".to_owned()));
        }
        let n = self.out.write(bytes)?;
        self.left -= n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
