//! Owns the claim ledger: each tensor of a file is claimed once with its expected shape, or listed as unused with a
//! reason; a tensor that is neither is an error.
//!
//! It never reads tensor data and knows no tensor by name, but for two suffixes that mean the same in every
//! architecture (`.scale` companions).

use std::collections::HashMap;

use glmc_ir::quant::QuantType;
use serde::Serialize;

use crate::container::TensorInfo;
use crate::error::{Class, InputError, Result, show};
use crate::set::GgufSet;

/// A claimed tensor: where its bytes are and what they mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WeightRef {
    /// The tensor's name in the file.
    pub name: String,
    /// How its elements are stored.
    pub quant: QuantType,
    /// Row-major dims; quantised blocks run along the last one.
    pub shape: Vec<u64>,
    /// Index of the part that holds it.
    pub part: usize,
    /// First byte in that part's file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl WeightRef {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// What [`Ledger::finish`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LedgerReport {
    /// Tensors that are not used, with the reason, in file order.
    pub unused: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
enum Use {
    Claimed,
    Ignored(String),
}

/// Which tensors of a file are spoken for.
#[derive(Debug)]
pub struct Ledger<'a> {
    set: &'a GgufSet,
    uses: HashMap<&'a str, Use>,
}

impl<'a> Ledger<'a> {
    /// A ledger in which nothing is claimed yet.
    pub fn new(set: &'a GgufSet) -> Self {
        Ledger { set, uses: HashMap::new() }
    }

    /// The file the ledger is about.
    pub fn set(&self) -> &'a GgufSet {
        self.set
    }

    /// Whether the file has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.set.tensor(name).is_some()
    }

    /// Claims a tensor that must be there, with exactly this row-major shape.
    ///
    /// # Errors
    /// Class `model`: `tensor-missing`, `shape-mismatch` (naming both shapes), `claimed-twice`; class `unsupported`:
    /// `not-a-weight-type`.
    pub fn claim(&mut self, name: &str, shape: &[u64]) -> Result<WeightRef> {
        self.claim_optional(name, shape)?.ok_or_else(|| {
            let message = format!(
                "tensor {} ({shape:?}, row-major) is missing: the file is incomplete, or its metadata is of another model",
                show(name)
            );
            InputError::new(Class::Model, "tensor-missing", self.set.path(), message).about(name)
        })
    }

    /// Claims a tensor if it is there.
    ///
    /// # Errors
    /// As [`Ledger::claim`], but for `tensor-missing`.
    pub fn claim_optional(&mut self, name: &str, shape: &[u64]) -> Result<Option<WeightRef>> {
        let Some((part, info)) = self.set.tensor(name) else { return Ok(None) };
        if info.shape != shape {
            let message = format!(
                "tensor {} has the shape {:?}, but the metadata asks for {shape:?} (row-major)",
                show(name),
                info.shape
            );
            return Err(self.tensor_error(Class::Model, "shape-mismatch", part, info, &message));
        }
        let quant = QuantType::from_ggml_id(info.type_id).map_err(|e| {
            let message = format!("tensor {}: {e}", show(name));
            self.tensor_error(Class::Unsupported, "not-a-weight-type", part, info, &message)
        })?;
        if let Some(previous) = self.uses.insert(&info.name, Use::Claimed) {
            let message = format!("tensor {} is claimed twice (earlier: {previous:?})", show(name));
            return Err(self.tensor_error(Class::Model, "claimed-twice", part, info, &message));
        }
        Ok(Some(WeightRef {
            name: info.name.clone(),
            quant,
            shape: info.shape.clone(),
            part,
            offset: info.offset,
            bytes: info.bytes,
        }))
    }

    /// As [`Ledger::claim`], for tensors whose values must not have been rounded further than `allowed`.
    ///
    /// # Errors
    /// As [`Ledger::claim`]; class `unsupported`, `tensor-type`: another type than the allowed ones.
    pub fn claim_as(&mut self, name: &str, shape: &[u64], allowed: &[QuantType]) -> Result<WeightRef> {
        let weight = self.claim(name, shape)?;
        if allowed.contains(&weight.quant) {
            return Ok(weight);
        }
        let names: Vec<&str> = allowed.iter().map(|t| t.name()).collect();
        let message = format!("tensor {} is {}, and must be {}", show(name), weight.quant.name(), names.join(" or "));
        let part = self.set.parts()[weight.part].path();
        Err(InputError::new(Class::Unsupported, "tensor-type", part, message).about(name))
    }

    /// Lists a tensor as intentionally unused. A name that is not in the file, or was claimed, is left alone.
    pub fn ignore(&mut self, name: &str, reason: &str) {
        if let Some((_, info)) = self.set.tensor(name) {
            self.uses.entry(&info.name).or_insert_with(|| Use::Ignored(reason.to_owned()));
        }
    }

    /// Refuses a tensor by name if the file has it.
    ///
    /// # Errors
    /// The file has the tensor; the message names it and says `advice`.
    pub fn refuse(&self, name: &str, class: Class, code: &'static str, advice: &str) -> Result<()> {
        match self.set.tensor(name) {
            None => Ok(()),
            Some((part, info)) => {
                let message = format!("tensor {}: {advice}", show(name));
                Err(self.tensor_error(class, code, part, info, &message))
            }
        }
    }

    /// Ends the claims: every tensor of the file must be claimed or ignored.
    ///
    /// # Errors
    /// `scale-tensor` (class `unsupported`) for a `.scale` companion, else `tensor-unexpected` (class `model`).
    pub fn finish(self) -> Result<LedgerReport> {
        let mut unused = Vec::new();
        for (part, info) in self.set.tensors() {
            match self.uses.get(info.name.as_str()) {
                Some(Use::Claimed) => {}
                Some(Use::Ignored(reason)) => unused.push((info.name.clone(), reason.clone())),
                None => return Err(self.unexpected(part, info)),
            }
        }
        Ok(LedgerReport { unused })
    }

    fn unexpected(&self, part: usize, info: &TensorInfo) -> InputError {
        let shown = show(&info.name);
        if info.name.ends_with(".scale") || info.name.ends_with(".input_scale") {
            let message = format!(
                "tensor {shown} is a scale that must be applied to its weight, which is not supported; use a file without .scale tensors"
            );
            return self.tensor_error(Class::Unsupported, "scale-tensor", part, info, &message);
        }
        let message = format!(
            "tensor {shown} ({:?}, row-major) is not part of this architecture as its metadata describes it; leaving it out could change the model, so it is refused",
            info.shape
        );
        self.tensor_error(Class::Model, "tensor-unexpected", part, info, &message)
    }

    fn tensor_error(
        &self,
        class: Class,
        code: &'static str,
        part: usize,
        info: &TensorInfo,
        message: &str,
    ) -> InputError {
        InputError::new(class, code, self.set.parts()[part].path(), message).about(&info.name)
    }
}
