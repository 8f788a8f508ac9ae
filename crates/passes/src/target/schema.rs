//! Owns the reading of a description's keys: each is asked for once by name with the values it may take, and whatever
//! was not asked for is refused. Every error names the key.

use std::fmt::Display;
use std::ops::RangeInclusive;

use toml::{Table, Value};

use super::TargetError;

/// The keys of one table that were not read yet.
pub(super) struct Keys {
    table: Table,
    /// `device.` and the like: what stands before a key of this table.
    prefix: String,
    known: Vec<&'static str>,
}

type Result<T> = std::result::Result<T, TargetError>;

impl Keys {
    /// The top table of a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let table = text.parse().map_err(|e: toml::de::Error| TargetError::Syntax(e.message().to_owned()))?;
        Ok(Keys { table, prefix: String::new(), known: Vec::new() })
    }

    /// What is wrong with `key` of this table.
    pub(super) fn wrong(&self, key: &str, why: impl Display) -> TargetError {
        TargetError::Schema { key: format!("{}{key}", self.prefix), why: why.to_string() }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.wrong(key, "is missing"))
    }

    fn type_error(&self, key: &str, wanted: &str, found: &Value) -> TargetError {
        self.wrong(key, format!("must be {wanted}, found {} `{found}`", found.type_str()))
    }

    /// A text that is not empty.
    pub(super) fn text(&mut self, key: &'static str) -> Result<String> {
        let value = self.take(key);
        match self.need(key, value)? {
            Value::String(s) if !s.is_empty() => Ok(s),
            Value::String(_) => Err(self.wrong(key, "must not be empty")),
            other => Err(self.type_error(key, "a text", &other)),
        }
    }

    /// A flag.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool> {
        let value = self.take(key);
        match self.need(key, value)? {
            Value::Boolean(b) => Ok(b),
            other => Err(self.type_error(key, "true or false", &other)),
        }
    }

    /// A whole number that may be left out.
    pub(super) fn whole_if_any(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Integer(i)) => match u64::try_from(i).ok().filter(|n| range.contains(n)) {
                Some(n) => Ok(Some(n)),
                None => Err(self.wrong(key, format!("must be {} to {}, found {i}", range.start(), range.end()))),
            },
            Some(other) => Err(self.type_error(key, "a whole number", &other)),
        }
    }

    /// A whole number.
    pub(super) fn whole(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Result<u64> {
        let value = self.whole_if_any(key, range)?;
        self.need(key, value)
    }

    /// A number, with or without a fraction.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Result<f64> {
        let value = self.take(key);
        let number = match self.need(key, value)? {
            Value::Integer(i) => i as f64,
            Value::Float(f) => f,
            other => return Err(self.type_error(key, "a number", &other)),
        };
        // A NaN is in no range.
        if range.contains(&number) {
            return Ok(number);
        }
        Err(self.wrong(key, format!("must be {:e} to {:e}, found {number:e}", range.start(), range.end())))
    }

    /// A list of lists of ranks.
    pub(super) fn groups(&mut self, key: &'static str, ranks: u32) -> Result<Vec<Vec<u32>>> {
        let value = self.take(key);
        let value = self.need(key, value)?;
        let wanted = "a list of lists of ranks, such as [[0, 1], [2, 3]]";
        let bad = |found: &Value| self.type_error(key, wanted, found);
        let mut groups = Vec::new();
        for group in value.as_array().ok_or_else(|| bad(&value))? {
            let list = group.as_array().ok_or_else(|| bad(group))?;
            let rank = |v: &Value| {
                let n = v.as_integer().ok_or_else(|| bad(v))?;
                let r = u32::try_from(n).ok().filter(|r| *r < ranks);
                r.ok_or_else(|| self.wrong(key, format!("there is no rank {n}; ranks are 0 to {}", ranks - 1)))
            };
            groups.push(list.iter().map(rank).collect::<Result<Vec<u32>>>()?);
        }
        Ok(groups)
    }

    /// The table `key`, if it is there.
    pub(super) fn table_if_any(&mut self, key: &'static str) -> Result<Option<Keys>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Table(table)) => {
                Ok(Some(Keys { table, prefix: format!("{}{key}.", self.prefix), known: Vec::new() }))
            }
            Some(other) => Err(self.type_error(key, "a table", &other)),
        }
    }

    /// The table `key`.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Keys> {
        let value = self.table_if_any(key)?;
        self.need(key, value)
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(self) -> Result<()> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => Err(self.wrong(key, format!("is not known; the keys here are {}", self.known.join(", ")))),
        }
    }
}
