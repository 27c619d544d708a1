//! Ports of the controller on which many idle connections are open: a review, a sidecar and a probe
//! are still served, and a handshake and a review are as fast as without them.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use groupage::control::server::ServerLimits;
use groupage::testkit::report_skipped;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::api::FakeApiServer;
use super::end_to_end::{NAME, POST, admission_response, call_webhook, get, pod, policy, review, tls_connector};
use super::streams::{ConnectedSidecar, STREAM, controller, start_with_pod};

/// More connections than the port for probes admits.
const SILENT: usize = 600;
/// Connections to the stream port: if each took a permit for a handshake for a second, the next
/// handshake would wait for 16 s.
const SILENT_STREAMS: usize = 1_000;
/// Connections to the webhook, many times what it admits.
const SILENT_REVIEWS: usize = 2_000;
/// Loopback addresses from which idle connections are opened. The stream port admits 128 of an
/// address before their handshake, so that these hold all that are opened at a time.
const PEERS: std::ops::RangeInclusive<u8> = 2..=9;
/// Maximum time of a handshake, and of a review, beside the idle connections. It is below the 3 s
/// for which three times as many clients as there are permits would hold them.
const SERVED: Duration = Duration::from_secs(2);
/// Descriptors for both ends of the most connections that are open at a time, and for other tests
/// that run meanwhile.
const DESCRIPTORS: u64 = 6_000;

/// Raises the limit on open files of the process if necessary, as far as the machine allows it.
/// Returns `false`, and reports the reason, if it is too low.
fn has_descriptors() -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    if current.is_none_or(|limit| limit >= DESCRIPTORS) {
        return true;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum });
    if let Err(error) = raised {
        report_skipped(&format!("idle connections need {DESCRIPTORS} open files, the limit is {maximum:?}: {error}"));
    }
    raised.is_ok()
}

/// Opens connections from several addresses that send these bytes and then stay idle.
async fn open_idle_connections(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::with_capacity(count);
    for peer in PEERS.cycle().take(count) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, peer), 0))).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // The connection may be closed already if many are open.
        stream.write_all(bytes).await.ok();
        held.push(stream);
    }
    held
}

/// Connects to the stream port, and checks that the handshake is not late.
async fn check_handshake(port: SocketAddr, connector: &TlsConnector) {
    let stream = TcpStream::connect(port).await.unwrap();
    let shaken = tokio::time::timeout(SERVED, connector.connect(ServerName::try_from(STREAM).unwrap(), stream)).await;
    shaken.expect("the handshake is late").unwrap();
}

#[tokio::test]
async fn silent_connections_keep_out_neither_reviews_nor_sidecars_nor_probes() {
    if !has_descriptors() {
        return;
    }
    let (api, running) = start_with_pod().await;
    // Nothing, the first byte of a TLS record, and an incomplete request head.
    for bytes in [&b""[..], &[22], b"GET /livez HTTP/1.1\r\nx: "] {
        let held = open_idle_connections(running.webhook, SILENT_REVIEWS, bytes).await;
        let reviewed = tokio::time::timeout(SERVED, call_webhook(&running, POST, &review(&pod("emb-1")))).await;
        assert_eq!(admission_response(&reviewed.expect("the review is late"))["allowed"], true);
        drop(held);
        let held = open_idle_connections(running.streams.unwrap(), SILENT_STREAMS, bytes).await;
        let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
        sidecar.wait_for_config(|config| config.generation == 1).await;
        drop(held);
        let _held = open_idle_connections(running.health, SILENT, bytes).await;
        assert!(get(&running, "/livez").await.starts_with("HTTP/1.1 200"));
    }
    running.shut_down().await;
}

#[tokio::test]
async fn a_handshake_does_not_wait_for_connections_that_send_a_part_of_theirs() {
    if !has_descriptors() {
        return;
    }
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    let (port, connector) = (running.streams.unwrap(), tls_connector(&running));
    // A byte of a TLS record, its header, and a part of its payload.
    for part in [1, 5, 100] {
        let mut record = vec![22, 3, 1, 2, 0, 1];
        record.resize(part, 0);
        let _held = open_idle_connections(port, SILENT_STREAMS, &record).await;
        check_handshake(port, &connector).await;
    }
    running.shut_down().await;
}

#[tokio::test]
async fn a_handshake_does_not_wait_for_clients_that_send_their_first_message_and_stop() {
    if !has_descriptors() {
        return;
    }
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    let (port, connector) = (running.streams.unwrap(), tls_connector(&running));
    // Three times as many as there are permits.
    let count = 3 * ServerLimits::default().handshakes_max;
    let mut held = Vec::new();
    for stream in open_idle_connections(port, count, b"").await {
        let name = ServerName::try_from(STREAM).unwrap();
        let mut shaking = Box::pin(connector.connect(name, stream));
        // The first poll sends the message. The future is not polled again.
        let first = poll_fn(|cx| Poll::Ready(shaking.as_mut().poll(cx))).await;
        assert!(first.is_pending());
        held.push(shaking);
    }
    check_handshake(port, &connector).await;
    running.shut_down().await;
}

/// Connections that complete the handshake and open no stream hold at most the permits of their
/// address: a new one evicts the oldest.
#[tokio::test]
async fn connections_without_a_stream_are_evicted_after_their_handshake() {
    /// More than the permits of an address.
    const UNUSED: usize = 160;
    if !has_descriptors() {
        return;
    }
    let (api, running) = start_with_pod().await;
    let (port, connector) = (running.streams.unwrap(), tls_connector(&running));
    let mut held = Vec::new();
    for _ in 0..UNUSED {
        let stream = TcpStream::connect(port).await.unwrap();
        held.push(connector.connect(ServerName::try_from(STREAM).unwrap(), stream).await.unwrap());
    }
    // The end of the connection, with or without a TLS alert.
    let mut received = Vec::new();
    let closed = tokio::time::timeout(SERVED, held[0].read_to_end(&mut received)).await;
    closed.expect("the oldest connection is still open").ok();
    let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
    sidecar.wait_for_config(|config| config.generation == 1).await;
    running.shut_down().await;
}

/// Unfinished bodies of the largest size, of as many addresses as fill the bytes that the webhook
/// holds at once.
#[tokio::test]
async fn unfinished_reviews_of_many_addresses_make_room_for_another() {
    /// Largest body of a review.
    const LARGEST: usize = 3 << 20;
    /// More than the 32 of the largest reviews that are held at once.
    const UNFINISHED: usize = 40;
    /// The server may still read what has been sent.
    const ANSWERED: Duration = Duration::from_secs(5);
    if !has_descriptors() {
        return;
    }
    let (_api, running) = start_with_pod().await;
    let connector = tls_connector(&running);
    let head = format!("{POST}\r\nHost: {NAME}\r\nContent-Length: {LARGEST}\r\n\r\n");
    let part = [head.into_bytes(), vec![b' '; LARGEST - 1]].concat();
    let mut held = Vec::new();
    for stream in open_idle_connections(running.webhook, UNFINISHED, b"").await {
        let mut stream = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await.unwrap();
        // The body may be refused before it has arrived.
        stream.write_all(&part).await.ok();
        held.push(stream);
    }
    let reviewed = tokio::time::timeout(ANSWERED, call_webhook(&running, POST, &review(&pod("emb-1")))).await;
    assert_eq!(admission_response(&reviewed.expect("the review is late"))["allowed"], true);
    drop(held);
    running.shut_down().await;
}
