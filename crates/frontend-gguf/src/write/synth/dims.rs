//! Owns the sizes of a synthetic model: presets, and settings by name.

use crate::arch::glm_dsa::config::{MAX_BLOCKS, MAX_EXPERTS};

/// All sizes. Letters as in `arch::glm_dsa`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dims {
    /// `general.name`.
    pub name: String,
    /// Layers of the trunk.
    pub layers: u64,
    /// The first of them that have a plain MLP.
    pub dense: u64,
    /// Draft heads, 0 or 1.
    pub mtp: u64,
    /// D.
    pub width: u64,
    /// F.
    pub ff: u64,
    /// Fe.
    pub expert_ff: u64,
    /// E.
    pub experts: u64,
    /// Experts that a token chooses.
    pub used: u64,
    /// Shared experts.
    pub shared: u64,
    /// H.
    pub heads: u64,
    /// rq.
    pub q_rank: u64,
    /// rkv.
    pub kv_rank: u64,
    /// dn.
    pub nope: u64,
    /// dr.
    pub rope: u64,
    /// dv.
    pub value: u64,
    /// Hi.
    pub index_heads: u64,
    /// di.
    pub index_dim: u64,
    /// K: positions kept.
    pub top_k: u64,
    /// V.
    pub vocab: u64,
    /// Trained context.
    pub ctx: u64,
    /// Whether three of four layers share an earlier layer's selection: 0 or 1.
    pub shared_indexer: u64,
    /// Theta of the rotary embedding.
    pub rope_base: f32,
}

/// The largest a size may be: tensors then have fewer than 2^63 bytes.
const MOST: u64 = 1 << 21;

impl Dims {
    /// The names of the presets.
    pub const PRESETS: [&'static str; 3] = ["glm-5", "glm-5.2", "tiny"];

    /// The sizes of a released model, or of one for tests.
    pub fn preset(name: &str) -> Option<Dims> {
        let glm_5 = Dims {
            name: "GLM-5 synthetic".into(),
            layers: 78,
            dense: 3,
            mtp: 1,
            width: 6144,
            ff: 12_288,
            expert_ff: 2048,
            experts: 256,
            used: 8,
            shared: 1,
            heads: 64,
            q_rank: 2048,
            kv_rank: 512,
            nope: 192,
            rope: 64,
            value: 256,
            index_heads: 32,
            index_dim: 128,
            top_k: 2048,
            vocab: 154_880,
            ctx: 202_752,
            shared_indexer: 0,
            rope_base: 1e6,
        };
        match name {
            "glm-5" => Some(glm_5),
            "glm-5.2" => Some(Dims {
                name: "GLM-5.2 synthetic".into(),
                ctx: 1_048_576,
                shared_indexer: 1,
                rope_base: 8e6,
                ..glm_5
            }),
            "tiny" => Some(Dims {
                name: "tiny synthetic".into(),
                layers: 3,
                dense: 1,
                mtp: 0,
                width: 256,
                ff: 512,
                expert_ff: 256,
                experts: 16,
                used: 4,
                heads: 8,
                q_rank: 256,
                kv_rank: 256,
                nope: 96,
                rope: 32,
                value: 64,
                index_heads: 4,
                index_dim: 64,
                top_k: 64,
                vocab: 2048,
                ctx: 4096,
                ..glm_5
            }),
            _ => None,
        }
    }

    /// The sizes by name.
    fn fields(&mut self) -> [(&'static str, &mut u64); 21] {
        [
            ("layers", &mut self.layers),
            ("dense", &mut self.dense),
            ("mtp", &mut self.mtp),
            ("width", &mut self.width),
            ("ff", &mut self.ff),
            ("expert_ff", &mut self.expert_ff),
            ("experts", &mut self.experts),
            ("used", &mut self.used),
            ("shared", &mut self.shared),
            ("heads", &mut self.heads),
            ("q_rank", &mut self.q_rank),
            ("kv_rank", &mut self.kv_rank),
            ("nope", &mut self.nope),
            ("rope", &mut self.rope),
            ("value", &mut self.value),
            ("index_heads", &mut self.index_heads),
            ("index_dim", &mut self.index_dim),
            ("top_k", &mut self.top_k),
            ("vocab", &mut self.vocab),
            ("ctx", &mut self.ctx),
            ("shared_indexer", &mut self.shared_indexer),
        ]
    }

    /// Sets a size by its name.
    ///
    /// # Errors
    /// There is no size of this name; the message lists them.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let mut fields = self.fields();
        if let Some((_, at)) = fields.iter_mut().find(|(n, _)| *n == name) {
            **at = value;
            return Ok(());
        }
        let known = fields.map(|(n, _)| n).join(", ");
        Err(format!("there is no size `{name}`: {known}"))
    }

    /// Blocks of the file: the trunk and the draft head.
    pub fn blocks(&self) -> u64 {
        self.layers + self.mtp
    }

    /// Whether a block has an indexer of its own.
    pub fn full_indexer(&self, block: u64) -> bool {
        self.shared_indexer == 0 || block >= self.layers || block.saturating_sub(2).is_multiple_of(4)
    }

    /// Refuses sizes that make no model.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut all = self.clone();
        let may_be_none = ["dense", "mtp", "shared_indexer"];
        for (name, n) in all.fields() {
            let least = u64::from(!may_be_none.contains(&name));
            let most = match name {
                "mtp" | "shared_indexer" => 1,
                "layers" => MAX_BLOCKS - self.mtp.min(1),
                "experts" => MAX_EXPERTS,
                _ => MOST,
            };
            if *n < least || *n > most {
                return Err(format!("{name} is {n}, expected {least} to {most}"));
            }
        }
        let no = |bad: bool, why: &str| if bad { Err(why.to_owned()) } else { Ok(()) };
        no(self.dense > self.layers, "dense is more than layers")?;
        no(self.used > self.experts, "used is more than experts")?;
        no(!self.rope.is_multiple_of(2), "rope is odd")?;
        no(self.rope > self.index_dim, "rope is more than index_dim")?;
        no(self.vocab < super::text::LEAST_VOCABULARY as u64, "vocab has no room for the bytes and the control tokens")
    }
}
