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
use super::detect::{LOOK_MAX, Spoken, judge};
use super::flow::ClientFlow;
use super::io::{Client, Watched};
use super::listener::Welcome;
use super::{Proxy, connection};
use crate::backend::Duplex;
use crate::protocol::Peer;
use crate::relay::relay;
use crate::telemetry::names::Relayed;

/// Time that a client may be silent before a connection to the application is opened to let it
/// speak first: the time that an HTTP/2 client may take to send its SETTINGS.
const SILENCE: Duration = Duration::from_millis(250);
/// Maximum time to complete a request line that has begun. HTTP clients write theirs at once.
const LINE: Duration = Duration::from_secs(1);
/// Time that a silent connection may stay open once its port drains, the same as an idle HTTP
/// connection.
const GOODBYE: Duration = Duration::from_secs(1);

/// Result of detecting the protocol of a connection.
enum Begun {
    Http,
    Bytes(Relayed, Option<Box<dyn Duplex>>, Vec<u8>),
    Over,
}

/// Serves a connection to its end. `guard` is held as long as the stream.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    (mut stream, peer): (Client, Option<Peer>),
    told: watch::Receiver<Welcome>,
    guard: ConnectionGuard,
) {
    let mut ahead = Vec::new();
    let begun = if proxy.table().relays {
        Begun::Bytes(Relayed::NoRoute, None, Vec::new())
    } else {
        begin(&proxy, &mut stream, &mut ahead, told.clone()).await
    };
    match begun {
        Begun::Over => {}
        Begun::Http => connection::run(proxy, (stream, peer), Bytes::from(ahead), told, guard).await,
        Begun::Bytes(why, upstream, answer) => {
            proxy.metrics.relayed(why);
            guard.place.activity().relay();
            // A relayed connection drops the state of a served one: the tunnel needs only its two
            // ends, and parses no heads.
            let activity = guard.place.activity();
            let flow = ClientFlow::new(&proxy.buffers, &activity);
            let client = Watched::new(stream, Bytes::new(), (&activity, &flow), (0, guard));
            Box::pin(carry(&proxy, client, upstream, (ahead, answer))).await;
        }
    }
}

/// Detects the protocol. The bytes received from the client are left in `ahead`.
async fn begin(proxy: &Proxy, stream: &mut Client, ahead: &mut Vec<u8>, mut told: watch::Receiver<Welcome>) -> Begun {
    if let Ok(first) = timeout(SILENCE, read_on(stream, ahead)).await {
        return if first.is_err() { Begun::Over } else { line(stream, ahead).await };
    }
    // The client may have connected ahead of its first call, or wait for the server to speak first.
    let limit = proxy.config.client.pass_through_idle_timeout;
    let leave = async {
        // An error means that the sender was dropped because the process ends: treated the same.
        told.wait_for(|welcome| *welcome != Welcome::Stay).await.ok();
        tokio::time::sleep(GOODBYE).await;
    };
    let speaks = async {
        let Ok(mut upstream) = proxy.forward.open().await else {
            // The application does not accept connections and sends nothing. An HTTP client
            // receives an error response when it sends a call.
            return std::future::pending().await;
        };
        let mut answer = vec![0; LOOK_MAX];
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
        first = read_on(stream, ahead) => if first.is_err() { Begun::Over } else { line(stream, ahead).await },
        spoke = speaks => match spoke {
            Some((upstream, answer)) => Begun::Bytes(Relayed::ServerFirst, Some(upstream), answer),
            // The application closed the connection of a silent client.
            None => Begun::Over,
        },
        () = leave => Begun::Over,
        () = tokio::time::sleep(limit) => Begun::Over,
    }
}

/// Reads from a client that has sent its first bytes until the protocol is known.
async fn line(stream: &mut Client, ahead: &mut Vec<u8>) -> Begun {
    let known = async {
        loop {
            match judge(ahead) {
                Spoken::Http => return Begun::Http,
                Spoken::Other => return Begun::Bytes(Relayed::NotHttp, None, Vec::new()),
                Spoken::More => {}
            }
            match read_on(stream, ahead).await {
                Ok(()) => {}
                // The stream ended in the middle of what may be a request line. It is relayed,
                // since only the application can interpret it.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Begun::Bytes(Relayed::NotHttp, None, Vec::new());
                }
                Err(_) => return Begun::Over,
            }
        }
    };
    // A client of another protocol has sent its first message and waits for the answer, so on a
    // timeout the connection is relayed.
    timeout(LINE, known).await.unwrap_or(Begun::Bytes(Relayed::NotHttp, None, Vec::new()))
}

/// Reads the bytes available, at most up to [`LOOK_MAX`] in total.
async fn read_on(stream: &mut Client, ahead: &mut Vec<u8>) -> io::Result<()> {
    let room = LOOK_MAX.saturating_sub(ahead.len());
    ahead.reserve(room);
    match stream.take(room as u64).read_buf(ahead).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Relays a connection: first the bytes already read from either side, then everything that
/// follows.
async fn carry(
    proxy: &Proxy,
    mut client: Watched,
    upstream: Option<Box<dyn Duplex>>,
    (ahead, answer): (Vec<u8>, Vec<u8>),
) {
    let upstream = match upstream {
        Some(upstream) => Ok(upstream),
        None => proxy.forward.open().await,
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
