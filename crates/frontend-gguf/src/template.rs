//! Owns taking chat templates out of the metadata, as text. It never renders one.

use crate::error::Result;
use crate::set::GgufSet;

/// Longer templates are refused: a template is a few kilobytes.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

const KEY: &str = "tokenizer.chat_template";

/// The chat templates of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatTemplates {
    /// The template used by default; a file may have none.
    pub default: Option<String>,
    /// Other templates by name, in file order.
    pub named: Vec<(String, String)>,
}

/// Reads `tokenizer.chat_template` and `tokenizer.chat_template.NAME`.
///
/// # Errors
/// A template is not text, not UTF-8 or longer than [`MAX_TEMPLATE_BYTES`].
pub fn chat_templates(set: &GgufSet) -> Result<ChatTemplates> {
    let mut out = ChatTemplates { default: read(set, KEY)?, named: Vec::new() };
    for (key, _) in set.values() {
        if let Some(name) = key.strip_prefix(KEY).and_then(|rest| rest.strip_prefix('.'))
            && let Some(text) = read(set, key)?
        {
            out.named.push((name.to_owned(), text));
        }
    }
    Ok(out)
}

fn read(set: &GgufSet, key: &str) -> Result<Option<String>> {
    match set.get_str(key)? {
        Some(text) if text.len() > MAX_TEMPLATE_BYTES => {
            let what = format!("is {} bytes long; a chat template may have {MAX_TEMPLATE_BYTES}", text.len());
            Err(set.key_error("template-too-large", key, what))
        }
        other => Ok(other.map(str::to_owned)),
    }
}
