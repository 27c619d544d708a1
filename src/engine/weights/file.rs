//! A file of weights, read by position.
//!
//! The file is not mapped into memory: a process that truncates a mapped file ends the processes
//! that read it (SIGBUS), and one that writes to it changes memory that the compiler takes for
//! constant.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;

use crate::directory::open_file;

/// An open file. Rows of its tensors are read on demand, from the page cache if it has them.
#[derive(Debug)]
pub(super) struct WeightFile {
    name: String,
    file: File,
    bytes: u64,
    /// The first failure of a read.
    failure: OnceLock<String>,
}

// === impl WeightFile ===

impl WeightFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = open_file(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { name: path.display().to_string(), file, bytes, failure: OnceLock::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Size of the file when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills a buffer from a position on.
    pub(super) fn read(&self, start: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(buffer, start);
        if let Err(error) = &read {
            self.failure.get_or_init(|| error.to_string());
        }
        read
    }

    /// Returns the reason for which a read failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}
