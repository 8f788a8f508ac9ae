//! Text in and out: tokenizer, streaming decoder, chat template.
//!
//! Owns the border between text that may contain control tokens and text that may not. It never reads a file: both
//! the tokenizer and the template come as the bytes that a plan carries.

mod chat;
mod cut;
mod json;
mod render;
mod special;
mod stream;
mod tokenizer;

pub use chat::{Chat, ChatTemplate, Message};
pub use render::Rendering;
pub use stream::StreamDecoder;
pub use tokenizer::Tokenizer;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why text could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum TextError {
    /// The tokenizer's description is broken.
    #[error("the tokenizer cannot be read: {0}")]
    Tokenizer(String),
    /// The tokenizer uses something that is not supported.
    #[error("the tokenizer has {0}, which is not supported")]
    Unsupported(String),
    /// Encoding failed.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// The chat template is broken, or refused the messages.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template is too long, runs too long, or writes too much.
    #[error("chat template: {0}, more than the {1} allowed")]
    Limit(String, usize),
    /// The system gives no memory, or no process, to render the chat template in.
    #[error("there is no room to render the chat template: {0}")]
    NoRoom(String),
    /// A text has more tokens than may be.
    #[error("the text has more than {0} tokens")]
    Long(usize),
    /// A stretch of text that has to be cut into tokens as a whole is too long.
    #[error("the text runs for more than {0} bytes without a place to cut it; break it into words or lines")]
    Unbroken(usize),
}

#[cfg(test)]
mod tests;
