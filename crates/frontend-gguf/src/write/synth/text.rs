//! Owns the metadata of a synthetic model: every key that a converted file has, and a byte-level vocabulary.

use super::super::{GgufWriter, MetaValue};
use super::dims::Dims;
use super::mix::Mix;

/// The control tokens of GLM-5, in its order.
const CONTROL: [&str; 36] = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
    "<|image|>",
    "<|video|>",
];

/// Bytes and control tokens.
pub(super) const LEAST_VOCABULARY: usize = 256 + CONTROL.len();

const TEMPLATE: &str = "[gMASK]<sop>\n{%- for m in messages %}\n{%- if m.role == 'system' %}<|system|>\n{{ m.content }}\n\
    {%- elif m.role == 'user' %}<|user|>\n{{ m.content }}\n{%- elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}\n\
    {%- elif m.role == 'tool' %}<|observation|>\n{{ m.content }}\n{%- endif %}\n{%- endfor %}\n\
    {%- if add_generation_prompt %}<|assistant|>\n{%- endif %}";

/// Sets every key.
pub(super) fn metadata(w: &mut GgufWriter<'_>, d: &Dims, mix: Mix, seed: u64) {
    w.set("general.architecture", "glm-dsa").set("general.type", "model").set("general.name", d.name.clone());
    w.set("general.description", format!("random weights, glmc synth, seed {seed}"));
    w.set("general.quantization_version", 2u32);
    if let Some(n) = mix.file_type() {
        w.set("general.file_type", n);
    }
    let numbers = [
        ("block_count", d.blocks()),
        ("context_length", d.ctx),
        ("embedding_length", d.width),
        ("feed_forward_length", d.ff),
        ("attention.head_count", d.heads),
        ("attention.head_count_kv", 1),
        ("expert_count", d.experts),
        ("expert_used_count", d.used),
        ("expert_group_count", 1),
        ("expert_group_used_count", 1),
        ("expert_gating_func", 2),
        ("attention.key_length", d.kv_rank + d.rope),
        ("attention.value_length", d.kv_rank),
        ("leading_dense_block_count", d.dense),
        ("vocab_size", d.vocab),
        ("attention.q_lora_rank", d.q_rank),
        ("attention.kv_lora_rank", d.kv_rank),
        ("attention.key_length_mla", d.nope + d.rope),
        ("attention.value_length_mla", d.value),
        ("expert_feed_forward_length", d.expert_ff),
        ("expert_shared_count", d.shared),
        ("rope.dimension_count", d.rope),
        ("nextn_predict_layers", d.mtp),
        ("attention.indexer.head_count", d.index_heads),
        ("attention.indexer.key_length", d.index_dim),
        ("attention.indexer.top_k", d.top_k),
    ];
    for (key, n) in numbers {
        // The sizes were checked against a bound far below.
        w.set(format!("glm-dsa.{key}"), u32::try_from(n).unwrap_or(u32::MAX));
    }
    w.set("glm-dsa.rope.freq_base", d.rope_base);
    w.set("glm-dsa.attention.layer_norm_rms_epsilon", 1e-5f32);
    w.set("glm-dsa.expert_weights_scale", 2.5f32).set("glm-dsa.expert_weights_norm", true);
    let full: Vec<bool> = (0..d.layers).map(|i| d.full_indexer(i)).collect();
    w.set("glm-dsa.attention.indexer.types", full);
    vocabulary(w, d.vocab as usize);
}

/// The printable stand-in of each byte in byte-level BPE: itself where it is printable Latin-1, else from U+0100 on.
fn byte_texts() -> Vec<char> {
    let plain = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let one = |b: u32| {
        let code = if plain(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or('?')
    };
    (0..256).map(one).collect()
}

/// The bytes, then all strings of two bytes, of three, .., each a merge of an earlier token and a byte, then the control
/// tokens.
fn vocabulary(w: &mut GgufWriter<'_>, size: usize) {
    let bytes = byte_texts();
    let room = size - CONTROL.len();
    let mut tokens: Vec<String> = bytes.iter().map(char::to_string).collect();
    let mut merges = Vec::with_capacity(room - 256);
    for i in 0..room - 256 {
        let (a, b) = (&tokens[i / 256], bytes[i % 256]);
        let (token, merge) = (format!("{a}{b}"), format!("{a} {b}"));
        tokens.push(token);
        merges.push(merge);
    }
    let id = |text: &str| (room + CONTROL.iter().position(|c| *c == text).unwrap_or(0)) as u32;
    tokens.extend(CONTROL.map(str::to_owned));
    let kinds: Vec<i32> = (0..size).map(|i| if i < room { 1 } else { 3 }).collect();
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "glm4");
    w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", MetaValue::I32s(kinds));
    w.set("tokenizer.ggml.merges", merges);
    for (key, text) in [
        ("eos", "<|endoftext|>"),
        ("padding", "[MASK]"),
        ("bos", "[gMASK]"),
        ("eot", "<|user|>"),
        ("unknown", "<|endoftext|>"),
        ("eom", "<|observation|>"),
    ] {
        w.set(format!("tokenizer.ggml.{key}_token_id"), id(text));
    }
    w.set("tokenizer.chat_template", TEMPLATE);
}
