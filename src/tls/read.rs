//! Files into bytes, and bytes into certificates and keys, with the words for what is wrong with them.

use std::io::Read as _;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Unusable;

/// The largest file that is read; the bundle of all public authorities has some 250 KiB.
const BYTES_MAX: u64 = 1 << 20;

const READABLE: &str = "name a file that this process may read";
const PEM: &str = "it must be PEM, with BEGIN CERTIFICATE";
const KEY: &str = "it must be PEM, with BEGIN PRIVATE KEY (or EC, or RSA), not encrypted";

/// A file that a key of the policy names, and what is in it, which may be a secret: it has no `Debug`, and is not kept.
pub(super) struct File {
    key: &'static str,
    path: String,
    bytes: Vec<u8>,
}

/// What files said, to see whether they say something else.
pub(super) type Digest = [u8; 32];

/// One digest of them all.
pub(super) fn digest(files: &[File]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(blake3::hash(&file.bytes).as_bytes());
    }
    *hasher.finalize().as_bytes()
}

// === impl File ===

impl File {
    /// Reads it whole.
    pub(super) fn read(key: &'static str, path: &Path) -> Result<Self, Unusable> {
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

    pub(super) fn unusable(&self, why: &str, advice: &'static str) -> Unusable {
        Unusable { key: self.key, path: self.path.clone(), why: why.to_owned(), advice }
    }

    /// Its certificates, at least one, in their order. One that is broken is not left out, as it would be missed only by whoever is shown the rest.
    pub(super) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Unusable> {
        let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err(self.unusable("it holds no certificate", PEM)),
            Ok(chain) => Ok(chain),
            Err(error) => Err(self.unusable(&format!("a certificate in it cannot be read ({error})"), PEM)),
        }
    }

    /// Its private key.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, Unusable> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            PemError::NoItemsFound => self.unusable("it holds no private key", KEY),
            error => self.unusable(&format!("the key in it cannot be read ({error})"), KEY),
        })
    }

    /// Its certificates, as those of authorities that are believed.
    pub(super) fn authorities(&self) -> Result<RootCertStore, Unusable> {
        let mut roots = RootCertStore::empty();
        for certificate in self.chain()? {
            roots
                .add(certificate)
                .map_err(|error| self.unusable(&format!("a certificate in it cannot be believed ({error})"), PEM))?;
        }
        Ok(roots)
    }
}
