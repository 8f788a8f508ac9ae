//! The quant types: every GGUF storage type that can hold a weight.
//!
//! Owns names, ggml ids, block sizes, the unit of cutting and the exact reference decoder of each type, all from the
//! one table below, and the layout of the few types that a file may hold but a weight may not (integers, F64). Never
//! reads a file, never knows a tensor, never chooses a type, and holds no repacked or device layout.
//!
//! To add a type: write a file with its block layout, its decoder and its finisher of random blocks, and add one line to the table.

use std::fmt;

use serde::{Deserialize, Serialize};

pub mod activation;
pub mod encode;
pub mod grids;
pub mod made;
pub mod synth;

mod bytes;
mod float;
mod fp4;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod q1_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_k;
mod q5_0;
mod q5_k;
mod q6_k;
mod q8_0;
mod sub;
mod tq;

pub use fp4::DOUBLED_E2M1;
pub use iq4::LEVELS as IQ4_LEVELS;

/// Decodes one block (a float type: any number of them). The caller has checked both lengths.
type Decode = fn(&[u8], &mut [f32]);

/// Turns a block of random bytes into a valid one. The caller has checked the length.
type Synth = fn(&synth::Draw, &synth::Aim, &mut [u8]);

struct Row {
    name: &'static str,
    id: u32,
    elems: usize,
    bytes: usize,
    sub_block: usize,
    decode: Decode,
    synth: Synth,
    /// Mean square of the values of random codes where the block scale is 1.
    square: f32,
}

macro_rules! quant_types {
    ({ $($ty:ident $name:literal $id:literal: $elems:literal x $bytes:literal / $sub:literal, $decode:path, $synth:path, $square:expr;)* }
     apart { $($of:ident as $run:ident $run_name:literal $run_id:literal: $run_elems:literal x $run_bytes:literal, $run_decode:path, $run_synth:path, $run_square:expr;)* }) => {
        /// A GGUF storage type that can hold a weight, the float formats included, ordered by ggml id; then the forms
        /// that keep sub-blocks of some of them apart, which no file has.
        ///
        /// Its text form, in `.glir`, JSON and messages, is the ggml name (`q4_K`, `iq2_xxs`, `bf16`; `q4_K_sub`).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[allow(non_camel_case_types, reason = "the variants carry the names that GGUF files and people use")]
        pub enum QuantType {
            $(
                #[doc = concat!("`", $name, "`: ", stringify!($elems), " elements in ", stringify!($bytes), " bytes.")]
                #[serde(rename = $name)]
                $ty,
            )*
            $(
                #[doc = concat!("`", $run_name, "`: ", stringify!($run_elems), " elements in ", stringify!($run_bytes), " bytes, in no file.")]
                #[serde(rename = $run_name)]
                $run,
            )*
        }

        impl QuantType {
            /// Every type of files, in ggml id order.
            pub const ALL: &'static [QuantType] = &[$(QuantType::$ty),*];
            /// The forms that keep sub-blocks apart.
            pub const SUB: &'static [QuantType] = &[$(QuantType::$run),*];

            /// The form that keeps the type's sub-blocks apart, if there is one: see [`Self::sub_blocks`].
            pub const fn apart(self) -> Option<QuantType> {
                match self {
                    $(QuantType::$of => Some(QuantType::$run),)*
                    _ => None,
                }
            }

            /// The type that files have: of a form that keeps sub-blocks apart what it is made from, else the type.
            pub const fn in_file(self) -> QuantType {
                match self {
                    $(QuantType::$run => QuantType::$of,)*
                    other => other,
                }
            }
        }

        static TABLE: &[Row] = &[
            $(Row {
                name: $name, id: $id, elems: $elems, bytes: $bytes,
                sub_block: $sub, decode: $decode, synth: $synth, square: $square,
            },)*
            $(Row {
                name: $run_name, id: $run_id, elems: $run_elems, bytes: $run_bytes,
                sub_block: $run_elems, decode: $run_decode, synth: $run_synth, square: $run_square,
            },)*
        ];
    };
}

