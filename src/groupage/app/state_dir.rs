//! State that outlives the process, in one folder: what was learned, and the last good settings.
//!
//! A restart that knows the batch costs and the number of slots does not have to learn them from
//! the first calls. State is written on drain and, while something is learned, at growing intervals
//! of up to one minute; an idle process writes nothing and is not woken. A file is written to a
//! temporary name, flushed and renamed, so that it is either complete or absent. State that is
//! unreadable, or about another model server, is ignored and logged; no error here keeps a proxy
//! from serving.
//!
//! The folder belongs to one process (`lock`). A second process that is configured with the same
//! folder starts from its contents, writes nothing while the first one lives, and logs that. The
//! learned state is written by a task (`writer`). The crash guard (`crash_guard`) has its record in
//! the folder too. When the last good settings are used is decided elsewhere (`sources`).

pub(super) mod crash_guard;
mod learned;
mod lock;
pub(super) mod writer;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use self::learned::unescape;
use self::lock::DirLock;
use crate::scheduler::LearnedState;
use crate::upstream::ServerIdentity;

/// Maximum size of what is learned on a pod's volume, for all ports together: less than half of the
/// volume's 1 MiB, since a file is written beside the one that it replaces.
const POD_BYTES_MAX: usize = 400 << 10;
/// Maximum size of a file that is read: twice the largest file that is written. 64 cost classes of
/// 288 samples and 512 sizes each, with 32 bytes a row, are 1.7 MB.
const FILE_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a file of the control stream: a policy of some dozens of routes, or a CA bundle.
/// A pod's volume has 1 MiB, most of it for what was learned, and a file is written beside the one
/// that it replaces.
const STREAM_BYTES_MAX: usize = 64 << 10;

const LEARNED: &str = "learned";
const SETTINGS: &str = "settings.yaml";

/// The state folder, as used for one model server.
#[derive(Debug, Clone)]
pub(super) struct StateDir {
    path: PathBuf,
    /// Name of the file for what is learned.
    learned: String,
    /// Address of the model server that the learned state is about.
    upstream: String,
    /// Maximum size of the learned state, in bytes.
    bytes_max: usize,
    held: Arc<Mutex<Ownership>>,
}

/// Ownership of the folder, shared by all ports of the process.
#[derive(Debug)]
struct Ownership {
    lock: DirLock,
    /// Settings in force that are not written yet.
    settings: Option<String>,
}

/// Result of the search for learned state at the start.
#[derive(Debug, Default)]
pub(super) enum LearnedFileOutcome {
    /// No file: the first start.
    #[default]
    Nothing,
    /// State that is used.
    Used {
        classes: usize,
        slots: u32,
        /// Identity that the model server had reported.
        identity: ServerIdentity,
    },
    /// State that is not used, and the reason.
    Ignored(String),
}

// === impl StateDir ===

impl StateDir {
    /// Takes the folder for this process, unless another process holds it.
    pub(super) fn new(path: PathBuf, upstream: String) -> Self {
        let held = Arc::new(Mutex::new(Ownership { lock: DirLock::take(&path), settings: None }));
        Self { path, learned: format!("{LEARNED}.json"), upstream, bytes_max: FILE_BYTES_MAX, held }
    }

    /// Returns the same folder for one of several captured ports. Each port has its own file and an
    /// equal share of the pod's volume.
    pub(super) fn of_port(&self, port: u16, upstream: String, ports: usize) -> Self {
        let learned = format!("{LEARNED}-{port}.json");
        Self { learned, upstream, bytes_max: POD_BYTES_MAX / ports.max(1), ..self.clone() }
    }

    /// Stores the settings in force. If another process holds the folder, they are written once
    /// that process has ended. May block.
    pub(super) fn store_settings(&self, text: String) -> io::Result<()> {
        let mut held = self.held();
        held.settings = Some(text);
        self.take_over(&mut held).map(drop)
    }

