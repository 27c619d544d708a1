//! Certificates and keys as such: read, put together, asked for their times.

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

/// From when to when a certificate is valid, both included, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From.
    pub begin: u64,
    /// To.
    pub end: u64,
}

// === impl Validity ===

impl Validity {
    /// Whether it is valid at a time.
    #[must_use]
    pub const fn at(&self, now: u64) -> bool {
        self.begin <= now && now <= self.end
    }
}

/// When a certificate is valid; `None` if it is none.
///
/// webpki has no getter for it, but names both ends when it is asked about a time long before and one long after.
#[must_use]
pub fn validity(der: &CertificateDer<'_>) -> Option<Validity> {
    let certificate = ParsedCertificate::try_from(der).ok()?;
    let provider = provider();
    let ask = |at: Duration| {
        let at = UnixTime::since_unix_epoch(at);
        let algorithms = provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], at, algorithms) {
            Err(rustls::Error::InvalidCertificate(why)) => Some(why),
            _ => None,
        }
    };
    let begin = match ask(Duration::ZERO)? {
        NotValidYetContext { not_before, .. } => not_before.as_secs(),
        // Valid since 1970 or longer.
        _ => 0,
    };
    let ExpiredContext { not_after, .. } = ask(Duration::from_secs(u64::MAX))? else { return None };
    Some(Validity { begin, end: not_after.as_secs() })
}

/// The certificates of a PEM text; what is broken is left out.
#[must_use]
pub fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

/// A certificate, the first of its chain, with its key.
///
/// # Errors
/// They do not belong together, or the key is of a kind that is not known.
pub fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}
