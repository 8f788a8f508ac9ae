//! Owns how a file comes to its place: without a name until it is whole where the file system can, else under a temporary
//! name beside it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;

use super::refuse_existing;

/// The name that a file has before it is whole, on file systems that have no files without a name.
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// A file that is not at its place yet. It goes when this goes.
pub(super) struct Unnamed<'p> {
    path: &'p Path,
    file: File,
    /// Where it lies meanwhile; nowhere if it has no name.
    aside: Option<PathBuf>,
}

impl<'p> Unnamed<'p> {
    /// An empty file for `path`.
    pub(super) fn new(path: &'p Path) -> io::Result<Self> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The system masks the mode as it does that of any new file.
        let mode = Mode::from_raw_mode(0o666);
        let made = open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).map(File::from);
        match made {
            // It is named through its entry there.
            Ok(file) if entry(&file).exists() => return Ok(Unnamed { path, file, aside: None }),
            // A file system, or a system, that has no such files says one of these.
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        let aside = temporary(path);
        let file = OpenOptions::new().write(true).create_new(true).open(&aside)?;
        Ok(Unnamed { path, file, aside: Some(aside) })
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file, which is whole, its name.
    ///
    /// # Errors
    /// Something has come to stand there, or the system refuses.
    pub(super) fn name(mut self) -> io::Result<()> {
        match &self.aside {
            None => Ok(linkat(CWD, entry(&self.file), CWD, self.path, AtFlags::SYMLINK_FOLLOW)?),
            Some(aside) => {
                refuse_existing(self.path)?;
                fs::rename(aside, self.path)?;
                self.aside = None;
                Ok(())
            }
        }
    }
}

impl Drop for Unnamed<'_> {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            // The error that led here is the one to report.
            let _ = fs::remove_file(aside);
        }
    }
}

/// A file by its descriptor.
fn entry(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").file_name());
        names.map(|n| n.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn both_ways_leave_nothing_on_the_way_and_never_overwrite() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("f");
        let aside = |path| {
            let file = File::create_new(temporary(path)).expect("a file");
            Unnamed { path, file, aside: Some(temporary(path)) }
        };
        for named in [false, true] {
            let make = || if named { aside(&path) } else { Unnamed::new(&path).expect("a file") };
            drop(make());
            assert_eq!(names(dir.path()), [""; 0]);
            let mut made = make();
            made.file().write_all(b"new").expect("write");
            fs::write(&path, "mine").expect("write");
            assert_eq!(made.name().map_err(|e| e.kind()), Err(io::ErrorKind::AlreadyExists), "{named}");
            assert_eq!((names(dir.path()), fs::read(&path).expect("read")), (vec!["f".into()], b"mine".to_vec()));
            fs::remove_file(&path).expect("remove");
            let mut made = make();
            made.file().write_all(b"new").expect("write");
            made.name().expect("name");
            assert_eq!((names(dir.path()), fs::read(&path).expect("read")), (vec!["f".into()], b"new".to_vec()));
            fs::remove_file(&path).expect("remove");
        }
    }
}
