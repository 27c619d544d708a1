//! Certificates that somebody else makes: a mounted Secret of cert-manager or of the operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use super::Served;
use super::material::{CA_CERT, CERT, KEY};
use crate::error::BoxError;

/// Between two looks. The kubelet itself takes up to a minute to bring a change.
const EVERY: Duration = Duration::from_secs(10);
/// The largest file that is read; a chain is some KiB.
const BYTES_MAX: u64 = 1 << 20;

/// A folder with `tls.crt`, `tls.key` and `ca.crt`.
struct Folder {
    path: PathBuf,
    served: Served,
    /// What is shown.
    shown: Option<[Vec<u8>; 3]>,
    /// What was said last: a thing is said once, not every few seconds.
    said: String,
}

/// Reads a folder's files now and whenever they change, until told to stop. What is torn or broken is told and left: what was shown before is shown on.
pub async fn watch_files(path: PathBuf, served: Served, mut stop: watch::Receiver<bool>) {
    let mut folder = Folder { path, served, shown: None, said: String::new() };
    loop {
        folder.look();
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            // An error means the same: the process ends.
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

// === impl Folder ===

impl Folder {
    fn look(&mut self) {
        let shown = read(&self.path).and_then(|files| {
            if self.shown.as_ref() != Some(&files) {
                let [cert, key, bundle] = &files;
                // The three are not read at one moment: the next look finds them whole.
                self.served.exchange(cert, key, bundle)?;
                tracing::info!(folder = %self.path.display(), "certificates are in use");
                self.shown = Some(files);
            }
            Ok(())
        });
        let said = shown.err().map(|error| error.to_string()).unwrap_or_default();
        if !said.is_empty() && said != self.said {
            tracing::warn!(folder = %self.path.display(), error = said, "certificates cannot be used; what was shown before is shown on");
        }
        self.said = said;
    }
}

fn read(folder: &Path) -> Result<[Vec<u8>; 3], BoxError> {
    let file = |name: &str| -> Result<Vec<u8>, BoxError> {
        use std::io::Read as _;
        let path = folder.join(name);
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // A public authority needs no bundle of its own.
    Ok([file(CERT)?, file(KEY)?, file(CA_CERT).unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use super::super::material::{introduce, renew};
    use super::*;
    use std::collections::BTreeMap;

    fn write(folder: &Path, now: u64) -> BTreeMap<String, Vec<u8>> {
        let mut data = BTreeMap::new();
        introduce(&mut data, now).unwrap();
        renew(&mut data, now, &["a.svc".to_owned()]).unwrap();
        for name in [CERT, KEY, CA_CERT] {
            std::fs::write(folder.join(name), &data[name]).unwrap();
        }
        data
    }

    #[test]
    fn files_are_used_when_they_are_whole_and_again_when_they_change() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        let served = Served::none();
        let mut folder = Folder { path: path.to_owned(), served: served.clone(), shown: None, said: String::new() };
        folder.look();
        assert!(!served.loaded() && folder.said.contains("tls.crt"), "there is nothing yet: {}", folder.said);
        write(path, 1_000_000);
        folder.look();
        let first = served.watch().borrow().clone().unwrap();
        assert_eq!(folder.said, "");
        let data = write(path, 2_000_000);
        // Another pair's key: torn.
        std::fs::write(path.join(KEY), b"nothing").unwrap();
        folder.look();
        assert_eq!(served.watch().borrow().clone(), Some(first.clone()), "a torn pair is not shown");
        std::fs::write(path.join(KEY), &data[KEY]).unwrap();
        folder.look();
        assert!(served.watch().borrow().clone().unwrap().expires > first.expires);
    }
}
