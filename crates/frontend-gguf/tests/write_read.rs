//! What the writer writes, the reader reads back: values, shapes, bytes, alignment, splits.

mod common;

use common::{fixture, folder, load, open_fixture};
use glmc_frontend_gguf::open;
use glmc_frontend_gguf::value::Value;
use glmc_frontend_gguf::write::{GgufWriter, MetaValue, TensorData};
use glmc_ir::quant::QuantType;

fn sample() -> GgufWriter<'static> {
    let mut w = GgufWriter::new();
    w.alignment(64).expect("alignment");
    w.set("a.u8", 7u8).set("a.i64", MetaValue::I64(-9)).set("a.f64", MetaValue::F64(0.1)).set("a.bool", true);
    w.set("a.text", "héllo").set("a.words", vec!["x".to_owned(), String::new()]);
    w.set("a.ints", vec![-1i32, 5]).set("a.flags", vec![true, false]).set("a.floats", MetaValue::F32s(vec![1.5]));
    w.tensor("f", QuantType::F32, &[3], TensorData::Bytes((0..12).collect())).expect("f");
    let stream = TensorData::Stream(Box::new(|out| (0..5u8).try_for_each(|i| out.write_all(&[i; 34]))));
    w.tensor("q", QuantType::Q8_0, &[5, 32], stream).expect("q");
    w.tensor("z", QuantType::Q4_K, &[2, 3, 256], TensorData::Zeros).expect("z");
    w
}

#[test]
fn values_and_tensors_survive() {
    let dir = folder();
    let path = dir.path().join("sample.gguf");
    sample().write(&path).expect("write");
    let set = open(&path).unwrap_or_else(|e| panic!("{}", e.line()));
    assert_eq!(set.get_u64("a.u8"), Ok(Some(7)));
    assert_eq!(set.value("a.i64"), Some(&Value::I64(-9)));
    assert_eq!(set.get_f64("a.f64"), Ok(Some(0.1)));
    assert_eq!(set.get_bool("a.bool"), Ok(Some(true)));
    assert_eq!(set.get_str("a.text"), Ok(Some("héllo")));
    let words: Vec<_> = set.get_strings("a.words").expect("strings").expect("there").collect();
    assert_eq!(words, [b"x".as_slice(), b""]);
    let ints = |key: &str| set.get_ints(key).map(|ints| ints.map(Iterator::collect::<Vec<i128>>));
    assert_eq!(ints("a.ints"), Ok(Some(vec![-1, 5])));
    assert_eq!(ints("a.flags"), Ok(Some(vec![1, 0])));
    // No float for an integer, no integer for a float, nothing negative.
    for error in [
        set.get_f32("a.u8").err(),
        set.get_u64("a.f64").err(),
        set.get_u64("a.i64").err(),
        ints("a.words").err(),
        ints("a.floats").err(),
        set.get_bool("a.u8").err(),
    ] {
        let error = error.expect("refused");
        assert!(error.message.contains(error.subject.as_deref().expect("a key")), "{error}");
    }
    let part = &set.parts()[0];
    assert_eq!((part.alignment(), part.data_start() % 64, part.trailing_bytes()), (64, 0, 0));
    let bytes = |name: &str| {
        let (p, t) = set.tensor(name).expect("tensor");
        assert_eq!(t.offset % 64, 0);
        set.tensor_bytes(p, t.offset, t.bytes).expect("inside").to_vec()
    };
    assert_eq!(bytes("f"), (0..12).collect::<Vec<u8>>());
    assert_eq!(bytes("q"), (0..5u8).flat_map(|i| [i; 34]).collect::<Vec<u8>>());
    assert_eq!(bytes("z"), vec![0; 6 * 144]);
    assert_eq!(set.tensor("z").map(|(_, t)| t.shape.clone()), Some(vec![2, 3, 256]));
}

#[test]
fn split_parts_and_hashes() {
    let dir = folder();
    let paths = sample().write_split(dir.path(), "s", 2).expect("write");
    let set = open(&paths[1]).unwrap_or_else(|e| panic!("{}", e.line()));
    assert_eq!((set.parts().len(), set.tensor_count()), (2, 3));
    assert_eq!(set.get_str("a.text"), Ok(Some("héllo")));
    for part in set.parts() {
        let again = glmc_frontend_gguf::content_check::header_hash(part.path(), part.header_len()).expect("hash");
        assert_eq!(part.header_hash(), Ok(again));
        assert_eq!(part.sample_hash().expect("hash").len(), 64);
    }
    assert_ne!(set.parts()[0].header_hash(), set.parts()[1].header_hash());
}

#[test]
fn nothing_is_overwritten_and_nothing_half_written_stays() {
    let dir = folder();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, "mine").expect("write");
    assert_eq!(sample().write(&path).map_err(|e| e.kind()), Err(std::io::ErrorKind::AlreadyExists));
    assert_eq!(std::fs::read(&path).expect("read"), b"mine");
    for pieces in [3, 9] {
        let mut w = GgufWriter::new();
        let stream = TensorData::Stream(Box::new(move |out| (0..pieces).try_for_each(|_| out.write_all(&[1; 34]))));
        w.tensor("q", QuantType::Q8_0, &[5, 32], stream).expect("q");
        assert!(w.write(&dir.path().join("y.gguf")).is_err());
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
}

#[test]
fn impossible_tensors_are_refused() {
    let mut w = GgufWriter::new();
    let z = || TensorData::Zeros;
    assert!(w.tensor("a", QuantType::Q4_K, &[4, 32], z()).is_err(), "rows that are no multiple of the block");
    assert!(w.tensor("a", QuantType::F32, &[], z()).is_err(), "no dims");
    assert!(w.tensor("a", QuantType::F32, &[1; 5], z()).is_err(), "five dims");
    assert!(w.tensor("a", QuantType::F32, &[u64::MAX, 2], z()).is_err(), "overflow");
    assert!(w.tensor("a", QuantType::F32, &[2], TensorData::Bytes(vec![0; 7])).is_err(), "wrong length");
    assert!(w.tensor("a".repeat(64), QuantType::F32, &[2], z()).is_err(), "long name");
    assert!(w.tensor("a", QuantType::F32, &[2], z()).is_ok());
    assert!(w.tensor("a", QuantType::F32, &[2], z()).is_err(), "doubled name");
}

#[test]
fn a_copy_in_reversed_order_is_the_same_model() {
    let set = open_fixture("gguf-bad/ok-base.gguf");
    let dir = folder();
    let path = dir.path().join("reversed.gguf");
    let mut w = GgufWriter::from_set(&set).expect("a copy");
    w.reverse_tensors();
    w.write(&path).expect("write");
    let (a, b) = (load(&fixture("gguf-bad/ok-base.gguf")).expect("loads"), load(&path).expect("loads"));
    assert_eq!((a.config, a.tokenizer.json, a.templates), (b.config, b.tokenizer.json, b.templates));
    let reversed = open(&path).expect("opens");
    for (x, y) in a.weights.iter().zip(b.weights.iter()) {
        assert_eq!((&x.name, x.quant, &x.shape, x.bytes), (&y.name, y.quant, &y.shape, y.bytes));
        assert_eq!(set.tensor_bytes(x.part, x.offset, x.bytes), reversed.tensor_bytes(y.part, y.offset, y.bytes));
    }
}
