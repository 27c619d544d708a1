//! What outlives the process: what was learned, and the last good settings, in one folder.
//!
//! A start that knows what a batch costs and how many slots there are does not have to find it out with the first callers. It is kept on drain and, while
//! something is learned, ever rarer, at last once a minute; a process that has nothing to do writes nothing and is not woken. A file is written beside its
//! place, flushed and moved there, so it is whole or not there. What cannot be read, or is about another model server, is left aside and said; nothing here
//! keeps a proxy from serving. The folder belongs to one process (`lock`): another one that is told it begins with what is there, keeps nothing as long as the first one lives, and says so.
//!
//! Beside it stands whether the process before ended as it was told (`crashes`).
//!
//! What it leaves out: when the last good settings are used (`reload`).

pub(super) mod crashes;
mod learned;
mod lock;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

pub(super) use self::learned::unescape;
use self::lock::Hold;
use crate::scheduler::{Handle, Kept};
use crate::upstream::Identity;

/// Between two writings while something is learned (`scheduling.md` §3).
const EVERY: Duration = Duration::from_secs(60);
/// The first time after so long, then twice as long each time up to that: most is learned early, and who is killed then should not begin anew.
const FIRST: Duration = Duration::from_secs(2);
/// Of a pod's volume, all ports together: half of what it may hold (1 Mi), since a file is written beside the one that it replaces.
const POD_BYTES_MAX: usize = 400 << 10;
/// Twice what the largest file that is written has: 64 cost classes of 288 samples and 512 sizes each, 32 bytes a number row, are 1.7 MB.
const FILE_BYTES_MAX: usize = 4 << 20;

/// A file of the control stream: a policy of some dozens of routes, or a CA bundle. A pod's volume holds 1 MiB in all, most of it what was learned, and a file is
/// written beside the one that it replaces.
const STREAM_BYTES_MAX: usize = 64 << 10;

const LEARNED: &str = "learned";
const SETTINGS: &str = "settings.yaml";

/// Where it is kept.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    /// The file for what is learned.
    learned: String,
    /// The model server that what is kept is about.
    upstream: String,
    /// Most bytes of what is kept of it.
    bytes_max: usize,
    held: Arc<Mutex<Held>>,
}

/// Whose it is.
#[derive(Debug)]
struct Held {
    hold: Hold,
    /// The settings in force, until they are written.
    settings: Option<String>,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(super) enum Found {
    /// Nothing: the first start.
    #[default]
    Nothing,
    /// Something that is used.
    Used {
        classes: usize,
        slots: u32,
        /// What the server said of itself.
        identity: Identity,
    },
    /// Something that is not used, and why.
    Ignored(String),
}

/// Writes what is learned.
#[derive(Debug)]
pub(super) struct Keeper {
    writer: Arc<Writer>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct Writer {
    folder: Folder,
    scheduler: Handle,
    identity: watch::Receiver<Identity>,
    /// What is there already.
    written: Mutex<Vec<u8>>,
    /// What the server had said of itself before this process: it stands until the server says more.
    before: Mutex<Identity>,
}

// === impl Folder ===

impl Folder {
    /// Takes the folder for this process, if no other has it.
    pub(super) fn new(path: PathBuf, upstream: String) -> Self {
        let held = Arc::new(Mutex::new(Held { hold: Hold::take(&path), settings: None }));
        Self { path, learned: format!("{LEARNED}.json"), upstream, bytes_max: FILE_BYTES_MAX, held }
    }

    /// The same folder for one of several captured ports: each has a file of its own, and an equal share of what a pod's volume may hold.
    pub(super) fn of_port(&self, port: u16, upstream: String, ports: usize) -> Self {
        let learned = format!("{LEARNED}-{port}.json");
        Self { learned, upstream, bytes_max: POD_BYTES_MAX / ports.max(1), ..self.clone() }
    }

