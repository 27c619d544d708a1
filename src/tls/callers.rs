//! TLS towards callers: what is shown to them, and whom of them is believed.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::read::{Digest, File, digest};
use super::{Kept, Look, Unusable, certified, provider, validity};

/// What callers may speak inside, the better one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A caller's connection after the handshake.
pub type CallerStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Where it all stands, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerFiles {
    /// The certificate that is shown, and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of callers: only who shows a certificate of one of these is served.
    pub client_ca: Option<PathBuf>,
}

/// TLS towards callers.
#[derive(Debug)]
pub struct Callers {
    files: CallerFiles,
    used: RwLock<Used>,
}

#[derive(Debug)]
struct Used {
    read: Digest,
    config: Arc<ServerConfig>,
    expires: u64,
}

// === impl Callers ===

impl Callers {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be read, or they do not fit together.
    pub fn load(files: CallerFiles) -> Result<Self, Unusable> {
        let used = used(&read(&files)?)?;
        Ok(Self { files, used: RwLock::new(used) })
    }

    /// Shakes hands with a caller; gives the certificate that it showed, in DER. Bound it in time.
    ///
    /// # Errors
    /// Why there is no connection; the caller was told, as far as TLS has a word for it.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<(CallerStream, Option<Vec<u8>>)> {
        let config = self.used.read().unwrap_or_else(PoisonError::into_inner).config.clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|leaf| leaf.to_vec());
        Ok((stream, shown))
    }
}

impl Kept for Callers {
    fn side(&self) -> &'static str {
        "callers"
    }

    fn files(&self) -> Vec<PathBuf> {
        let CallerFiles { cert, key, client_ca } = self.files.clone();
        [cert, key].into_iter().chain(client_ca).collect()
    }

    fn expires(&self) -> Option<u64> {
        Some(self.used.read().unwrap_or_else(PoisonError::into_inner).expires)
    }

    fn look(&self) -> Result<Look, Unusable> {
        let read = read(&self.files)?;
        if self.used.read().unwrap_or_else(PoisonError::into_inner).read == digest(&read) {
            return Ok(Look::Same);
        }
        let used = used(&read)?;
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = used;
        Ok(Look::Changed)
    }
}

/// Certificate, key, and authorities where there are any.
fn read(files: &CallerFiles) -> Result<Vec<File>, Unusable> {
    let ca = files.client_ca.as_ref().map(|path| File::read("proxy.tls.clientCaFile", path));
    [File::read("proxy.tls.certFile", &files.cert), File::read("proxy.tls.keyFile", &files.key)]
        .into_iter()
        .chain(ca)
        .collect()
}

/// A whole new configuration: with it go the sessions that were begun under the old one, so that nobody comes back past authorities that are believed no more.
fn used(read: &[File]) -> Result<Used, Unusable> {
    let [cert, key, rest @ ..] = read else { unreachable!("a certificate and a key are read in any case") };
    let chain = cert.chain()?;
    let expires = chain.first().and_then(validity).map_or(0, |validity| validity.end);
    let pair = certified(chain, key.private_key()?).map_err(|error| {
        key.unusable(&format!("it does not go with the certificate ({error})"), "give certificate and key of one pair")
    })?;
    let wrong = |error: &dyn std::fmt::Display| cert.unusable(&error.to_string(), "give another certificate");
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let builder = match rest.first() {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(ca.authorities()?), provider());
            let verifier = verifier.build().map_err(|error| {
                ca.unusable(&error.to_string(), "give the certificates of the authorities of callers")
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Used { config: Arc::new(config), expires, read: digest(read) })
}
