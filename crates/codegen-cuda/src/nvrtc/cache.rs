//! Compiled units by the hash of what they were made from. One file an entry, written beside its place and renamed, so
//! that a reader sees a whole entry or none; an entry that does not match its own checksum counts as absent.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::report::Resources;

const MAGIC: &[u8; 8] = b"glmccub1";

/// A folder of compiled units.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Meta {
    cubin: usize,
    hash: String,
    resources: Vec<Resources>,
}

impl Cache {
    /// The cache in `folder`, which is created when the first entry is written.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Cache { folder: folder.into() }
    }

    fn place(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.unit"))
    }

    pub(super) fn get(&self, key: &str) -> Option<(Vec<u8>, Vec<Resources>)> {
        let bytes = std::fs::read(self.place(key)).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (len, rest) = rest.split_at_checked(4)?;
        let (meta, cubin) = rest.split_at_checked(u32::from_le_bytes(len.try_into().ok()?) as usize)?;
        let meta: Meta = serde_json::from_slice(meta).ok()?;
        let whole = cubin.len() == meta.cubin && blake3::hash(cubin).to_hex().as_str() == meta.hash;
        whole.then(|| (cubin.to_vec(), meta.resources))
    }

    pub(super) fn put(&self, key: &str, cubin: &[u8], resources: &[Resources]) -> std::io::Result<()> {
        let hash = blake3::hash(cubin).to_hex().to_string();
        let meta = Meta { cubin: cubin.len(), hash, resources: resources.to_vec() };
        let meta = serde_json::to_vec(&meta).map_err(std::io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(meta.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&meta);
        bytes.extend_from_slice(cubin);
        std::fs::create_dir_all(&self.folder)?;
        write_aside(&self.folder, &self.place(key), &bytes)
    }
}

fn write_aside(folder: &Path, place: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, bytes)?;
    file.as_file().sync_all()?;
    file.persist(place).map(drop).map_err(|e| e.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_and_a_damaged_one_does_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(dir.path().join("deep"));
        assert!(cache.get("k").is_none());
        let resources = vec![Resources { kernel: "k".into(), registers: 7, ..Resources::default() }];
        cache.put("k", b"cubin", &resources).expect("it is written");
        assert_eq!(cache.get("k"), Some((b"cubin".to_vec(), resources)));
        let place = cache.place("k");
        let whole = std::fs::read(&place).expect("the entry");
        for cut in 0..whole.len() {
            std::fs::write(&place, &whole[..cut]).expect("it is cut");
            assert!(cache.get("k").is_none(), "cut at {cut}");
        }
        let mut flipped = whole;
        *flipped.last_mut().expect("bytes") ^= 1;
        std::fs::write(&place, &flipped).expect("it is changed");
        assert!(cache.get("k").is_none());
    }
}