    /// Stores a small file of the control stream, if this process holds the folder. May block.
    pub(super) fn store_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > STREAM_BYTES_MAX {
            return Err(io::Error::other(format!(
                "{name} would have {} bytes; the limit is {STREAM_BYTES_MAX}",
                bytes.len()
            )));
        }
        if !self.may_write() || read_file(&self.path, name).is_some_and(|before| before == bytes) {
            return Ok(());
        }
        replace(&self.path, name, bytes)
    }

    /// Returns `true` if this process may write to the folder.
    fn may_write(&self) -> bool {
        self.take_over(&mut self.held()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the settings cannot be saved");
            true
        })
    }

    /// Takes the folder if its previous holder has ended, and writes the pending settings. Returns
    /// `true` if this process holds it.
    fn take_over(&self, held: &mut Ownership) -> io::Result<bool> {
        if !held.lock.may_write() {
            let now = DirLock::take(&self.path);
            if !matches!(now, DirLock::Held(_)) {
                return Ok(false);
            }
            held.lock = now;
            tracing::info!(folder = %self.path.display(), "the process that used the state folder has exited: learned values are now saved there");
        }
        held.settings.take().map_or(Ok(()), |text| write_settings(&self.path, &text))?;
        Ok(true)
    }

    fn held(&self) -> MutexGuard<'_, Ownership> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what an earlier process learned about this model server.
    pub(super) fn learned(&self) -> (LearnedState, LearnedFileOutcome) {
        let path = self.path.join(&self.learned);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Default::default(),
            Err(error) => return (LearnedState::default(), LearnedFileOutcome::Ignored(error.to_string())),
        };
        match learned::read(&bytes, &self.upstream) {
            Ok((state, identity)) => {
                let found =
                    LearnedFileOutcome::Used { classes: state.classes.len(), slots: state.upstream.slots, identity };
                (state, found)
            }
            Err(reason) => (LearnedState::default(), LearnedFileOutcome::Ignored(reason)),
        }
    }
}

/// Reads a file of the control stream.
pub(super) fn read_file(folder: &Path, name: &str) -> Option<Vec<u8>> {
    read(&folder.join(name)).ok()
}

/// Reads the last good settings.
pub(super) fn read_settings(folder: &Path) -> Option<String> {
    String::from_utf8(read(&folder.join(SETTINGS)).ok()?).ok()
}

fn write_settings(folder: &Path, text: &str) -> io::Result<()> {
    if read_settings(folder).as_deref() == Some(text) {
        return Ok(());
    }
    replace(folder, SETTINGS, text.as_bytes())
}

// === impl LearnedFileOutcome ===

impl LearnedFileOutcome {
    fn log(&self, folder: &Path) {
        let folder = folder.display();
        match self {
            Self::Nothing => tracing::info!(%folder, "no learned values are saved"),
            Self::Used { classes, slots, .. } => {
                tracing::info!(%folder, classes, slots, "starting with the saved learned values");
            }
            Self::Ignored(reason) => tracing::warn!(%folder, reason, "the saved learned values are not used"),
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Replaces a file atomically and durably: it is complete or unchanged, even after a crash of the
/// machine.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!(".{name}.new"));
    // Readable by its owner only: it contains names of models and routes.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, folder.join(name))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("made");
        for text in ["limits: {batchItemsMax: 4}\n", "mode: Passthrough\n", "mode: Passthrough\n"] {
            write_settings(&inner, text).unwrap();
            assert_eq!(read_settings(&inner).as_deref(), Some(text));
        }
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn the_settings_of_a_second_process_are_written_once_the_folder_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let folder = || StateDir::new(dir.path().to_owned(), "http://m".to_owned());
        let stored = || read_settings(dir.path());
        let (first, second) = (folder(), folder());
        first.store_settings("first".to_owned()).unwrap();
        second.store_settings("second".to_owned()).unwrap();
        assert_eq!(stored().as_deref(), Some("first"));
        // A lock that cannot be inspected does not mean that its holder has ended.
        let (lock, aside) = (dir.path().join("lock"), dir.path().join("aside"));
        fs::rename(&lock, &aside).unwrap();
        fs::create_dir(&lock).unwrap();
        assert!(!second.may_write());
        fs::remove_dir(&lock).unwrap();
        fs::rename(&aside, &lock).unwrap();
        drop(first);
        assert!(second.may_write());
        assert_eq!(stored().as_deref(), Some("second"));
    }

    #[test]
    fn a_file_that_is_too_large_or_not_regular_is_ignored_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let folder = StateDir::new(dir.path().to_owned(), "http://m".to_owned());
        assert!(matches!(folder.learned().1, LearnedFileOutcome::Nothing));
        fs::write(dir.path().join("learned.json"), vec![b' '; FILE_BYTES_MAX + 1]).unwrap();
        let LearnedFileOutcome::Ignored(reason) = folder.learned().1 else { panic!("used") };
        assert!(reason.contains("bytes"), "{reason}");
        fs::remove_file(dir.path().join("learned.json")).unwrap();
        fs::create_dir(dir.path().join("learned.json")).unwrap();
        assert!(matches!(folder.learned().1, LearnedFileOutcome::Ignored(_)));
    }
}
