//! Streaming: events as they arrive, tunnels, and bodies far larger than any buffer.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::scripted_server::ScriptedServer;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_answer, header, instances, within_timeout};
use super::support::client::Client;
use super::support::wire::Framing;

/// Several times the bytes that sockets and windows may hold between the two ends.
const LARGE: u64 = 200 << 20;
/// Maximum number of bytes in flight: the socket buffers of both connections at their largest, and
/// the read-ahead of HTTP.
const UNDERWAY_MAX: u64 = 32 << 20;
const PIECE: usize = 64 << 10;
/// Period of the test pattern. It is prime, so that a misplaced piece is detected.
const PERIOD: usize = 251;

pub(super) async fn connect(proxy: &TestProxy, text: &str) -> TcpStream {
    let mut stream = within_timeout(TcpStream::connect(proxy.address)).await.unwrap();
    within_timeout(stream.write_all(text.as_bytes())).await.unwrap();
    stream
}

/// Reads until these bytes have arrived, and returns everything that was read.
pub(super) async fn until(stream: &mut TcpStream, needle: &[u8]) -> Vec<u8> {
    let mut came = Vec::new();
    while !came.windows(needle.len()).any(|window| window == needle) {
        assert_ne!(
            within_timeout(stream.read_buf(&mut came)).await.unwrap(),
            0,
            "ended before {}",
            needle.escape_ascii()
        );
    }
    came
}

async fn events(proxy: &TestProxy, hand: &mut ScriptedServer, request: &str) {
    let mut stream = connect(proxy, request).await;
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        turn.chunk(event.as_bytes()).await;
        // The next event is sent only after this one has arrived.
        until(&mut stream, event.as_bytes()).await;
    }
    turn.send_part(b"0\r\n\r\n").await;
    turn.finish_response();
    until(&mut stream, b"0\r\n\r\n").await;
}

#[tokio::test]
async fn an_event_arrives_before_the_next_one_is_sent() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    events(&proxy, &mut hand, "GET /v1/stream HTTP/1.1\r\nhost: h\r\n\r\n").await;
}

#[tokio::test]
async fn events_arrive_one_by_one_on_a_recognised_route_too() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let body = instances(&[1]);
    let (path, length) = (PREDICT, body.len());
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    events(&proxy, &mut hand, &request).await;
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_request_is_sent_on_as_it_comes() {
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
async fn a_switch_of_protocols_carries_bytes_both_ways_until_each_side_has_ended() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let request = "GET /ws HTTP/1.1\r\nhost: h\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";
    let mut client = connect(&proxy, request).await;
    let mut turn = hand.next_request().await;
    assert_eq!(header(&turn.request.headers, "upgrade"), "websocket");
    assert_eq!(header(&turn.request.headers, "connection").to_ascii_lowercase(), "upgrade");
    assert_eq!(header(&turn.request.headers, "sec-websocket-key"), "k");
    turn.send_part(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: a\r\n\r\nearly").await;
    let head = until(&mut client, b"early").await;
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for line in ["\r\nupgrade: websocket\r\n", "\r\nconnection: upgrade\r\n", "\r\nsec-websocket-accept: a\r\n"] {
        assert!(head.contains(line), "{head}");
    }
    let mut wire = turn.into_wire();
    for word in ["ping", "\0\r\nGET / HTTP/1.1\r\n\r\n"] {
        within_timeout(client.write_all(word.as_bytes())).await.unwrap();
        let mut came = Vec::new();
        within_timeout(wire.body(Framing::Length(word.len() as u64), &mut came)).await.unwrap();
        assert_eq!(came, word.as_bytes());
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
async fn a_refused_protocol_switch_is_an_answer_and_the_connection_stays_usable() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let own = [("connection", "upgrade"), ("upgrade", "websocket")];
    for request in [proxy.request("GET", "/ws", &own, None), proxy.request("GET", "/x", &[], None)] {
        let served = async { hand.next_request().await.answer(400, "{}").await };
        let (answer, ()) = within_timeout(async { tokio::join!(client.ask(&request), served) }).await;
        assert_answer(&answer, 400, "{}");
    }
}

#[tokio::test]
async fn an_upgrade_to_http_2_is_not_forwarded() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    let caller = proxy.call(proxy.request("GET", "/x", &own, None));
    let turn = hand.next_request().await;
    let names: Vec<&str> = turn.request.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["host"]);
    turn.answer(200, "{}").await;
    assert_answer(&caller.answer().await, 200, "{}");
}

fn pattern() -> Vec<u8> {
    (0..PIECE + PERIOD).map(|at| u8::try_from(at % PERIOD).unwrap()).collect()
}

fn at(offset: u64) -> usize {
    usize::try_from(offset % PERIOD as u64).unwrap()
}

/// Writes the large body, and checks that the bytes in flight never exceed the buffers.
async fn write_large_body(to: &mut (impl AsyncWrite + Unpin), sent: &AtomicU64, seen: &AtomicU64) {
    let pattern = pattern();
    let mut offset = 0;
    while offset < LARGE {
        let start = at(offset);
        to.write_all(pattern.get(start..start + PIECE).unwrap()).await.unwrap();
        offset += PIECE as u64;
        sent.store(offset, Ordering::Relaxed);
        let underway = offset - seen.load(Ordering::Relaxed);
        assert!(underway <= UNDERWAY_MAX, "{underway} bytes are held somewhere");
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
        let start = at(offset);
        assert_eq!(buffer.get(..read), pattern.get(start..start + read), "bytes differ after {offset}");
        offset += read as u64;
        seen.store(offset, Ordering::Relaxed);
    }
}

async fn buffered(proxy: &TestProxy) -> u64 {
    let mut client = Client::connect(proxy.running.admin.local.unwrap()).await.unwrap();
    let answer = client.ask(&proxy.request("GET", "/api/stats", &[("host", "localhost")], None)).await;
    let stats: Value = serde_json::from_slice(&answer.body).unwrap();
    stats["buffered_bytes"].as_u64().unwrap()
}

/// Returns the first connection on which data arrives, after reading a head from it.
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
async fn an_upload_of_200_mb_flows_and_is_held_nowhere() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::start_in_front_of(&format!("http://{}", server.local_addr().unwrap()), json!({}));
    let (sent, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    // The path is a recognised one: a body that is too large to be read holds no slot and is
    // streamed.
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {LARGE}\r\n\r\n"
    );
    let mut client = connect(&proxy, &head).await;
    let serve = async {
        let mut stream = accept(&server).await;
        read_large_body(&mut stream, &seen).await;
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    };
    let looks = async {
        while sent.load(Ordering::Relaxed) < LARGE / 2 {
            tokio::task::yield_now().await;
        }
        assert!(buffered(&proxy).await < 4 << 20);
    };
    within_timeout(async { tokio::join!(write_large_body(&mut client, &sent, &seen), serve, looks) }).await;
    until(&mut client, b"201 Created\r\n").await;
}

#[tokio::test]
async fn a_download_of_200_mb_flows_and_is_held_nowhere() {
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
    let looks = async {
        while seen.load(Ordering::Relaxed) < LARGE / 2 {
            tokio::task::yield_now().await;
        }
        assert!(buffered(&proxy).await < 4 << 20);
    };
    within_timeout(async { tokio::join!(serve, read, looks) }).await;
}
