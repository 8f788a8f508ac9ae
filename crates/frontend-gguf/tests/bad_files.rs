//! Every bad, odd and good file of the corpus gets the answer it deserves, and names what is at fault.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{fixture, folder, load};
use glmc_frontend_gguf::open;
use serde_json::Value as Json;

fn read_json(name: &str) -> Json {
    let text = std::fs::read_to_string(fixture(name)).expect("fixture");
    serde_json::from_str(&text).expect("JSON")
}

/// What the message must contain, for each file that is refused.
fn must_say() -> BTreeMap<&'static str, &'static [&'static str]> {
    const OUTPUT: &str = "output.weight";
    BTreeMap::from([
        ("odd-align1.gguf", &["general.alignment"] as &[_]),
        ("empty.gguf", &["empty"]),
        ("magic-lfs-pointer.gguf", &["git-lfs pointer"]),
        ("magic-html.gguf", &["HTML"]),
        ("magic-safetensors.gguf", &["safetensors"]),
        ("magic-ggjt.gguf", &["old ggml"]),
        ("trunc-in-magic.gguf", &["too short"]),
        ("big-endian.gguf", &["big-endian"]),
        ("version0.gguf", &["version 0"]),
        ("version1.gguf", &["version 1"]),
        ("version4.gguf", &["version 4"]),
        ("trunc-header.gguf", &["unexpected end of file", "offset 16"]),
        ("trunc-after-header.gguf", &["unexpected end of file", "offset 24"]),
        ("trunc-in-tokens.gguf", &["tokenizer.ggml.tokens", "bytes left"]),
        ("trunc-in-infos.gguf", &["unexpected end of file", "blk.0.attn_q_b.weight", "offset"]),
        ("trunc-before-data.gguf", &["token_embd.weight", "past the end"]),
        ("trunc-last-byte.gguf", &["blk.0.ffn_down.weight", "past the end"]),
        ("huge-tensor-count.gguf", &["1152921504606846976 tensors"]),
        ("huge-kv-count.gguf", &["1152921504606846976 keys"]),
        ("negative-tensor-count.gguf", &["18446744073709551615 tensors"]),
        ("huge-key-length.gguf", &["1152921504606846976 bytes"]),
        ("huge-string-length.gguf", &["general.name", "18446744073709551615 bytes"]),
        ("huge-array-u8.gguf", &["vendor.big", "1152921504606846976"]),
        ("huge-array-tokens.gguf", &["tokenizer.ggml.tokens", "1152921504606846976"]),
        ("unknown-value-type.gguf", &["vendor.type", "13"]),
        ("duplicate-key.gguf", &["glm-dsa.block_count"]),
        ("duplicate-tensor.gguf", &["blk.0.attn_q_a.weight"]),
        ("non-utf8-token.gguf", &["tokenizer.ggml.tokens", "token 3"]),
        ("empty-key.gguf", &["key 2", "empty"]),
        ("five-dims.gguf", &["output_norm.weight", "5 dimensions"]),
        ("huge-ndims.gguf", &["output_norm.weight", "4294967295"]),
        ("zero-dim.gguf", &["output_norm.weight", "[0]", "[32]"]),
        ("dims-overflow.gguf", &[OUTPUT, "overflows"]),
        ("negative-dim.gguf", &[OUTPUT, "overflows"]),
        ("unknown-type.gguf", &[OUTPUT, "200"]),
        ("removed-type.gguf", &[OUTPUT, "q4_0_4_4", "removed"]),
        ("row-not-blocks.gguf", &[OUTPUT, "32", "256", "q4_K"]),
        ("offset-misaligned.gguf", &[OUTPUT, "offset 4", "alignment 32"]),
        ("offset-overlap.gguf", &["token_embd.weight", OUTPUT, "overlap"]),
        ("offset-past-end.gguf", &[OUTPUT, "past the end"]),
        ("align-zero.gguf", &["general.alignment", "is 0"]),
        ("align-24.gguf", &["general.alignment", "24"]),
        ("align-huge.gguf", &["general.alignment", "2147483648"]),
        ("arch-missing.gguf", &["general.architecture"]),
        ("arch-other.gguf", &["llama", "glm-dsa"]),
        ("arch-disagrees.gguf", &["glm4moe", "glm-dsa"]),
        ("key-missing-kv_lora_rank.gguf", &["glm-dsa.attention.kv_lora_rank"]),
        ("key-missing-top_k.gguf", &["glm-dsa.attention.indexer.top_k"]),
        ("key-missing-block_count.gguf", &["glm-dsa.block_count"]),
        ("key-missing-key_length_mla.gguf", &["glm-dsa.attention.key_length_mla"]),
        ("tensor-missing.gguf", &["blk.1.ffn_gate_exps.weight", "missing"]),
        ("tensor-extra.gguf", &["blk.0.attn_mystery.weight"]),
        ("tensor-transposed.gguf", &["blk.0.attn_q_b.weight", "[32, 80]", "[80, 32]"]),
        ("tokens-vs-embd.gguf", &["token_embd.weight", "281", "280"]),
        ("token-types-short.gguf", &["tokenizer.ggml.token_type", "277", "280"]),
        ("merge-unknown.gguf", &["tokenizer.ggml.merges", "'q zz'"]),
        ("merge-no-space.gguf", &["tokenizer.ggml.merges", "'hello'"]),
        ("eos-out-of-range.gguf", &["tokenizer.ggml.eos_token_id", "280"]),
        ("type-block-count-string.gguf", &["glm-dsa.block_count", "string"]),
        ("type-tokens-i32.gguf", &["tokenizer.ggml.tokens", "i32"]),
        ("eps-nan.gguf", &["glm-dsa.attention.layer_norm_rms_epsilon", "NaN"]),
        ("freq-base-negative.gguf", &["glm-dsa.rope.freq_base", "-10000"]),
        ("embd-zero.gguf", &["glm-dsa.embedding_length", "is 0"]),
        ("block-count-negative.gguf", &["glm-dsa.block_count", "-1"]),
        ("block-count-huge.gguf", &["glm-dsa.block_count", "4000000000"]),
        ("q-lora-zero.gguf", &["glm-dsa.attention.q_lora_rank", "is 0"]),
        ("experts-used-over-count.gguf", &["glm-dsa.expert_used_count", "glm-dsa.expert_count", "5", "4"]),
        ("heads-do-not-fit.gguf", &["blk.0.attn_q_b.weight", "[80, 32]", "[120, 32]"]),
        ("key-length-under-rope.gguf", &["glm-dsa.attention.key_length_mla", "glm-dsa.rope.dimension_count"]),
        ("nextn-over-blocks.gguf", &["glm-dsa.nextn_predict_layers", "glm-dsa.block_count"]),
        ("gating-unknown.gguf", &["glm-dsa.expert_gating_func", "99"]),
        ("indexer-types-short.gguf", &["glm-dsa.attention.indexer.types", "1 entries", "2 layers"]),
        ("pre-unknown.gguf", &["tokenizer.ggml.pre", "glm9"]),
        ("legacy-kv-b.gguf", &["blk.0.attn_kv_b.weight", "convert the model again"]),
        ("cat-joined.gguf", &["part 1 of 3", "must not be joined"]),
        ("split-missing/split-missing-00001-of-00003.gguf", &["part 3", "split-missing-00003-of-00003.gguf"]),
        ("split-wrong-count/split-wrong-count-00001-of-00003.gguf", &["split.count is 4", "3 parts"]),
        ("split-swapped/split-swapped-00001-of-00003.gguf", &["part 2", "split.no is 2", "00002-of-00003"]),
        ("split-tensor-twice/split-tensor-twice-00001-of-00003.gguf", &["blk.0.attn_kv_a_mqa.weight"]),
        ("split-tensor-total/split-tensor-total-00001-of-00003.gguf", &["999", "21 tensors"]),
        ("is-a-directory.gguf", &["directory"]),
        ("no-such-file.gguf", &["no such file"]),
    ])
}

