//! TLS on both sides of the proxy with certificates from files: [`DownstreamTlsAcceptor`] for
//! downstream clients, [`UpstreamTlsConnector`] for model servers behind `https://`.
//!
//! ```text
//! files ─▶ read (bounded) ─▶ chain, key, authorities ─▶ acceptor | connector ─▶ accept | connect
//!   ▲ reload, when the files may have changed              unusable files change nothing
//! ```
//! Both reload their files at run time: a consistent set of files applies to the next handshake,
//! open connections keep the certificates they began with, and an incomplete or invalid set is
//! rejected with a reason. The only cryptography provider is aws-lc-rs, with TLS 1.3, and 1.2 with
//! AEAD.
//!
//! A server that limits handshakes waits for the first message of a client before it begins one
//! ([`wait_for_client_hello`]).
//!
//! Watching the files (`app::compose::certs`), handshake timeouts (`proxy::terminate`,
//! `upstream::connect`) and issuing certificates (`controller::certs`) belong elsewhere.

mod client_hello;
mod downstream;
mod material;
mod files;
mod upstream;
mod error;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use self::client_hello::wait_for_client_hello;
pub use self::downstream::{DownstreamFiles, DownstreamStream, DownstreamTlsAcceptor};
pub use self::error::classify;
pub use self::material::{Validity, certified_key, parse_certificates, validity};
pub use self::upstream::{
    AlpnProtocols, TlsFailure, UpstreamFiles, UpstreamStream, UpstreamTlsConnector, find_tls_failure,
};

/// The reason for which a file cannot be used, with its configuration key and advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GRP1106: `{key}` cannot be used: {path}: {reason}; {advice}")]
pub struct CertificateFileError {
    key: &'static str,
    path: String,
    reason: String,
    advice: &'static str,
}

/// Result of reloading certificate files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The content is unchanged.
    Same,
    /// The content has changed and is in use from now on.
    Changed,
}

/// Certificates in use that were loaded from files and can be reloaded.
pub trait ReloadableCertificate: Send + Sync + std::fmt::Debug {
    /// Side of the proxy on which they are used, the label of metrics.
    fn side(&self) -> &'static str;

    /// Returns the paths of the files.
    fn files(&self) -> Vec<PathBuf>;

    /// Returns the expiry of the presented certificate in seconds since 1970; `None` if no
    /// certificate is presented.
    fn expires(&self) -> Option<u64>;

    /// Reloads the files. Blocks while reading.
    ///
    /// # Errors
    /// Returns an error if the files cannot be used. The certificates in use remain unchanged.
    fn reload(&self) -> Result<ReloadOutcome, CertificateFileError>;
}

/// Returns the cryptography provider of the process.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
