//! What is shown and believed right now, exchanged while connections live on.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::{Seconds, material};
use crate::error::BoxError;

/// What is shown to whoever connects, and what sidecars are told to believe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    /// The certificates to believe, as PEM.
    pub bundle: String,
    /// When the leaf expires.
    pub expires: Seconds,
}

/// The pair in use. Cheap to clone; all clones see the same.
#[derive(Clone)]
pub struct Served {
    pair: Arc<RwLock<Option<Arc<CertifiedKey>>>>,
    presented: watch::Sender<Option<Presented>>,
}

// === impl Served ===

impl Served {
    /// Nothing yet: connections are refused until there is a pair.
    #[must_use]
    pub fn none() -> Self {
        Self { pair: Arc::default(), presented: watch::channel(None).0 }
    }

    /// Shows another pair from the next connection on.
    ///
    /// # Errors
    /// When certificate and key cannot be read or do not belong together: what was shown before is shown on.
    pub fn exchange(&self, cert: &[u8], key: &[u8], bundle: &[u8]) -> Result<(), BoxError> {
        let pair = material::pair(cert, key)?;
        let leaf = pair.cert.first().ok_or("there is no certificate")?;
        let expires = material::validity(leaf).ok_or("the certificate's times cannot be read")?.end;
        let ders = material::certificates(bundle);
        let bundle = material::pem(ders.iter().map(AsRef::as_ref));
        *self.pair.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        let presented = Some(Presented { bundle, expires });
        self.presented.send_if_modified(|before| {
            let changed = *before != presented;
            *before = presented;
            changed
        });
        Ok(())
    }

    /// What is shown, and when that changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Presented>> {
        self.presented.subscribe()
    }

    /// Whether there is something to show.
    #[must_use]
    pub fn loaded(&self) -> bool {
        self.presented.borrow().is_some()
    }

    /// TLS as a server with it. With `clients`, PEM, only who shows a certificate of these is served.
    ///
    /// # Errors
    /// When `clients` holds no certificate that can be believed.
    pub fn tls(&self, clients: Option<&[u8]>, protocols: &[&str]) -> Result<ServerConfig, BoxError> {
        let provider = crate::tls::provider();
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in material::certificates(pem) {
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

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pair.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("presented", &*self.presented.borrow()).finish_non_exhaustive()
    }
}
