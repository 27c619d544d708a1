//! Connections to the model server: TCP with or without TLS, the pod's own loopback, or a Unix
//! socket.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use super::permits::UpstreamPermit;
use crate::relay::{poll_read_within, poll_write_joined};
use crate::tls::{AlpnProtocols, UpstreamStream, UpstreamTlsConnector};

/// Maximum number of addresses tried for one name. More would delay a refused call by seconds.
const ADDRESSES_MAX: usize = 4;

/// Time after which the next address is tried concurrently with one that has not accepted yet, and
/// after which a name is resolved again: the Connection Attempt Delay of Happy Eyeballs (RFC 8305,
/// section 5), with the recommended value. A server whose listen queue is full drops the first
/// packet of a connection. The kernel repeats it after 1 s and 3 s, so the attempt itself is not
/// given up.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Start of the default ephemeral port range of Linux (`net.ipv4.ip_local_port_range`). On lower
/// ports, a socket cannot connect to itself.
const EPHEMERAL: u16 = 32_768;

/// TCP keep-alive towards other machines: idle time before the first probe, interval between
/// probes, and number of unanswered probes after which the connection is closed. A lost peer is
/// detected within a minute at the cost of three small packets, as with HTTP/2 pings (`client`).
const ALIVE_IDLE: Duration = Duration::from_secs(20);
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const ALIVE_PROBES: u32 = 3;

