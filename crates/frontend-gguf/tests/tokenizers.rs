//! The exported tokenizer.json, loaded in the `tokenizers` crate, against recorded ids and the model's own file.

mod common;

use common::{edited, fixture, load, refused};
use glmc_frontend_gguf::Model;
use glmc_frontend_gguf::write::MetaValue;
use serde_json::Value as Json;
use tokenizers::Tokenizer;

const MODELS: [&str; 2] = ["models/tiny-Q4_K_M.gguf", "models/tiny-UD-Q4_K_XL-00001-of-00003.gguf"];
const ONE_LAYER: &str = "gguf-bad/ok-one-layer.gguf";

fn exported(model: &Model) -> Tokenizer {
    model.tokenizer.json.parse().expect("the exported tokenizer loads")
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).expect("encodes").get_ids().to_vec()
}

fn recorded() -> Vec<(String, Vec<u32>)> {
    let text = std::fs::read_to_string(fixture("models/goldens/tokenize.json")).expect("fixture");
    let list: Vec<Json> = serde_json::from_str(&text).expect("JSON");
    let one = |j: &Json| {
        let ids = j["ids"].as_array().expect("ids").iter().map(|i| i.as_u64().expect("id") as u32).collect();
        (j["text"].as_str().expect("text").to_owned(), ids)
    };
    list.iter().map(one).collect()
}

#[test]
fn recorded_ids_are_reproduced_and_decode_back() {
    for name in MODELS {
        let model = load(&fixture(name)).unwrap_or_else(|e| panic!("{}", e.line()));
        let tokenizer = exported(&model);
        let all = recorded();
        assert!(all.len() >= 20);
        for (text, want) in all {
            assert_eq!(ids(&tokenizer, &text), want, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&want, false).expect("decodes"), text);
        }
    }
}

#[test]
fn it_behaves_as_the_models_own_tokenizer_json() {
    let model = load(&fixture(MODELS[0])).unwrap_or_else(|e| panic!("{}", e.line()));
    let (mine, theirs) = (exported(&model), Tokenizer::from_file(fixture("models/tokenizer.json")).expect("loads"));
    assert_eq!(model.tokenizer.info.vocab_size as usize, theirs.get_vocab_size(true));
    for id in 0..model.tokenizer.info.vocab_size {
        assert_eq!(mine.id_to_token(id), theirs.id_to_token(id), "id {id}");
    }
    let readme = "Ünïcödé  \r\n\t 12345678 don't I'LL <|user|>x<think>[MASK] \u{1F600}\u{3000}z   \n\n a";
    let golden = std::fs::read_to_string(fixture("models/goldens/tokenize.json")).expect("fixture");
    for text in [readme, &golden, "", " ", "\n", "\u{0}\u{7f}\u{ad}\u{feff}"] {
        for special in [true, false] {
            let plain = |t: &Tokenizer| {
                let mut t = t.clone();
                t.set_encode_special_tokens(!special);
                ids(&t, text)
            };
            assert_eq!(plain(&mine), plain(&theirs), "{text:?}");
        }
    }
    let parse = |text: &str| serde_json::from_str::<Json>(text).expect("JSON");
    let (mine, theirs) = (
        parse(&model.tokenizer.json),
        parse(&std::fs::read_to_string(fixture("models/tokenizer.json")).expect("fixture")),
    );
    assert_eq!(mine, theirs, "the same document, in fact");
}

#[test]
fn special_ids_and_the_stop_set() {
    let model = load(&fixture(MODELS[0])).unwrap_or_else(|e| panic!("{}", e.line()));
    let info = &model.tokenizer.info;
    assert_eq!((info.bos, info.eos, info.eot, info.eom), (Some(2034), Some(2032), Some(2039), Some(2041)));
    assert_eq!(info.stop, [2032, 2039, 2041]);
    assert!(!info.add_bos && !info.add_eos && info.suppress.is_empty());
    let template = std::fs::read_to_string(fixture("models/chat_template.jinja")).expect("fixture");
    assert_eq!(model.templates.default, Some(template));
    // Without the keys, the control tokens' texts still end a turn.
    let model = edited(MODELS[0], |w| {
        w.unset("tokenizer.ggml.eot_token_id").unset("tokenizer.ggml.eom_token_id");
    });
    assert_eq!(model.expect("loads").tokenizer.info.stop, [2032, 2039, 2041]);
}

