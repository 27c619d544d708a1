//! Detects changes of a file by inotify: written in place, replaced by a rename as editors do, or
//! swapped by a symbolic link, as the kubelet does with the `..data` of a mounted `ConfigMap`.
//!
//! Nothing is polled. Folders are watched rather than the file alone, since a replaced file is
//! another inode: each folder on the path through its symbolic links, and in it only the names on
//! the path. The file itself is watched too, since it may be written by another path, such as one
//! that is mounted alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Maximum number of symbolic links to follow, the same as the kernel's.
const LINKS_MAX: usize = 40;
/// Buffer size for some dozens of events. The rest is read in the next round.
const BUFFER: usize = 4096;

/// A watch on one file.
#[derive(Debug)]
pub(super) struct FileWatch {
    events: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// Names that matter in each watched folder, by watch descriptor; without a name, every event
    /// matters.
    watched: BTreeMap<i32, BTreeSet<OsString>>,
}

// === impl FileWatch ===

impl FileWatch {
    /// Starts to watch a file. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the system provides no more watches, or the folder does not exist.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; an `OwnedFd` keeps its descriptor open, which is its only requirement"
        )]
        let events = AsyncFd::new(events)?;
        let mut watch = Self { events, path: path.to_owned(), watched: BTreeMap::new() };
        watch.follow()?;
        Ok(watch)
    }

    /// Watches the current path of the file, which a change may have moved.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        let before = std::mem::take(&mut self.watched);
        let way = path_components(&self.path);
        let added = way.iter().try_for_each(|(folder, name)| self.add(folder, Some(name)));
        // The file may be absent at this moment; its folder reports when it is created.
        self.add(&self.path.clone(), None).ok();
        for stale in before.keys().filter(|wd| !self.watched.contains_key(wd)) {
            // The kernel has removed the watch already if its folder is deleted.
            inotify::remove_watch(self.events.get_ref(), *stale).ok();
        }
        added
    }

    fn add(&mut self, path: &Path, name: Option<&OsStr>) -> io::Result<()> {
        let flags = match name {
            Some(_) => WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::ONLYDIR,
            None => WatchFlags::CLOSE_WRITE,
        };
        let wd = inotify::add_watch(self.events.get_ref(), path, flags)?;
        let names = self.watched.entry(wd).or_default();
        names.extend(name.map(OsStr::to_owned));
        Ok(())
    }

    /// Resolves when the file may have changed. Cancel safe: events that were not read stay in the
    /// queue.
    ///
    /// # Errors
    /// If the kernel reports an error on read. The watch is then unusable: the same error would
    /// follow at once, forever.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.events.readable().await?;
            match ready.try_io(|events| read(events.get_ref(), &self.path, &self.watched)) {
                Ok(Ok(true)) => return Ok(()),
                Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                // Irrelevant events, or none.
                Ok(Ok(false) | Err(_)) | Err(_) => {}
            }
        }
    }

    /// Discards the events that have accumulated: they belong to the change that is being handled.
    pub(super) fn settle(&self) {
        // An error means that there are no events.
        read(self.events.get_ref(), &self.path, &self.watched).ok();
    }
}

/// Reads all pending events. Returns `true` if one of them matters, and a would-block error if
/// there are none.
fn read(events: &OwnedFd, path: &Path, watched: &BTreeMap<i32, BTreeSet<OsString>>) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = Reader::new(events, &mut buffer);
    let (mut any, mut matters) = (false, false);
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(error) if any && error == rustix::io::Errno::AGAIN => return Ok(matters),
            Err(error) => return Err(error.into()),
        };
        any = true;
        // The event queue overflowed, or a folder is deleted: check the file.
        if event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED) {
            matters = true;
            continue;
        }
        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
        matters |= match (watched.get(&event.wd()), name) {
            (Some(names), Some(name)) if names.contains(name) => {
                // A file that was only created is empty, and the end of its writing is another
                // event. A link is complete when created.
                !event.events().contains(ReadFlags::CREATE) || is_link(path, name)
            }
            (Some(_), Some(_)) | (None, _) => false,
            (Some(_), None) => true,
        };
    }
}

fn is_link(path: &Path, name: &OsStr) -> bool {
    path_components(path).iter().any(|(folder, own)| {
        own == name && std::fs::symlink_metadata(folder.join(own)).is_ok_and(|made| made.is_symlink())
    })
}

