//! Owns reading an architecture's keys under its prefix, with the checks that most of them share.
//!
//! It knows no key by name.

use crate::error::{InputError, Result};
use crate::set::GgufSet;
use crate::value::Value;

/// Per-layer arrays longer than this are refused before they are read.
const MAX_PER_BLOCK: usize = 4096;
/// Larger sizes are refused, so that products of two sizes never overflow 64 bits.
const MAX_SIZE: u64 = u32::MAX as u64;

/// The keys of one architecture: names are given without the prefix.
pub(crate) struct Keys<'a> {
    set: &'a GgufSet,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(set: &'a GgufSet, prefix: &'static str) -> Self {
        Keys { set, prefix }
    }

    pub(crate) fn set(&self) -> &'a GgufSet {
        self.set
    }

    /// The key's full name.
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.set.value(&self.full(key)).is_some()
    }

    /// "key K WHAT", class `model`.
    pub(crate) fn bad(&self, key: &str, what: impl AsRef<str>) -> InputError {
        self.set.key_error("key-value", &self.full(key), what)
    }

    /// "key K WHAT", class `unsupported`.
    pub(crate) fn unsupported(&self, code: &'static str, key: &str, what: impl AsRef<str>) -> InputError {
        self.set.key_unsupported(code, &self.full(key), what)
    }

    fn missing(&self, key: &str) -> InputError {
        self.set.key_missing(&self.full(key))
    }

    pub(crate) fn optional_u64(&self, key: &str) -> Result<Option<u64>> {
        match self.set.get_u64(&self.full(key))? {
            Some(n) if n > MAX_SIZE => Err(self.bad(key, format!("is {n}, which no model has"))),
            other => Ok(other),
        }
    }

    pub(crate) fn required_u64(&self, key: &str) -> Result<u64> {
        self.optional_u64(key)?.ok_or_else(|| self.missing(key))
    }

    /// A required integer that is not 0.
    pub(crate) fn positive(&self, key: &str) -> Result<u64> {
        match self.required_u64(key)? {
            0 => Err(self.bad(key, "is 0")),
            n => Ok(n),
        }
    }

    pub(crate) fn required_bool(&self, key: &str) -> Result<bool> {
        self.set.get_bool(&self.full(key))?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.set.get_f32(&self.full(key))
    }

    /// A required float that is finite and above 0.
    pub(crate) fn positive_f32(&self, key: &str) -> Result<f32> {
        match self.optional_f32(key)?.ok_or_else(|| self.missing(key))? {
            v if v.is_finite() && v > 0.0 => Ok(v),
            v => Err(self.bad(key, format!("is {v}, and must be a finite number above 0"))),
        }
    }

    /// A required size, or an array of one size per block: `blocks` entries either way.
    pub(crate) fn per_block(&self, key: &str, blocks: u64) -> Result<Vec<u64>> {
        let full = self.full(key);
        if !matches!(self.set.value(&full), Some(Value::Array { .. })) {
            return Ok(vec![self.required_u64(key)?; blocks as usize]);
        }
        let ints = self.array(key)?;
        if ints.len() as u64 != blocks {
            let what = format!("has {} entries, but {} is {blocks}", ints.len(), self.full("block_count"));
            return Err(self.set.key_error("array-length", &full, what));
        }
        Ok(ints)
    }

    /// A required size above 0 that may be an array, if all its entries are equal.
    pub(crate) fn uniform(&self, key: &str) -> Result<u64> {
        match self.optional_uniform(key)?.ok_or_else(|| self.missing(key))? {
            0 => Err(self.bad(key, "is 0")),
            n => Ok(n),
        }
    }

    /// As [`Keys::uniform`], optional and with 0 allowed.
    pub(crate) fn optional_uniform(&self, key: &str) -> Result<Option<u64>> {
        if !matches!(self.set.value(&self.full(key)), Some(Value::Array { .. })) {
            return self.optional_u64(key);
        }
        let ints = self.array(key)?;
        match ints.first() {
            None => Err(self.bad(key, "is an empty array")),
            Some(first) if ints.iter().all(|n| n == first) => Ok(Some(*first)),
            Some(_) => Err(self.unsupported("per-layer-value", key, "differs between layers, which is not supported")),
        }
    }

    /// An optional array of `count` truth values (bools or integers), or one value for all.
    pub(crate) fn flags(&self, key: &str, count: u64) -> Result<Option<Vec<bool>>> {
        let full = self.full(key);
        match self.set.value(&full) {
            None => Ok(None),
            Some(Value::Array { count: found, .. }) if *found != count => {
                let what = format!("has {found} entries, but the trunk has {count} layers");
                Err(self.set.key_error("array-length", &full, what))
            }
            Some(Value::Array { .. }) => {
                let ints: Vec<i128> = self.set.get_ints(&full)?.into_iter().flatten().collect();
                match ints.iter().find(|n| !(0..=1).contains(*n)) {
                    Some(n) => Err(self.bad(key, format!("holds {n}; each entry must be true or false (1 or 0)"))),
                    None => Ok(Some(ints.iter().map(|&n| n == 1).collect())),
                }
            }
            Some(_) => Ok(self.set.get_bool(&full)?.map(|v| vec![v; count as usize])),
        }
    }

    fn array(&self, key: &str) -> Result<Vec<u64>> {
        let full = self.full(key);
        let ints = self.set.get_ints(&full)?.ok_or_else(|| self.missing(key))?;
        if ints.len() > MAX_PER_BLOCK {
            return Err(self.set.key_error(
                "array-length",
                &full,
                format!("has {} entries, more than any model has layers", ints.len()),
            ));
        }
        let size = |n: i128| u64::try_from(n).ok().filter(|&n| n <= MAX_SIZE);
        ints.map(|n| size(n).ok_or_else(|| self.bad(key, format!("holds {n}, which no model has")))).collect()
    }
}