#[test]
fn every_file_of_the_corpus() {
    let index = read_json("gguf-bad/index.json");
    let must_say = must_say();
    let (mut loaded, mut refused) = (0, 0);
    for entry in index["entries"].as_array().expect("entries") {
        let name = entry["open"].as_str().expect("open");
        if entry["wrong"].as_str().is_some_and(|w| w.starts_with("DESCRIBED ONLY")) {
            continue;
        }
        let path = fixture("gguf-bad").join(name);
        let result = load(&path);
        let answer = result.as_ref().map_or_else(|e| e.class.as_str(), |_| "ok");
        let also = entry["also_ok"].as_array().expect("also_ok");
        assert!(entry["class"] == answer || also.iter().any(|a| a == answer), "{name}: {answer}: {result:?}");
        let Err(error) = result else {
            loaded += 1;
            continue;
        };
        refused += 1;
        let line = error.line();
        assert_eq!(line.lines().count(), 1, "{line}");
        let file = path.file_name().and_then(|n| n.to_str()).expect("a name");
        let folder = path.parent().expect("a folder").display().to_string();
        assert!(line.contains(file) || line.contains(&folder), "{name} is not named: {line}");
        let needles = must_say.get(name).unwrap_or_else(|| panic!("no expectation for {name}: {line}"));
        for needle in *needles {
            assert!(line.contains(needle), "{name}: {needle:?} is missing in: {line}");
        }
    }
    assert!(loaded >= 14 && refused >= 80, "{loaded} loaded, {refused} refused");
}

