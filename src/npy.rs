//! Owns the logits file: which places it may take, and its writing in one step. Never a half-written file, never the
//! loss of a file that holds something else.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::CliError;
use crate::plan_dir::{check_parent, check_size};

/// What every `.npy` file begins with.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// A place that was free or held an `.npy` file.
pub(crate) struct Place {
    /// As the user named it.
    named: PathBuf,
    /// The file itself, where a link was named.
    file: PathBuf,
}

impl Place {
    /// Judges a place before anything is computed for it.
    ///
    /// # Errors
    /// Class `usage`: it holds something else, or there is no such folder. Class `io`: it cannot be looked at.
    pub(crate) fn check(path: &Path) -> Result<Self, CliError> {
        let place = Place { named: path.into(), file: fs::canonicalize(path).unwrap_or_else(|_| path.into()) };
        place.recheck()?;
        Ok(place)
    }

    fn recheck(&self) -> Result<(), CliError> {
        let path = &self.named;
        let refuse = |why: &str| {
            let m = format!("{why}; choose another place for the logits");
            Err(CliError::usage("output-exists", m).of(path))
        };
        match fs::symlink_metadata(path) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                check_parent(path, "the logits")?;
                // `x/` is the name of a folder only.
                let folder = path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
                return if folder { refuse("is no name of a file") } else { Ok(()) };
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
        let read = File::open(path).and_then(|f| f.take(MAGIC.len() as u64).read_to_end(&mut head));
        read.map_err(|e| CliError::io(path, &e))?;
        if head == MAGIC { Ok(()) } else { refuse("exists and is no .npy file") }
    }

    /// Writes `f32[rows, vocab]`, beside the place and then moved there.
    ///
    /// # Errors
    /// As for [`Place::check`]: what has come to stand there meanwhile is not lost either.
    pub(crate) fn write(&self, logits: &[f32], rows: usize, vocab: u64) -> Result<(), CliError> {
        self.recheck()?;
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.file.with_file_name(format!(".{name}.glmc-unfinished-{}", std::process::id()));
        // Only a process of this very number, now dead, can have left it.
        let _ = fs::remove_file(&aside);
        let file = File::create_new(&aside).map_err(|e| CliError::io(&self.named, &e))?;
        fill(file, logits, rows as u64, vocab).and_then(|()| fs::rename(&aside, &self.file)).map_err(|e| {
            let _ = fs::remove_file(&aside);
            CliError::io(&self.named, &e)
        })
    }
}

fn fill(file: File, logits: &[f32], rows: u64, vocab: u64) -> io::Result<()> {
    use npyz::WriterBuilder;
    // The header takes at most this much.
    check_size(size_of_val(logits) as u64 + 256)?;
    let mut buffered = io::BufWriter::new(file);
    let options = npyz::WriteOptions::new().default_dtype().shape(&[rows, vocab]);
    let mut w = options.writer(&mut buffered).begin_nd()?;
    w.extend(logits.iter().copied())?;
    w.finish()?;
    buffered.into_inner()?.sync_all()
}
