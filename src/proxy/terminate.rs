//! TLS termination for client connections: the handshake, with a timeout and a concurrency limit.
//!
//! ```text
//! first byte: a TLS record  ──▶ the whole first record ──▶ a permit ──▶ handshake ──▶ the stream
//!                               and the client's certificate
//!             HTTP          ──▶ an error in its own HTTP version: this port requires TLS
//!             anything else ──▶ closed
//! ```
//! A port with certificates accepts TLS only: a client that could continue in plain text would
//! bypass the client certificates that the port requires.
//!
//! Certificates and the handshake itself belong to `tls`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::Proxy;
use super::detect::{DETECT_BYTES_MAX, DetectedProtocol, detect_protocol};
use super::state::ListenerState;
use super::stream::ClientStream;
use crate::protocol::PeerIdentity;
use crate::telemetry::names::HandshakeResult;
use crate::tls::{DownstreamTlsAcceptor, classify, wait_for_client_hello};

/// Maximum number of concurrent handshakes; further ones wait for a permit. A handshake takes about
/// 1 ms of a core and about 20 KiB, and a client that stalls after its first record holds its
/// permit for the rest of the head timeout: the limit tolerates a few hundred of them and bounds
/// the memory at about 10 MiB.
const HANDSHAKES_MAX: usize = 512;
/// The first byte of a TLS handshake record, its content type (RFC 8446, 5.1).
const TLS_HANDSHAKE_RECORD: u8 = 0x16;
/// Maximum time that a handshake may continue once the port is closed, the same as for an idle HTTP
/// connection.
const GOODBYE: Duration = Duration::from_secs(1);
/// Maximum time to read the rest of a rejected client's request. If the socket were closed with
/// unread data, the kernel would reset the connection and discard the response.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of bytes of that rest that are read.
const LINGER_BYTES_MAX: u64 = 64 << 10;

const PREFACE: &[u8] = b"PRI * HTTP/2.0";
const PLAINTEXT_ERROR: &str = "this port requires TLS: use https://\n";
/// An empty SETTINGS frame, and a GOAWAY frame with error `INADEQUATE_SECURITY`, without its length
/// and debug data (RFC 9113, 6.8 and 7).
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const GOAWAY: [u8; 14] = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c];

/// TLS termination of one port.
#[derive(Debug)]
pub struct TlsTermination {
    callers: Arc<DownstreamTlsAcceptor>,
    permits: Semaphore,
}

// === impl TlsTermination ===

impl TlsTermination {
    /// Creates the TLS termination with these certificates.
    #[must_use]
    pub fn new(callers: Arc<DownstreamTlsAcceptor>) -> Self {
        Self { callers, permits: Semaphore::new(HANDSHAKES_MAX) }
    }
}

/// Performs the handshake of a connection. Returns `None` if it failed, which is counted here.
pub(super) async fn run(
    proxy: &Proxy,
    tls: &TlsTermination,
    stream: TcpStream,
    mut state: watch::Receiver<ListenerState>,
) -> Option<(ClientStream, Option<PeerIdentity>)> {
    let leave = async {
        // An error means that the sender was dropped because the process ends: treated the same.
        state.wait_for(|state| *state == ListenerState::Closed).await.ok();
        tokio::time::sleep(GOODBYE).await;
    };
    let mut slow = HandshakeResult::Silent;
    let shaken = tokio::select! {
        biased;
        shaken = timeout(proxy.config.client.head_timeout, shake(tls, stream, &mut slow)) => shaken,
        () = leave => Ok(Err(HandshakeResult::Left)),
    };
    match shaken.unwrap_or(Err(slow)) {
        Ok(client) => Some(client),
        Err(reason) => {
            tracing::debug!(reason = reason.as_str(), "TLS handshake failed");
            proxy.metrics.record_failed_handshake(reason);
            None
        }
    }
}

/// Rejects plain text and performs the handshake. `slow` is kept at the failure to report if the
/// timeout expires at this point.
async fn shake(
    tls: &TlsTermination,
    stream: TcpStream,
    slow: &mut HandshakeResult,
) -> Result<(ClientStream, Option<PeerIdentity>), HandshakeResult> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1..) if first == [TLS_HANDSHAKE_RECORD] => {}
        Ok(1..) => {
            reject_plaintext(stream).await;
            return Err(HandshakeResult::NotTls);
        }
        Ok(0) | Err(_) => return Err(HandshakeResult::Left),
    }
    *slow = HandshakeResult::Slow;
    // A connection gets no permit before its whole first record has arrived. Otherwise as many
    // connections as there are permits, with a byte each, would keep out all others.
    wait_for_client_hello(&stream).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => HandshakeResult::Protocol,
        _ => HandshakeResult::Left,
    })?;
    *slow = HandshakeResult::Busy;
    // The semaphore is never closed, so a permit is granted eventually.
    let _turn = tls.permits.acquire().await.map_err(|_| HandshakeResult::Busy)?;
    *slow = HandshakeResult::Slow;
    let (stream, certificate) = tls.callers.accept(stream).await.map_err(|error| classify(&error))?;
    Ok((ClientStream::Tls(Box::new(stream)), certificate.as_deref().map(PeerIdentity::from_certificate)))
}