/// Mean squares of -128..128 and of -32..32.
const BYTE: f32 = 5461.5;
const SIX_BITS: f32 = 341.5;

// type name ggml-id: block elements x block bytes / sub-block, decoder, finisher of random blocks, mean square
quant_types! {{
    F32     "f32"      0:   1 x   4 /   1, float::decode_f32, float::synth_f32, 1.0;
    F16     "f16"      1:   1 x   2 /   1, float::decode_f16, float::synth_f16, 1.0;
    Q4_0    "q4_0"     2:  32 x  18 /  32, q4_0::decode_q4_0, q4_0::synth_q4_0, q4_0::VARIANCE + 0.25;
    Q4_1    "q4_1"     3:  32 x  20 /  32, q4_0::decode_q4_1, q4_0::synth_q4_1, q4_0::VARIANCE;
    Q5_0    "q5_0"     6:  32 x  22 /  32, q5_0::decode_q5_0, q5_0::synth_q5_0, q5_0::VARIANCE + 0.25;
    Q5_1    "q5_1"     7:  32 x  24 /  32, q5_0::decode_q5_1, q5_0::synth_q5_1, q5_0::VARIANCE;
    Q8_0    "q8_0"     8:  32 x  34 /  32, q8_0::decode, q8_0::synth, BYTE;
    Q2_K    "q2_K"    10: 256 x  84 /  16, q2_k::decode, q2_k::synth, q2_k::MEAN_SQUARE;
    Q3_K    "q3_K"    11: 256 x 110 /  16, q3_k::decode, q3_k::synth, SIX_BITS * 5.5;
    Q4_K    "q4_K"    12: 256 x 144 /  32, q4_k::decode, q4_k::synth, q4_k::Q4_SQUARE;
    Q5_K    "q5_K"    13: 256 x 176 /  32, q5_k::decode, q5_k::synth, q4_k::Q5_SQUARE;
    Q6_K    "q6_K"    14: 256 x 210 /  16, q6_k::decode, q6_k::synth, BYTE * SIX_BITS;
    IQ2_XXS "iq2_xxs" 16: 256 x  66 /  32, iq2::decode_xxs, iq2::synth_xxs, iq2::SQUARE_XXS;
    IQ2_XS  "iq2_xs"  17: 256 x  74 /  16, iq2::decode_xs, iq2::synth_xs, iq2::SQUARE_XS;
    IQ3_XXS "iq3_xxs" 18: 256 x  98 /  32, iq3::decode_xxs, iq3::synth_xxs, iq3::SQUARE_XXS;
    IQ1_S   "iq1_s"   19: 256 x  50 /  32, iq1::decode_s, iq1::synth_s, iq1::MEAN_SQUARE;
    IQ4_NL  "iq4_nl"  20:  32 x  18 /  32, iq4::decode_nl, iq4::synth_nl, iq4::LEVEL_SQUARE;
    IQ3_S   "iq3_s"   21: 256 x 110 /  32, iq3::decode_s, iq3::synth_s, iq3::SQUARE_S;
    IQ2_S   "iq2_s"   22: 256 x  82 /  16, iq2::decode_s, iq2::synth_s, iq2::SQUARE_S;
    IQ4_XS  "iq4_xs"  23: 256 x 136 /  32, iq4::decode_xs, iq4::synth_xs, iq4::LEVEL_SQUARE * SIX_BITS;
    IQ1_M   "iq1_m"   29: 256 x  56 /  16, iq1::decode_m, iq1::synth_m, iq1::MEAN_SQUARE;
    BF16    "bf16"    30:   1 x   2 /   1, float::decode_bf16, float::synth_bf16, 1.0;
    TQ1_0   "tq1_0"   34: 256 x  54 / 256, tq::decode_tq1_0, tq::synth_tq1_0, 2.0 / 3.0;
    TQ2_0   "tq2_0"   35: 256 x  66 / 256, tq::decode_tq2_0, tq::synth_tq2_0, 0.5;
    MXFP4   "mxfp4"   39:  32 x  17 /  32, fp4::decode_mxfp4, fp4::synth_mxfp4, fp4::LEVEL_SQUARE;
    NVFP4   "nvfp4"   40:  64 x  36 /  16, fp4::decode_nvfp4, fp4::synth_nvfp4, fp4::LEVEL_SQUARE;
    Q1_0    "q1_0"    41: 128 x  18 / 128, q1_0::decode_q1_0, q1_0::synth_q1_0, 1.0;
    Q2_0    "q2_0"    42:  64 x  18 /  64, q1_0::decode_q2_0, q1_0::synth_q2_0, 1.5;
} apart {
    Q4_K as Q4_K_SUB "q4_K_sub" 12: 32 x 22, sub::decode_q4_k, sub::synth_q4_k, q4_k::Q4_SQUARE;
    Q5_K as Q5_K_SUB "q5_K_sub" 13: 32 x 26, sub::decode_q5_k, sub::synth_q5_k, q4_k::Q5_SQUARE;
    Q6_K as Q6_K_SUB "q6_K_sub" 14: 32 x 28, sub::decode_q6_k, sub::synth_q6_k, BYTE * SIX_BITS;
}}

