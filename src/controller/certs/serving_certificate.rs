//! The certificate and CA bundle in use, replaceable without closing connections.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::certificates;
use crate::error::BoxError;

/// The CA bundle and the expiry of the certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// CA certificates to trust, as PEM.
    pub bundle: String,
    /// Expiry of the leaf, in seconds since 1970.
    pub expires: u64,
}

/// The certificate and key in use. Cheap to clone; all clones share the state.
#[derive(Clone)]
pub struct ServingCertificate {
    pair: Arc<RwLock<Option<Arc<CertifiedKey>>>>,
    presented: watch::Sender<Option<CertificateInfo>>,
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Creates an empty state: handshakes fail until a certificate is loaded.
    #[must_use]
    pub fn none() -> Self {
        Self { pair: Arc::default(), presented: watch::channel(None).0 }
    }

    /// Replaces certificate and key, effective from the next connection on.
    ///
    /// # Errors
    /// Returns an error if certificate and key cannot be parsed or do not match. The previous pair
    /// then stays in use.
    pub fn replace(&self, cert: &[u8], key: &[u8], bundle: &[u8]) -> Result<(), BoxError> {
        let pair = certificates::parse_pair(cert, key)?;
        let leaf = pair.cert.first().ok_or("no certificate found")?;
        let expires = certificates::validity(leaf).ok_or("cannot parse the validity period of the certificate")?.end;
        let ders = certificates::parse_certificates(bundle);
        let bundle = certificates::to_pem(ders.iter().map(AsRef::as_ref));
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        let presented = Some(CertificateInfo { bundle, expires });
        self.presented.send_if_modified(|before| {
            let changed = *before != presented;
            *before = presented;
            changed
        });
        Ok(())
    }

    /// Returns a receiver of the current CA bundle and its changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<CertificateInfo>> {
        self.presented.subscribe()
    }

    /// Returns `true` if a certificate is loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.presented.borrow().is_some()
    }

    /// Creates a TLS server configuration that uses this certificate. With `clients`, CA
    /// certificates in PEM, clients must present a certificate issued by one of them.
    ///
    /// # Errors
    /// Returns an error if `clients` contains no usable certificate.
    pub fn server_config(&self, clients: Option<&[u8]>, protocols: &[&str]) -> Result<ServerConfig, BoxError> {
        let provider = crate::tls::provider();
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in certificates::parse_certificates(pem) {
                    roots.add(certificate)?;
                }
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(config)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pair.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate").field("presented", &*self.presented.borrow()).finish_non_exhaustive()
    }
}
