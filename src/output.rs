//! Owns the files that a command writes besides plans: which places they may take, and their writing in one step. Never
//! a half-written file, never the loss of a file that holds something else.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use glmc_runtime::load::{MANIFEST, PLAN};

use crate::error::CliError;
use crate::plan_dir::{check_parent, check_room, check_size, parent};
use crate::signals::Unfinished;

/// What is written.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// As messages call it.
    what: &'static str,
    /// What an older one is.
    is: &'static str,
    /// What each begins with.
    begins: &'static [u8],
}

/// `run --logits`.
pub(crate) const LOGITS: Kind = Kind { what: "the logits", is: ".npy file", begins: b"\x93NUMPY" };

/// `explain --html`.
pub(crate) const PAGE: Kind =
    Kind { what: "the page", is: "page of `glmc explain`", begins: b"<!doctype html>\n<!-- glmc explain -->\n" };

/// `verify --html`.
pub(crate) const VERIFY_PAGE: Kind =
    Kind { what: "the page", is: "page of `glmc verify`", begins: b"<!doctype html>\n<!-- glmc verify -->\n" };

/// `bench --trace`.
pub(crate) const TRACE: Kind = Kind {
    what: "the trace",
    is: "trace of `glmc bench`",
    begins: b"{\"displayTimeUnit\":\"ns\",\"otherData\":{\"by\":\"glmc bench\"}",
};

impl Kind {
    /// What each file of this kind begins with, as text.
    pub(crate) fn begins(self) -> std::borrow::Cow<'static, str> {
        String::from_utf8_lossy(self.begins)
    }
}

/// A place that was free or held a file of the same kind.
pub(crate) struct Place {
    kind: Kind,
    /// As the user named it.
    named: PathBuf,
    /// The file itself, where a link was named.
    file: PathBuf,
}

impl Place {
    /// Judges a place before anything is computed for it.
    ///
    /// # Errors
    /// Class `usage`: it holds something else, lies in a plan, or there is no such folder. Class `io`: it cannot be
    /// looked at, or nothing can be written there.
    pub(crate) fn check(kind: Kind, path: &Path) -> Result<Self, CliError> {
        let file = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let place = Place { kind, named: path.into(), file };
        place.recheck()?;
        let aside = place.aside();
        let tried = Unfinished::new(&aside, || File::create_new(&aside));
        tried.map_err(|e| CliError::io(path, &e))?;
        Ok(place)
    }

    fn recheck(&self) -> Result<(), CliError> {
        let (path, Kind { what, is, begins }) = (&self.named, self.kind);
        let refuse = |why: &str| {
            let m = format!("{why}; choose another place for {what}");
            Err(CliError::usage("output-exists", m).of(path))
        };
        match fs::symlink_metadata(path) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                check_parent(path, what)?;
                // `x/` is the name of a folder only.
                if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    return refuse("is no name of a file");
                }
                return self.outside_plans();
            }
            Err(e) => return Err(CliError::io(path, &e)),
            Ok(_) => {}
        }
        match fs::metadata(path) {
            Ok(m) if m.is_file() => {}
            Ok(_) => return refuse("exists and is no regular file"),
            Err(_) => return refuse("is a link that leads nowhere"),
        }
        let mut head = Vec::new();
        let read = File::open(path).and_then(|f| f.take(begins.len() as u64).read_to_end(&mut head));
        read.map_err(|e| CliError::io(path, &e))?;
        if head == begins { self.outside_plans() } else { refuse(&format!("exists and is no {is}")) }
    }

    /// A plan that holds another file is no plan any more, and would never be replaced.
    fn outside_plans(&self) -> Result<(), CliError> {
        let folder = parent(&self.file);
        if [PLAN, MANIFEST].iter().all(|n| folder.join(n).exists()) {
            let m = format!("would lie in a plan; choose another place for {}", self.kind.what);
            return Err(CliError::usage("output-in-plan", m).of(&self.named));
        }
        Ok(())
    }

    /// Where the file is made. The name is short, so that it can be given wherever the file's own can.
    fn aside(&self) -> PathBuf {
        let aside = self.file.with_file_name(format!(".glmc-unfinished-{}", std::process::id()));
        // Only a process of this very number, now dead, can have left it.
        let _ = fs::remove_file(&aside);
        aside
    }

    /// Writes at most `bytes` bytes, beside the place and then moved there.
    ///
    /// # Errors
    /// As for [`Place::check`]: what has come to stand there meanwhile is not lost either.
    pub(crate) fn write(
        &self,
        bytes: u64,
        fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CliError> {
        self.recheck()?;
        check_room(&self.file, std::iter::once(bytes))?;
        let aside = self.aside();
        let made = || -> io::Result<()> {
            check_size(bytes)?;
            let (unfinished, file) = Unfinished::new(&aside, || File::create_new(&aside))?;
            let mut buffered = BufWriter::new(file);
            fill(&mut buffered)?;
            buffered.into_inner()?.sync_all()?;
            unfinished.finish(|| fs::rename(&aside, &self.file))?;
            File::open(parent(&self.file))?.sync_all()
        };
        made().map_err(|e| CliError::io(&self.named, &e))
    }

    /// Writes `f32[rows, vocab]` as `.npy`.
    ///
    /// # Errors
    /// As for [`Place::write`].
    pub(crate) fn write_npy(&self, logits: &[f32], rows: usize, vocab: u64) -> Result<(), CliError> {
        use npyz::WriterBuilder;
        // The header takes at most this much more.
        self.write(size_of_val(logits) as u64 + 256, |buffered| {
            let options = npyz::WriteOptions::new().default_dtype().shape(&[rows as u64, vocab]);
            let mut w = options.writer(buffered).begin_nd()?;
            w.extend(logits.iter().copied())?;
            w.finish()
        })
    }
}