/// Types that a container may hold but a weight may not: (ggml id, name, bytes of one element).
const NOT_WEIGHTS: &[(u32, &str, usize)] =
    &[(24, "i8", 1), (25, "i16", 2), (26, "i32", 4), (27, "i64", 8), (28, "f64", 8)];

/// Ids that ggml withdrew: no current writer emits them and their layouts are not stable.
const REMOVED: &[(u32, &str)] = &[
    (4, "q4_2"),
    (5, "q4_3"),
    (31, "q4_0_4_4"),
    (32, "q4_0_4_8"),
    (33, "q4_0_8_8"),
    (36, "iq4_nl_4_4"),
    (37, "iq4_nl_4_8"),
    (38, "iq4_nl_8_8"),
];

/// Formats of activations inside ggml's matmuls; never stored in a file.
const ACTIVATION_ONLY: &[(u32, &str)] = &[(9, "q8_1"), (15, "q8_K")];

/// Why a ggml type id is not a weight's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TypeIdError {
    /// No ggml type has this id.
    #[error("ggml type id {0} is unknown")]
    Unknown(u32),
    /// ggml has withdrawn the type.
    #[error("ggml type {0} was removed from the format; convert the file again with a current tool")]
    Removed(&'static str),
    /// The type holds activations inside a matmul and is never stored.
    #[error("ggml type {0} is a format of activations, not of stored tensors")]
    ActivationOnly(&'static str),
    /// An integer or F64 type: its size is known ([`ggml_layout`]), but no weight may have it.
    #[error("ggml type {0} cannot hold a weight")]
    Integer(&'static str),
}

impl QuantType {
    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The ggml name, which is also the text form: `f32`, `q4_K`, `iq2_xxs`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The type of this exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().chain(Self::SUB).copied().find(|ty| ty.name() == name)
    }

    /// The id that GGUF tensor infos carry.
    pub const fn ggml_id(self) -> u32 {
        self.row().id
    }

    /// The type with this id; the error says why an id is not a weight's type.
    pub fn from_ggml_id(id: u32) -> Result<Self, TypeIdError> {
        if let Some(ty) = Self::ALL.iter().copied().find(|ty| ty.ggml_id() == id) {
            return Ok(ty);
        }
        let named = |table: &[(u32, &'static str)]| table.iter().find(|row| row.0 == id).map(|row| row.1);
        Err(if let Some(row) = NOT_WEIGHTS.iter().find(|row| row.0 == id) {
            TypeIdError::Integer(row.1)
        } else if let Some(name) = named(REMOVED) {
            TypeIdError::Removed(name)
        } else if let Some(name) = named(ACTIVATION_ONLY) {
            TypeIdError::ActivationOnly(name)
        } else {
            TypeIdError::Unknown(id)
        })
    }

    /// Elements in one block; the contiguous dim of a tensor is a multiple of it.
    pub const fn block_elems(self) -> usize {
        self.row().elems
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.row().bytes
    }

    /// The unit of cutting, in elements: the smallest run with its own scale. It divides [`Self::block_elems`] and
    /// equals it where the whole block shares one scale or codes span the runs (`tq1_0` packs five elements of
    /// distant places in one byte). A cut below the block is exact only in a layout that repacks sub-blocks apart.
    pub const fn sub_block(self) -> usize {
        self.row().sub_block
    }

    /// Appends the sub-blocks `runs` of a block of this type in the form [`Self::apart`]; nothing without such a form.
    /// They decode to the bits that the block decodes to.
    ///
    /// # Panics
    /// If `block` is not [`Self::block_bytes`] long, or has no such runs.
    pub fn sub_blocks(self, block: &[u8], runs: std::ops::Range<usize>, out: &mut Vec<u8>) {
        assert_eq!(block.len(), self.block_bytes(), "a block of {self}");
        assert!(runs.end * sub::RUN <= self.block_elems(), "the runs of a block of {self}");
        runs.for_each(|j| sub::take(self, block, j, out));
    }

    /// Storage of one element in bits, scales included.
    pub fn bits_per_weight(self) -> f64 {
        (self.block_bytes() * 8) as f64 / self.block_elems() as f64
    }

    /// Whether elements are plain floats (`f32`, `f16`, `bf16`), each its own block.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Bytes of a packed row of `elems` elements; `None` if that is not a whole number of blocks or overflows.
    pub fn row_bytes(self, elems: u64) -> Option<u64> {
        let per_block = self.block_elems() as u64;
        if !elems.is_multiple_of(per_block) {
            return None;
        }
        (elems / per_block).checked_mul(self.block_bytes() as u64)
    }

    /// Decodes one block to exact f32 values, in element order. Every decoder of this project must give these bits.
    ///
    /// # Panics
    /// If `block` is not [`Self::block_bytes`] long or `out` not [`Self::block_elems`].
    pub fn decode_block(self, block: &[u8], out: &mut [f32]) {
        assert_eq!(block.len(), self.block_bytes(), "a block of {self}");
        assert_eq!(out.len(), self.block_elems(), "the elements of a block of {self}");
        (self.row().decode)(block, out);
    }

    /// Decodes a whole number of blocks.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of blocks or `out` does not hold exactly their elements.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let row = self.row();
        assert_eq!(bytes.len() % row.bytes, 0, "whole blocks of {self}");
        assert_eq!(out.len(), bytes.len() / row.bytes * row.elems, "the elements of the blocks of {self}");
        if self.is_float() {
            return (row.decode)(bytes, out);
        }
        for (block, out) in bytes.chunks_exact(row.bytes).zip(out.chunks_exact_mut(row.elems)) {
            (row.decode)(block, out);
        }
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The block layout of any type that a file may store, weights or not: (elements, bytes, name).
///
/// # Errors
/// As [`QuantType::from_ggml_id`], but never [`TypeIdError::Integer`].
pub fn ggml_layout(id: u32) -> Result<(usize, usize, &'static str), TypeIdError> {
    if let Some(&(_, name, bytes)) = NOT_WEIGHTS.iter().find(|row| row.0 == id) {
        return Ok((1, bytes, name));
    }
    QuantType::from_ggml_id(id).map(|ty| (ty.block_elems(), ty.block_bytes(), ty.name()))
}