/// Returns the folders and names on a path, from the path itself to the target of its symbolic
/// links.
fn path_components(path: &Path) -> Vec<(PathBuf, OsString)> {
    let mut out = Vec::new();
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Some(name) = path.file_name() else { break };
        let folder = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => break,
        };
        out.push((folder.clone(), name.to_owned()));
        let Ok(target) = std::fs::read_link(&path) else { break };
        // A link through other links, such as `policy.yaml` to `..data/policy.yaml`: each component
        // may be swapped in its own folder.
        let mut at = folder;
        for part in target.components() {
            if let Component::Normal(part) = part
                && std::fs::symlink_metadata(at.join(part)).is_ok_and(|there| there.is_symlink())
            {
                out.push((at.clone(), part.to_owned()));
            }
            at.push(part);
        }
        path = at;
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;

    /// Longer than the kernel ever takes.
    const HANG: Duration = Duration::from_secs(20);

    async fn follow_next_change(watch: &mut FileWatch) {
        tokio::time::timeout(HANG, watch.changed()).await.unwrap().unwrap();
        watch.follow().unwrap();
    }

    /// Returns `true` if no relevant event is pending. Events arrive in order, so that an
    /// irrelevant change does not resolve the watch even if another event follows.
    fn quiet(watch: &FileWatch) -> bool {
        !matches!(read(watch.events.get_ref(), &watch.path, &watch.watched), Ok(true))
    }

    #[tokio::test]
    async fn a_change_of_the_file_is_reported_and_a_change_of_its_neighbours_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        fs::write(&path, "a").unwrap();
        let mut watch = FileWatch::new(&path).unwrap();
        fs::write(dir.path().join("other.yaml"), "x").unwrap();
        assert!(quiet(&watch));
        fs::write(&path, "b").unwrap();
        follow_next_change(&mut watch).await;
        for text in ["c", "d"] {
            let beside = dir.path().join(".policy.yaml.swp");
            fs::write(&beside, text).unwrap();
            fs::rename(&beside, &path).unwrap();
            follow_next_change(&mut watch).await;
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, "e").unwrap();
        follow_next_change(&mut watch).await;
        assert!(quiet(&watch));
    }

    #[tokio::test]
    async fn a_watch_that_cannot_be_read_ends_and_does_not_spin() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut watch = FileWatch::new(file.path()).unwrap();
        // Readable as long as its inner descriptor is, and never by `read`.
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let ready = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &ready, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        #[expect(deprecated, reason = "as above")]
        let events = AsyncFd::new(epoll).unwrap();
        watch.events = events;
        assert!(tokio::time::timeout(HANG, watch.changed()).await.unwrap().is_err());
    }

    #[tokio::test]
    async fn every_swap_of_a_configmap_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let publish = |version: &str| {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("policy.yaml"), version).unwrap();
            symlink(version, at("..data_tmp")).unwrap();
            fs::rename(at("..data_tmp"), at("..data")).unwrap();
        };
        publish("..1");
        symlink("..data/policy.yaml", at("policy.yaml")).unwrap();
        let mut watch = FileWatch::new(&at("policy.yaml")).unwrap();
        for (version, previous) in [("..2", "..1"), ("..3", "..2"), ("..4", "..3")] {
            publish(version);
            follow_next_change(&mut watch).await;
            fs::remove_dir_all(at(previous)).unwrap();
        }
        assert!(watch.watched.len() <= 3, "what is gone is not watched: {:?}", watch.watched);
    }

    #[tokio::test]
    async fn a_link_to_a_file_elsewhere_is_followed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, target) = (dir.path().join("policy.yaml"), other.path().join("real.yaml"));
        fs::write(&target, "a").unwrap();
        symlink(&target, &path).unwrap();
        let mut watch = FileWatch::new(&path).unwrap();
        fs::write(&target, "b").unwrap();
        follow_next_change(&mut watch).await;
        let second = other.path().join("second.yaml");
        fs::write(&second, "c").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&second, &path).unwrap();
        follow_next_change(&mut watch).await;
        fs::write(&second, "d").unwrap();
        follow_next_change(&mut watch).await;
    }
}