/// Answers a client that sent plain HTTP with an error in its own HTTP version. I/O errors are
/// ignored: the client has disconnected.
async fn reject_plaintext(mut stream: TcpStream) {
    let mut received = Vec::with_capacity(DETECT_BYTES_MAX);
    let read = (&mut stream).take(DETECT_BYTES_MAX as u64).read_buf(&mut received).await;
    let answer = match read {
        Ok(1..) if received.starts_with(PREFACE) => {
            let length = u8::try_from(8 + PLAINTEXT_ERROR.len()).unwrap_or(u8::MAX);
            [&SETTINGS[..], &[0, 0, length], &GOAWAY, PLAINTEXT_ERROR.as_bytes()].concat()
        }
        Ok(1..) if detect_protocol(&received) != DetectedProtocol::Other => format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{PLAINTEXT_ERROR}",
            PLAINTEXT_ERROR.len()
        )
        .into_bytes(),
        _ => return,
    };
    if stream.write_all(&answer).await.is_err() || stream.shutdown().await.is_err() {
        return;
    }
    let rest = async {
        let (mut left, mut chunk) = (LINGER_BYTES_MAX, [0; 1024]);
        while let Ok(read @ 1..) = stream.read(&mut chunk).await {
            left = left.saturating_sub(read as u64);
            if left == 0 {
                return;
            }
        }
    };
    timeout(LINGER, rest).await.ok();
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::tls::DownstreamFiles;

    /// A complete record with the first four bytes of a `ClientHello` of 256 bytes: the handshake
    /// begins and waits for another record.
    const BEGUN: [u8; 9] = [TLS_HANDSHAKE_RECORD, 3, 1, 0, 4, 1, 0, 1, 0];

    fn callers() -> Arc<DownstreamTlsAcceptor> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("c"), folder.path().join("k"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Arc::new(DownstreamTlsAcceptor::load(DownstreamFiles { cert, key, client_ca: None }).unwrap())
    }

    /// Returns both ends of a connection. The client has sent these bytes, and they have arrived.
    async fn connected(port: &TcpListener, bytes: &[u8]) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let server = port.accept().await.unwrap().0;
        server.readable().await.unwrap();
        (client, server)
    }

    #[tokio::test]
    async fn handshake_waits_for_a_permit() {
        let tls = TlsTermination { callers: callers(), permits: Semaphore::new(1) };
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ((first, one), (second, other)) = (connected(&port, &BEGUN).await, connected(&port, &BEGUN).await);
        let (mut slow, mut busy) = (HandshakeResult::Silent, HandshakeResult::Silent);
        let mut holds = Box::pin(shake(&tls, one, &mut slow));
        let mut waits = Box::pin(shake(&tls, other, &mut busy));
        while tls.permits.available_permits() > 0 {
            tokio::select! { biased; _ = &mut holds => panic!("it has not begun"), () = tokio::task::yield_now() => {} }
        }
        // The second handshake has peeked at the first message by then, or will: either way it
        // waits for a permit.
        tokio::select! { biased; _ = &mut waits => panic!("no permit is free"), () = tokio::task::yield_now() => {} }
        drop(first);
        assert_eq!(holds.await.map(drop).unwrap_err(), HandshakeResult::Left);
        drop(second);
        assert_eq!(waits.await.map(drop).unwrap_err(), HandshakeResult::Left);
        assert_eq!((slow, busy, tls.permits.available_permits()), (HandshakeResult::Slow, HandshakeResult::Slow, 1));
    }

    #[tokio::test]
    async fn clients_that_send_a_part_of_their_first_message_hold_no_permit() {
        let tls = TlsTermination { callers: callers(), permits: Semaphore::new(1) };
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut held, mut silent) = (Vec::new(), Vec::new());
        for part in [1, 5, BEGUN.len() - 1] {
            let (client, server) = connected(&port, &BEGUN[..part]).await;
            held.push(client);
            silent.push(async {
                let mut slow = HandshakeResult::Silent;
                let failed = shake(&tls, server, &mut slow).await.map(drop).unwrap_err();
                (failed, slow)
            });
        }
        let mut silent = Box::pin(futures_util::future::join_all(silent));
        tokio::select! { biased; _ = &mut silent => panic!("they wait"), () = tokio::task::yield_now() => {} }
        assert_eq!(tls.permits.available_permits(), 1);
        // A handshake begins although they are still open.
        let (client, server) = connected(&port, &BEGUN).await;
        let mut slow = HandshakeResult::Silent;
        let mut begins = Box::pin(shake(&tls, server, &mut slow));
        while tls.permits.available_permits() > 0 {
            tokio::select! {
                biased;
                _ = &mut begins => panic!("its first message has no end"),
                _ = &mut silent => panic!("they wait"),
                () = tokio::task::yield_now() => {}
            }
        }
        drop(client);
        assert_eq!(begins.await.map(drop).unwrap_err(), HandshakeResult::Left);
        drop(held);
        assert_eq!(silent.await, [(HandshakeResult::Left, HandshakeResult::Slow); 3]);
    }

    #[tokio::test]
    async fn a_first_message_that_is_no_tls_record_is_a_protocol_error() {
        let tls = TlsTermination::new(callers());
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_client, server) = connected(&port, &[TLS_HANDSHAKE_RECORD, 3, 1, 0xff, 0xff]).await;
        let failed = shake(&tls, server, &mut HandshakeResult::Silent).await.map(drop).unwrap_err();
        assert_eq!(failed, HandshakeResult::Protocol);
    }
}
