//! Owns the rendering of errors: one line on stderr, one object on stdout with `--json`, and the exit code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use glmc_frontend_gguf::InputError;
use glmc_runtime::RuntimeError;

use crate::terminal::{escaped, say, try_print};

/// What a command failed with.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) class: &'static str,
    pub(crate) code: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) subject: Option<String>,
    pub(crate) message: String,
    /// What was found out on the way: stands beside the error in its object.
    pub(crate) found: Option<Box<serde_json::Value>>,
}

impl CliError {
    /// The command line asks for something that cannot be.
    pub(crate) fn usage(code: &str, message: impl Into<String>) -> Self {
        CliError { class: "usage", code: code.into(), file: None, subject: None, message: message.into(), found: None }
    }

    /// A fault of this program.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = format!("{}; this is a bug of glmc, please report it", message.into());
        CliError { class: "internal", ..Self::usage("internal", message) }
    }

    /// A file cannot be read or written.
    pub(crate) fn io(path: &Path, e: &std::io::Error) -> Self {
        CliError { class: "io", file: Some(path.into()), ..Self::usage("io", e.to_string()) }
    }

    /// The same about a file.
    pub(crate) fn of(mut self, path: &Path) -> Self {
        self.file = Some(path.into());
        self
    }

    /// The same about a file, where it is not yet about one.
    pub(crate) fn at(mut self, path: &Path) -> Self {
        self.file.get_or_insert_with(|| path.into());
        self
    }

    /// The same in another class.
    pub(crate) fn class(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// The error on one line, without what would act on a terminal.
    pub(crate) fn line(&self) -> String {
        format!("error[{}/{}]: {}", self.class, self.code, self.place_and_message())
    }

    /// `PATH: MESSAGE`, without what would act on a terminal.
    pub(crate) fn place_and_message(&self) -> String {
        let at = self.file.as_ref().map(|f| format!("{}: ", f.display())).unwrap_or_default();
        // Line breaks in a message are glmc's own; any other control character comes from a file or its name.
        escaped(&format!("{at}{}", self.message.replace('\n', " ")))
    }

    /// The error as an object.
    pub(crate) fn object(&self) -> serde_json::Value {
        let file = self.file.as_ref().map(|p| p.display().to_string());
        let mut object = self.found.as_deref().cloned().unwrap_or_else(|| serde_json::json!({}));
        object["error"] = serde_json::json!({
            "class": self.class, "code": self.code, "file": file, "subject": self.subject, "message": self.message,
        });
        object
    }

    fn exit(&self) -> u8 {
        match self.class {
            "usage" => 2,
            "device" => 4,
            "selftest" | "verification" => 5,
            "internal" => 1,
            _ => 3,
        }
    }

    /// Prints the error; the exit code of the process. A stream that cannot be written changes neither.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        say(&self.line());
        if json {
            let _ = try_print(&format!("{}\n", self.object()));
        }
        ExitCode::from(self.exit())
    }
}

/// Renders what clap says: help and version on stdout with 0, mistakes as one line on stderr with 2.
pub(crate) fn usage(e: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(e.kind(), DisplayHelp | DisplayVersion) {
        return match crate::cmd::print_text(&e.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => e.report(false),
        };
    }
    if e.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        say(e.to_string().trim_end());
        return ExitCode::from(2);
    }
    let text = e.to_string();
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("For more information")).collect();
    let message = lines.join("; ").replace(":;", ":");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let json = std::env::args_os().any(|a| a == OsStr::new("--json"));
    CliError::usage("arguments", message).report(json)
}

impl From<InputError> for CliError {
    fn from(e: InputError) -> Self {
        CliError {
            class: e.class.as_str(),
            code: e.code.into(),
            file: Some(e.file),
            subject: e.subject,
            message: e.message,
            found: None,
        }
    }
}

impl From<RuntimeError> for CliError {
    fn from(e: RuntimeError) -> Self {
        let mut message = e.to_string();
        let numbers = e.is_numbers();
        if numbers {
            message.push_str(
                "; the model's weights give no numbers to choose from: compare the file's checksum with its source's, or \
                 use another quantisation",
            );
        }
        let new = |class, code: &str, file| CliError {
            class,
            code: code.into(),
            file,
            subject: None,
            message: message.clone(),
            found: None,
        };
        match e {
            RuntimeError::Io { path, message } => CliError { message, ..new("io", "io", Some(path)) },
            RuntimeError::Plan { path, code, message } => CliError { message, ..new("plan", code, Some(path)) },
            RuntimeError::NoPhase { .. } => new("plan", "no-phase", None),
            RuntimeError::Request(_) => new("usage", "request", None),
            RuntimeError::Context(_) => new("usage", "context", None),
            RuntimeError::Memory { .. } => new("memory", "allocation", None),
            RuntimeError::Threads(_) => new("memory", "threads", None),
            RuntimeError::Rank { source, .. } => CliError { message, ..CliError::from(*source) },
            RuntimeError::Numbers(_) => new("model", "numbers", None),
            RuntimeError::Unsound(u) => {
                CliError { subject: Some(u.value.clone()), ..new("verification", "no-number", None) }
            }
            RuntimeError::Kernel { .. } if numbers => new("model", "numbers", None),
            RuntimeError::Kernel { .. } | RuntimeError::Meet { .. } => new("device", "kernel", None),
            RuntimeError::Cuda { source, .. } if source.is_memory() => new("device", "device-memory", None),
            RuntimeError::Cuda { .. } => new("device", "cuda", None),
            RuntimeError::Died(_) => new("device", "rank-died", None),
        }
    }
}
