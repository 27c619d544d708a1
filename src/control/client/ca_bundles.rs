//! CA bundles that the sidecar trusts: the one received last over a stream, or else the one that
//! the pod was started with.
//!
//! A received bundle is newer than the initial one, unless the pod was suspended during a whole CA
//! rotation. When a certificate is rejected, the other bundle is therefore tried at the next
//! connect. Both originate in the cluster: one from admission, the other from a controller that was
//! verified with a trusted bundle.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Maximum size of a bundle, a few dozen certificates.
const BUNDLE_BYTES_MAX: usize = 256 << 10;

/// The CA bundles, and which of them is tried.
#[derive(Debug, Clone, Default)]
pub struct CaBundles {
    /// Bundle received last over a stream.
    received: Option<Arc<ClientConfig>>,
    given: InitialBundle,
    /// `true` if the initial bundle is tried before the received one.
    prefer_initial: bool,
}

/// Bundle that the pod was started with.
#[derive(Debug, Clone, Default)]
enum InitialBundle {
    #[default]
    Nothing,
    Bundle(Arc<ClientConfig>),
    /// Path that is read at each connect, since the file may change.
    File(PathBuf),
}

/// Reason why a CA bundle cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CaBundleError {
    /// No bundle is configured.
    #[error("no CA bundle is configured: set GROUPAGE_CA")]
    Nothing,
    /// The file cannot be read.
    #[error("the CA bundle {0}")]
    Unreadable(String),
    /// The bundle exceeds the maximum size.
    #[error("the CA bundle has {0} bytes, the maximum is {BUNDLE_BYTES_MAX}")]
    TooLarge(usize),
    /// The bundle contains no valid certificate.
    #[error("the CA bundle contains no valid certificate: expected PEM (BEGIN CERTIFICATE)")]
    NoCertificate,
    /// TLS cannot be configured with the bundle.
    #[error("cannot configure TLS with the CA bundle: {0}")]
    Tls(rustls::Error),
}

// === impl CaBundles ===

impl CaBundles {
    /// Trusts the PEM bundle that the pod was started with.
    ///
    /// # Errors
    /// Returns an error if `pem` is not a valid bundle.
    pub fn from_pem(pem: &str) -> Result<Self, CaBundleError> {
        Ok(Self { given: InitialBundle::Bundle(client_config_from_pem(pem)?), ..Self::default() })
    }

    /// Trusts the bundle in a file, which may be created or replaced later.
    #[must_use]
    pub fn from_file(path: &Path) -> Self {
        Self { given: InitialBundle::File(path.to_owned()), ..Self::default() }
    }

    /// Trusts a bundle received over a stream. It is tried first from now on.
    ///
    /// # Errors
    /// Returns an error if `pem` is not a valid bundle; the previous bundles stay in use.
    pub fn set_received(&mut self, pem: &str) -> Result<(), CaBundleError> {
        self.received = Some(client_config_from_pem(pem)?);
        self.prefer_initial = false;
        Ok(())
    }

    pub(super) fn switch_bundle(&mut self) {
        self.prefer_initial = !self.prefer_initial;
    }

    /// Returns the TLS configuration with the bundle to try.
    pub(super) async fn client_config(&self) -> Result<Arc<ClientConfig>, CaBundleError> {
        let has_given = !matches!(self.given, InitialBundle::Nothing);
        if let Some(received) = self.received.as_ref().filter(|_| !(self.prefer_initial && has_given)) {
            return Ok(received.clone());
        }
        match self.given.clone() {
            InitialBundle::Nothing => Err(CaBundleError::Nothing),
            InitialBundle::Bundle(bundle) => Ok(bundle),
            InitialBundle::File(path) => tokio::task::spawn_blocking(move || read(&path))
                .await
                .unwrap_or_else(|_| Err(CaBundleError::Unreadable("cannot be read: the read panicked".to_owned()))),
        }
    }
}

fn read(path: &Path) -> Result<Arc<ClientConfig>, CaBundleError> {
    let unreadable =
        |error: std::io::Error| CaBundleError::Unreadable(format!("{} cannot be read: {error}", path.display()));
    let mut text = String::new();
    let most = u64::try_from(BUNDLE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    std::fs::File::open(path).map_err(unreadable)?.take(most).read_to_string(&mut text).map_err(unreadable)?;
    client_config_from_pem(&text)
}

fn client_config_from_pem(pem: &str) -> Result<Arc<ClientConfig>, CaBundleError> {
    if pem.len() > BUNDLE_BYTES_MAX {
        return Err(CaBundleError::TooLarge(pem.len()));
    }
    let mut roots = RootCertStore::empty();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(CaBundleError::NoCertificate);
    }
    let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(CaBundleError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    // The controller stores no TLS sessions.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    async fn is(one: &CaBundles, other: &Arc<ClientConfig>) -> bool {
        one.client_config().await.is_ok_and(|tls| Arc::ptr_eq(&tls, other))
    }

    #[tokio::test]
    async fn the_received_bundle_is_tried_first_and_the_configured_one_after_a_failure() {
        let mut trust = CaBundles::from_pem(&ca()).unwrap();
        let given = trust.client_config().await.unwrap();
        trust.switch_bundle();
        assert!(is(&trust, &given).await, "no other bundle");
        for _ in 0..3 {
            trust.set_received(&format!("{}{}", ca(), ca())).unwrap();
            assert!(!is(&trust, &given).await);
            trust.switch_bundle();
            assert!(is(&trust, &given).await);
            trust.switch_bundle();
            assert!(!is(&trust, &given).await);
        }
        let mut bundles = CaBundles::default();
        assert_eq!(bundles.client_config().await.unwrap_err(), CaBundleError::Nothing);
        bundles.set_received(&ca()).unwrap();
        bundles.switch_bundle();
        assert!(bundles.client_config().await.is_ok(), "the only bundle");
    }

    #[tokio::test]
    async fn an_invalid_bundle_is_rejected_and_the_configured_one_stays_in_use() {
        let mut trust = CaBundles::from_pem(&ca()).unwrap();
        let given = trust.client_config().await.unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for wrong in ["", "nonsense", broken] {
            assert_eq!(trust.set_received(wrong), Err(CaBundleError::NoCertificate), "{wrong}");
        }
        let large = "x".repeat(BUNDLE_BYTES_MAX + 1);
        assert_eq!(trust.set_received(&large), Err(CaBundleError::TooLarge(large.len())));
        assert!(is(&trust, &given).await);
    }

    #[tokio::test]
    async fn a_file_is_read_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let trust = CaBundles::from_file(&path);
        assert!(matches!(trust.client_config().await, Err(CaBundleError::Unreadable(_))));
        std::fs::write(&path, "nothing yet").unwrap();
        assert_eq!(trust.client_config().await.unwrap_err(), CaBundleError::NoCertificate);
        std::fs::write(&path, ca()).unwrap();
        assert!(trust.client_config().await.is_ok());
    }
}
