//! A connection to a captured port, which may carry any protocol: HTTP is served, everything else
//! is relayed as bytes, so that capturing never breaks a port.
//!
//! ```text
//! no route can match here ──────────────────────────────────────────────▶ relay
//! first bytes: HTTP ────────────────────────────────────────────────────▶ serve
//!              anything else, or a request line not finished in time ───▶ relay
//! no bytes for a moment: connect to the application, and the side that speaks first decides
//!              the client ──▶ as above          the application ────────▶ relay
//! ```
//! A client that connects ahead of its first call is therefore still served. A protocol in which
//! the server speaks first loses the moment once per connection.
//!
//! TLS is one of the protocols that a port may carry: without certificates of its own the sidecar
//! relays it as it is. With certificates, TLS is terminated before this module (`terminate`), the
//! detection runs on the decrypted bytes, and the application receives those.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::connections::ConnectionGuard;
use super::detect::{DETECT_BYTES_MAX, DetectedProtocol, detect_protocol};
use super::memory_accounting::ConnectionMemory;
use super::state::ListenerState;
use super::stream::{ClientStream, MonitoredStream};
use super::{Proxy, connection};
use crate::backend::ByteStream;
use crate::protocol::PeerIdentity;
use crate::relay::relay;
use crate::telemetry::names::RelayReason;

/// Time that a client may be silent before a connection to the application is opened to let it
/// speak first: the time that an HTTP/2 client may take to send its SETTINGS.
const CLIENT_FIRST_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum time to complete a request line that has begun. HTTP clients write theirs at once.
const REQUEST_LINE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a silent connection may stay open once its port drains, the same as an idle HTTP
/// connection.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Result of detecting the protocol of a connection.
enum DetectedConnection {
    Http,
    Bytes(RelayReason, Option<Box<dyn ByteStream>>, Vec<u8>),
    Over,
}

/// Serves a connection to its end. `guard` is held as long as the stream.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    (mut stream, peer): (ClientStream, Option<PeerIdentity>),
    state: watch::Receiver<ListenerState>,
    guard: ConnectionGuard,
) {
    let mut ahead = Vec::new();
    let detected = if proxy.table().relays {
        DetectedConnection::Bytes(RelayReason::NoRoute, None, Vec::new())
    } else {
        begin(&proxy, &mut stream, &mut ahead, state.clone()).await
    };
    match detected {
        DetectedConnection::Over => {}
        DetectedConnection::Http => connection::run(proxy, (stream, peer), Bytes::from(ahead), state, guard).await,
        DetectedConnection::Bytes(reason, upstream, answer) => {
            proxy.metrics.record_relay(reason);
            guard.permit.activity().set_relayed();
            // A relayed connection drops the state of a served one: the tunnel needs only its two
            // ends, and parses no heads.
            let activity = guard.permit.activity();
            let memory = ConnectionMemory::new(&proxy.buffers, &activity);
            let client = MonitoredStream::new(stream, Bytes::new(), (&activity, &memory), (0, guard));
            Box::pin(relay_connection(&proxy, client, upstream, (ahead, answer))).await;
        }
    }
}

/// Detects the protocol. The bytes received from the client are left in `ahead`.
async fn begin(
    proxy: &Proxy,
    stream: &mut ClientStream,
    ahead: &mut Vec<u8>,
    mut state: watch::Receiver<ListenerState>,
) -> DetectedConnection {
    if let Ok(first) = timeout(CLIENT_FIRST_TIMEOUT, read_prefix(stream, ahead)).await {
        return if first.is_err() { DetectedConnection::Over } else { detect_request_line(stream, ahead).await };
    }
    // The client may have connected ahead of its first call, or wait for the server to speak first.
    let limit = proxy.config.client.pass_through_idle_timeout;
    let leave = async {
        // An error means that the sender was dropped because the process ends: treated the same.
        state.wait_for(|state| *state != ListenerState::Serving).await.ok();
        tokio::time::sleep(DRAIN_GRACE).await;
    };
    let speaks = async {
        let Ok(mut upstream) = proxy.forward.open_connection().await else {
            // The application does not accept connections and sends nothing. An HTTP client
            // receives an error response when it sends a call.
            return std::future::pending().await;
        };
        let mut answer = vec![0; DETECT_BYTES_MAX];
        match upstream.read(&mut answer).await {
            Ok(0) | Err(_) => None,
            Ok(read) => {
                answer.truncate(read);
                Some((upstream, answer))
            }
        }
    };
    tokio::select! {
        biased;
        first = read_prefix(stream, ahead) => if first.is_err() { DetectedConnection::Over } else { detect_request_line(stream, ahead).await },
        spoke = speaks => match spoke {
            Some((upstream, answer)) => DetectedConnection::Bytes(RelayReason::ServerFirst, Some(upstream), answer),
            // The application closed the connection of a silent client.
            None => DetectedConnection::Over,
        },
        () = leave => DetectedConnection::Over,
        () = tokio::time::sleep(limit) => DetectedConnection::Over,
    }
}

/// Reads from a client that has sent its first bytes until the protocol is known.
async fn detect_request_line(stream: &mut ClientStream, ahead: &mut Vec<u8>) -> DetectedConnection {
    let known = async {
        loop {
            match detect_protocol(ahead) {
                DetectedProtocol::Http => return DetectedConnection::Http,
                DetectedProtocol::Other => return DetectedConnection::Bytes(RelayReason::NotHttp, None, Vec::new()),
                DetectedProtocol::More => {}
            }
            match read_prefix(stream, ahead).await {
                Ok(()) => {}
                // The stream ended in the middle of what may be a request line. It is relayed,
                // since only the application can interpret it.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return DetectedConnection::Bytes(RelayReason::NotHttp, None, Vec::new());
                }
                Err(_) => return DetectedConnection::Over,
            }
        }
    };
    // A client of another protocol has sent its first message and waits for the answer, so on a
    // timeout the connection is relayed.
    timeout(REQUEST_LINE_TIMEOUT, known).await.unwrap_or(DetectedConnection::Bytes(
        RelayReason::NotHttp,
        None,
        Vec::new(),
    ))
}

/// Reads the bytes available, at most up to [`DETECT_BYTES_MAX`] in total.
async fn read_prefix(stream: &mut ClientStream, ahead: &mut Vec<u8>) -> io::Result<()> {
    let room = DETECT_BYTES_MAX.saturating_sub(ahead.len());
    ahead.reserve(room);
    match stream.take(room as u64).read_buf(ahead).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Relays a connection: first the bytes already read from either side, then everything that
/// follows.
async fn relay_connection(
    proxy: &Proxy,
    mut client: MonitoredStream,
    upstream: Option<Box<dyn ByteStream>>,
    (ahead, answer): (Vec<u8>, Vec<u8>),
) {
    let upstream = match upstream {
        Some(upstream) => Ok(upstream),
        None => proxy.forward.open_connection().await,
    };
    // Without the sidecar the connect would be refused. Closing the connection at once is the
    // nearest equivalent.
    let Ok(mut upstream) = upstream else { return };
    // Flushed, because a TLS stream may still buffer written bytes.
    let sent = upstream.write_all(&ahead).await.is_ok() && upstream.flush().await.is_ok();
    if !sent || client.write_all(&answer).await.is_err() || client.flush().await.is_err() {
        return;
    }
    drop((ahead, answer));
    relay(client, upstream, proxy.config.client.pass_through_idle_timeout).await;
}
