//! JSON as Python's `json.dumps` writes it, for the `tojson` filter of chat templates.
//!
//! Owns separators, indentation and escapes. Templates were trained on exactly these bytes.

use serde_json::Value;
use std::fmt::Write;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Escape everything that is not ASCII.
    pub(super) ensure_ascii: bool,
    /// Spaces a level; none writes one line.
    pub(super) indent: Option<usize>,
    /// A character that is never escaped.
    pub(super) raw: char,
}

/// The text of a value.
pub(super) fn dumps(value: &Value, style: Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: Style, level: usize) {
    match value {
        Value::String(s) => write_str(out, s, style),
        Value::Array(items) => write_list(out, ['[', ']'], items.iter(), style, level, |out, item| {
            write_value(out, item, style, level + 1);
        }),
        Value::Object(map) => write_list(out, ['{', '}'], map.iter(), style, level, |out, (key, item)| {
            write_str(out, key, style);
            out.push_str(": ");
            write_value(out, item, style, level + 1);
        }),
        other => out.push_str(&other.to_string()),
    }
}

fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl ExactSizeIterator<Item = T>,
    style: Style,
    level: usize,
    each: impl Fn(&mut String, T),
) {
    out.push(open);
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(if style.indent.is_some() { "," } else { ", " });
        }
        new_line(out, style, level + 1);
        each(out, item);
    }
    if !empty {
        new_line(out, style, level);
    }
    out.push(close);
}

fn new_line(out: &mut String, style: Style, level: usize) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
}

fn write_str(out: &mut String, s: &str, style: Style) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~' && c != style.raw) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::{Style, dumps};
    use serde_json::json;

    #[test]
    fn writes_what_python_writes() {
        let v = json!({"a": [1, 2.5, null, true], "b": {"é😀": "q\"\\\n\u{1}\u{7f}"}, "c": [], "d": {}});
        let style = Style { ensure_ascii: false, indent: None, raw: '\u{100000}' };
        let want = r#"{"a": [1, 2.5, null, true], "b": {"é😀": "q\"\\\n\u0001"#.to_owned()
            + "\u{7f}\"}, \"c\": [], \"d\": {}}";
        assert_eq!(dumps(&v, style), want);
        let want =
            r#"{"a": [1, 2.5, null, true], "b": {"\u00e9\ud83d\ude00": "q\"\\\n\u0001\u007f"}, "c": [], "d": {}}"#;
        assert_eq!(dumps(&v, Style { ensure_ascii: true, ..style }), want);
        let want = "{\n  \"x\": [\n    1,\n    2\n  ],\n  \"y\": {}\n}";
        assert_eq!(dumps(&json!({"x": [1, 2], "y": {}}), Style { indent: Some(2), ..style }), want);
    }
}
