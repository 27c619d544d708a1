//! Certificates issued elsewhere: a mounted Secret of cert-manager or of the operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use super::ServingCertificate;
use super::certificates::{CA_CERT, CERT, KEY};
use crate::error::BoxError;

/// Interval between two checks. The kubelet itself takes up to a minute to update the files.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum size of a file that is read; a chain has a few KiB.
const BYTES_MAX: u64 = 1 << 20;

/// A directory with `tls.crt`, `tls.key` and `ca.crt`.
struct CertDir {
    path: PathBuf,
    certificate: ServingCertificate,
    /// Contents of the files in use.
    loaded: Option<[Vec<u8>; 3]>,
    /// The last error logged; a repeated one is not logged again.
    last_error: String,
}

/// Loads the files of a directory now and after each change, until shutdown is signalled. Invalid
/// or inconsistent files are logged and ignored: the previous certificate stays in use.
pub async fn watch_files(path: PathBuf, certificate: ServingCertificate, mut stop: watch::Receiver<bool>) {
    let mut folder = CertDir { path, certificate, loaded: None, last_error: String::new() };
    loop {
        folder.reload();
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = crate::wait_for_shutdown(&mut stop) => return,
        }
    }
}

// === impl CertDir ===

impl CertDir {
    fn reload(&mut self) {
        let loaded = read(&self.path).and_then(|files| {
            if self.loaded.as_ref() != Some(&files) {
                let [cert, key, bundle] = &files;
                // The three files are not read atomically. If they do not match, the next check
                // finds them complete.
                self.certificate.replace(cert, key, bundle)?;
                tracing::info!(folder = %self.path.display(), "certificates loaded");
                self.loaded = Some(files);
            }
            Ok(())
        });
        let text = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        if !text.is_empty() && text != self.last_error {
            tracing::warn!(folder = %self.path.display(), error = text, "cannot load the certificates; the previous ones stay in use");
        }
        self.last_error = text;
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
    // A public CA needs no bundle.
    Ok([file(CERT)?, file(KEY)?, file(CA_CERT).unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use super::super::certificates::{introduce, renew};
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
        let certificate = ServingCertificate::none();
        let mut folder = CertDir {
            path: path.to_owned(),
            certificate: certificate.clone(),
            loaded: None,
            last_error: String::new(),
        };
        folder.reload();
        assert!(
            !certificate.is_loaded() && folder.last_error.contains("tls.crt"),
            "there is nothing yet: {}",
            folder.last_error
        );
        write(path, 1_000_000);
        folder.reload();
        let first = certificate.subscribe().borrow().clone().unwrap();
        assert_eq!(folder.last_error, "");
        let data = write(path, 2_000_000);
        // A key of another pair: the files do not match.
        std::fs::write(path.join(KEY), b"nothing").unwrap();
        folder.reload();
        assert_eq!(certificate.subscribe().borrow().clone(), Some(first.clone()), "a mismatched pair is not presented");
        std::fs::write(path.join(KEY), &data[KEY]).unwrap();
        folder.reload();
        assert!(certificate.subscribe().borrow().clone().unwrap().expires > first.expires);
    }
}
