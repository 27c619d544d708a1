//! Whose the folder is: one process writes it, and another that is told the same folder finds that out.
//!
//! A file in it is locked for as long as the process lives, so the system gives it back however the process ends; what stands in the file is the holder's
//! process id, for whoever is turned away. Where the system cannot lock (some network file systems), nobody is turned away.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "lock";
/// A process id has ten digits at most.
const PID_BYTES_MAX: u64 = 10;

/// Whether a folder is this process's.
#[derive(Debug)]
pub(super) enum Hold {
    /// It is, for as long as this lives.
    Ours(#[expect(dead_code, reason = "closing it gives the lock back")] File),
    /// Another process has it; its id, if it can be read.
    Theirs(Option<u32>),
    /// It cannot be found out.
    Unknown(io::Error),
}

// === impl Hold ===

impl Hold {
    /// Takes the folder, if nobody has it.
    pub(super) fn take(folder: &Path) -> Self {
        Self::lock(folder).unwrap_or_else(Self::Unknown)
    }

    fn lock(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(NAME);
        // Not cut: what stands in it is its holder's.
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())?;
                Ok(Self::Ours(file))
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // What is not text names nobody.
                file.take(PID_BYTES_MAX).read_to_string(&mut text).ok();
                Ok(Self::Theirs(text.parse().ok()))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether something may be written there. Where it cannot be found out it may be, as before a file was locked: writing says what is wrong.
    pub(super) const fn may_write(&self) -> bool {
        !matches!(self, Self::Theirs(_))
    }

    /// Says it if the folder is not ours.
    pub(super) fn log(&self, folder: &Path) {
        let folder = folder.display();
        match self {
            Self::Ours(_) => {}
            Self::Theirs(pid) => tracing::error!(
                %folder,
                pid,
                "another process has the state folder: nothing is kept by this one until that one is gone; give each a folder of its own"
            ),
            Self::Unknown(error) => {
                tracing::warn!(%folder, %error, "it cannot be found out whether another process has the state folder");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_keepers_until_he_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("made");
        let first = Hold::take(&folder);
        assert!(matches!(first, Hold::Ours(_)) && first.may_write());
        let second = Hold::take(&folder);
        assert!(matches!(second, Hold::Theirs(Some(pid)) if pid == std::process::id()) && !second.may_write());
        drop(first);
        assert!(matches!(Hold::take(&folder), Hold::Ours(_)));
    }

    #[test]
    fn a_holder_who_left_no_name_is_still_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(NAME)).unwrap();
        file.lock().unwrap();
        assert!(matches!(Hold::take(dir.path()), Hold::Theirs(None)));
    }

    #[test]
    fn a_folder_that_cannot_be_locked_is_used_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap();
        let hold = Hold::take(&path);
        assert!(matches!(hold, Hold::Unknown(_)) && hold.may_write());
    }
}
