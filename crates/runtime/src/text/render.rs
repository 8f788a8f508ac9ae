//! The rendering of a Jinja template within limits.
//!
//! Owns the dialect and every limit: bytes of the template, steps, bytes of the output, depth and size of what is
//! printed, width of a formatted field. A template comes with the model and is as hostile as that. Its operators take
//! no limits (two values that hold themselves cannot even be compared), and constants are folded before any step is
//! counted, so no limit here is the last one: a program that must survive any template runs a [`Rendering`] in a
//! process of its own, see [`super::ChatTemplate::encode_with`].

use super::TextError;
use super::json::{Style, dumps};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::{Deserialize, Serialize};
use std::io;

/// Longest template, in bytes: three times the longest of a known model.
pub(super) const MAX_TEMPLATE: usize = 64 << 10;
/// Most steps of one rendering; a step also pays for 64 bytes.
const MAX_STEPS: usize = 2_000_000;
/// Longest prompt, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// Deepest value that is printed.
const MAX_DEPTH: usize = 64;
/// Most values inside one that is printed.
const MAX_ITEMS: usize = 1 << 18;
/// Widest field of `str.format`.
const MAX_WIDTH: u64 = 9999;
/// The parser and the compiler go down at most one level a byte of the template, in far less than this many bytes.
const STACK: usize = MAX_TEMPLATE * 2048;

/// A template with all that it may read. Its JSON form goes to a process that renders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rendering {
    pub(super) source: String,
    /// Nothing: the template is only parsed.
    pub(super) vars: Option<serde_json::Value>,
    /// A character that `tojson` leaves as it is.
    pub(super) guard: char,
}

impl Rendering {
    /// A rendering that parses a template and gives no text.
    pub fn parse(source: impl Into<String>) -> Rendering {
        Rendering { source: source.into(), vars: None, guard: '\u{10ffff}' }
    }

    /// The text.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template fails or refuses the messages, [`TextError::Limit`] if it is too long or
    /// runs too long, [`TextError::NoRoom`] if there is no memory for a stack.
    pub fn run(&self) -> Result<String, TextError> {
        if self.source.len() > MAX_TEMPLATE {
            return Err(TextError::Limit("its bytes".into(), MAX_TEMPLATE));
        }
        on_a_stack(|| {
            let env = environment(self.guard)?;
            let template = env.template_from_str(&self.source).map_err(|e| failure(&e))?;
            let mut out = Bounded(Vec::new());
            let Some(vars) = &self.vars else { return Ok(String::new()) };
            template.render_captured_to(Value::from(Serde(vars)), &mut out).map_err(|e| failure(&e))?;
            String::from_utf8(out.0).map_err(|e| TextError::Template(e.to_string()))
        })
    }
}

/// Runs `work` where a long chain of operators, which nests as deep as it is long, has room.
fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T, TextError> + Send) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| TextError::NoRoom(e.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(TextError::Template("the template engine failed".into())))
    })
}

fn environment(guard: char) -> Result<Environment<'static>, TextError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| failure(&e))?;
    env.set_syntax(syntax);
    env.set_fuel(Some(MAX_STEPS as u64));
    env.set_formatter(|out: &mut Output, state: &mut State, value: &Value| {
        printable(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    env.set_unknown_method_callback(method);
    env.add_function("raise_exception", |message: String| -> Result<String, Error> { Err(refused(message)) });
    env.add_filter("tojson", move |value: Value, options: Kwargs| tojson(&value, &options, guard));
    Ok(env)
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// Python's methods, less what a number in a format can make them allocate.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "format"
        && let Some(format) = value.as_str()
    {
        if widest(format) > MAX_WIDTH {
            return Err(refused(format!("format: a field is at most {MAX_WIDTH} wide")));
        }
        args.iter().try_for_each(printable)?;
    }
    if name == "join" {
        args.iter().try_for_each(printable)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The largest number inside braces.
fn widest(format: &str) -> u64 {
    let (mut depth, mut number, mut most) = (0usize, 0u64, 0u64);
    for c in format.bytes() {
        match c {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        number = if c.is_ascii_digit() && depth > 0 {
            number.saturating_mul(10).saturating_add(u64::from(c - b'0'))
        } else {
            0
        };
        most = most.max(number);
    }
    most
}

/// Refuses a value that holds itself, or so many others that its text is too long.
fn printable(value: &Value) -> Result<(), Error> {
    let mut left = MAX_ITEMS;
    count(value, 0, &mut left)
}

fn count(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(refused(format!("a value is nested deeper than {MAX_DEPTH} levels, or holds itself")));
    }
    *left = left.checked_sub(1).ok_or_else(|| refused(format!("a value holds more than {MAX_ITEMS} others")))?;
    let kind = value.kind();
    if !matches!(kind, ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    let Ok(items) = value.try_iter() else { return Ok(()) };
    for item in items {
        count(&item, depth + 1, left)?;
        if kind == ValueKind::Map {
            count(&value.get_item(&item)?, depth + 1, left)?;
        }
    }
    Ok(())
}

fn tojson(value: &Value, options: &Kwargs, raw: char) -> Result<Value, Error> {
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|n| n > 16) {
        return Err(refused("tojson: indent is at most 16"));
    }
    options.assert_all_used()?;
    printable(value)?;
    let json = serde_json::to_value(value).map_err(|e| refused(format!("tojson: {e}")))?;
    Ok(Value::from_safe_string(dumps(&json, Style { ensure_ascii, indent, raw })))
}

fn failure(error: &Error) -> TextError {
    match error.kind() {
        ErrorKind::OutOfFuel => TextError::Limit("its steps".into(), MAX_STEPS),
        ErrorKind::WriteFailure => TextError::Limit("its output".into(), MAX_OUTPUT),
        // The debug form adds the source, which may be long.
        _ => TextError::Template(shortened(error.to_string())),
    }
}

/// A message that a template can make as long as it likes.
fn shortened(mut message: String) -> String {
    const MOST: usize = 2000;
    if message.len() > MOST {
        let end = (0..=MOST).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push_str(" ...");
    }
    message
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

#[cfg(test)]
mod tests {
    use super::{shortened, widest};

    #[test]
    fn the_widest_field_is_found() {
        assert_eq!(widest("{:>12} 123456 {0:{1}}"), 12);
        assert_eq!(widest("{:>99999999999999999999999}"), u64::MAX);
        assert_eq!(widest("2024 }{ 7"), 7);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        assert_eq!(shortened("é".repeat(1000)), "é".repeat(1000));
        assert_eq!(shortened(format!("a{}", "é".repeat(1000))).len(), 2003);
    }
}
