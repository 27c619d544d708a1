//! Table of attacks on the data port and the metrics port. The names begin with the number of a
//! group of attacks, as described in the main file. The numbers of connections are four times those
//! with which the proxy was first found to be vulnerable.

use super::h2;
use super::server::{PREDICT, SLOW_PREDICT};

/// An attack: a number of connections to one port, their first bytes and their further behaviour.
#[derive(Debug)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Number of connections in a full run, of all attacking processes together.
    pub(crate) connections: usize,
    pub(crate) port: AttackPort,
    /// Returns the bytes that each connection sends first.
    pub(crate) opening: fn() -> Vec<u8>,
    pub(crate) behaviour: ConnectionBehaviour,
}

/// Port that an attack connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttackPort {
    /// The data port, which receives calls.
    Calls,
    /// The port of the metrics.
    Metrics,
}

/// Behaviour of a connection after it has sent its first bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConnectionBehaviour {
    /// Reads and discards all responses.
    Take,
    /// Reads nothing.
    Stall,
    /// Sends one byte of the body per second.
    Drip,
    /// Sends this number of bytes on each HTTP/2 stream, within the flow-control windows, and ends
    /// no stream.
    Upload(usize),
    /// Makes calls of which no two have the same model, path, credential or header, so that each
    /// has a merge key of its own.
    Differ,
    /// Sends this frame without a pause.
    Flood(fn() -> Vec<u8>),
}

/// Number of HTTP/2 streams per connection.
pub(crate) const STREAMS: u32 = 128;
/// Length of an answer in bytes. The server sends one byte per second, so the answer takes longer
/// than a run.
const SLOW_ANSWER: u32 = 3_600;

/// All attacks, in the order in which they start.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "s2-streams-that-pass-through",
        connections: 680,
        port: AttackPort::Calls,
        opening: || {
            streams(STREAMS, |stream| [h2::post(stream, "/anything", &[]), h2::frame(0, 0, stream, b"a")].concat())
        },
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s3-idle-on-metrics",
        connections: 19_000,
        port: AttackPort::Metrics,
        opening: Vec::new,
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s3-heads-on-metrics",
        connections: 1_600,
        port: AttackPort::Metrics,
        opening: || head("GET /metrics", 380 << 10),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s3-idle-on-calls",
        connections: 19_000,
        port: AttackPort::Calls,
        opening: Vec::new,
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s4-references-in-heads",
        connections: 80,
        port: AttackPort::Calls,
        opening: || streams(STREAMS, |stream| h2::post(stream, PREDICT, &h2::references(1580))),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s4-heads-that-are-just-allowed",
        connections: 80,
        port: AttackPort::Calls,
        opening: || streams(STREAMS, |stream| h2::post(stream, PREDICT, &h2::references(90))),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s5-unfinished-heads",
        connections: 10_000,
        port: AttackPort::Calls,
        opening: || head(&format!("POST {PREDICT}"), 60_000),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s5-unfinished-streams",
        connections: 400,
        port: AttackPort::Calls,
        opening: || streams(STREAMS, |stream| h2::post(stream, PREDICT, &[])),
        behaviour: ConnectionBehaviour::Upload(8 << 10),
    },
    Attack {
        name: "s5-slow-bodies",
        connections: 4_752,
        port: AttackPort::Calls,
        opening: || {
            let head = format!("POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n");
            [head.into_bytes(), vec![b'a'; 54 << 10]].concat()
        },
        behaviour: ConnectionBehaviour::Drip,
    },
    Attack {
        name: "s5-slow-bodies-that-pass-through",
        connections: 4_752,
        port: AttackPort::Calls,
        opening: || {
            let head = "POST /anything HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n";
            [head.as_bytes().to_vec(), vec![b'a'; 54 << 10]].concat()
        },
        behaviour: ConnectionBehaviour::Drip,
    },
    Attack {
        name: "s8-answers-of-a-byte-a-second",
        connections: 32,
        port: AttackPort::Calls,
        opening: || predict(SLOW_PREDICT, SLOW_ANSWER),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s9-answers-without-a-window",
        connections: 80,
        port: AttackPort::Calls,
        opening: || calls_with_window(0),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s9-answers-with-a-window-of-a-byte",
        connections: 80,
        port: AttackPort::Calls,
        opening: || calls_with_window(1),
        behaviour: ConnectionBehaviour::Take,
    },
    Attack {
        name: "s9-answers-that-are-not-taken",
        connections: 400,
        port: AttackPort::Calls,
        opening: || predict(PREDICT, 200_000).repeat(8),
        behaviour: ConnectionBehaviour::Stall,
    },
    Attack {
        name: "keys-that-all-differ",
        connections: 32,
        port: AttackPort::Calls,
        opening: Vec::new,
        behaviour: ConnectionBehaviour::Differ,
    },
    flood("s10-settings", || h2::frame(4, 0, 0, &[])),
    flood("s10-priority", || h2::frame(2, 0, 1, &[0, 0, 0, 0, 16])),
    flood("s10-unknown-frames", || h2::frame(0xba, 0, 0, &[])),
    flood("s10-ping", || h2::frame(6, 0, 0, &[0; 8])),
    flood("s10-window-updates", || h2::frame(8, 0, 0, &[0, 0, 0, 1])),
];

/// Returns an attack that sends one kind of HTTP/2 frame without a pause. The frame types are those
/// of RFC 9113, section 6.
const fn flood(name: &'static str, frame: fn() -> Vec<u8>) -> Attack {
    Attack {
        name,
        connections: 16,
        port: AttackPort::Calls,
        opening: || h2::preface(65_535),
        behaviour: ConnectionBehaviour::Flood(frame),
    }
}

/// Returns an HTTP/1.1 call that the server answers with this number of bytes.
fn predict(path: &str, bytes: u32) -> Vec<u8> {
    let body = format!("{{\"instances\":[{bytes}]}}");
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Returns an unfinished HTTP/1.1 request head, with a header value of this number of bytes.
fn head(request: &str, bytes: usize) -> Vec<u8> {
    let start = format!("{request} HTTP/1.1\r\nhost: h\r\nx: ");
    [start.into_bytes(), vec![b'a'; bytes]].concat()
}

/// Returns the opening of an HTTP/2 connection: the frames that `each` returns for each of this
/// number of streams, given the id of the stream.
fn streams(count: u32, each: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).fold(h2::preface(65_535), |bytes, number| [bytes, each(2 * number + 1)].concat())
}

/// Returns the opening of an HTTP/2 connection: 100 calls with responses of 200 KB each, for which
/// the client grants `window` bytes per stream.
fn calls_with_window(window: u32) -> Vec<u8> {
    let body = b"{\"instances\":[200000]}";
    (0..100_u32).fold(h2::preface(window), |bytes, number| {
        let stream = 2 * number + 1;
        [bytes, h2::post(stream, PREDICT, &[]), h2::frame(0, 1, stream, body)].concat()
    })
}
