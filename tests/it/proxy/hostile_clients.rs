//! Clients that are slow, silent, numerous or hostile.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::http2_endpoints::{H2Client, empty};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_answer, assert_served, count, predictions, wait_while, within_timeout};
use super::support::client::{Answer, Client};
use super::support::upstream::now;
use super::support::wire::{End, nominates};

fn client_limits(limits: &Value) -> Value {
    json!({"proxy": {"client": limits}})
}

pub(super) async fn connect(proxy: &TestProxy) -> TcpStream {
    within_timeout(TcpStream::connect(proxy.address)).await.unwrap()
}

/// Waits until the proxy closes the connection, and returns the bytes that it sent before.
pub(super) async fn read_until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is a close too.
    within_timeout(stream.read_to_end(&mut rest)).await.ok();
    rest
}

#[tokio::test]
async fn a_head_that_does_not_end_is_closed_at_the_head_timeout() {
    let (proxy, hand) = start_with_scripted_server(client_limits(&json!({"headTimeout": "50ms"}))).await;
    for begun in ["G", "GET / HTTP/1.1\r\nhost: h\r\nx-slow"] {
        let started = now();
        let mut stream = connect(&proxy).await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        read_until_closed(&mut stream).await;
        assert!(started.elapsed() >= Duration::from_millis(45));
    }
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let limits = json!({"headTimeout": "50ms", "keepAliveTimeout": "50ms"});
    let (proxy, _hand) = start_with_scripted_server(client_limits(&limits)).await;
    assert_eq!(read_until_closed(&mut connect(&proxy).await).await, b"");
}

