//! Streaming through the proxy: events and parts of bodies are forwarded as they arrive,
//! connections that switch to another protocol become tunnels, and bodies that exceed all buffers
//! are not held.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::scripted_server::ScriptedServer;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_answer, header, instances, within_timeout};
use super::support::client::Client;
use super::support::wire::Framing;

/// Length of a body that exceeds all buffers between client and server several times.
const LARGE: u64 = 200 << 20;
/// Maximum number of bytes between writer and reader: the socket buffers of both connections at
/// their largest, and the read buffers of the proxy.
const IN_FLIGHT_MAX: u64 = 32 << 20;
/// Size of a write.
const PIECE: usize = 64 << 10;
/// Period of the test pattern. It is prime and does not divide the size of a piece, so a piece at
/// the wrong offset is detected.
const PERIOD: usize = 251;

/// Connects to the proxy and sends this text.
pub(super) async fn connect(proxy: &TestProxy, text: &str) -> TcpStream {
    let mut stream = within_timeout(TcpStream::connect(proxy.address)).await.unwrap();
    within_timeout(stream.write_all(text.as_bytes())).await.unwrap();
    stream
}

/// Reads until these bytes have arrived, and returns everything that was read.
pub(super) async fn until(stream: &mut TcpStream, needle: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    while !received.windows(needle.len()).any(|window| window == needle) {
        assert_ne!(
            within_timeout(stream.read_buf(&mut received)).await.unwrap(),
            0,
            "ended before {}",
            needle.escape_ascii()
        );
    }
    received
}

/// Sends a request, and checks that each event of the response arrives before the next one is sent.
async fn check_events(proxy: &TestProxy, server: &mut ScriptedServer, request: &str) {
    let mut stream = connect(proxy, request).await;
    let mut pending = server.next_request().await;
    pending
        .send_part(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        pending.chunk(event.as_bytes()).await;
        // The next event is sent only after this one has arrived.
        until(&mut stream, event.as_bytes()).await;
    }
    pending.send_part(b"0\r\n\r\n").await;
    pending.finish_response();
    until(&mut stream, b"0\r\n\r\n").await;
}

#[tokio::test]
async fn an_event_arrives_before_the_next_one_is_sent() {
    let (proxy, mut server) = start_with_scripted_server(json!({})).await;
    check_events(&proxy, &mut server, "GET /v1/stream HTTP/1.1\r\nhost: h\r\n\r\n").await;
}

#[tokio::test]
async fn events_arrive_one_by_one_on_a_recognised_route_too() {
    let (proxy, mut server) = start_with_scripted_server(json!({})).await;
    let body = instances(&[1]);
    let (path, length) = (PREDICT, body.len());
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    check_events(&proxy, &mut server, &request).await;
    proxy.wait_idle().await;
}

#[tokio::test]
async fn the_pieces_of_a_request_body_are_forwarded_as_they_arrive() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::start_in_front_of(&format!("http://{}", server.local_addr().unwrap()), json!({}));
    let mut client = connect(&proxy, "POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut stream = within_timeout(accept(&server)).await;
    for piece in ["first", "second"] {
        client.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.unwrap();
        until(&mut stream, piece.as_bytes()).await;
    }
}

