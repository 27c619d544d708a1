//! Connections to the model server: TCP or a unix socket.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

/// Addresses of one name that are tried: more would make a refused call wait for seconds.
const ADDRESSES_MAX: usize = 4;

/// Where the model server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A host name or address, and a port.
    Tcp {
        /// Name or literal address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// Opens connections.
#[derive(Debug)]
pub(super) struct Connector {
    target: Target,
    timeout: Duration,
    /// The last addresses that a name resolved to: kept when it stops resolving (F37).
    addresses: Mutex<Vec<SocketAddr>>,
}

/// An open connection.
#[derive(Debug)]
pub(super) enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
}

// === impl Target ===

impl Target {
    /// The `Host` of calls that the proxy itself makes.
    #[must_use]
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } => write!(f, "http://{}", self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(target: Target, timeout: Duration) -> Self {
        let literal = match &target {
            Target::Tcp { host, port } => host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, *port)),
            Target::Unix(_) => None,
        };
        Self { target, timeout, addresses: Mutex::new(literal.into_iter().collect()) }
    }

    /// Opens a connection, each try within the time allowed. `TCP_NODELAY` always: without it an HTTP/2 call over loopback takes 40 ms.
    pub(super) async fn connect(&self) -> io::Result<Io> {
        let (host, port) = match &self.target {
            Target::Unix(path) => return Ok(Io::Unix(self.within(UnixStream::connect(path)).await?)),
            Target::Tcp { host, port } => (host, *port),
        };
        let known = self.addresses.lock().map(|known| known.clone()).unwrap_or_default();
        let stream = match self.first_of(&known).await {
            Ok(stream) => stream,
            Err(error) if host.parse::<IpAddr>().is_ok() => return Err(error),
            // The name may stand for another address by now; one that does not resolve keeps its last ones.
            Err(error) => {
                let found: Vec<SocketAddr> = match self.within(lookup_host((host.as_str(), port))).await {
                    Ok(found) => found.take(ADDRESSES_MAX).collect(),
                    Err(_) if !known.is_empty() => return Err(error),
                    Err(error) => return Err(error),
                };
                let stream = self.first_of(&found).await?;
                if let Ok(mut addresses) = self.addresses.lock() {
                    *addresses = found;
                }
                stream
            }
        };
        stream.set_nodelay(true)?;
        Ok(Io::Tcp(stream))
    }

    /// The first address that answers.
    async fn first_of(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
        for address in addresses {
            match self.within(TcpStream::connect(address)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn within<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        match timeout(self.timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connect timed out")),
        }
    }
}

// === impl Io ===

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
