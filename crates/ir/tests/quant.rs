//! The quant types against the golden vectors: every block of every type, bit for bit; sizes; dot products; element
//! order; bad ids.

use std::path::PathBuf;

use glmc_ir::quant::{QuantType, TypeIdError, activation, ggml_layout};
use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn index() -> Value {
    serde_json::from_slice(&fixture("index.json")).expect("index.json is JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}")) as usize
}

fn file(value: &Value) -> Vec<u8> {
    let bytes = fixture(text(value, "file"));
    assert_eq!(bytes.len(), number(value, "bytes"));
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

fn id_of(entry: &Value) -> u32 {
    number(entry, "id") as u32
}

/// Decodes any type of the index, the two activation formats included.
fn decode(id: u32, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements];
    match id {
        9 => activation::decode_q8_1(bytes, &mut out),
        15 => activation::decode_q8_k(bytes, &mut out),
        _ => QuantType::from_ggml_id(id).expect("a weight type").decode(bytes, &mut out),
    }
    out
}

#[test]
fn every_vector_decodes_to_its_bits() {
    let index = index();
    let vectors = index["vectors"].as_array().expect("vectors");
    assert_eq!(vectors.len(), QuantType::ALL.len() + 2);
    let mut wrong = Vec::new();
    for entry in vectors {
        let want = floats(&file(&entry["values"]));
        assert_eq!(want.len(), number(entry, "elements"));
        let got = decode(id_of(entry), &file(&entry["data"]), want.len());
        let same = |(got, want): (&f32, &f32)| got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        if let Some(i) = got.iter().zip(&want).position(|pair| !same(pair)) {
            wrong.push(format!("{} element {i}: {:e}, not {:e}", text(entry, "type"), got[i], want[i]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn dot_products_agree() {
    let index = index();
    let dot = &index["dot"];
    let x = floats(&file(&dot["x"]));
    let rows = dot["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), QuantType::ALL.len());
    for row in rows {
        let weights = decode(id_of(row), &file(&row["weights"]), x.len());
        let sum: f64 = weights.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
        let want = row["dot_exact"].as_f64().expect("dot_exact");
        let room = 1e-12 * row["sum_abs"].as_f64().expect("sum_abs");
        assert!((sum - want).abs() <= room, "{}: {sum} not {want}", text(row, "type"));
    }
}

#[test]
fn integer_dot_products_agree() {
    let index = index();
    let dot = &index["dot"];
    let blocks = file(&dot["x_q8_1"]);
    let mut x = vec![0.0; number(dot, "elements")];
    activation::decode_q8_1(&blocks, &mut x);
    for row in dot["rows"].as_array().expect("rows") {
        let weights = decode(id_of(row), &file(&row["weights"]), x.len());
        let sum: f64 = weights.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
        let want = row["dot_q8_1"].as_f64().expect("dot_q8_1");
        let room = 1e-12 * row["sum_abs_q8_1"].as_f64().expect("sum_abs_q8_1");
        assert!((sum - want).abs() <= room, "{}: {sum} not {want}", text(row, "type"));
    }
}

#[test]
fn sizes_and_names_equal_the_index() {
    let index = index();
    let types = index["types"].as_array().expect("types");
    let mut weights = 0;
    for entry in types {
        let id = id_of(entry);
        let name = || text(entry, "ggml_name");
        let sizes = || (number(entry, "block_elements"), number(entry, "block_bytes"));
        match QuantType::from_ggml_id(id) {
            Ok(ty) => {
                weights += 1;
                assert_eq!((ty.block_elems(), ty.block_bytes()), sizes(), "{ty}");
                assert_eq!((ty.name(), ty.ggml_id()), (name(), id));
                assert_eq!(ggml_layout(id), Ok((ty.block_elems(), ty.block_bytes(), ty.name())));
                assert_eq!(ty.bits_per_weight(), 8.0 * ty.block_bytes() as f64 / ty.block_elems() as f64);
            }
            Err(TypeIdError::Integer(kind)) => {
                assert_eq!(kind, name());
                assert_eq!(ggml_layout(id), Ok((sizes().0, sizes().1, kind)));
                assert_eq!(entry["dequantises"], false);
            }
            Err(TypeIdError::ActivationOnly(kind)) => {
                assert_eq!(kind, name());
                assert_eq!(entry["weights"], false);
                assert_eq!(ggml_layout(id), Err(TypeIdError::ActivationOnly(kind)));
            }
            Err(TypeIdError::Removed(kind)) => {
                assert_eq!(entry["removed"], true, "{id}");
                assert!(kind.eq_ignore_ascii_case(text(entry, "type")), "{kind}");
                assert_eq!(ggml_layout(id), Err(TypeIdError::Removed(kind)));
            }
            Err(TypeIdError::Unknown(id)) => panic!("{id} is in the index: {entry}"),
        }
    }
    assert_eq!(weights, QuantType::ALL.len());
}

#[test]
fn ids_outside_the_index_are_unknown() {
    let known: Vec<u32> = index()["types"].as_array().expect("types").iter().map(id_of).collect();
    for id in (0..1000).chain([i32::MAX as u32, u32::MAX]).filter(|id| !known.contains(id)) {
        assert_eq!(QuantType::from_ggml_id(id), Err(TypeIdError::Unknown(id)));
        assert_eq!(ggml_layout(id), Err(TypeIdError::Unknown(id)));
    }
}

#[test]
fn messages_name_the_type() {
    let message = |id| QuantType::from_ggml_id(id).expect_err("not a weight").to_string();
    assert_eq!(message(4), "ggml type q4_2 was removed from the format; convert the file again with a current tool");
    assert_eq!(message(9), "ggml type q8_1 is a format of activations, not of stored tensors");
    assert_eq!(message(26), "ggml type i32 cannot hold a weight");
    assert_eq!(message(99), "ggml type id 99 is unknown");
}

#[test]
fn names_are_the_text_and_json_form() {
    for &ty in QuantType::ALL {
        assert_eq!(QuantType::from_name(ty.name()), Some(ty));
        assert_eq!(ty.to_string(), ty.name());
        assert_eq!(serde_json::to_value(ty).expect("JSON"), ty.name());
        assert_eq!(serde_json::from_value::<QuantType>(ty.name().into()).expect("a name"), ty);
    }
    for bad in ["", "Q4_K", "q4_k", "q8_1", "i32", "q4_K "] {
        assert_eq!(QuantType::from_name(bad), None, "{bad:?}");
    }
}

#[test]
fn rows_are_whole_blocks() {
    assert_eq!(QuantType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(QuantType::Q4_K.row_bytes(0), Some(0));
    assert_eq!(QuantType::Q4_K.row_bytes(511), None);
    assert_eq!(QuantType::Q6_K.row_bytes(u64::MAX - 255), u64::MAX.checked_div(256).map(|n| n * 210));
    assert_eq!(QuantType::F32.row_bytes(u64::MAX), None);
    assert_eq!(QuantType::Q8_0.row_bytes(u64::MAX - 31), None);
}

#[test]
fn sub_blocks_divide_blocks() {
    for &ty in QuantType::ALL {
        assert_eq!(ty.block_elems() % ty.sub_block(), 0, "{ty}");
        assert_eq!(ty.is_float(), ty.sub_block() == 1, "{ty}");
    }
}