#[tokio::test]
async fn a_connection_with_a_slowly_sent_head_is_closed() {
    let (proxy, _hand) = start_with_scripted_server(client_limits(&json!({"headTimeout": "80ms"}))).await;
    let mut stream = connect(&proxy).await;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    within_timeout(async {
        loop {
            ticks.tick().await;
            let mut byte = [0];
            let ended = matches!(stream.try_read(&mut byte), Ok(0));
            if ended || stream.write_all(b"x-a: 1\r\n").await.is_err() {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_head_timeout_counts_for_every_head_and_not_for_the_time_between_calls() {
    let limits = json!({"headTimeout": "300ms", "keepAliveTimeout": "1m"});
    let (proxy, hand) = start_with_scripted_server(client_limits(&limits)).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut client = proxy.client().await;
    for _ in 0..2 {
        assert_answer(&within_timeout(client.fetch(&proxy.predict(1))).await, 200, &predictions(&[1]));
        // Idle for longer than a head may take.
        let mut idle = Answer::default();
        let waited = tokio::time::timeout(Duration::from_millis(400), client.receive("GET", &mut idle)).await;
        assert!(waited.is_err(), "closed while idle: {idle:?}");
    }
    client.write_raw(b"GET / HT").await.unwrap();
    let mut answer = Answer::default();
    within_timeout(client.receive("GET", &mut answer)).await;
    assert!(matches!(answer.end, Some(End::Closed | End::Reset)), "{answer:?}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_keep_alive_timeout() {
    let (proxy, hand) = start_with_scripted_server(client_limits(&json!({"keepAliveTimeout": "50ms"}))).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut client = proxy.client().await;
    assert_answer(&within_timeout(client.fetch(&proxy.predict(1))).await, 200, &predictions(&[1]));
    let mut answer = Answer::default();
    within_timeout(client.receive("GET", &mut answer)).await;
    assert_eq!(answer.end, Some(End::Closed), "a FIN, not a reset");
    let h2 = H2Client::connect(proxy.address).await;
    wait_while(|| !h2.0.is_closed()).await;
}

#[tokio::test]
async fn a_connection_that_waits_for_its_answer_is_not_idle() {
    let limits = json!({"keepAliveTimeout": "200ms", "headTimeout": "200ms", "writeTimeout": "200ms"});
    let (proxy, mut hand) = start_with_scripted_server(client_limits(&limits)).await;
    let (caller, turn) = proxy.occupy_slot(&mut hand).await;
    let passes = proxy.call(proxy.request("GET", "/slow", &[], None));
    let slow = hand.next_request().await;
    let h2 = H2Client::connect(proxy.address).await;
    let pending = h2.fetch(http::Request::get("http://h/slow").body(empty()).unwrap());
    let other = hand.next_request().await;
    // Other connections exceed every one of these limits meanwhile.
    for _ in 0..3 {
        read_until_closed(&mut connect(&proxy).await).await;
    }
    turn.echo().await;
    slow.answer(200, "{}").await;
    other.answer(200, "{}").await;
    assert_answer(&caller.answer().await, 200, &predictions(&[0]));
    assert_answer(&passes.answer().await, 200, "{}");
    assert_eq!(within_timeout(pending).await.unwrap().0.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_closed_and_its_server_let_go() {
    let (proxy, mut hand) = start_with_scripted_server(client_limits(&json!({"writeTimeout": "100ms"}))).await;
    let mut stream = connect(&proxy).await;
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
    let mut turn = hand.next_request().await;
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
    turn.send_part(text.as_bytes()).await;
    let mut wire = turn.into_wire();
    // More than all buffers on the way hold: the writes end because the proxy closes the
    // connection.
    let piece = vec![b'x'; 1 << 20];
    let poured = async { while wire.write(&piece).await.is_ok() {} };
    within_timeout(poured).await;
    let got = read_until_closed(&mut stream).await;
    assert!(got.len() < 1_000_000_000);
}

#[tokio::test]
async fn a_slow_reader_of_a_shared_answer_keeps_no_slot_and_no_neighbour() {
    let (proxy, mut hand) = start_with_scripted_server(client_limits(&json!({"writeTimeout": "100ms"}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut slow = connect(&proxy).await;
    let body = super::setup::instances(&[1]);
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        proxy.address,
        body.len()
    );
    slow.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    proxy.wait_queued(1).await;
    let quick = proxy.queue([proxy.predict(2)]).await;
    turn.echo().await;
    first.answer().await;
    let large = "7".repeat(8 << 20);
    hand.next_request().await.answer(200, &format!("{{\"predictions\":[{large},2]}}")).await;
    for caller in quick {
        assert_answer(&caller.answer().await, 200, &predictions(&[2]));
    }
    proxy.wait_idle().await;
    proxy.wait_until(|stats| count(&stats.answered) == 3).await;
    wait_while(|| proxy.metric("groupage_connections") > 0).await;
}

#[tokio::test]
async fn last_request_closes_connection_gracefully() {
    let (proxy, hand) = start_with_scripted_server(client_limits(&json!({"requestsPerConnectionMax": 3}))).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut client = proxy.client().await;
    for n in 1..=3 {
        let answer = within_timeout(client.fetch(&proxy.predict(n))).await;
        assert_answer(&answer, 200, &predictions(&[n]));
        assert_eq!(nominates(&answer.headers, "close"), n == 3);
    }
    let mut answer = Answer::default();
    within_timeout(client.receive("GET", &mut answer)).await;
    assert_eq!(answer.end, Some(End::Closed));
}

#[tokio::test]
async fn an_old_http_2_connection_gets_goaway_and_calls_in_flight_are_answered() {
    let (proxy, mut hand) =
        start_with_scripted_server(client_limits(&json!({"http2": {"ageMax": "200ms"}, "keepAliveTimeout": "200ms"})))
            .await;
    let mut stream = connect(&proxy).await;
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &frame(1, 0x5, 1, GET)].concat()).await.unwrap();
    let turn = hand.next_request().await;
    let goaway = until_frame(&mut stream, 7).await.unwrap();
    assert_eq!(goaway.get(4..8), Some(&[0; 4][..]), "NO_ERROR");
    turn.answer(200, "{}").await;
    assert_eq!(until_frame(&mut stream, 0).await.unwrap(), b"{}");
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_at_once_while_all_are_busy() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"proxy": {"process": {"connectionsMax": 2}}})).await;
    let callers = ["/one", "/other"].map(|path| proxy.call(proxy.post(path, &[], "1")));
    let turns = [hand.next_request().await, hand.next_request().await];
    assert_eq!(read_until_closed(&mut connect(&proxy).await).await, b"");
    assert_eq!(proxy.metric("groupage_connections_shed_total"), 1);
    for turn in turns {
        turn.answer(200, "{}").await;
    }
    assert_served(callers).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    assert_answer(&proxy.fetch(&proxy.predict(2)).await, 200, &predictions(&[2]));
}

#[tokio::test]
async fn the_connection_that_was_idle_longest_makes_room_for_another() {
    let (proxy, hand) = start_with_scripted_server(json!({"proxy": {"process": {"connectionsMax": 2}}})).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut silent = connect(&proxy).await;
    let mut client = proxy.client().await;
    assert_answer(&within_timeout(client.fetch(&proxy.predict(1))).await, 200, &predictions(&[1]));
    assert_answer(&proxy.fetch(&proxy.predict(2)).await, 200, &predictions(&[2]));
    assert_eq!(read_until_closed(&mut silent).await, b"");
    assert_answer(&within_timeout(client.fetch(&proxy.predict(3))).await, 200, &predictions(&[3]));
}

#[tokio::test]
async fn hundreds_of_slow_heads_do_not_slow_a_healthy_caller() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    let mut slow = Vec::new();
    for _ in 0..400 {
        let mut stream = connect(&proxy).await;
        stream.write_all(b"POST /v1/models/m:predict HTTP/1.1\r\nhost: h\r\nx-s").await.unwrap();
        slow.push(stream);
    }
    let mut client: Client = proxy.client().await;
    let mut took = Vec::new();
    for n in 0..100 {
        let answer = within_timeout(client.fetch(&proxy.predict(n))).await;
        assert_answer(&answer, 200, &predictions(&[n]));
        took.push(answer.done.unwrap().duration_since(answer.sent.unwrap()));
    }
    took.sort_unstable();
    let median = *took.get(50).unwrap();
    assert!(median < Duration::from_millis(100), "{median:?}");
}

#[tokio::test]
async fn a_head_over_its_limits_is_refused_and_nothing_of_it_is_sent() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    // hyper's own bound is soft: a head that arrives at once may be up to twice the limit.
    let large = format!("x-large: {}\r\n", "a".repeat(130 << 10));
    for headers in [many, large] {
        let mut client = proxy.client().await;
        // The proxy may close before all of it is written.
        client.write_raw(format!("GET / HTTP/1.1\r\nhost: h\r\n{headers}\r\n").as_bytes()).await.ok();
        let mut answer = Answer::default();
        within_timeout(client.receive("GET", &mut answer)).await;
        assert!(matches!(answer.status, None | Some(431)), "{answer:?}");
    }
    assert_eq!((hand.pending_requests(), count(&proxy.stats().seen)), (0, 0));
}

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length.get(1..).unwrap().to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET http://h/`, from the HPACK static table (RFC 7541) except for the host.
pub(super) const GET: &[u8] = &[0x82, 0x84, 0x86, 0x41, 0x01, b'h'];

/// Reads frames up to the wanted one and returns its payload, or `None` if the connection ends
/// first.
pub(super) async fn until_frame(stream: &mut TcpStream, wanted: u8) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        within_timeout(stream.read_exact(&mut head)).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        within_timeout(stream.read_exact(&mut payload)).await.ok()?;
        if head[3] == wanted {
            return Some(payload);
        }
    }
}

#[tokio::test]
async fn a_flood_of_resets_ends_its_connection_and_harms_no_other() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let _auto = hand.into_auto_responder(|request| {
        if request.target == PREDICT {
            super::scripted_server::echo(request)
        } else {
            super::scripted_server::reply(200, "{}")
        }
    });
    let mut flood = [PREFACE, &frame(4, 0, 0, &[])].concat();
    for stream in (1..=20_001).step_by(2) {
        flood.extend(frame(1, 0x5, stream, GET));
        flood.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut stream = connect(&proxy).await;
    // The proxy may close before all of it is written.
    within_timeout(stream.write_all(&flood)).await.ok();
    if let Some(goaway) = until_frame(&mut stream, 7).await {
        assert_eq!(goaway.get(4..8), Some(&11_u32.to_be_bytes()[..]), "ENHANCE_YOUR_CALM");
    }
    read_until_closed(&mut stream).await;
    assert_answer(&proxy.fetch(&proxy.predict(1)).await, 200, &predictions(&[1]));
    proxy.wait_idle().await;
}

#[tokio::test]
async fn answers_that_an_http_2_client_never_lets_in_end_its_connection() {
    let (proxy, hand) = start_with_scripted_server(client_limits(&json!({"writeTimeout": "100ms"}))).await;
    let _auto = hand.into_auto_responder(|_| super::scripted_server::reply(200, "some body"));
    // SETTINGS_INITIAL_WINDOW_SIZE 0: no byte of any body may be sent.
    let mut text = [PREFACE, &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for stream in (1..=99).step_by(2) {
        text.extend(frame(1, 0x5, stream, GET));
    }
    let mut stream = connect(&proxy).await;
    stream.write_all(&text).await.unwrap();
    read_until_closed(&mut stream).await;
    wait_while(|| proxy.metric("groupage_connections") > 0).await;
}

#[tokio::test]
async fn an_http_2_client_that_stops_reading_a_body_is_disconnected() {
    let (proxy, mut hand) =
        start_with_scripted_server(client_limits(&json!({"writeTimeout": "100ms", "keepAliveTimeout": "1m"}))).await;
    // The default window of 64 KiB takes the beginning, and no update follows.
    let mut text = [PREFACE, &frame(4, 0, 0, &[])].concat();
    text.extend(frame(1, 0x5, 1, GET));
    let mut stream = connect(&proxy).await;
    stream.write_all(&text).await.unwrap();
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut wire = turn.into_wire();
    let piece = super::support::upstream::chunk(&vec![b'x'; 1 << 20]);
    let poured = async { while wire.write(&piece).await.is_ok() {} };
    within_timeout(async { tokio::join!(poured, read_until_closed(&mut stream)) }).await;
}
