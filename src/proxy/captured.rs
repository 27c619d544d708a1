//! A connection to a captured port, which may speak anything: HTTP is served, and whatever is not is carried on as bytes, so that capturing never breaks a port.
//!
//! ```text
//! no route can hold here ──────────────────────────────────────────────▶ relay
//! first bytes: HTTP ───────────────────────────────────────────────────▶ serve
//!              anything else, or a line that is not finished in time ──▶ relay
//! none for a moment: connect to the application, and whoever speaks first decides
//!              the client ──▶ as above          the application ────────▶ relay
//! ```
//! A client that connects ahead of its first call is still served, then; a protocol in which the server speaks first loses the moment once for each connection.
//!
//! TLS is one of the things that a port may speak: without certificates of our own it is carried on as it is. With certificates it ended before (`terminate`),
//! and what is looked at here is what was inside; the application gets that.

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

/// How long a client may be silent until the application is asked to speak first: as long as it may take to show its HTTP/2 SETTINGS.
const SILENCE: Duration = Duration::from_millis(250);
/// How long a request line may take that has begun: HTTP clients write theirs at once.
const LINE: Duration = Duration::from_secs(1);
/// How long a silent connection may stay once its port is to be left: as an idle one of HTTP.
const GOODBYE: Duration = Duration::from_secs(1);

/// What the beginning of a connection showed.
enum Begun {
    Http,
    Bytes(Relayed, Option<Box<dyn Duplex>>, Vec<u8>),
    Over,
}

/// Serves a connection to its end. `guard` goes with the stream.
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
            // Both ends only, and no heads: a tunnel needs no state of a served connection.
            let activity = guard.place.activity();
            let flow = ClientFlow::new(&proxy.buffers, &activity);
            let client = Watched::new(stream, Bytes::new(), (&activity, &flow), (0, guard));
            Box::pin(carry(&proxy, client, upstream, (ahead, answer))).await;
        }
    }
}

/// Finds out what is spoken; what the client said is left in `ahead`.
async fn begin(proxy: &Proxy, stream: &mut Client, ahead: &mut Vec<u8>, mut told: watch::Receiver<Welcome>) -> Begun {
    if let Ok(first) = timeout(SILENCE, read_on(stream, ahead)).await {
        return if first.is_err() { Begun::Over } else { line(stream, ahead).await };
    }
    // It may be a client that connected ahead, or one that waits to be spoken to.
    let limit = proxy.config.client.pass_through_idle_timeout;
    let leave = async {
        // An error means that the process ends without a word: the same.
        told.wait_for(|welcome| *welcome != Welcome::Stay).await.ok();
        tokio::time::sleep(GOODBYE).await;
    };
    let speaks = async {
        let Ok(mut upstream) = proxy.forward.open().await else {
            // It is not there and says nothing; a client of HTTP is told so once it asks.
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
            // It hung up on a silent client.
            None => Begun::Over,
        },
        () = leave => Begun::Over,
        () = tokio::time::sleep(limit) => Begun::Over,
    }
}

/// The client has begun: reads until it is known what it speaks.
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
                // It ended in the middle of what may be a line: whatever that means, the application knows.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Begun::Bytes(Relayed::NotHttp, None, Vec::new());
                }
                Err(_) => return Begun::Over,
            }
        }
    };
    // A client of another protocol has said its first word and waits for the answer.
    timeout(LINE, known).await.unwrap_or(Begun::Bytes(Relayed::NotHttp, None, Vec::new()))
}

/// Reads what is there, up to the look.
async fn read_on(stream: &mut Client, ahead: &mut Vec<u8>) -> io::Result<()> {
    let room = LOOK_MAX.saturating_sub(ahead.len());
    ahead.reserve(room);
    match stream.take(room as u64).read_buf(ahead).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Carries a connection on: first what was read of either side, then whatever comes.
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
    // Without us the connect would have been refused; a connection that ends at once is the nearest to it.
    let Ok(mut upstream) = upstream else { return };
    // Flushed: inside TLS what was written may not have left.
    let sent = upstream.write_all(&ahead).await.is_ok() && upstream.flush().await.is_ok();
    if !sent || client.write_all(&answer).await.is_err() || client.flush().await.is_err() {
        return;
    }
    drop((ahead, answer));
    relay(client, upstream, proxy.config.client.pass_through_idle_timeout).await;
}
