//! Certificates and keys: parsing, pairing and validity periods.

use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use super::provider;

/// Validity period of a certificate, both ends included, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First valid second.
    pub begin: u64,
    /// Last valid second.
    pub end: u64,
}

// === impl Validity ===

impl Validity {
    /// Returns `true` if the certificate is valid at `now`.
    #[must_use]
    pub const fn contains(&self, now: u64) -> bool {
        self.begin <= now && now <= self.end
    }
}

/// Returns the validity period of a certificate, or `None` if it cannot be parsed.
///
/// webpki has no getter for it, but its errors contain both ends if a certificate is verified at an
/// instant long before and at one long after.
#[must_use]
pub fn validity(der: &CertificateDer<'_>) -> Option<Validity> {
    let certificate = ParsedCertificate::try_from(der).ok()?;
    let provider = provider();
    let validity_at = |at: Duration| {
        let at = UnixTime::since_unix_epoch(at);
        let algorithms = provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], at, algorithms) {
            Err(rustls::Error::InvalidCertificate(reason)) => Some(reason),
            _ => None,
        }
    };
    let begin = match validity_at(Duration::ZERO)? {
        NotValidYetContext { not_before, .. } => not_before.as_secs(),
        // Valid since 1970 or earlier.
        _ => 0,
    };
    let ExpiredContext { not_after, .. } = validity_at(Duration::from_secs(u64::MAX))? else { return None };
    Some(Validity { begin, end: not_after.as_secs() })
}

/// Parses the certificates of a PEM text. Invalid ones are skipped.
#[must_use]
pub fn parse_certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

/// Combines a certificate chain, leaf first, with its private key.
///
/// # Errors
/// Returns an error if they do not match, or the type of the key is not supported.
pub fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}