/// Address of the model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamTarget {
    /// A host name or address with a port.
    Tcp {
        /// Host name or literal address, without brackets.
        host: String,
        /// Port number.
        port: u16,
        /// `true` for `https`.
        tls: bool,
    },
    /// The application of this pod on either loopback address, since its port was captured.
    Loopback(u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Opens connections to the target.
#[derive(Debug)]
pub(super) struct Connector {
    target: UpstreamTarget,
    /// TLS settings, for a target with TLS.
    tls: Option<Arc<UpstreamTlsConnector>>,
    timeout: Duration,
    /// The addresses that the name last resolved to, kept if it stops resolving. Of the two
    /// loopback addresses, the one that worked last comes first.
    addresses: Mutex<Vec<SocketAddr>>,
}

/// An open connection with its permit.
#[derive(Debug)]
pub(super) struct UpstreamIo {
    stream: IoStream,
    /// `None` for a connection that carries no call.
    permit: Option<UpstreamPermit>,
}

#[derive(Debug)]
enum IoStream {
    Tcp(TcpStream),
    /// Boxed because of its size of about 1 KiB, which plain connections would carry as well.
    Tls(Box<UpstreamStream>),
    Unix(UnixStream),
}

/// Concurrent attempts to connect to several addresses, as in Happy Eyeballs (RFC 8305).
#[derive(Default)]
struct ConnectAttempts {
    pending: FuturesUnordered<BoxFuture<'static, io::Result<TcpStream>>>,
    /// The addresses to which an attempt was started.
    tried: Vec<SocketAddr>,
    /// Error of the last attempt that failed.
    error: Option<io::Error>,
}

// === impl UpstreamTarget ===

impl UpstreamTarget {
    /// Returns the `Host` of calls that the proxy itself makes.
    #[must_use]
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Loopback(port) => format!("localhost:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Returns the scheme of calls to the target.
    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        match self {
            Self::Tcp { tls: true, .. } => "https",
            Self::Tcp { .. } | Self::Loopback(_) | Self::Unix(_) => "http",
        }
    }
}

impl fmt::Display for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } | Self::Loopback(_) => write!(f, "{}://{}", self.scheme(), self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Connector ===

impl Connector {
    pub(super) fn new(target: UpstreamTarget, tls: Option<Arc<UpstreamTlsConnector>>, timeout: Duration) -> Self {
        let known = match &target {
            UpstreamTarget::Tcp { host, port, .. } => {
                host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, *port)).into_iter().collect()
            }
            UpstreamTarget::Loopback(port) => {
                vec![SocketAddr::from((Ipv4Addr::LOCALHOST, *port)), SocketAddr::from((Ipv6Addr::LOCALHOST, *port))]
            }
            UpstreamTarget::Unix(_) => Vec::new(),
        };
        Self { target, tls, timeout, addresses: Mutex::new(known) }
    }

    /// Returns `true` if the HTTP version is negotiated with ALPN during the TLS handshake.
    pub(super) const fn negotiates_alpn(&self) -> bool {
        matches!(self.target, UpstreamTarget::Tcp { tls: true, .. })
    }

    /// Opens a connection. The timeout applies to the connect and to the TLS handshake separately.
    /// `TCP_NODELAY` is always set: without it, an HTTP/2 call over loopback takes 40 ms.
    pub(super) async fn connect(&self, alpn: AlpnProtocols) -> io::Result<UpstreamIo> {
        self.connect_within(alpn, self.timeout).await
    }

    /// Opens a connection with a timeout that is not longer than the configured one.
    pub(super) async fn connect_within(&self, alpn: AlpnProtocols, limit: Duration) -> io::Result<UpstreamIo> {
        let limit = limit.min(self.timeout);
        let (host, port, secure) = match &self.target {
            UpstreamTarget::Unix(path) => {
                return Ok(IoStream::Unix(within(limit, UnixStream::connect(path)).await?).into());
            }
            UpstreamTarget::Loopback(port) => return within(limit, self.connect_loopback(*port)).await,
            UpstreamTarget::Tcp { host, port, tls } => (host, *port, *tls),
        };
        let stream = within(limit, self.connect_to(host, port)).await?;
        match &self.tls {
            Some(tls) if secure => {
                // Boxed because the future of a handshake is large, and most connections have none.
                let secured = within(limit, Box::pin(tls.connect(stream, alpn))).await;
                Ok(IoStream::Tls(Box::new(secured?)).into())
            }
            None if secure => Err(io::Error::other("TLS is not configured")),
            _ => Ok(IoStream::Tcp(stream).into()),
        }
    }

    /// Connects to the known addresses of a host. If none of them accepts soon, the name is
    /// resolved again, unless the host is an address.
    async fn connect_to(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let known = self.addresses.lock().map(|known| known.clone()).unwrap_or_default();
        let mut attempts = ConnectAttempts::default();
        let stream = match attempts.try_each(&known).await {
            Some(stream) => stream,
            None if host.parse::<IpAddr>().is_ok() => attempts.finish().await?,
            None => self.connect_resolved(host, port, attempts).await?,
        };
        stream.set_nodelay(true)?;
        if stream.peer_addr().is_ok_and(|peer| !peer.ip().is_loopback()) {
            keep_alive(&stream);
        }
        Ok(stream)
    }

    /// Resolves the name again and connects to its addresses, while the earlier attempts continue.
    /// If it does not resolve, the last addresses are kept.
    async fn connect_resolved(&self, host: &str, port: u16, mut attempts: ConnectAttempts) -> io::Result<TcpStream> {
        let resolved: Vec<SocketAddr> = tokio::select! {
            biased;
            Some(stream) = attempts.first_accepted() => return Ok(stream),
            resolved = lookup_host((host, port)) => match resolved {
                Ok(resolved) => resolved.take(ADDRESSES_MAX).collect(),
                Err(error) if attempts.tried.is_empty() => return Err(error),
                Err(_) => return attempts.finish().await,
            },
        };
        let stream = match attempts.try_each(&resolved).await {
            Some(stream) => stream,
            None => attempts.finish().await?,
        };
        if let Ok(mut addresses) = self.addresses.lock() {
            *addresses = resolved;
        }
        Ok(stream)
    }

    /// Connects to the application on either loopback address. The address that worked is tried
    /// first from then on.
    async fn connect_loopback(&self, port: u16) -> io::Result<UpstreamIo> {
        let known = self.addresses.lock().map(|known| known.clone()).unwrap_or_default();
        let mut refused = None;
        for (index, address) in known.iter().enumerate() {
            match TcpStream::connect(address).await {
                Ok(stream) if port >= EPHEMERAL && stream.local_addr().is_ok_and(|own| own == *address) => {
                    // The kernel chose the target port as the local port, and the socket connected
                    // to itself: no process listens on the port.
                    refused.get_or_insert(io::ErrorKind::ConnectionRefused.into());
                }
                Ok(stream) => {
                    if index > 0
                        && let Ok(mut addresses) = self.addresses.lock()
                    {
                        addresses.rotate_left(index);
                    }
                    stream.set_nodelay(true)?;
                    return Ok(IoStream::Tcp(stream).into());
                }
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        Err(refused.unwrap_or_else(no_address))
    }
}

/// Awaits `work`, and fails with `TimedOut` after `limit`.
async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connect timed out")),
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no address was resolved")
}