    /// Keeps the settings that are in force now; where the folder is another process's, as soon as that one is gone. Call it where it may block.
    pub(super) fn keep_settings(&self, text: String) -> io::Result<()> {
        let mut held = self.held();
        held.settings = Some(text);
        self.settle(&mut held).map(drop)
    }

    /// Keeps a small file of the control stream, if this folder is this process's. Call it where it may block.
    pub(super) fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > STREAM_BYTES_MAX {
            return Err(io::Error::other(format!(
                "{name} would have {} bytes, {STREAM_BYTES_MAX} are allowed",
                bytes.len()
            )));
        }
        if !self.may_write() || kept(&self.path, name).is_some_and(|before| before == bytes) {
            return Ok(());
        }
        replace(&self.path, name, bytes)
    }

    /// Whether this process may write there.
    fn may_write(&self) -> bool {
        self.settle(&mut self.held()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the settings cannot be kept");
            true
        })
    }

    /// Takes the folder if the process that had it is gone, and writes the settings that wait for it. Whether it is ours.
    fn settle(&self, held: &mut Held) -> io::Result<bool> {
        if !held.hold.may_write() {
            let now = Hold::take(&self.path);
            if !matches!(now, Hold::Ours(_)) {
                return Ok(false);
            }
            held.hold = now;
            tracing::info!(folder = %self.path.display(), "the process that had the state folder is gone: this one keeps what it learns there");
        }
        held.settings.take().map_or(Ok(()), |text| write_settings(&self.path, &text))?;
        Ok(true)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an earlier process learned of this model server, and what is to be said of it.
    pub(super) fn learned(&self) -> (Kept, Found) {
        let path = self.path.join(&self.learned);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Default::default(),
            Err(error) => return (Kept::default(), Found::Ignored(error.to_string())),
        };
        match learned::read(&bytes, &self.upstream) {
            Ok((kept, identity)) => {
                let found = Found::Used { classes: kept.classes.len(), slots: kept.upstream.slots, identity };
                (kept, found)
            }
            Err(why) => (Kept::default(), Found::Ignored(why)),
        }
    }
}

/// What was kept of the control stream under this name.
pub(super) fn kept(folder: &Path, name: &str) -> Option<Vec<u8>> {
    read(&folder.join(name)).ok()
}

/// The settings that were in force last.
pub(super) fn settings(folder: &Path) -> Option<String> {
    String::from_utf8(read(&folder.join(SETTINGS)).ok()?).ok()
}

fn write_settings(folder: &Path, text: &str) -> io::Result<()> {
    if settings(folder).as_deref() == Some(text) {
        return Ok(());
    }
    replace(folder, SETTINGS, text.as_bytes())
}

// === impl Keeper ===

impl Keeper {
    /// Says what was found and keeps what is learned from now on. Call it inside a tokio runtime.
    pub(super) fn start(
        folder: Folder,
        found: Found,
        learned: Arc<Notify>,
        scheduler: Handle,
        identity: watch::Receiver<Identity>,
    ) -> Self {
        folder.held().hold.log(&folder.path);
        found.log(&folder.path);
        let before = if let Found::Used { identity, .. } = found { identity } else { Identity::default() };
        let before = Mutex::new(before);
        let writer = Arc::new(Writer { folder, scheduler, identity, written: Mutex::default(), before });
        let writing = tokio::spawn(now_and_then(writer.clone(), learned));
        let checked = tokio::spawn(writer.clone().check());
        Self { writer, tasks: [writing.abort_handle(), checked.abort_handle()] }
    }

