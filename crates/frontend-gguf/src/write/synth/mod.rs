//! Synthetic models: a GGUF of any `glm-dsa` dims with every key and tensor that a real file has, and random weights.
//!
//! Owns dims, tensors, metadata and vocabulary of such a file, and which values a tensor gets by its name. The random
//! numbers are `ir::quant::synth`'s: a block is a function of (seed, tensor name, block), so any slice of any tensor can
//! be made again without the file.

mod dims;
mod mix;
mod tensors;
mod text;

pub use dims::Dims;
pub use mix::Mix;

use std::io::{self, Write};

use glmc_ir::quant::QuantType;
use glmc_ir::quant::synth::{Fill, tensor_number};

use super::{GgufWriter, TensorData};

/// Bytes that are made at once.
const PIECE: usize = 1 << 20;

/// How the values of a tensor lie: by its name, and by the length of its rows, which products sum over.
///
/// Norms lie about 1 and matrices keep the RMS of a normalised input, so that activations stay near 1 in every layer.
pub fn fill(seed: u64, name: &str, row: u64) -> Fill {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let last = stem.rsplit('.').next().unwrap_or(stem);
    let (mean, rms) = match last {
        // Every token has an embedding of its own, of the size of what layers add to it.
        "token_embd" | "embed_tokens" => (0.0, 1.0),
        // Biases: small beside scores in 0 .. 1 and beside a normalised key.
        "bias" => (0.0, 0.02),
        _ if last.ends_with("norm") => (1.0, 0.1),
        _ => (0.0, 1.0 / (row.max(1) as f32).sqrt()),
    };
    Fill { seed, tensor: tensor_number(name), mean, rms }
}

/// The file of these dims, to be written. `hollow`: tensors are holes, the header is the same.
///
/// # Errors
/// Dims that make no model.
pub fn model(dims: &Dims, mix: Mix, seed: u64, hollow: bool) -> io::Result<GgufWriter<'static>> {
    dims.check().map_err(super::invalid)?;
    let mut w = GgufWriter::new();
    text::metadata(&mut w, dims, mix, seed);
    for (name, quant, shape) in tensors::list(dims, mix) {
        let row = shape.last().copied().unwrap_or(1);
        let bytes = shape.iter().rev().skip(1).try_fold(quant.row_bytes(row), |n, d| Some(n?.checked_mul(*d)));
        let bytes = bytes
            .flatten()
            .ok_or_else(|| super::invalid(format!("tensor {name}: {shape:?} is no shape for {quant}")))?;
        let data = if hollow {
            TensorData::Zeros
        } else {
            let fill = fill(seed, &name, row);
            TensorData::Stream(Box::new(move |out| stream(out, quant, &fill, bytes)))
        };
        w.tensor(name, quant, &shape, data)?;
    }
    Ok(w)
}

/// Writes the blocks of a tensor piece by piece.
fn stream(out: &mut dyn Write, quant: QuantType, fill: &Fill, bytes: u64) -> io::Result<()> {
    let block = quant.block_bytes();
    let most = PIECE / block;
    let mut piece = vec![0; most * block];
    let (mut first, blocks) = (0, bytes / block as u64);
    while first < blocks {
        let n = (blocks - first).min(most as u64);
        let piece = &mut piece[..n as usize * block];
        fill.blocks(quant, first, piece);
        out.write_all(piece)?;
        first += n;
    }
    Ok(())
}
