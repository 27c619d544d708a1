//! Downstream TLS: the server certificate presented to clients and verification of client
//! certificates.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::files::{CertificateFile, Digest, digest};
use super::{CertificateFileError, ReloadOutcome, ReloadableCertificate, certified_key, provider, validity};

/// The protocols that clients may negotiate (ALPN), in order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A client connection after the handshake.
pub type DownstreamStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Paths of the PEM files for downstream TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownstreamFiles {
    /// The server certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Certificate authorities of clients. If set, only clients with a certificate issued by one of
    /// them are served.
    pub client_ca: Option<PathBuf>,
}

/// TLS termination for downstream clients.
#[derive(Debug)]
pub struct DownstreamTlsAcceptor {
    files: DownstreamFiles,
    used: RwLock<ActiveConfig>,
}

#[derive(Debug)]
struct ActiveConfig {
    read: Digest,
    config: Arc<ServerConfig>,
    expires: u64,
}

// === impl DownstreamTlsAcceptor ===

impl DownstreamTlsAcceptor {
    /// Loads the files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or the files are inconsistent.
    pub fn load(files: DownstreamFiles) -> Result<Self, CertificateFileError> {
        let used = build_config(&read(&files)?)?;
        Ok(Self { files, used: RwLock::new(used) })
    }

    /// Performs the handshake with a client, and returns the client certificate in DER, if any. The
    /// caller applies a timeout.
    ///
    /// # Errors
    /// Returns the reason of a failed handshake. The client has received a TLS alert if possible.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<(DownstreamStream, Option<Vec<u8>>)> {
        let config = self.used.read().unwrap_or_else(PoisonError::into_inner).config.clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|leaf| leaf.to_vec());
        Ok((stream, certificate))
    }
}

impl ReloadableCertificate for DownstreamTlsAcceptor {
    fn side(&self) -> &'static str {
        "callers"
    }

    fn files(&self) -> Vec<PathBuf> {
        let DownstreamFiles { cert, key, client_ca } = self.files.clone();
        [cert, key].into_iter().chain(client_ca).collect()
    }

    fn expires(&self) -> Option<u64> {
        Some(self.used.read().unwrap_or_else(PoisonError::into_inner).expires)
    }

    fn reload(&self) -> Result<ReloadOutcome, CertificateFileError> {
        let read = read(&self.files)?;
        if self.used.read().unwrap_or_else(PoisonError::into_inner).read == digest(&read) {
            return Ok(ReloadOutcome::Same);
        }
        let used = build_config(&read)?;
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(ReloadOutcome::Changed)
    }
}

/// Reads the certificate, the key, and the client authorities if configured.
fn read(files: &DownstreamFiles) -> Result<Vec<CertificateFile>, CertificateFileError> {
    let ca = files.client_ca.as_ref().map(|path| CertificateFile::read("proxy.tls.clientCaFile", path));
    [CertificateFile::read("proxy.tls.certFile", &files.cert), CertificateFile::read("proxy.tls.keyFile", &files.key)]
        .into_iter()
        .chain(ca)
        .collect()
}

/// Builds a new configuration. It starts with an empty session cache, so that no client resumes a
/// session with a certificate from an authority that is no longer trusted.
fn build_config(read: &[CertificateFile]) -> Result<ActiveConfig, CertificateFileError> {
    let [cert, key, rest @ ..] = read else { unreachable!("a certificate and a key are always read") };
    let chain = cert.chain()?;
    let expires = chain.first().and_then(validity).map_or(0, |validity| validity.end);
    let pair = certified_key(chain, key.private_key()?).map_err(|error| {
        key.unusable(&format!("it does not match the certificate ({error})"), "use a certificate and key of one pair")
    })?;
    let wrong = |error: &dyn std::fmt::Display| cert.unusable(&error.to_string(), "use another certificate");
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let builder = match rest.first() {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(ca.authorities()?), provider());
            let verifier = verifier.build().map_err(|error| {
                ca.unusable(&error.to_string(), "use the certificates of the authorities that sign client certificates")
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(ActiveConfig { config: Arc::new(config), expires, read: digest(read) })
}
