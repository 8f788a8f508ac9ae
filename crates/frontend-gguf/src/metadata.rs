//! Owns typed reading of metadata: which widths are accepted for a key, and the errors when one is missing or wrong.
//!
//! Integers widen when the value fits, floats widen, 0/1 may stand for a bool; an integer is never taken for a float
//! or the other way round. It knows no architecture.

use std::path::Path;

use crate::error::{Class, InputError, Result, show};
use crate::set::GgufSet;
use crate::value::{Ints, Span, Strings, Value, ValueType};

impl GgufSet {
    /// The raw value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.parts()[0].values().get(key)
    }

    /// All keys and values of the first part, in file order.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.parts()[0].values().iter().map(|(k, v)| (k.as_str(), v))
    }

    fn header(&self) -> &[u8] {
        self.parts()[0].bytes()
    }

    /// An error of class `model` about a key.
    pub fn key_error(&self, code: &'static str, key: &str, what: impl AsRef<str>) -> InputError {
        key_error(self.path(), Class::Model, code, key, what.as_ref())
    }

    /// An error of class `unsupported` about a key.
    pub fn key_unsupported(&self, code: &'static str, key: &str, what: impl AsRef<str>) -> InputError {
        key_error(self.path(), Class::Unsupported, code, key, what.as_ref())
    }

    /// The error for a key that must be there.
    pub fn key_missing(&self, key: &str) -> InputError {
        self.key_error("key-missing", key, "is missing and has no safe default; convert the model again")
    }

    fn wrong_type(&self, key: &str, value: &Value, want: &str) -> InputError {
        self.key_error("key-type", key, format!("is {}, and must be {want}", value.describe()))
    }

    /// An integer of any width, as unsigned.
    ///
    /// # Errors
    /// The key holds something else, or a negative number.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let int = value.as_int().ok_or_else(|| self.wrong_type(key, value, "an unsigned integer"))?;
        u64::try_from(int)
            .map(Some)
            .map_err(|_| self.key_error("key-value", key, format!("is {int}, and must not be negative")))
    }

    /// As [`GgufSet::get_u64`], for values that fit 32 bits.
    ///
    /// # Errors
    /// As [`GgufSet::get_u64`], or the number is larger.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get_u64(key)? else { return Ok(None) };
        u32::try_from(value)
            .map(Some)
            .map_err(|_| self.key_error("key-value", key, format!("is {value}, and must fit 32 bits")))
    }

    /// A float of either width.
    ///
    /// # Errors
    /// The key holds something else. Integers are not converted.
    pub fn get_f64(&self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(f64::from(*v))),
            Some(Value::F64(v)) => Ok(Some(*v)),
            Some(other) => Err(self.wrong_type(key, other, "a float")),
        }
    }

    /// As [`GgufSet::get_f64`], rounded to `f32` (exact for an `f32` key).
    ///
    /// # Errors
    /// As [`GgufSet::get_f64`].
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.get_f64(key)?.map(|v| v as f32))
    }

    /// A bool, or an integer that is 0 or 1.
    ///
    /// # Errors
    /// The key holds something else.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => match other.as_int() {
                Some(0) => Ok(Some(false)),
                Some(1) => Ok(Some(true)),
                _ => Err(self.wrong_type(key, other, "a bool")),
            },
        }
    }

    /// Text.
    ///
    /// # Errors
    /// The key holds something else, or is not UTF-8 (class `format`).
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        let Some(span) = self.str_span(key)? else { return Ok(None) };
        std::str::from_utf8(span.of(self.header())).map(Some).map_err(|e| {
            let what = format!("is not UTF-8 (byte {})", e.valid_up_to());
            key_error(self.path(), Class::Format, "bad-utf8", key, &what)
        })
    }

    /// Text that nothing depends on: broken UTF-8 is replaced, another type reads as absent.
    pub fn get_str_lossy(&self, key: &str) -> Option<String> {
        match self.value(key) {
            Some(Value::Str(span)) => Some(String::from_utf8_lossy(span.of(self.header())).into_owned()),
            _ => None,
        }
    }

    fn str_span(&self, key: &str) -> Result<Option<Span>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Str(span)) => Ok(Some(*span)),
            Some(other) => Err(self.wrong_type(key, other, "a string")),
        }
    }

    /// The strings of an array, unchecked bytes, read lazily.
    ///
    /// # Errors
    /// The key holds something else than an array of strings.
    pub fn get_strings(&self, key: &str) -> Result<Option<Strings<'_>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array { elem: ValueType::Str, count, span }) => {
                Ok(Some(Strings::new(self.header(), *span, *count)))
            }
            Some(other) => Err(self.wrong_type(key, other, "an array of strings")),
        }
    }

    /// The integers of an array (of any integer width, or of bools), read lazily.
    ///
    /// # Errors
    /// The key holds something else than an array of integers.
    pub fn get_ints(&self, key: &str) -> Result<Option<Ints<'_>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array { elem, span, .. }) if elem.is_int() => Ok(Some(Ints::new(self.header(), *span, *elem))),
            Some(other) => Err(self.wrong_type(key, other, "an array of integers")),
        }
    }
}

fn key_error(path: &Path, class: Class, code: &'static str, key: &str, what: &str) -> InputError {
    let gap = if what.starts_with(':') { "" } else { " " };
    InputError::new(class, code, path, format!("key {}{gap}{what}", show(key))).about(key)
}
