//! Owns the text of types: `[state ]elem[dims][ rows][ +axis]`. `Display` of the types prints what this parses.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lexer::{Lexer, Token};
use crate::diag::Diagnostic;
use crate::ty::{Dim, Elem, Extent, Layout, PendingKind, Piece, Split, TensorType};

/// Parses one type; the whole text must be used.
pub fn parse_type(text: &str) -> Result<TensorType, Diagnostic> {
    let mut lx = Lexer::new(text)?;
    let t = tensor_type(&mut lx)?;
    lx.end()?;
    Ok(t)
}

/// Parses one dim; the whole text must be used.
pub fn parse_dim(text: &str) -> Result<Dim, Diagnostic> {
    let mut lx = Lexer::new(text)?;
    let d = dim(&mut lx)?;
    lx.end()?;
    Ok(d)
}

pub(super) fn tensor_type(lx: &mut Lexer<'_>) -> Result<TensorType, Diagnostic> {
    let state = lx.eat_word("state");
    let name = lx.word("an element type")?;
    let elem = Elem::from_name(&name).ok_or_else(|| lx.error(format!("there is no element type `{name}`")))?;
    lx.expect('[')?;
    let mut dims = Vec::new();
    while !lx.eat(']') {
        if !dims.is_empty() {
            lx.expect(',')?;
        }
        dims.push(dim(lx)?);
    }
    let mut t = TensorType { state, ..TensorType::new(elem, dims) };
    if let Some(Token::Word(w)) = lx.peek()
        && let Some(layout) = Layout::from_name(w)
    {
        t.layout = layout;
        lx.next();
    }
    t.pending = pending(lx)?;
    Ok(t)
}

fn pending(lx: &mut Lexer<'_>) -> Result<Option<(PendingKind, crate::ty::Axis)>, Diagnostic> {
    for (kind, sigil) in PendingKind::ALL {
        let word = sigil.trim_end_matches('+');
        let found = if word.is_empty() { lx.eat('+') } else { lx.eat_word_then(word, '+') };
        if found {
            return Ok(Some((kind, lx.word("a mesh axis")?.as_str().into())));
        }
    }
    Ok(None)
}

pub(super) fn dim(lx: &mut Lexer<'_>) -> Result<Dim, Diagnostic> {
    let extent = match lx.next() {
        Some(Token::Int(n)) => Extent::Const(n),
        Some(Token::Word(w)) => Extent::Sym(w.as_str().into()),
        Some(Token::Punct('{')) => {
            let mut pieces: Vec<(Piece, u64)> = Vec::new();
            while !lx.eat('}') {
                if !pieces.is_empty() {
                    lx.expect(',')?;
                }
                let name = lx.word("a piece name")?;
                lx.expect(':')?;
                pieces.push((name.as_str().into(), lx.int()?));
            }
            Extent::Joined(pieces)
        }
        _ => return Err(lx.error("expected a dim: a number, a symbol or {pieces}")),
    };
    let split = if lx.eat('/') { Some(split(lx)?) } else { None };
    Ok(Dim { extent, split })
}

/// `axis`, or `axis:unit`.
fn split(lx: &mut Lexer<'_>) -> Result<Split, Diagnostic> {
    let axis = lx.word("a mesh axis")?.as_str().into();
    let unit = if lx.eat(':') { lx.int()? } else { 1 };
    Ok(Split { axis, unit })
}

macro_rules! as_text {
    ($t:ty, $parse:path) => {
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                $parse(&text).map_err(|e| serde::de::Error::custom(e.message))
            }
        }
    };
}

as_text!(TensorType, parse_type);
as_text!(Dim, parse_dim);
