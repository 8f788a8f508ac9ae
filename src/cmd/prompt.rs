//! Owns the ids that a run starts from: the prompt as text, as a file, as ids or as the turn of a chat. A text is never
//! read, let alone tokenised, much further than the plan can take it.

use std::io::Read;
use std::path::Path;

use glmc_ir::plan::{Limits, Plan};
use glmc_runtime::load::read_sealed_if_any;
use glmc_runtime::text::{Chat, ChatTemplate, Message, TextError, Tokenizer};

use super::human_bytes;
use crate::cli::RunArgs;
use crate::error::CliError;
use crate::template;

/// Name of the chat template in a plan.
pub(crate) const TEMPLATE: &str = "chat_template.jinja";

/// The ids to start from.
///
/// # Errors
/// A prompt that is empty, that cannot be read, or that the plan has no room for.
pub(crate) fn ids(args: &RunArgs, dir: &Path, tokenizer: &Tokenizer, plan: &Plan) -> Result<Vec<u32>, CliError> {
    let room = Room::of(&plan.limits, tokenizer);
    if let Some(ids) = &args.tokens {
        let vocab = plan.model.vocab;
        return match ids.iter().find(|t| u64::from(**t) >= vocab) {
            Some(t) => Err(CliError::usage("tokens", format!("--tokens: id {t} is outside the vocabulary of {vocab}"))),
            None if ids.len() > room.tokens => Err(room.refuse(&format!("{} tokens", ids.len()))),
            None => Ok(ids.clone()),
        };
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(t), _) => t.clone(),
        (None, Some(path)) => read(path, &room)?,
        (None, None) => return Err(CliError::usage("no-prompt", "give --prompt, --prompt-file or --tokens")),
    };
    let at = |e: CliError| args.prompt_file.iter().fold(e, |e, path| e.at(path));
    let ids = if args.chat {
        chat(args, dir, tokenizer, text, &room)
    } else {
        tokenizer.encode_at_most(&text, true, room.tokens).map_err(|e| text_error(e, &room))
    };
    let ids = ids.map_err(at)?;
    if ids.is_empty() {
        return Err(at(CliError::usage("empty-prompt", "the prompt is empty: there is nothing to continue")));
    }
    Ok(ids)
}

/// What a plan can take.
pub(crate) struct Room {
    pub(crate) tokens: usize,
    /// No longer text has so few tokens.
    bytes: u64,
    what: &'static str,
    flag: &'static str,
}

impl Room {
    fn of(limits: &Limits, tokenizer: &Tokenizer) -> Room {
        let (tokens, what, flag) = if limits.cache_rows < limits.ctx {
            (limits.cache_rows, "the plan's caches hold", "--cache")
        } else {
            (limits.ctx, "the plan's context is", "--ctx")
        };
        let bytes = tokens.saturating_mul(tokenizer.longest_token() as u64);
        Room { tokens: usize::try_from(tokens).unwrap_or(usize::MAX), bytes, what, flag }
    }

    fn refuse(&self, has: &str) -> CliError {
        let Room { tokens, what, flag, .. } = self;
        let m =
            format!("the prompt has {has} and {what} {tokens}; compile with a larger {flag} or give a shorter prompt");
        CliError::usage("context", m)
    }

    fn refuse_bytes(&self, has: &str) -> CliError {
        let Room { tokens, bytes, what, flag } = self;
        let m = format!(
            "the prompt has {has} and {what} {tokens} tokens, which are at most {bytes} bytes of text; compile with a \
             larger {flag} or give a shorter prompt"
        );
        CliError::usage("context", m)
    }
}

/// The text of a prompt file: a regular file, or a pipe, of which no more is read than can be used.
fn read(path: &Path, room: &Room) -> Result<String, CliError> {
    let io = |e: std::io::Error| CliError::io(path, &e);
    let file = std::fs::File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_file() && meta.len() > room.bytes {
        return Err(room.refuse_bytes(&format!("{} bytes ({})", meta.len(), human_bytes(meta.len()))).of(path));
    }
    let mut bytes = Vec::new();
    file.take(room.bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > room.bytes {
        return Err(room.refuse_bytes(&format!("more than {} bytes", room.bytes)).of(path));
    }
    String::from_utf8(bytes).map_err(|_| CliError::usage("prompt", "is not UTF-8 text").class("format").of(path))
}

fn chat(args: &RunArgs, dir: &Path, tokenizer: &Tokenizer, user: String, room: &Room) -> Result<Vec<u32>, CliError> {
    let Some(source) = read_sealed_if_any(dir, TEMPLATE)? else {
        let m = "the model has no chat template; run without --chat and write the turns yourself";
        return Err(CliError::usage("no-template", m).class("model").of(dir));
    };
    let turns = user.len() + args.system.as_ref().map_or(0, String::len);
    if turns as u64 > room.bytes {
        return Err(room.refuse_bytes(&format!("{turns} bytes")));
    }
    let mut messages = Vec::new();
    messages.extend(args.system.clone().map(|s| Message::new("system", s)));
    messages.push(Message::new("user", user));
    let template = ChatTemplate::unchecked(String::from_utf8_lossy(&source));
    template.encode_with(tokenizer, &Chat::new(messages), room.tokens, template::render).map_err(|e| match e {
        TextError::Template(_) | TextError::Limit(..) => {
            CliError::usage("text", e.to_string()).class("model").of(&dir.join(TEMPLATE))
        }
        e => text_error(e, room),
    })
}

fn text_error(e: TextError, room: &Room) -> CliError {
    match e {
        TextError::Long(most) => room.refuse(&format!("more than {most} tokens")),
        TextError::NoRoom(_) => CliError::usage("allocation", e.to_string()).class("memory"),
        e => CliError::usage("text", e.to_string()),
    }
}
