//! Owns the one-call loading of a model: architecture, config, claims, ledger, tokenizer and templates.

use crate::arch::glm_dsa::config::GlmDsaConfig;
use crate::arch::glm_dsa::weights::{self, ModelWeights};
use crate::arch::{self, Architecture};
use crate::error::Result;
use crate::set::GgufSet;
use crate::template::{self, ChatTemplates};
use crate::tokenizer::{self, Tokenizer};
use crate::weights::{Ledger, LedgerReport};

/// Everything a file says about its model but the weights' bytes.
#[derive(Debug, Clone)]
pub struct Model {
    /// The architecture.
    pub architecture: Architecture,
    /// Hyper-parameters.
    pub config: GlmDsaConfig,
    /// Claimed weights.
    pub weights: ModelWeights,
    /// Tensors that are not used, with reasons.
    pub report: LedgerReport,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Chat templates.
    pub templates: ChatTemplates,
}

impl Model {
    /// Loads and checks a model; reads headers only.
    ///
    /// # Errors
    /// The first thing that does not fit, naming file and key or tensor.
    pub fn load(set: &GgufSet) -> Result<Model> {
        let architecture = arch::detect(set)?;
        let config = match architecture {
            Architecture::GlmDsa => GlmDsaConfig::load(set)?,
        };
        // Vocabulary before weights: the embedding's rows are checked against it.
        let tokenizer = tokenizer::load(set)?;
        let templates = template::chat_templates(set)?;
        let mut ledger = Ledger::new(set);
        let weights = weights::claim(&mut ledger, &config)?;
        let report = ledger.finish()?;
        Ok(Model { architecture, config, weights, report, tokenizer, templates })
    }

    /// Lifts the model to its naive graph.
    ///
    /// # Errors
    /// A type rule that the file's shapes break, which the claims should have refused.
    pub fn lift(&self, options: &arch::LiftOptions) -> std::result::Result<arch::Lifted, glmc_ir::diag::Diagnostic> {
        match self.architecture {
            Architecture::GlmDsa => arch::glm_dsa::lift::lift(&self.config, &self.weights, options),
        }
    }
}
