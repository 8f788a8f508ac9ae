//! Owns which type each tensor of a synthetic model has.

use glmc_ir::quant::QuantType as Q;

/// A choice of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// As seen in published dynamic files of 4 to 5 bits: attention and shared experts in 8 bits.
    UdQ4KXl,
    /// The rules of the stock quantiser for this name.
    Q4KM,
    /// One type wherever rows allow it.
    One(Q),
}

/// A weight whose type a mix chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// The tensor's name without block and `.weight`.
    pub(super) role: &'a str,
    /// Its block, the number of blocks, and the number of those with a plain MLP.
    pub(super) block: u64,
    pub(super) blocks: u64,
    pub(super) dense: u64,
    /// The length of its rows.
    pub(super) row: u64,
}

impl Mix {
    /// The mix of this name: `ud-q4_k_xl`, `q4_k_m`, or a type.
    ///
    /// # Errors
    /// There is none; the message lists them.
    pub fn named(name: &str) -> Result<Mix, String> {
        match name {
            "ud-q4_k_xl" => Ok(Mix::UdQ4KXl),
            "q4_k_m" => Ok(Mix::Q4KM),
            _ => {
                let one = Q::ALL.iter().find(|q| q.name().eq_ignore_ascii_case(name));
                one.copied().map(Mix::One).ok_or_else(|| {
                    let types = Q::ALL.iter().map(|q| q.name()).collect::<Vec<_>>().join(", ");
                    format!("there is no mix `{name}`: ud-q4_k_xl, q4_k_m, or one of {types}")
                })
            }
        }
    }

    /// The type of a weight that is no norm, bias or router.
    pub(super) fn ty(self, p: &Place<'_>) -> Q {
        let wished = match self {
            Mix::One(q) => q,
            Mix::Q4KM => {
                let (i, n) = (p.block, p.blocks);
                let more = i < n / 8 || i >= 7 * n / 8 || i.wrapping_sub(n / 8) % 3 == 2;
                let six = p.role == "output" || p.role.starts_with("ffn_down") && more;
                if six { Q::Q6_K } else { Q::Q4_K }
            }
            Mix::UdQ4KXl => {
                let last = p.block + 1 == p.blocks;
                let early = p.block < p.dense + 3;
                match p.role {
                    "ffn_gate_exps" | "ffn_up_exps" => {
                        if last {
                            Q::Q5_K
                        } else {
                            Q::Q4_K
                        }
                    }
                    "ffn_down_exps" => {
                        if last || early {
                            Q::Q6_K
                        } else {
                            Q::Q5_K
                        }
                    }
                    "indexer.proj" => Q::F32,
                    _ => Q::Q8_0,
                }
            }
        };
        // Rows that are no whole number of blocks get a type of smaller blocks, as quantisers do.
        let fits = |q: Q| p.row.is_multiple_of(q.block_elems() as u64);
        let near = match wished {
            Q::Q4_K => Q::Q5_0,
            Q::Q5_K => Q::Q5_1,
            _ => Q::Q8_0,
        };
        [wished, near, Q::Q8_0].into_iter().find(|q| fits(*q)).unwrap_or(Q::F16)
    }

    /// `general.file_type`: the overall preset by its number, where there is one.
    pub(super) fn file_type(self) -> Option<u32> {
        Some(match self {
            Mix::UdQ4KXl | Mix::Q4KM => 15,
            Mix::One(q) => match q {
                Q::F32 => 0,
                Q::F16 => 1,
                Q::Q4_0 => 2,
                Q::Q4_1 => 3,
                Q::Q8_0 => 7,
                Q::Q5_0 => 8,
                Q::Q5_1 => 9,
                Q::Q2_K => 10,
                Q::Q3_K => 12,
                Q::Q4_K => 15,
                Q::Q5_K => 17,
                Q::Q6_K => 18,
                Q::IQ2_XXS => 19,
                Q::IQ2_XS => 20,
                Q::IQ3_XXS => 23,
                Q::IQ1_S => 24,
                Q::IQ4_NL => 25,
                Q::IQ3_S => 26,
                Q::IQ2_S => 28,
                Q::IQ4_XS => 30,
                Q::IQ1_M => 31,
                Q::BF16 => 32,
                Q::TQ1_0 => 36,
                Q::TQ2_0 => 37,
                _ => return None,
            },
        })
    }
}