#[tokio::test]
async fn after_a_protocol_switch_bytes_flow_in_both_directions_until_each_side_has_ended() {
    let (proxy, mut server) = start_with_scripted_server(json!({})).await;
    let request = "GET /ws HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";
    let mut client = connect(&proxy, request).await;
    let mut pending = server.next_request().await;
    assert_eq!(header(&pending.request.headers, "upgrade"), "websocket");
    assert_eq!(header(&pending.request.headers, "connection").to_ascii_lowercase(), "upgrade");
    assert_eq!(header(&pending.request.headers, "sec-websocket-key"), "k");
    pending.send_part(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: a\r\n\r\nearly").await;
    let head = until(&mut client, b"early").await;
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for line in ["\r\nupgrade: websocket\r\n", "\r\nconnection: upgrade\r\n", "\r\nsec-websocket-accept: a\r\n"] {
        assert!(head.contains(line), "{head}");
    }
    let mut wire = pending.into_wire();
    for bytes in ["ping", "\0\r\nGET / HTTP/1.1\r\n\r\n"] {
        within_timeout(client.write_all(bytes.as_bytes())).await.unwrap();
        let mut received = Vec::new();
        within_timeout(wire.body(Framing::Length(bytes.len() as u64), &mut received)).await.unwrap();
        assert_eq!(received, bytes.as_bytes());
        within_timeout(wire.write(b"pong")).await.unwrap();
        until(&mut client, b"pong").await;
    }
    within_timeout(client.shutdown()).await.unwrap();
    let mut rest = Vec::new();
    within_timeout(wire.body(Framing::UntilClose, &mut rest)).await.unwrap();
    assert_eq!(rest, b"");
    within_timeout(wire.write(b"the last word")).await.unwrap();
    drop(wire);
    let mut rest = Vec::new();
    within_timeout(client.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"the last word");
}

#[tokio::test]
async fn a_refused_protocol_switch_is_answered_and_the_connection_stays_usable() {
    let (proxy, mut server) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    for request in [proxy.request("GET", "/ws", &upgrade, None), proxy.request("GET", "/x", &[], None)] {
        let serve = async { server.next_request().await.answer(400, "{}").await };
        let (answer, ()) = within_timeout(async { tokio::join!(client.fetch(&request), serve) }).await;
        assert_answer(&answer, 400, "{}");
    }
}

#[tokio::test]
async fn an_upgrade_to_http_2_is_not_forwarded() {
    let (proxy, mut server) = start_with_scripted_server(json!({})).await;
    let upgrade = [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    let caller = proxy.call(proxy.request("GET", "/x", &upgrade, None));
    let pending = server.next_request().await;
    let names: Vec<&str> = pending.request.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["host"]);
    pending.answer(200, "{}").await;
    assert_answer(&caller.answer().await, 200, "{}");
}

/// Returns the test pattern, long enough for a piece that begins at any byte of the period.
fn pattern() -> Vec<u8> {
    (0..PIECE + PERIOD).map(|at| u8::try_from(at % PERIOD).unwrap()).collect()
}

/// Returns the position in the pattern of the byte at this offset of the body.
fn pattern_start(offset: u64) -> usize {
    usize::try_from(offset % PERIOD as u64).unwrap()
}

/// Writes the large body, and checks after each piece that the bytes in flight fit into the
/// buffers. `sent` is the number of written bytes, and `seen` that of the bytes that the reader has
/// received.
async fn write_large_body(to: &mut (impl AsyncWrite + Unpin), sent: &AtomicU64, seen: &AtomicU64) {
    let pattern = pattern();
    let mut offset = 0;
    while offset < LARGE {
        let start = pattern_start(offset);
        to.write_all(pattern.get(start..start + PIECE).unwrap()).await.unwrap();
        offset += PIECE as u64;
        sent.store(offset, Ordering::Relaxed);
        let in_flight = offset - seen.load(Ordering::Relaxed);
        assert!(in_flight <= IN_FLIGHT_MAX, "{in_flight} bytes are buffered between writer and reader");
    }
}

/// Reads the large body, more slowly than it can be written, and checks every byte.
async fn read_large_body(from: &mut (impl AsyncRead + Unpin), seen: &AtomicU64) {
    let pattern = pattern();
    let mut buffer = vec![0; PIECE];
    let mut offset = 0;
    while offset < LARGE {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let most = usize::try_from(LARGE - offset).unwrap_or(PIECE).min(PIECE);
        let read = from.read(buffer.get_mut(..most).unwrap()).await.unwrap();
        assert_ne!(read, 0, "ended after {offset} bytes");
        let start = pattern_start(offset);
        assert_eq!(buffer.get(..read), pattern.get(start..start + read), "bytes differ after {offset}");
        offset += read as u64;
        seen.store(offset, Ordering::Relaxed);
    }
}

/// Returns the number of bytes that the proxy buffers, according to its statistics.
async fn buffered_bytes(proxy: &TestProxy) -> u64 {
    let mut client = Client::connect(proxy.running.admin.local.unwrap()).await.unwrap();
    let answer = client.fetch(&proxy.request("GET", "/api/stats", &[("host", "localhost")], None)).await;
    let stats: Value = serde_json::from_slice(&answer.body).unwrap();
    stats["buffered_bytes"].as_u64().unwrap()
}

/// Returns the first connection on which a request arrives, after its head was read. Connections
/// that are closed without a request are ignored.
async fn accept(server: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = server.accept().await.unwrap();
        let mut byte = [0];
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap() > 0 {
            head.extend(byte);
        }
        if !head.is_empty() {
            return stream;
        }
    }
}

#[tokio::test]
async fn an_upload_of_200_mb_is_streamed_and_not_buffered() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::start_in_front_of(&format!("http://{}", server.local_addr().unwrap()), json!({}));
    let (sent, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    // The route is recognised. A call with a body that is too large to be merged is streamed
    // without a slot.
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {LARGE}\r\n\r\n"
    );
    let mut client = connect(&proxy, &head).await;
    let serve = async {
        let mut stream = accept(&server).await;
        read_large_body(&mut stream, &seen).await;
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    };
    let check_buffer = async {
        while sent.load(Ordering::Relaxed) < LARGE / 2 {
            tokio::task::yield_now().await;
        }
        assert!(buffered_bytes(&proxy).await < 4 << 20);
    };
    within_timeout(async { tokio::join!(write_large_body(&mut client, &sent, &seen), serve, check_buffer) }).await;
    until(&mut client, b"201 Created\r\n").await;
}

#[tokio::test]
async fn a_download_of_200_mb_is_streamed_and_not_buffered() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::start_in_front_of(&format!("http://{}", server.local_addr().unwrap()), json!({}));
    let (sent, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut client = connect(&proxy, "GET /x HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let serve = async {
        let mut stream = accept(&server).await;
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n").as_bytes()).await.unwrap();
        write_large_body(&mut stream, &sent, &seen).await;
    };
    let read = async {
        let mut byte = [0];
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte).await.unwrap();
            head.extend(byte);
        }
        read_large_body(&mut client, &seen).await;
    };
    let check_buffer = async {
        while seen.load(Ordering::Relaxed) < LARGE / 2 {
            tokio::task::yield_now().await;
        }
        assert!(buffered_bytes(&proxy).await < 4 << 20);
    };
    within_timeout(async { tokio::join!(serve, read, check_buffer) }).await;
}