#[test]
fn control_tokens_in_odd_places_keep_their_ids() {
    // The loader numbers added tokens by counting, so a hole must not shift them.
    let set = common::open_fixture(ONE_LAYER);
    let mut tokens: Vec<String> = set
        .get_strings("tokenizer.ggml.tokens")
        .expect("strings")
        .expect("there")
        .map(|b| String::from_utf8(b.to_vec()).expect("UTF-8"))
        .collect();
    let mut types: Vec<i32> =
        set.get_ints("tokenizer.ggml.token_type").expect("ints").expect("there").map(|t| t as i32).collect();
    tokens.swap(3, 275);
    types.swap(3, 275);
    types[277] = 5;
    let control = tokens[3].clone();
    let model = edited(ONE_LAYER, |w| {
        w.set("tokenizer.ggml.tokens", tokens.clone()).set("tokenizer.ggml.token_type", types);
    })
    .unwrap_or_else(|e| panic!("{}", e.line()));
    let tokenizer = exported(&model);
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| *id != 277) {
        assert_eq!(tokenizer.token_to_id(token), Some(id as u32), "{token}");
    }
    assert_eq!(ids(&tokenizer, &control), [3]);
    assert_eq!(model.tokenizer.info.suppress, [277]);
}

#[test]
fn refusals() {
    let check = |want: &str, needle: &str, edit: &dyn Fn(&mut glmc_frontend_gguf::write::GgufWriter<'_>)| {
        let (code, line) = refused(edited(ONE_LAYER, |w| edit(w)));
        assert_eq!(code, want, "{line}");
        assert!(line.contains(needle), "{line}");
    };
    check("unsupported/tokenizer-model", "llama", &|w| {
        w.set("tokenizer.ggml.model", "llama");
    });
    check("model/key-missing", "tokenizer.ggml.merges", &|w| {
        w.unset("tokenizer.ggml.merges");
    });
    check("model/key-missing", "tokenizer.ggml.token_type", &|w| {
        w.unset("tokenizer.ggml.token_type");
    });
    check("model/token-id-range", "tokenizer.ggml.bos_token_id", &|w| {
        w.set("tokenizer.ggml.bos_token_id", u32::MAX);
    });
    check("model/token-id-range", "suppress_tokens", &|w| {
        w.set("tokenizer.ggml.suppress_tokens", vec![-1i32]);
    });
    check("model/token-type", "type 9", &|w| {
        w.set("tokenizer.ggml.token_type", vec![9i32; 280]);
    });
    let letters: Vec<String> = (0..280).map(|i| format!("t{i}")).collect();
    check("model/byte-missing", "byte 0x00", &|w| {
        w.set("tokenizer.ggml.tokens", letters.clone());
    });
    let twice: Vec<String> = (0..280).map(|i| format!("t{}", i % 279)).collect();
    check("model/duplicate-token", "ids 0 and 279", &|w| {
        w.set("tokenizer.ggml.tokens", twice.clone());
    });
    check("model/template-too-large", "tokenizer.chat_template", &|w| {
        w.set("tokenizer.chat_template", "x".repeat((1 << 20) + 1));
    });
    check("model/key-type", "tokenizer.chat_template", &|w| {
        w.set("tokenizer.chat_template", MetaValue::U32(1));
    });
    let model = edited(ONE_LAYER, |w| {
        w.unset("tokenizer.chat_template").set("tokenizer.chat_template.tools", "T");
    });
    let templates = model.unwrap_or_else(|e| panic!("{}", e.line())).templates;
    assert_eq!((templates.default, templates.named), (None, vec![("tools".to_owned(), "T".to_owned())]));
}
