//! Ownership of the state folder: one process writes to it, and another process that is configured
//! with the same folder detects that.
//!
//! A lock file in the folder is locked for the lifetime of the process, so that the system releases
//! it however the process ends. The file contains the process id of the holder, for the log of a
//! process that does not get the lock. If the file system does not support locks (some network file
//! systems), no process is turned away.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "lock";
/// Maximum number of digits of a process id.
const PID_BYTES_MAX: u64 = 10;

/// Result of locking a folder.
#[derive(Debug)]
pub(super) enum DirLock {
    /// This process holds the folder for the lifetime of this value.
    Held(#[expect(dead_code, reason = "closing it gives the lock back")] File),
    /// Another process holds the folder; its process id, if readable.
    HeldByOther(Option<u32>),
    /// The state of the lock is unknown.
    Unknown(io::Error),
}

// === impl DirLock ===

impl DirLock {
    /// Takes the folder, unless another process holds it.
    pub(super) fn take(folder: &Path) -> Self {
        Self::lock(folder).unwrap_or_else(Self::Unknown)
    }

    fn lock(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(NAME);
        // Not truncated: the content belongs to the holder.
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())?;
                Ok(Self::Held(file))
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // Content that is not text has no process id.
                file.take(PID_BYTES_MAX).read_to_string(&mut text).ok();
                Ok(Self::HeldByOther(text.parse().ok()))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns `true` if files may be written to the folder. With an unknown lock state they may: a
    /// write reports its own error.
    pub(super) const fn may_write(&self) -> bool {
        !matches!(self, Self::HeldByOther(_))
    }

    /// Logs an error if this process does not hold the folder.
    pub(super) fn log(&self, folder: &Path) {
        let folder = folder.display();
        match self {
            Self::Held(_) => {}
            Self::HeldByOther(pid) => tracing::error!(
                %folder,
                pid,
                "another process uses the state folder: this process saves nothing there until the other one exits; give each process its own folder"
            ),
            Self::Unknown(error) => {
                tracing::warn!(%folder, %error, "cannot check whether another process uses the state folder");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_by_one_holder_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("made");
        let first = DirLock::take(&folder);
        assert!(matches!(first, DirLock::Held(_)) && first.may_write());
        let second = DirLock::take(&folder);
        assert!(matches!(second, DirLock::HeldByOther(Some(pid)) if pid == std::process::id()) && !second.may_write());
        drop(first);
        assert!(matches!(DirLock::take(&folder), DirLock::Held(_)));
    }

    #[test]
    fn a_lock_without_the_name_of_its_holder_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(NAME)).unwrap();
        file.lock().unwrap();
        assert!(matches!(DirLock::take(dir.path()), DirLock::HeldByOther(None)));
    }

    #[test]
    fn a_folder_that_cannot_be_locked_may_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap();
        let lock = DirLock::take(&path);
        assert!(matches!(lock, DirLock::Unknown(_)) && lock.may_write());
    }
}