    /// Keeps what is known now.
    pub(super) async fn save(&self) {
        self.writer.clone().save().await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Writes a while after something was learned, and then waits until something is.
async fn now_and_then(writer: Arc<Writer>, learned: Arc<Notify>) {
    let mut wait = FIRST;
    loop {
        learned.notified().await;
        tokio::time::sleep(wait).await;
        writer.clone().save().await;
        wait = EVERY.min(wait * 2);
    }
}

// === impl Writer ===

impl Writer {
    async fn save(self: Arc<Self>) {
        let Some(kept) = self.scheduler.keep().await else { return };
        // Writing and flushing may take as long as a disk takes.
        let written = tokio::task::spawn_blocking(move || self.write(&kept)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "what was learned cannot be kept"),
            Err(_) => tracing::error!("keeping what was learned panicked"),
        }
    }

    /// Waits until the server has said of itself what it said before: one that says something else is another one.
    async fn check(self: Arc<Self>) {
        let before = self.before().clone();
        let said = |now: &Identity| now.differs_from(&before).is_some() || now.tells_as_much_as(&before);
        let mut identity = self.identity.clone();
        let Ok(now) = identity.wait_for(said).await.map(|now| now.clone()) else { return };
        if let Some((now, before)) = now.differs_from(&before) {
            tracing::info!(now, before, "the model server is another one: what was learned before is forgotten");
            *self.before() = Identity::default();
            self.scheduler.forget().await;
        }
    }

    fn write(&self, kept: &Kept) -> io::Result<()> {
        if !self.folder.may_write() {
            return Ok(());
        }
        let identity = self.identity.borrow().clone().or(&self.before());
        let bytes = learned::write(kept, &self.folder.upstream, identity, self.folder.bytes_max)?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == bytes {
            return Ok(());
        }
        replace(&self.folder.path, &self.folder.learned, &bytes)?;
        *written = bytes;
        Ok(())
    }

    fn before(&self) -> MutexGuard<'_, Identity> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Found ===

impl Found {
    fn log(&self, folder: &Path) {
        let folder = folder.display();
        match self {
            Self::Nothing => tracing::info!(%folder, "nothing was learned before"),
            Self::Used { classes, slots, .. } => {
                tracing::info!(%folder, classes, slots, "begins with what was learned before");
            }
            Self::Ignored(why) => tracing::warn!(%folder, why, "what was learned before is not used"),
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

/// Puts a file in its place, whole or not at all, also when the machine stops meanwhile.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!(".{name}.new"));
    // For its owner only: it holds names of models and routes.
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
            assert_eq!(settings(&inner).as_deref(), Some(text));
        }
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn who_comes_to_a_folder_that_is_taken_keeps_its_settings_there_once_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let folder = || Folder::new(dir.path().to_owned(), "http://m".to_owned());
        let kept = || settings(dir.path());
        let (first, second) = (folder(), folder());
        first.keep_settings("first".to_owned()).unwrap();
        second.keep_settings("second".to_owned()).unwrap();
        assert_eq!(kept().as_deref(), Some("first"));
        // A lock that cannot be looked at is no sign that its holder is gone.
        let (lock, aside) = (dir.path().join("lock"), dir.path().join("aside"));
        fs::rename(&lock, &aside).unwrap();
        fs::create_dir(&lock).unwrap();
        assert!(!second.may_write());
        fs::remove_dir(&lock).unwrap();
        fs::rename(&aside, &lock).unwrap();
        drop(first);
        assert!(second.may_write());
        assert_eq!(kept().as_deref(), Some("second"));
    }

    #[test]
    fn what_is_too_large_or_no_file_is_not_used_and_it_is_said_why() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), "http://m".to_owned());
        assert!(matches!(folder.learned().1, Found::Nothing));
        fs::write(dir.path().join("learned.json"), vec![b' '; FILE_BYTES_MAX + 1]).unwrap();
        let Found::Ignored(why) = folder.learned().1 else { panic!("used") };
        assert!(why.contains("bytes"), "{why}");
        fs::remove_file(dir.path().join("learned.json")).unwrap();
        fs::create_dir(dir.path().join("learned.json")).unwrap();
        assert!(matches!(folder.learned().1, Found::Ignored(_)));
    }
}