// === impl ConnectAttempts ===

impl ConnectAttempts {
    /// Tries the addresses in order, except those that were tried before. Each gets
    /// [`ATTEMPT_DELAY`] before the next one is tried as well. Returns `None` if none has
    /// accepted yet.
    async fn try_each(&mut self, addresses: &[SocketAddr]) -> Option<TcpStream> {
        for address in addresses {
            if self.tried.contains(address) {
                continue;
            }
            self.tried.push(*address);
            self.pending.push(Box::pin(TcpStream::connect(*address)));
            // The attempt continues after the timeout.
            if let Ok(Some(stream)) = timeout(ATTEMPT_DELAY, self.first_accepted()).await {
                return Some(stream);
            }
        }
        None
    }

    /// Waits for the first attempt that succeeds, and returns `None` if all have failed.
    async fn first_accepted(&mut self) -> Option<TcpStream> {
        while let Some(result) = self.pending.next().await {
            match result {
                Ok(stream) => return Some(stream),
                Err(error) => self.error = Some(error),
            }
        }
        None
    }

    /// Waits for the first attempt that succeeds, and returns the last error if all have failed.
    async fn finish(mut self) -> io::Result<TcpStream> {
        let stream = self.first_accepted().await;
        stream.ok_or_else(|| self.error.unwrap_or_else(no_address))
    }
}

/// Enables TCP keep-alive. A response may take any time, so this is the only way to detect a peer
/// that vanished silently. On the same machine, the kernel closes the connections of a process that
/// ended. A socket without these options still works.
fn keep_alive(stream: &TcpStream) {
    let set = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, ALIVE_IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, ALIVE_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, ALIVE_PROBES));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot enable TCP keep-alive on the connection to the model server");
    }
}

// === impl UpstreamIo ===

impl UpstreamIo {
    /// Attaches a permit for the lifetime of the connection.
    pub(super) fn with_permit(self, permit: UpstreamPermit) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// Returns whether the server chose HTTP/2 with ALPN, or `None` if no protocol was negotiated.
    pub(super) fn negotiated_http2(&self) -> Option<bool> {
        match &self.stream {
            IoStream::Tls(stream) => stream.get_ref().1.alpn_protocol().map(|protocol| protocol == b"h2"),
            IoStream::Tcp(_) | IoStream::Unix(_) => None,
        }
    }
}

impl AsyncRead for UpstreamIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let max = this.permit.as_ref().map_or(usize::MAX, UpstreamPermit::read_max);
        match &mut this.stream {
            IoStream::Tcp(stream) => poll_read_within(stream, cx, buf, max),
            IoStream::Tls(stream) => poll_read_within(stream, cx, buf, max),
            IoStream::Unix(stream) => poll_read_within(stream, cx, buf, max),
        }
    }
}

impl AsyncWrite for UpstreamIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            IoStream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            IoStream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            IoStream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            IoStream::Tcp(stream) => poll_write_joined(Pin::new(stream), cx, bufs),
            IoStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            IoStream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            IoStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            IoStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            IoStream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            IoStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            IoStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            IoStream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl From<IoStream> for UpstreamIo {
    fn from(stream: IoStream) -> Self {
        Self { stream, permit: None }
    }
}

#[cfg(test)]
mod tests;
