//! Owns the tokens of `.glir`. Never knows a construct.

use crate::diag::Diagnostic;

/// A token.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// `name`, `q4_K`, `blk.3.attn_norm`.
    Word(String),
    /// An unsigned integer.
    Int(u64),
    /// Any other number, as text.
    Number(String),
    /// A JSON string, unescaped.
    Str(String),
    /// One character of punctuation.
    Punct(char),
}

/// A cursor over the tokens of a text, with the line of each.
pub(super) struct Lexer<'a> {
    tokens: Vec<(Token, usize, usize)>,
    at: usize,
    text: &'a str,
}

impl<'a> Lexer<'a> {
    /// Splits `text`; `;` starts a comment that ends with the line.
    pub(super) fn new(text: &'a str) -> Result<Self, Diagnostic> {
        let mut lx = Lexer { tokens: Vec::new(), at: 0, text };
        let bytes = text.as_bytes();
        let (mut i, mut line) = (0, 1);
        while i < bytes.len() {
            let start = i;
            let c = bytes[i];
            let token = match c {
                b'\n' => {
                    line += 1;
                    i += 1;
                    continue;
                }
                c if c.is_ascii_whitespace() => {
                    i += 1;
                    continue;
                }
                b';' => {
                    while i < bytes.len() && bytes[i] != b'\n' {
                        i += 1;
                    }
                    continue;
                }
                b'"' => {
                    i = string_end(bytes, i).ok_or_else(|| at_line(line, "a string does not end".into()))?;
                    let s = serde_json::from_str(&text[start..i])
                        .map_err(|e| at_line(line, format!("bad string {}: {e}", &text[start..i])))?;
                    Token::Str(s)
                }
                c if c.is_ascii_digit() || (c == b'-' && bytes.get(i + 1).is_some_and(u8::is_ascii_digit)) => {
                    i = number_end(bytes, i);
                    let s = &text[start..i];
                    s.parse().map(Token::Int).unwrap_or_else(|_| Token::Number(s.to_owned()))
                }
                c if c.is_ascii_alphabetic() || c == b'_' => {
                    while i < bytes.len() && (bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'_' | b'.')) {
                        i += 1;
                    }
                    Token::Word(text[start..i].to_owned())
                }
                c if c.is_ascii() => {
                    i += 1;
                    Token::Punct(c as char)
                }
                _ => return Err(at_line(line, "a character outside ASCII, not in a string".into())),
            };
            lx.tokens.push((token, line, start));
        }
        Ok(lx)
    }

    /// The next token, without taking it.
    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(t, ..)| t)
    }

    /// Takes the next token.
    pub(super) fn next(&mut self) -> Option<Token> {
        let t = self.peek().cloned();
        self.at += 1;
        t
    }

    /// Takes `c` if it is next.
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Token::Punct(c));
        self.at += usize::from(found);
        found
    }

    /// Takes the word `w` if it is next.
    pub(super) fn eat_word(&mut self, w: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(x)) if x == w);
        self.at += usize::from(found);
        found
    }

    /// Takes the word `w` and `c` if both are next.
    pub(super) fn eat_word_then(&mut self, w: &str, c: char) -> bool {
        let start = self.at;
        let found = self.eat_word(w) && self.eat(c);
        if !found {
            self.at = start;
        }
        found
    }

    /// Takes `c` or fails.
    pub(super) fn expect(&mut self, c: char) -> Result<(), Diagnostic> {
        if self.eat(c) { Ok(()) } else { Err(self.error(format!("expected `{c}`"))) }
    }

    /// Takes the word `w` or fails.
    pub(super) fn expect_word(&mut self, w: &str) -> Result<(), Diagnostic> {
        if self.eat_word(w) { Ok(()) } else { Err(self.error(format!("expected `{w}`"))) }
    }

    /// Takes any word or fails; `what` names it in the error.
    pub(super) fn word(&mut self, what: &str) -> Result<String, Diagnostic> {
        match self.peek() {
            Some(Token::Word(w)) => {
                let w = w.clone();
                self.at += 1;
                Ok(w)
            }
            _ => Err(self.error(format!("expected {what}"))),
        }
    }

    /// Takes an unsigned integer or fails.
    pub(super) fn int(&mut self) -> Result<u64, Diagnostic> {
        match self.peek() {
            Some(Token::Int(n)) => {
                let n = *n;
                self.at += 1;
                Ok(n)
            }
            _ => Err(self.error("expected a number")),
        }
    }

    /// Takes a string or fails.
    pub(super) fn string(&mut self) -> Result<String, Diagnostic> {
        match self.peek() {
            Some(Token::Str(s)) => {
                let s = s.clone();
                self.at += 1;
                Ok(s)
            }
            _ => Err(self.error("expected a string")),
        }
    }

    /// Takes a JSON object if `{` is next; an empty one otherwise. Keys may be bare words.
    pub(super) fn object(&mut self) -> Result<serde_json::Map<String, serde_json::Value>, Diagnostic> {
        let mut map = serde_json::Map::new();
        if !self.eat('{') {
            return Ok(map);
        }
        while !self.eat('}') {
            if !map.is_empty() {
                self.expect(',')?;
            }
            let key = self.word("an attribute name")?;
            self.expect(':')?;
            let value = self.json(0)?;
            map.insert(key, value);
        }
        Ok(map)
    }

    fn json(&mut self, depth: usize) -> Result<serde_json::Value, Diagnostic> {
        use serde_json::Value;
        // Attributes are shallow; a bound keeps hostile text from overflowing the stack.
        if depth > 8 {
            return Err(self.error("attributes nest too deep"));
        }
        match self.next() {
            Some(Token::Str(s)) => Ok(Value::String(s)),
            Some(Token::Int(n)) => Ok(Value::from(n)),
            Some(Token::Number(n)) => serde_json::from_str(&n).map_err(|_| self.error(format!("bad number {n}"))),
            Some(Token::Word(w)) if w == "true" => Ok(Value::Bool(true)),
            Some(Token::Word(w)) if w == "false" => Ok(Value::Bool(false)),
            Some(Token::Word(w)) if w == "null" => Ok(Value::Null),
            Some(Token::Punct('[')) => {
                let mut list = Vec::new();
                while !self.eat(']') {
                    if !list.is_empty() {
                        self.expect(',')?;
                    }
                    list.push(self.json(depth + 1)?);
                }
                Ok(Value::Array(list))
            }
            Some(Token::Punct('{')) => {
                self.at -= 1;
                let mut map = serde_json::Map::new();
                self.expect('{')?;
                while !self.eat('}') {
                    if !map.is_empty() {
                        self.expect(',')?;
                    }
                    let key = self.word("an attribute name")?;
                    self.expect(':')?;
                    let value = self.json(depth + 1)?;
                    map.insert(key, value);
                }
                Ok(Value::Object(map))
            }
            _ => Err(self.error("expected a value")),
        }
    }

    /// Fails unless every token was taken.
    pub(super) fn end(&self) -> Result<(), Diagnostic> {
        if self.at >= self.tokens.len() { Ok(()) } else { Err(self.error("expected the end")) }
    }

    /// The line of the next token.
    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, l, _)| *l)
    }

    /// The line of the token taken last.
    pub(super) fn last_line(&self) -> usize {
        self.tokens.get(self.at.saturating_sub(1)).or(self.tokens.last()).map_or(1, |(_, l, _)| *l)
    }

    /// A syntax error here.
    pub(super) fn error(&self, m: impl Into<String>) -> Diagnostic {
        let found = match self.tokens.get(self.at) {
            None => "the end of the text".to_owned(),
            Some((_, _, start)) => {
                let rest: String = self.text[*start..].chars().take_while(|c| !c.is_whitespace()).take(24).collect();
                format!("`{rest}`")
            }
        };
        at_line(self.line(), format!("{}, found {found}", m.into()))
    }
}

/// Whether `s` reads back as one word.
pub fn is_word(s: &str) -> bool {
    let b = s.as_bytes();
    b.first().is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_')
        && b.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.'))
}

fn at_line(line: usize, m: String) -> Diagnostic {
    Diagnostic::new("syntax", m).at(format!("line {line}"))
}

fn string_end(b: &[u8], start: usize) -> Option<usize> {
    let mut i = start + 1;
    while i < b.len() {
        match b[i] {
            b'\\' => i += 2,
            b'"' => return Some(i + 1),
            _ => i += 1,
        }
    }
    None
}

fn number_end(b: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < b.len() {
        let exponent_sign = matches!(b[i], b'+' | b'-') && matches!(b[i - 1], b'e' | b'E');
        if !(b[i].is_ascii_alphanumeric() || b[i] == b'.' || exponent_sign) {
            break;
        }
        i += 1;
    }
    i
}
