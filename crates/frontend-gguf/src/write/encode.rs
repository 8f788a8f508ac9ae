//! Owns the byte layout of a header: the inverse of what `container` and `value` read.

use indexmap::IndexMap;

use super::{MetaValue, Tensor};

/// Header, key-value table, tensor table and the padding up to the data.
pub(super) fn header(values: &IndexMap<String, MetaValue>, tensors: &[Tensor<'_>], alignment: u64) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        put_str(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_str(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(tensor.quant.ggml_id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(alignment);
    }
    out.resize((out.len() as u64).next_multiple_of(alignment) as usize, 0);
    out
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array(out: &mut Vec<u8>, elem: u32, count: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(elem.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    macro_rules! scalar {
        ($id:literal, $v:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend($v.to_le_bytes());
        }};
    }
    macro_rules! array {
        ($id:literal, $v:expr) => {{
            put_array(out, $id, $v.len());
            $v.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }};
    }
    match value {
        MetaValue::U8(v) => scalar!(0, v),
        MetaValue::I8(v) => scalar!(1, v),
        MetaValue::U16(v) => scalar!(2, v),
        MetaValue::I16(v) => scalar!(3, v),
        MetaValue::U32(v) => scalar!(4, v),
        MetaValue::I32(v) => scalar!(5, v),
        MetaValue::F32(v) => scalar!(6, v),
        MetaValue::Bool(v) => scalar!(7, u8::from(*v)),
        MetaValue::U64(v) => scalar!(10, v),
        MetaValue::I64(v) => scalar!(11, v),
        MetaValue::F64(v) => scalar!(12, v),
        MetaValue::Str(v) => {
            out.extend(8u32.to_le_bytes());
            put_str(out, v);
        }
        MetaValue::Strs(v) => {
            put_array(out, 8, v.len());
            v.iter().for_each(|s| put_str(out, s));
        }
        MetaValue::U32s(v) => array!(4, v),
        MetaValue::I32s(v) => array!(5, v),
        MetaValue::F32s(v) => array!(6, v),
        MetaValue::Raw(v) => out.extend(v),
        MetaValue::Bools(v) => {
            put_array(out, 7, v.len());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
    }
}