#[test]
fn an_odd_order_finds_each_tensors_own_data() {
    let (odd, plain) =
        (common::open_fixture("gguf-bad/odd-order.gguf"), common::open_fixture("gguf-bad/ok-one-layer.gguf"));
    for (part, info) in plain.tensors() {
        let (odd_part, odd_info) = odd.tensor(&info.name).expect("the same tensors");
        let bytes = |set: &glmc_frontend_gguf::GgufSet, p, t: &glmc_frontend_gguf::TensorInfo| {
            set.tensor_bytes(p, t.offset, t.bytes).expect("inside the file").to_vec()
        };
        assert_eq!(bytes(&odd, odd_part, odd_info), bytes(&plain, part, info), "{}", info.name);
    }
}

#[test]
fn every_cut_is_refused() {
    let layout = read_json("gguf-bad/ok-one-layer.layout.json");
    let whole = std::fs::read(fixture("gguf-bad/ok-one-layer.gguf")).expect("fixture");
    let dir = folder();
    let path = dir.path().join("cut.gguf");
    let mut cuts = 0;
    for field in layout["fields"].as_array().expect("fields") {
        let offset = field["offset"].as_u64().expect("offset") as usize;
        let second = if field["bytes"].as_u64() > Some(1) { Some(offset + 1) } else { None };
        for cut in [Some(offset), second].into_iter().flatten() {
            std::fs::write(&path, &whole[..cut]).expect("write");
            let error = load(&path).err().unwrap_or_else(|| panic!("cut at {cut} ({}) loads", field["field"]));
            assert_eq!(error.class.as_str(), "format", "cut at {cut}: {}", error.line());
            cuts += 1;
        }
    }
    assert!(cuts > 200, "{cuts} cuts");
}

#[test]
#[cfg(unix)]
fn paths_that_give_no_bytes() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    let says = |path: &Path, needle: &str| {
        let error = open(path).err().unwrap_or_else(|| panic!("{} opens", path.display()));
        assert_eq!(error.class.as_str(), "io", "{}", error.line());
        assert!(error.line().contains(needle), "{}", error.line());
        assert!(error.line().contains(&path.display().to_string()), "{}", error.line());
    };
    let fifo = at("fifo.gguf");
    let name = std::ffi::CString::new(fifo.as_os_str().as_bytes()).expect("no NUL");
    make_fifo(&name);
    says(&fifo, "not a regular file");
    let link = at("link-loop.gguf");
    symlink(&link, &link).expect("symlink");
    says(&link, "symbolic link");
    says(&at("missing.gguf"), "no such file");
    says(Path::new("/dev/null"), "not a regular file");
    let closed = at("unreadable.gguf");
    std::fs::copy(fixture("gguf-bad/ok-one-layer.gguf"), &closed).expect("copy");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).expect("chmod");
    // The superuser may read anything; then there is nothing to refuse.
    if std::fs::File::open(&closed).is_err() {
        says(&closed, "permission denied");
    }
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "mkfifo has no safe interface in std")]
fn make_fifo(name: &std::ffi::CStr) {
    // SAFETY: `name` is a NUL-terminated path that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "mkfifo");
}
