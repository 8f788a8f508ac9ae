//! Chat messages become a prompt.
//!
//! Owns rendering a model's Jinja template and the rule that only the template's own text may hold control tokens:
//! every string that a caller supplies is guarded before rendering, by a character that occurs in neither, and the
//! guard is dropped after the text was cut at control tokens. The template sees the strings otherwise unchanged, and
//! text is encoded across the seams as if it had come in one piece. It never decides which template is used.

use super::json::{Style, dumps};
use super::{TextError, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;

/// Longest template, in bytes.
const MAX_TEMPLATE: usize = 1 << 20;
/// Most template instructions of one rendering.
const MAX_STEPS: usize = 20_000_000;
/// Longest prompt, in bytes.
const MAX_OUTPUT: usize = 64 << 20;

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
        let template = ChatTemplate { source: source.into() };
        if template.source.len() > MAX_TEMPLATE {
            return Err(TextError::Limit("its bytes", MAX_TEMPLATE));
        }
        environment(guard_for(&template.source, &Value::Null))?
            .template_from_str(&template.source)
            .map_err(|e| failure(&e))?;
        Ok(template)
    }

    /// The prompt as text: for people. Control tokens in messages look like the template's own here; use
    /// [`Self::encode`] to make ids.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template fails or refuses the messages, [`TextError::Limit`] if it runs too long.
    pub fn render(&self, chat: &Chat) -> Result<String, TextError> {
        let vars = chat.variables()?;
        self.run(&vars, guard_for(&self.source, &vars))
    }

    /// The prompt as ids. Control tokens come from the template alone: their text in messages, tools and variables is
    /// text. The one exception is `<think>` and `</think>` in an assistant's message, which templates take apart.
    ///
    /// # Errors
    /// As [`Self::render`], and [`TextError::Encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let mut vars = chat.variables()?;
        let guard = guard_for(&self.source, &vars);
        guard_strings(&mut vars, tokenizer, guard, false);
        tokenizer.encode_guarded(&self.run(&vars, guard)?, guard)
    }

    fn run(&self, vars: &Value, guard: char) -> Result<String, TextError> {
        let env = environment(guard)?;
        let template = env.template_from_str(&self.source).map_err(|e| failure(&e))?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(minijinja::Value::from(Serde(vars)), &mut out).map_err(|e| failure(&e))?;
        String::from_utf8(out.0).map_err(|e| TextError::Template(e.to_string()))
    }
}

fn environment(guard: char) -> Result<Environment<'static>, TextError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| failure(&e))?;
    env.set_syntax(syntax);
    env.set_fuel(Some(MAX_STEPS as u64));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_filter("tojson", move |value: minijinja::Value, options: Kwargs| tojson(&value, &options, guard));
    Ok(env)
}

fn tojson(value: &minijinja::Value, options: &Kwargs, raw: char) -> Result<minijinja::Value, Error> {
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|n| n > 16) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is at most 16"));
    }
    options.assert_all_used()?;
    let json =
        serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}")))?;
    Ok(minijinja::Value::from_safe_string(dumps(&json, Style { ensure_ascii, indent, raw })))
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

fn failure(error: &Error) -> TextError {
    match error.kind() {
        ErrorKind::OutOfFuel => TextError::Limit("its steps", MAX_STEPS),
        ErrorKind::WriteFailure => TextError::Limit("its output", MAX_OUTPUT),
        // The debug form adds the source, which may be a megabyte long.
        _ => TextError::Template(error.to_string()),
    }
}

/// Output that refuses to grow without end.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
