//! A cache of compiled kernels in a directory.
//!
//! The driver compiles PTX for its device, which takes up to a second a kernel. The result depends
//! on the PTX, the device and the driver, so these are the key. A file begins with the BLAKE3 hash
//! of the rest, and is renamed into place, so that a reader finds it whole or not at all. The cache
//! is never needed: an entry that is absent or damaged is compiled and written again.
//!
//! The hash detects damage, and not an attacker: processes that may write the directory may run
//! code on the device.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum size of an entry. The largest kernel takes about 100 KB.
const ENTRY_BYTES_MAX: usize = 2 << 20;
/// Maximum size of all entries: the 18 kernels of one device, driver and storage format take less
/// than 2 MiB, so that those of eight remain, as of a node pool of several GPUs before and after an
/// update.
const CACHE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files of a directory that are looked at: 50 times those of a full cache.
const FILES_MAX: usize = 8192;
const HASH_BYTES: usize = blake3::OUT_LEN;
/// End of the name of an entry, and part of that of a file that is being written.
const EXTENSION: &str = "cubin";

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
        file.take(ENTRY_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
        let (hash, cubin) = bytes.split_at_checked(HASH_BYTES)?;
        (!cubin.is_empty() && blake3::hash(cubin) == *hash).then(|| cubin.to_vec())
    }

    /// Adds a compiled kernel, or replaces it. The oldest entries are removed if all together
    /// would exceed 16 MiB.
    ///
    /// # Errors
    /// The directory cannot be created or written, or the kernel is larger than 2 MiB.
    pub fn write(&self, key: &CubinKey, cubin: &[u8]) -> io::Result<()> {
        self.write_bounded(key, cubin, CACHE_BYTES_MAX)
    }

    fn write_bounded(&self, key: &CubinKey, cubin: &[u8], bytes_max: u64) -> io::Result<()> {
        let size = cubin.len().saturating_add(HASH_BYTES);
        if size > ENTRY_BYTES_MAX {
            return Err(io::Error::other(format!("an entry of {size} bytes; the limit is {ENTRY_BYTES_MAX}")));
        }
        fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(key.file_name());
        self.evict(&path, bytes_max.saturating_sub(size as u64))?;
        let scratch = self.scratch_path(key);
        let written = write_entry(&scratch, cubin).and_then(|()| fs::rename(&scratch, path));
        if written.is_err() {
            // Nothing depends on the rest of a failed write, and the first error is reported.
            drop(fs::remove_file(&scratch));
        }
        written
    }

    /// Returns a path for an entry that is being written, so that writers of the same kernel have files
    /// of their own. It is random, because processes in several containers may share the directory and
    /// have equal ids.
    fn scratch_path(&self, key: &CubinKey) -> PathBuf {
        let random = RandomState::new().build_hasher().finish();
        self.directory.join(format!(".{}.{random:016x}", key.file_name()))
    }

    /// Removes the oldest files of the cache until the others have at most this many bytes, without
    /// the one that is replaced. Files that a process left unfinished count, other files do not.
    fn evict(&self, replaced: &Path, bytes_max: u64) -> io::Result<()> {
        let listed = fs::read_dir(&self.directory)?.take(FILES_MAX).flatten();
        let mut files: Vec<_> = listed.filter_map(|entry| file_age(&entry)).collect();
        files.retain(|(_, _, path)| path != replaced);
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| *size).sum();
        for (_, size, path) in files {
            if total <= bytes_max {
                break;
            }
            // Another process may have removed it.
            drop(fs::remove_file(path));
            total = total.saturating_sub(size);
        }
        Ok(())
    }
}

/// Size and age of a file of the cache.
fn file_age(entry: &DirEntry) -> Option<(SystemTime, u64, PathBuf)> {
    let (name, path) = (entry.file_name(), entry.path());
    let is_scratch = name.to_str().is_some_and(|name| name.starts_with('.') && name.contains(".cubin."));
    if !is_scratch && path.extension() != Some(OsStr::new(EXTENSION)) {
        return None;
    }
    // Of a link, its own size.
    let metadata = entry.metadata().ok().filter(|metadata| !metadata.is_dir())?;
    Some((metadata.modified().ok()?, metadata.len(), path))
}

fn write_entry(path: &Path, cubin: &[u8]) -> io::Result<()> {
    // A file of another writer is never truncated.
    let mut file = File::create_new(path)?;
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
    fn writers_of_one_entry_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        let scratch = [cache.scratch_path(&key()), cache.scratch_path(&key())];
        assert_ne!(scratch[0], scratch[1]);
        write_entry(&scratch[0], b"one").unwrap();
        assert!(write_entry(&scratch[0], b"two").is_err(), "a file of another writer is kept");
        cache.write_bounded(&key(), b"three", HASH_BYTES as u64 + 5).unwrap();
        assert!(!scratch[0].exists(), "an unfinished file is removed like an old entry");
        assert_eq!(cache.read(&key()).as_deref(), Some(b"three".as_slice()));
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

    #[test]
    fn the_oldest_entries_are_removed_at_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        let of = |driver_version| CubinKey { driver_version, ..key() };
        let age = |path: &Path, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        let size = 100 + HASH_BYTES as u64;
        let unrelated = folder.path().join("notes");
        fs::write(&unrelated, [0; 5000]).unwrap();
        let scratch = folder.path().join(format!(".{}.1", of(9).file_name()));
        fs::write(&scratch, [0; 50]).unwrap();
        age(&scratch, 1);
        for version in 1..=4 {
            cache.write_bounded(&of(version), &[1; 100], 3 * size).unwrap();
            age(&folder.path().join(of(version).file_name()), 10 + u64::from(version));
        }
        let found: Vec<bool> = (1..=4).map(|version| cache.read(&of(version)).is_some()).collect();
        assert_eq!(found, [false, true, true, true]);
        assert!(!scratch.exists() && unrelated.exists());
        cache.write_bounded(&of(3), &[2; 100], 3 * size).unwrap();
        assert!(cache.read(&of(2)).is_some(), "an entry that is replaced needs no room beside itself");
        assert!(cache.write(&key(), &vec![0; ENTRY_BYTES_MAX]).is_err());
    }
}
