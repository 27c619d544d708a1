//! Upstream TLS: verification of the certificates and names of model servers, and the client
//! certificate presented to them.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::{as_client_certificate_alert, as_tls_error, describe_server_error};
use super::files::{CertificateFile, Digest, digest};
use super::{CertificateFileError, ReloadOutcome, ReloadableCertificate, certified_key, provider, validity};

const CA: &str = "proxy.upstreamTls.caFile";
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// A server connection after the handshake.
pub type UpstreamStream = tokio_rustls::client::TlsStream<TcpStream>;

/// Paths of the PEM files for upstream TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamFiles {
    /// Certificate authorities of servers. `None`: the trust store of the machine.
    pub ca: Option<PathBuf>,
    /// Client certificate and key, presented to a server that requests one.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// The application protocol to negotiate (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlpnProtocols {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 only.
    Http2,
    /// HTTP/2 or HTTP/1.1, preferably HTTP/2. The connection reports the negotiated one.
    Either,
}

/// TLS for connections to model servers.
#[derive(Debug)]
pub struct UpstreamTlsConnector {
    files: UpstreamFiles,
    name: ServerName<'static>,
    used: RwLock<ActiveConfig>,
}

#[derive(Debug)]
struct ActiveConfig {
    read: Digest,
    config: Arc<ClientConfig>,
    expires: Option<u64>,
}

/// The reason of a failed TLS connection to a server, as text for a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsFailure(String);

// === impl UpstreamTlsConnector ===

impl UpstreamTlsConnector {
    /// Loads the files. `name` is the DNS name or address that a server's certificate must cover.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, the files are inconsistent, the name is invalid,
    /// or the machine's trust store is empty.
    pub fn load(files: UpstreamFiles, name: &str) -> Result<Self, CertificateFileError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|error| CertificateFileError {
            key: "proxy.upstreamTls.serverName",
            path: name.to_owned(),
            reason: error.to_string(),
            advice: "set a DNS name or an address that the server's certificate contains",
        })?;
        let used = build_config(&files, &read(&files)?)?;
        Ok(Self { files, name, used: RwLock::new(used) })
    }

    /// Performs the handshake with a server. The caller applies a timeout.
    ///
    /// # Errors
    /// Returns the reason of a failed connection, wrapped in [`TlsFailure`] if TLS caused it.
    pub async fn connect(&self, stream: TcpStream, speak: AlpnProtocols) -> io::Result<UpstreamStream> {
        let config = self.used.read().unwrap_or_else(PoisonError::into_inner).config.clone();
        let protocols: &[&[u8]] = match speak {
            AlpnProtocols::Http1 => &[HTTP1],
            AlpnProtocols::Http2 => &[HTTP2],
            AlpnProtocols::Either => &[HTTP2, HTTP1],
        };
        let connector = TlsConnector::from(config);
        let connector = connector.with_alpn(protocols.iter().map(|protocol| protocol.to_vec()).collect());
        connector.connect(self.name.clone(), stream).await.map_err(|error| match as_tls_error(&error) {
            Some(reason) => io::Error::new(error.kind(), TlsFailure(describe_server_error(reason))),
            // The server closed the connection during the handshake, as servers without TLS do.
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), TlsFailure("it closed the connection during the handshake".to_owned()))
            }
            None => error,
        })
    }
}

impl ReloadableCertificate for UpstreamTlsConnector {
    fn side(&self) -> &'static str {
        "upstream"
    }

    fn files(&self) -> Vec<PathBuf> {
        let UpstreamFiles { ca, pair } = self.files.clone();
        ca.into_iter().chain(pair.into_iter().flat_map(<[_; 2]>::from)).collect()
    }

    fn expires(&self) -> Option<u64> {
        self.used.read().unwrap_or_else(PoisonError::into_inner).expires
    }

    fn reload(&self) -> Result<ReloadOutcome, CertificateFileError> {
        let read = read(&self.files)?;
        if self.used.read().unwrap_or_else(PoisonError::into_inner).read == digest(&read) {
            return Ok(ReloadOutcome::Same);
        }
        let used = build_config(&self.files, &read)?;
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(ReloadOutcome::Changed)
    }
}

/// Finds a TLS failure in the source chain of a connection error: with TLS 1.3 a server rejects the
/// client certificate after its own handshake is complete.
#[must_use]
pub fn find_tls_failure(error: &(dyn StdError + 'static)) -> Option<TlsFailure> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reason) = error.downcast_ref::<io::Error>().and_then(as_client_certificate_alert) {
            return Some(TlsFailure(describe_server_error(&reason)));
        }
        next = error.source();
    }
    None
}

/// Reads the authorities, the certificate and the key, as far as they are configured.
fn read(files: &UpstreamFiles) -> Result<Vec<CertificateFile>, CertificateFileError> {
    let named = |key: &'static str, path: Option<&Path>| path.map(|path| CertificateFile::read(key, path));
    let (cert, key) = files.pair.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path())).unzip();
    [named(CA, files.ca.as_deref()), named("proxy.upstreamTls.certFile", cert), named("proxy.upstreamTls.keyFile", key)]
        .into_iter()
        .flatten()
        .collect()
}

fn build_config(files: &UpstreamFiles, read: &[CertificateFile]) -> Result<ActiveConfig, CertificateFileError> {
    let (ca, pair) = if files.ca.is_some() { (read.first(), read.get(1..)) } else { (None, read.get(..)) };
    let roots = ca.map_or_else(load_native_roots, CertificateFile::authorities)?;
    let general = |error: rustls::Error| CertificateFileError {
        key: "proxy.upstreamTls",
        path: "TLS".to_owned(),
        reason: error.to_string(),
        advice: "report this bug",
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(general)?
        .with_root_certificates(roots);
    let (config, expires) = match pair {
        Some([cert, key]) => {
            let chain = cert.chain()?;
            let expires = chain.first().and_then(validity).map(|validity| validity.end);
            let pair = certified_key(chain, key.private_key()?).map_err(|error| {
                key.unusable(
                    &format!("it does not match the certificate ({error})"),
                    "use a certificate and key of one pair",
                )
            })?;
            let resolver = Arc::new(rustls::sign::SingleCertAndKey::from(pair));
            (builder.with_client_cert_resolver(resolver), expires)
        }
        _ => (builder.with_no_client_auth(), None),
    };
    Ok(ActiveConfig { config: Arc::new(config), expires, read: digest(read) })
}

fn load_native_roots() -> Result<RootCertStore, CertificateFileError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(CertificateFileError {
            key: CA,
            path: "the authorities that this machine trusts".to_owned(),
            reason: found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string),
            advice: "set `proxy.upstreamTls.caFile` to the authority of the server's certificate",
        });
    }
    Ok(roots)
}
