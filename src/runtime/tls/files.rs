//! Loads files and parses certificates and keys from them, with error messages for users.

use std::io::Read as _;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::CertificateFileError;

/// Maximum size of a file. The bundle of all public authorities has about 250 KiB.
const BYTES_MAX: u64 = 1 << 20;

const READABLE: &str = "set the path of a file that this process may read";
const PEM: &str = "use a PEM file with BEGIN CERTIFICATE";
const KEY: &str = "use a PEM file with BEGIN PRIVATE KEY (or EC, or RSA), not encrypted";

/// A file named by a configuration key, with its content. The content may be a secret, so there is
/// no `Debug` and it is not retained.
pub(super) struct CertificateFile {
    key: &'static str,
    path: String,
    bytes: Vec<u8>,
}

/// A digest of file contents, to detect changes.
pub(super) type Digest = [u8; 32];

/// Returns one digest over all files.
pub(super) fn digest(files: &[CertificateFile]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(blake3::hash(&file.bytes).as_bytes());
    }
    *hasher.finalize().as_bytes()
}

// === impl CertificateFile ===

impl CertificateFile {
    pub(super) fn read(key: &'static str, path: &Path) -> Result<Self, CertificateFileError> {
        let mut this = Self { key, path: path.display().to_string(), bytes: Vec::new() };
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(error) => Err(this.unusable(&error.to_string(), READABLE)),
            Ok(read) if read as u64 > BYTES_MAX => Err(this.unusable("it is larger than 1 MiB", PEM)),
            Ok(_) => {
                this.bytes = bytes;
                Ok(this)
            }
        }
    }

    pub(super) fn unusable(&self, reason: &str, advice: &'static str) -> CertificateFileError {
        CertificateFileError { key: self.key, path: self.path.clone(), reason: reason.to_owned(), advice }
    }

    /// Returns the certificates of the file in order, at least one. An invalid certificate is an
    /// error: if it were skipped, the failure would appear only at the peers that need it.
    pub(super) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, CertificateFileError> {
        let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err(self.unusable("it contains no certificate", PEM)),
            Ok(chain) => Ok(chain),
            Err(error) => Err(self.unusable(&format!("a certificate in it cannot be read ({error})"), PEM)),
        }
    }

    /// Returns the private key of the file.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, CertificateFileError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            PemError::NoItemsFound => self.unusable("it contains no private key", KEY),
            error => self.unusable(&format!("the key in it cannot be read ({error})"), KEY),
        })
    }

    /// Returns the certificates of the file as trusted authorities.
    pub(super) fn authorities(&self) -> Result<RootCertStore, CertificateFileError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.chain()? {
            roots.add(certificate).map_err(|error| {
                self.unusable(&format!("a certificate in it cannot be used as an authority ({error})"), PEM)
            })?;
        }
        Ok(roots)
    }
}
