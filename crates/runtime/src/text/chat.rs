//! Chat messages become a prompt.
//!
//! Owns what a model's Jinja template is rendered with and the rule that only the template's own text may hold control tokens:
//! every string that a caller supplies is guarded before rendering, by a character that occurs in neither, and the
//! guard is dropped after the text was cut at control tokens. The template sees the strings otherwise unchanged, and
//! text is encoded across the seams as if it had come in one piece. It never decides which template is used.

use super::render::Rendering;
use super::{TextError, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Anything else that the template may read, such as `tool_calls` or `reasoning_content`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Message {
    /// A message of role and content alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), more: Map::new() }
    }
}

/// What a template is rendered with.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Descriptions of tools, if any: the template's `tools`.
    pub tools: Option<Value>,
    /// Whether the prompt ends where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// The template's `enable_thinking`; undefined if none.
    pub enable_thinking: Option<bool>,
    /// Further variables.
    pub more: Map<String, Value>,
}

impl Chat {
    /// Messages that the assistant is to answer.
    pub fn new(messages: Vec<Message>) -> Chat {
        Chat { messages, tools: None, add_generation_prompt: true, enable_thinking: None, more: Map::new() }
    }

    /// The template's variables.
    fn variables(&self) -> Result<Value, TextError> {
        let json = |e: serde_json::Error| TextError::Template(e.to_string());
        let mut vars = self.more.clone();
        vars.insert("messages".into(), serde_json::to_value(&self.messages).map_err(json)?);
        vars.insert("add_generation_prompt".into(), self.add_generation_prompt.into());
        if let Some(tools) = &self.tools {
            vars.insert("tools".into(), tools.clone());
        }
        if let Some(thinking) = self.enable_thinking {
            vars.insert("enable_thinking".into(), thinking.into());
        }
        Ok(Value::Object(vars))
    }
}

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// Takes a Jinja template in the dialect of Hugging Face's tokenizers.
    ///
    /// # Errors
    /// [`TextError::Template`] if it does not parse, [`TextError::Limit`] if it is too long.
    pub fn new(source: impl Into<String>) -> Result<ChatTemplate, TextError> {
        let source = source.into();
        Rendering::parse(source.as_str()).run()?;
        Ok(ChatTemplate { source })
    }

    /// Takes a template unread: what is wrong with it shows when it is rendered.
    pub fn unchecked(source: impl Into<String>) -> ChatTemplate {
        ChatTemplate { source: source.into() }
    }

    /// The prompt as text: for people. Control tokens in messages look like the template's own here; use
    /// [`Self::encode`] to make ids.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template fails or refuses the messages, [`TextError::Limit`] if it runs too long.
    pub fn render(&self, chat: &Chat) -> Result<String, TextError> {
        let vars = chat.variables()?;
        let guard = guard_for(&self.source, &vars);
        Rendering { source: self.source.clone(), vars: Some(vars), guard }.run()
    }

    /// The prompt as ids, at most `most` of them. Control tokens come from the template alone: their text in messages,
    /// tools and variables is text. The one exception is `<think>` and `</think>` in an assistant's message, which
    /// templates take apart.
    ///
    /// # Errors
    /// As [`Self::render`] and [`Tokenizer::encode_at_most`].
    pub fn encode(&self, tokenizer: &Tokenizer, chat: &Chat, most: usize) -> Result<Vec<u32>, TextError> {
        self.encode_with(tokenizer, chat, most, Rendering::run)
    }

    /// As [`Self::encode`], rendered by `render`: [`Rendering::run`] in a process whose end does no harm.
    ///
    /// # Errors
    /// As [`Self::encode`], and those of `render`.
    pub fn encode_with(
        &self,
        tokenizer: &Tokenizer,
        chat: &Chat,
        most: usize,
        render: impl FnOnce(&Rendering) -> Result<String, TextError>,
    ) -> Result<Vec<u32>, TextError> {
        let mut vars = chat.variables()?;
        let guard = guard_for(&self.source, &vars);
        guard_strings(&mut vars, tokenizer, guard, false);
        let text = render(&Rendering { source: self.source.clone(), vars: Some(vars), guard })?;
        tokenizer.encode_guarded(&text, guard, most)
    }
}

/// The first private-use character that neither the template nor a string of the variables holds.
fn guard_for(source: &str, vars: &Value) -> char {
    let free = |&c: &char| !source.contains(c) && !holds(vars, c);
    ('\u{100000}'..='\u{10fffd}').find(free).unwrap_or('\u{10ffff}')
}

fn holds(value: &Value, c: char) -> bool {
    match value {
        Value::String(s) => s.contains(c),
        Value::Array(items) => items.iter().any(|v| holds(v, c)),
        Value::Object(map) => map.iter().any(|(k, v)| k.contains(c) || holds(v, c)),
        _ => false,
    }
}

/// Guards every string of a value, keys included. `assistant`: inside an assistant's message.
fn guard_strings(value: &mut Value, tokenizer: &Tokenizer, guard: char, assistant: bool) {
    let safe = |s: &str| tokenizer.guard(s, guard, |token| assistant && matches!(token, "<think>" | "</think>"));
    match value {
        Value::String(s) => *s = safe(s),
        Value::Array(items) => items.iter_mut().for_each(|v| guard_strings(v, tokenizer, guard, assistant)),
        Value::Object(map) => {
            let assistant = assistant || map.get("role").is_some_and(|r| r == "assistant");
            for (key, mut value) in std::mem::take(map) {
                guard_strings(&mut value, tokenizer, guard, assistant);
                map.insert(safe(&key), value);
            }
        }
        _ => {}
    }
}
