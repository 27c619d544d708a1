//! A cache of compiled kernels in a directory.
//!
//! The driver compiles PTX for its device, which takes up to a second a kernel. The result depends
//! on the PTX, the device and the driver, so these are the key. A file begins with the BLAKE3 hash
//! of the rest, and is renamed into place, so that a reader finds it whole or not at all. The cache
//! is never needed: an entry that is absent or damaged is compiled and written again.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Maximum size of an entry. The largest kernel takes about 100 KB.
const ENTRY_BYTES_MAX: u64 = 16 << 20;
const HASH_BYTES: usize = blake3::OUT_LEN;

/// Key of a compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CubinKey {
    /// SHA-256 of the PTX in hexadecimal digits.
    pub ptx_sha256: String,
    /// Compute capability of the device.
    pub capability: (u32, u32),
    /// Version of CUDA that the driver supports, as in `DeviceProperties`.
    pub driver_version: u32,
}

/// A directory of compiled kernels. It may be shared by processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CubinCache {
    directory: PathBuf,
}

// === impl CubinKey ===

impl CubinKey {
    fn file_name(&self) -> String {
        let Self { ptx_sha256, capability: (major, minor), driver_version } = self;
        format!("{ptx_sha256}-sm{major}{minor}-{driver_version}.cubin")
    }
}

// === impl CubinCache ===

impl CubinCache {
    /// Creates a cache in a directory, which is created with the first entry.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns a compiled kernel. `None` if there is none, or if it is damaged.
    #[must_use]
    pub fn read(&self, key: &CubinKey) -> Option<Vec<u8>> {
        let file = File::open(self.directory.join(key.file_name())).ok()?;
        let mut bytes = Vec::new();
        file.take(ENTRY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let (hash, cubin) = bytes.split_at_checked(HASH_BYTES)?;
        (!cubin.is_empty() && blake3::hash(cubin) == *hash).then(|| cubin.to_vec())
    }

    /// Adds a compiled kernel, or replaces it.
    ///
    /// # Errors
    /// The directory cannot be created or written.
    pub fn write(&self, key: &CubinKey, cubin: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(key.file_name());
        // Processes that compile the same kernel write files of their own.
        let scratch = self.directory.join(format!(".{}.{}", key.file_name(), std::process::id()));
        let written = write_entry(&scratch, cubin).and_then(|()| fs::rename(&scratch, path));
        if written.is_err() {
            // Nothing depends on the rest of a failed write, and the first error is reported.
            drop(fs::remove_file(&scratch));
        }
        written
    }
}

fn write_entry(path: &Path, cubin: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(blake3::hash(cubin).as_bytes())?;
    file.write_all(cubin)?;
    // Without it, a crash of the machine could leave an empty file under the final name.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CubinKey {
        CubinKey { ptx_sha256: "ab".repeat(32), capability: (9, 0), driver_version: 13_000 }
    }

    #[test]
    fn entries_are_found_by_ptx_device_and_driver() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(&folder.path().join("absent"));
        assert_eq!(cache.read(&key()), None);
        cache.write(&key(), b"machine code").unwrap();
        assert_eq!(cache.read(&key()).as_deref(), Some(b"machine code".as_slice()));
        cache.write(&key(), b"other code").unwrap();
        assert_eq!(cache.read(&key()).as_deref(), Some(b"other code".as_slice()));
        for other in [
            CubinKey { ptx_sha256: "cd".repeat(32), ..key() },
            CubinKey { capability: (8, 0), ..key() },
            CubinKey { driver_version: 12_080, ..key() },
        ] {
            assert_eq!(cache.read(&other), None);
        }
        let names = fs::read_dir(folder.path().join("absent")).unwrap().count();
        assert_eq!(names, 1, "no scratch file remains");
    }

    #[test]
    fn damaged_entries_are_ignored_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        cache.write(&key(), &[7; 1000]).unwrap();
        let path = folder.path().join(key().file_name());
        let whole = fs::read(&path).unwrap();
        for length in [0, 1, HASH_BYTES, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cache.read(&key()), None, "{length} bytes");
        }
        for at in [0, HASH_BYTES - 1, HASH_BYTES, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert_eq!(cache.read(&key()), None, "byte {at}");
        }
        cache.write(&key(), &[8; 10]).unwrap();
        assert_eq!(cache.read(&key()), Some(vec![8; 10]));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(CubinCache::new(&file).write(&key(), &[1]).is_err());
        assert_eq!(CubinCache::new(&file).read(&key()), None);
    }
}
