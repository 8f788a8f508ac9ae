//! Owns the cheap identity of a weight file part: a hash of its header and a hash of a few fixed samples of its data.
//!
//! It never needs a parsed file: path and recorded header length are enough, so a runtime can repeat both checks
//! before it trusts a plan. It is a crate of its own because the frontend and the runtime both need it and know nothing
//! of each other.
//!
//! **Where the samples lie.** Let `n` be the file's size and `h` the recorded header length (the bytes up to the end of
//! the tensor table, before the padding). The rest is `r = n - h` bytes. If `r <= 65536`, the sample is all of it.
//! Otherwise it is 16 pieces of 4096 bytes; piece `i` starts at `h + floor((r - 4096) * i / 15)`, so the first lies
//! right after the header and the last ends with the file. The size is not part of the hash: record it as well.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Pieces a sample consists of.
pub const SAMPLES: u64 = 16;
/// Bytes of one piece.
pub const SAMPLE_BYTES: u64 = 4096;

/// The byte ranges `(offset, length)` that [`sample_hash`] covers, in order; at most 64 KiB in all.
pub fn sample_ranges(file_bytes: u64, header_bytes: u64) -> Vec<(u64, u64)> {
    let rest = file_bytes.saturating_sub(header_bytes);
    if rest <= SAMPLES * SAMPLE_BYTES {
        return if rest == 0 { Vec::new() } else { vec![(header_bytes, rest)] };
    }
    let room = u128::from(rest - SAMPLE_BYTES);
    let last = u128::from(SAMPLES - 1);
    // room * i / last <= room, so it fits u64 again.
    (0..SAMPLES).map(|i| (header_bytes + (room * u128::from(i) / last) as u64, SAMPLE_BYTES)).collect()
}

/// Opens a regular file for reading. Anything else is refused and never waited for: opening a FIFO takes until another
/// process opens its other end.
///
/// # Errors
/// The file cannot be opened, or is a folder, a FIFO, a socket or a device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Without effect on a regular file.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"))
}

/// blake3 (lower-case hex) of the first `header_bytes` bytes of a file.
///
/// # Errors
/// The file cannot be read, or is shorter than that.
pub fn header_hash(path: &Path, header_bytes: u64) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hash_range(&mut open_regular(path)?, &mut hasher, 0, header_bytes)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// blake3 (lower-case hex) of the sampled data of a file, see the module documentation for the offsets.
///
/// # Errors
/// The file cannot be read, or shrank while it was read.
pub fn sample_hash(path: &Path, header_bytes: u64) -> io::Result<String> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    for (offset, length) in sample_ranges(size, header_bytes) {
        hash_range(&mut file, &mut hasher, offset, length)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// blake3 (lower-case hex) of bytes in memory.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn hash_range(file: &mut File, hasher: &mut blake3::Hasher, offset: u64, length: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    let mut buffer = [0u8; SAMPLE_BYTES as usize];
    let mut left = length;
    while left > 0 {
        let want = left.min(SAMPLE_BYTES) as usize;
        file.read_exact(&mut buffer[..want])?;
        hasher.update(&buffer[..want]);
        left -= want as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stay_inside_and_reach_both_ends() {
        assert!(sample_ranges(100, 100).is_empty());
        assert!(sample_ranges(50, 100).is_empty());
        assert_eq!(sample_ranges(65_636, 100), [(100, 65_536)]);
        for size in [65_637, 1 << 20, 467_279_569_920, u64::MAX] {
            let ranges = sample_ranges(size, 100);
            assert_eq!(ranges.len(), 16);
            assert_eq!(ranges[0].0, 100);
            assert_eq!(ranges[15].0 + ranges[15].1, size);
            assert!(ranges.windows(2).all(|w| w[0].0 < w[1].0));
        }
    }

    #[test]
    fn only_regular_files_open() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("f");
        std::fs::write(&path, b"x").expect("write");
        assert!(open_regular(&path).is_ok());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(open_regular(&link).is_ok());
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
        assert!(made.success());
        for other in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            let e = open_regular(other).expect_err("refused");
            assert_eq!(e.to_string(), "is not a regular file", "{}", other.display());
        }
    }

    #[test]
    fn a_changed_byte_in_a_sample_shows() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("f");
        let mut bytes = vec![7u8; 200_000];
        std::fs::write(&path, &bytes).expect("write");
        let (h, s) = (header_hash(&path, 64).expect("header"), sample_hash(&path, 64).expect("sample"));
        bytes[199_999] = 8;
        std::fs::write(&path, &bytes).expect("write");
        assert_eq!(header_hash(&path, 64).expect("header"), h);
        assert_ne!(sample_hash(&path, 64).expect("sample"), s);
        assert!(header_hash(&path, 300_000).is_err());
    }
}
