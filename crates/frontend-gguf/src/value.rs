//! Owns metadata values: their type ids and a lazy view of each, as spans of the mapped file.
//!
//! It never copies a string or an array out of the map: the header of a 154 880-token model is walked once to check
//! its lengths, and its elements are read again only by whoever wants them.

use std::fmt;
use std::path::Path;

use crate::cursor::Cursor;
use crate::error::{Class, InputError, Result, show};

/// How deep arrays of arrays may nest.
const MAX_NESTING: u32 = 4;

/// The type of a metadata value, by its id in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "each name is the type's own name")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::Str,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::ALL.get(id as usize).copied()
    }

    /// Whether values are integers; bools count as 0 and 1.
    pub fn is_int(self) -> bool {
        !matches!(self, ValueType::Str | ValueType::Array | ValueType::F32 | ValueType::F64)
    }

    fn is_signed(self) -> bool {
        matches!(self, ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64)
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub fn bytes(self) -> Option<u64> {
        Some(match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::Str | ValueType::Array => return None,
        })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::Str => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        })
    }
}

/// Where a value's bytes lie in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Span {
    /// The bytes, given all bytes of the file it was parsed from.
    pub fn of<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        &file[self.offset..self.offset + self.len]
    }
}

/// One metadata value. Numbers are held; strings and arrays are spans of the file.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "each name is the type's own name")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Text, not yet known to be UTF-8.
    Str(Span),
    /// Elements of one type; the span begins at the first element.
    Array {
        elem: ValueType,
        count: u64,
        span: Span,
    },
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// What this value is, for messages: `u32`, `array of string`, ...
    pub fn describe(&self) -> String {
        match self {
            Value::Array { elem, count, .. } => format!("an array of {count} {elem}"),
            other => format!("a {}", other.value_type()),
        }
    }

    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array { .. } => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value as an integer, whatever its width; `None` for anything that is not an integer.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Reads the value after a key, checking every length against the file.
    pub(crate) fn parse(cur: &mut Cursor<'_>, key: &str, path: &Path) -> Result<Value> {
        let what = format!("the value of key {}", show(key));
        let kind = value_type(cur, key, path)?;
        match kind {
            ValueType::Str => {
                let (offset, bytes) = cur.string(&what)?;
                Ok(Value::Str(Span { offset, len: bytes.len() }))
            }
            ValueType::Array => parse_array(cur, key, &what, path, 1),
            scalar => parse_scalar(cur, scalar, key, &what, path),
        }
    }
}

fn value_type(cur: &mut Cursor<'_>, key: &str, path: &Path) -> Result<ValueType> {
    let id = cur.u32("a value type")?;
    ValueType::from_id(id).ok_or_else(|| {
        let message = format!(
            "key {}: value type {id} is not one of GGUF's (0 to 12), so the rest of the file cannot be read",
            show(key)
        );
        InputError::new(Class::Format, "bad-value-type", path, message).about(key)
    })
}

fn parse_scalar(cur: &mut Cursor<'_>, kind: ValueType, key: &str, what: &str, path: &Path) -> Result<Value> {
    Ok(match kind {
        ValueType::U8 => Value::U8(cur.fixed::<1>(what)?[0]),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cur.fixed(what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cur.fixed(what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cur.fixed(what)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cur.fixed(what)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cur.fixed(what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cur.fixed(what)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cur.fixed(what)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cur.fixed(what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cur.fixed(what)?)),
        ValueType::Bool | ValueType::Str | ValueType::Array => match cur.fixed::<1>(what)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            other => {
                let message = format!("key {}: a bool must be 0 or 1, found {other}", show(key));
                return Err(InputError::new(Class::Format, "bad-bool", path, message).about(key));
            }
        },
    })
}

fn parse_array(cur: &mut Cursor<'_>, key: &str, what: &str, path: &Path, depth: u32) -> Result<Value> {
    let elem = value_type(cur, key, path)?;
    let count = cur.u64(what)?;
    let offset = cur.pos();
    // A string takes at least its length field, an inner array its type and count: a bound before any loop.
    let least = match elem {
        ValueType::Str => 8,
        ValueType::Array => 12,
        other => other.bytes().unwrap_or(1),
    };
    if count.checked_mul(least).is_none_or(|bytes| bytes > cur.left()) {
        let message = format!(
            "key {}: an array of {count} {elem} values does not fit the {} bytes left; the file is cut short or corrupt",
            show(key),
            cur.left()
        );
        return Err(InputError::new(Class::Format, "bad-array", path, message).about(key));
    }
    match elem {
        ValueType::Str => {
            for _ in 0..count {
                cur.string(what)?;
            }
        }
        ValueType::Array if depth >= MAX_NESTING => {
            let message = format!("key {}: arrays nest more than {MAX_NESTING} deep", show(key));
            return Err(InputError::new(Class::Unsupported, "nested-array", path, message).about(key));
        }
        ValueType::Array => {
            for _ in 0..count {
                parse_array(cur, key, what, path, depth + 1)?;
            }
        }
        _ => {
            cur.take(count * least, what)?;
        }
    }
    Ok(Value::Array { elem, count, span: Span { offset, len: cur.pos() - offset } })
}

/// The strings of an array, as raw bytes, read from the file as they are asked for.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Strings<'a> {
    /// `span` must come from an array of strings that `Value::parse` walked over `file`.
    pub(crate) fn new(file: &'a [u8], span: Span, count: u64) -> Self {
        Strings { rest: span.of(file), left: count as usize }
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, rest) = self.rest.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.rest = rest;
        self.left -= 1;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// The integers of an array, read from the file as they are asked for.
#[derive(Debug, Clone)]
pub struct Ints<'a> {
    chunks: std::slice::ChunksExact<'a, u8>,
    signed: bool,
}

impl<'a> Ints<'a> {
    pub(crate) fn new(file: &'a [u8], span: Span, elem: ValueType) -> Self {
        let width = elem.bytes().unwrap_or(1) as usize;
        Ints { chunks: span.of(file).chunks_exact(width), signed: elem.is_signed() }
    }
}

impl Iterator for Ints<'_> {
    type Item = i128;

    fn next(&mut self) -> Option<i128> {
        self.chunks.next().map(|bytes| int(bytes, self.signed))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl ExactSizeIterator for Ints<'_> {}

/// A little-endian integer of 1 to 8 bytes.
fn int(bytes: &[u8], signed: bool) -> i128 {
    let unsigned = bytes.iter().rev().fold(0i128, |acc, &b| (acc << 8) | i128::from(b));
    let negative = signed && bytes.last().is_some_and(|b| b & 0x80 != 0);
    if negative { unsigned - (1i128 << (8 * bytes.len())) } else { unsigned }
}

#[cfg(test)]
mod tests {
    use super::int;

    #[test]
    fn integers_of_every_width() {
        assert_eq!(int(&[0xFF], true), -1);
        assert_eq!(int(&[0xFF], false), 255);
        assert_eq!(int(&(-5i32).to_le_bytes(), true), -5);
        assert_eq!(int(&i64::MIN.to_le_bytes(), true), i128::from(i64::MIN));
        assert_eq!(int(&u64::MAX.to_le_bytes(), false), i128::from(u64::MAX));
    }
}
