//! Owns the tensor table of one file: its entries, where they lie in the data, and their names. Never reads the data.

use std::path::Path;

use glmc_ir::quant;

use crate::container::{TensorInfo, shown};
use crate::cursor::Cursor;
use crate::error::{Class, InputError, Result, show};

const MAX_NAME_BYTES: usize = 63;
const MAX_DIMS: u32 = 4;

/// Reads one tensor info; `offset` is still relative to the data.
pub(crate) fn read_info(cur: &mut Cursor<'_>, index: u64, path: &Path) -> Result<TensorInfo> {
    let name = read_name(cur, index, path)?;
    read_named_info(cur, name.clone(), path).map_err(|e| e.within(&name))
}

fn read_name(cur: &mut Cursor<'_>, index: u64, path: &Path) -> Result<String> {
    let (at, bytes) = cur.string("a tensor's name")?;
    match std::str::from_utf8(bytes) {
        Ok(name) if (1..=MAX_NAME_BYTES).contains(&name.len()) => Ok(name.to_owned()),
        _ => {
            let shown = shown(bytes);
            let message = format!(
                "tensor {index} at offset {at} has a bad name '{}': it must be 1 to {MAX_NAME_BYTES} bytes of UTF-8",
                show(&shown)
            );
            let e = InputError::new(Class::Format, "bad-tensor-name", path, message);
            Err(if bytes.is_empty() { e } else { e.about(shown) })
        }
    }
}

fn read_named_info(cur: &mut Cursor<'_>, name: String, path: &Path) -> Result<TensorInfo> {
    let refuse = |class, code, what: String| {
        InputError::new(class, code, path, format!("tensor {}: {what}", show(&name))).about(&name)
    };
    let what = format!("the info of tensor {}", show(&name));
    let dims = cur.u32(&what)?;
    if dims > MAX_DIMS {
        return Err(refuse(Class::Format, "bad-dims", format!("{dims} dimensions (at most {MAX_DIMS} are possible)")));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cur.u64(&what)?);
    }
    let type_id = cur.u32(&what)?;
    let offset = cur.u64(&what)?;
    let (elems, block_bytes, type_name) =
        quant::ggml_layout(type_id).map_err(|e| refuse(Class::Unsupported, "bad-tensor-type", e.to_string()))?;
    let (elems, block_bytes) = (elems as u64, block_bytes as u64);
    let row = shape.first().copied().unwrap_or(1);
    if !row.is_multiple_of(elems) {
        let message = format!("rows of {row} elements are no multiple of {type_name}'s block of {elems}");
        return Err(refuse(Class::Format, "bad-row-length", message));
    }
    let total = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| i64::try_from(n).is_ok());
    let no_negative = shape.iter().all(|&d| i64::try_from(d).is_ok());
    let bytes = total.filter(|_| no_negative).and_then(|n| (n / elems).checked_mul(block_bytes));
    let Some(bytes) = bytes else {
        return Err(refuse(Class::Format, "bad-shape", format!("its size overflows (dims {shape:?} in file order)")));
    };
    shape.reverse();
    Ok(TensorInfo { name, type_id, type_name, shape, offset, bytes })
}

/// Makes offsets absolute, and checks alignment, bounds and overlaps. Returns where the last tensor ends.
pub(crate) fn place(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    size: u64,
    path: &Path,
) -> Result<u64> {
    let mut end = data_start.min(size);
    for t in tensors.iter_mut() {
        let refuse = |code, what: String| {
            InputError::new(Class::Format, code, path, format!("tensor {}: {what}", show(&t.name))).about(&t.name)
        };
        if !t.offset.is_multiple_of(alignment) {
            return Err(refuse(
                "misaligned-offset",
                format!("its offset {} is no multiple of the alignment {alignment}", t.offset),
            ));
        }
        let last = data_start.checked_add(t.offset).and_then(|start| start.checked_add(t.bytes));
        match last {
            Some(last) if last <= size => end = end.max(last),
            _ => {
                let message = format!(
                    "its {} bytes at data offset {} reach past the end of the file ({size} bytes, data begins at {data_start}); the file is cut short or corrupt",
                    t.bytes, t.offset
                );
                return Err(refuse("truncated-data", message));
            }
        }
        t.offset += data_start;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| t.bytes > 0).collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (a, b) = (show(&pair[0].name), show(&pair[1].name));
            let message = format!("tensors {a} and {b} overlap in the file");
            return Err(InputError::new(Class::Format, "overlapping-tensors", path, message).about(&pair[1].name));
        }
    }
    Ok(end)
}

pub(crate) fn check_names(tensors: &[TensorInfo], path: &Path) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        None => Ok(()),
        Some(w) => {
            let message = format!("tensor {} is there twice", show(w[0]));
            Err(InputError::new(Class::Format, "duplicate-tensor", path, message).about(w[0]))
        }
    }
}
