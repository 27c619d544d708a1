//! A memory-mapped file.

#![expect(unsafe_code, reason = "a memory map is unsafe to create, because others may change its file")]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// A file that is mapped into memory. Its pages are read on demand, and belong to the page cache.
#[derive(Debug)]
pub(super) struct FileMap {
    name: String,
    map: Mmap,
}

// === impl FileMap ===

impl FileMap {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the bytes of a map must not change while it exists. Files of models are published
        // whole and replaced by renaming; the documentation of `Model::open` states this condition.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { name: path.display().to_string(), map })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
