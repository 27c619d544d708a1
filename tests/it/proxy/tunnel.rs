//! Test certificates, and the two ends of a TLS tunnel, so that clients and servers without TLS can
//! use it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::setup::within_timeout;

/// A certificate authority.
pub(super) struct CertAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub(super) struct CertKeyPair {
    pub(super) cert: String,
    pub(super) key: String,
}

/// One end of a tunnel: a port in front of another one.
#[derive(Debug)]
pub(super) struct TlsTunnelEnd {
    pub(super) address: SocketAddr,
    /// Result of each handshake: the negotiated protocol, or the error.
    pub(super) shaken: mpsc::Receiver<Result<Option<String>, String>>,
    /// Certificate and protocols of the end that terminates TLS.
    config: Option<Arc<Mutex<Arc<ServerConfig>>>>,
    running: JoinHandle<()>,
}

// === impl CertAuthority ===

impl CertAuthority {
    pub(super) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Returns a certificate for these names or addresses.
    pub(super) fn sign(&self, names: &[&str]) -> CertKeyPair {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, names.join(" "));
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        CertKeyPair { cert, key: key.serialize_pem() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        roots
    }

    /// Returns the configuration of a client that trusts only this authority and offers these
    /// protocols in order of preference. It presents a certificate if `shows` is set.
    pub(super) fn client(&self, protocols: &[&str], shows: Option<&CertKeyPair>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(groupage::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        let mut config = match shows {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.private()).unwrap(),
        };
        config.alpn_protocols = alpn(protocols);
        Arc::new(config)
    }
}

// === impl CertKeyPair ===

impl CertKeyPair {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(self.cert.as_bytes()).collect::<Result<_, _>>().unwrap()
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// Writes the certificate and the key, and returns their paths.
    pub(super) fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        std::fs::write(&cert, &self.cert).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (cert, key)
    }

    /// Returns the configuration of a server that presents this certificate and speaks these
    /// protocols. With `clients` it requires a client certificate of that authority.
    pub(super) fn server(&self, protocols: &[&str], clients: Option<&CertAuthority>) -> Arc<ServerConfig> {
        let provider = groupage::tls::provider();
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(self.chain(), self.private()).unwrap();
        config.alpn_protocols = alpn(protocols);
        Arc::new(config)
    }
}

fn alpn(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect()
}

fn protocol_name(protocol: Option<&[u8]>) -> Option<String> {
    protocol.map(|protocol| String::from_utf8(protocol.to_vec()).unwrap())
}

// === impl TlsTunnelEnd ===

impl TlsTunnelEnd {
    /// Starts an end that accepts plain connections and connects with TLS.
    pub(super) async fn start_client_end(to: SocketAddr, name: &str, config: Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self::start(move |mut plain, results| {
            let (connector, name) = (TlsConnector::from(config.clone()), name.clone());
            async move {
                let stream = TcpStream::connect(to).await.unwrap();
                stream.set_nodelay(true).unwrap();
                match connector.connect(name, stream).await {
                    Ok(mut tls) => {
                        results.send(Ok(protocol_name(tls.get_ref().1.alpn_protocol()))).await.ok();
                        // Tests check how the end of one side appears on the other, so an error is
                        // reported.
                        if let Err(error) = copy_bidirectional(&mut plain, &mut tls).await {
                            results.send(Err(error.to_string())).await.ok();
                        }
                    }
                    Err(error) => _ = results.send(Err(error.to_string())).await,
                }
            }
        })
        .await
    }

    /// Starts an end that accepts TLS connections and connects without TLS.
    pub(super) async fn start_server_end(to: SocketAddr, config: Arc<ServerConfig>) -> Self {
        let config = Arc::new(Mutex::new(config));
        let shown = config.clone();
        let mut this = Self::start(move |stream, results| {
            let acceptor = TlsAcceptor::from(shown.lock().unwrap().clone());
            async move {
                match acceptor.accept(stream).await {
                    Ok(mut tls) => {
                        results.send(Ok(protocol_name(tls.get_ref().1.alpn_protocol()))).await.ok();
                        let mut plain = TcpStream::connect(to).await.unwrap();
                        plain.set_nodelay(true).unwrap();
                        copy_bidirectional(&mut tls, &mut plain).await.ok();
                    }
                    Err(error) => _ = results.send(Err(error.to_string())).await,
                }
            }
        })
        .await;
        this.config = Some(config);
        this
    }

    /// Changes the certificate and protocols from the next connection on.
    pub(super) fn set_config(&self, other: Arc<ServerConfig>) {
        *self.config.as_ref().unwrap().lock().unwrap() = other;
    }

    async fn start<F: Future<Output = ()> + Send + 'static>(
        carry: impl Fn(TcpStream, mpsc::Sender<Result<Option<String>, String>>) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (results, shaken) = mpsc::channel(1024);
        let running = tokio::spawn(async move {
            // Owned by this task, so that the connections end with the listener.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                connections.spawn(carry(stream, results.clone()));
            }
        });
        Self { address, shaken, config: None, running }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Waits for the result of the next handshake, or for the error that broke a connection.
    pub(super) async fn next_handshake(&mut self) -> Result<Option<String>, String> {
        within_timeout(self.shaken.recv()).await.unwrap()
    }
}

impl Drop for TlsTunnelEnd {
    fn drop(&mut self) {
        self.running.abort();
    }
}
