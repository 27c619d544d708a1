//! Certificates on the data port: calls inside TLS, clients with certificates, failed handshakes,
//! and captured ports.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::http2_endpoints::H2Client;
use super::super::scripted_server::ScriptedServer;
use super::super::setup::{
    TestProxy, assert_answer, assert_predictions, count, merge_json, predictions, within_timeout,
};
use super::super::tunnel::{CertAuthority, TlsTunnelEnd};
use super::{BOTH, CertFolder, HTTP1, h2_predict, local_certificate, predict, until_metric};

#[tokio::test]
async fn calls_through_tls_share_a_batch_across_http_versions_and_get_their_own_answers() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let mut hand = ScriptedServer::start().await;
    let mut proxy = TestProxy::start_in_front_of(&hand.url(), folder.spec_with_certificate(&json!({})));
    let mut one = TlsTunnelEnd::start_client_end(proxy.address, "localhost", authority.client(HTTP1, None)).await;
    let mut two = TlsTunnelEnd::start_client_end(proxy.address, "localhost", authority.client(BOTH, None)).await;
    proxy.address = one.address;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    assert_eq!(one.next_handshake().await.unwrap().as_deref(), Some("http/1.1"));
    let h2 = H2Client::connect(two.address).await;
    let mut callers = Vec::new();
    let mut pending = Vec::new();
    for item in [1, 2] {
        callers.extend(proxy.queue([predict(&proxy, item)]).await);
        let before = count(&proxy.stats().items_accepted);
        pending.push(h2.fetch(h2_predict(10 + item)));
        proxy.wait_until(|stats| count(&stats.items_accepted) > before).await;
    }
    assert_eq!(two.next_handshake().await.unwrap().as_deref(), Some("h2"), "the better one of both");
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 11, 2, 12]);
    turn.echo().await;
    assert_predictions([1, 2], callers).await;
    for (item, pending) in [11, 12].into_iter().zip(pending) {
        let (head, whole) = within_timeout(pending).await.unwrap();
        assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[item]).as_bytes()));
    }
    // A call that is not merged passes through unchanged in both directions, even if it is larger
    // than TLS processes at once.
    let large = "x".repeat(300_000);
    let pending = proxy.call(proxy.post("/echo", &[], &large));
    let turn = hand.next_request().await;
    assert_eq!(turn.request.body, large.as_bytes());
    turn.answer(200, &large).await;
    assert_answer(&pending.answer().await, 200, &large);
    assert!(proxy.metric(r#"groupage_tls_certificate_expiry_seconds{side="callers"}"#) > 1_700_000_000);
}

#[tokio::test]
async fn callers_with_other_certificates_share_no_batch_and_without_one_there_is_no_call() {
    let (authority, callers) = (CertAuthority::new("ca"), CertAuthority::new("callers"));
    let folder = CertFolder::with(&local_certificate(&authority));
    let ca = folder.file("callers.crt", &callers.pem);
    let mut hand = ScriptedServer::start().await;
    let mut proxy = TestProxy::start_in_front_of(
        &hand.url(),
        folder.spec_with_certificate(&json!({"proxy": {"tls": {"clientCaFile": ca}}})),
    );
    let port = proxy.address;
    let [ann, ben] = ["ann", "ben"].map(|name| authority.client(HTTP1, Some(&callers.sign(&[name]))));
    let [ann, again, ben] = [
        TlsTunnelEnd::start_client_end(port, "localhost", ann.clone()).await,
        TlsTunnelEnd::start_client_end(port, "localhost", ann).await,
        TlsTunnelEnd::start_client_end(port, "localhost", ben).await,
    ];
    proxy.address = ann.address;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut waiting = Vec::new();
    for (item, address) in [(1, ann.address), (2, ben.address), (3, again.address)] {
        proxy.address = address;
        waiting.extend(proxy.queue([predict(&proxy, item)]).await);
    }
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let turn = hand.next_request().await;
        seen.push(turn.instances());
        turn.echo().await;
    }
    seen.sort();
    assert_eq!(seen, [vec![1, 3], vec![2]], "two connections of one certificate are one caller's");
    assert_predictions(1.., waiting).await;
    // A client without a certificate, and one with a certificate of another authority.
    let strangers =
        [authority.client(HTTP1, None), authority.client(HTTP1, Some(&CertAuthority::new("other").sign(&["eve"])))];
    for (number, stranger) in strangers.into_iter().enumerate() {
        let tunnel = TlsTunnelEnd::start_client_end(port, "localhost", stranger).await;
        proxy.address = tunnel.address;
        assert_eq!(proxy.fetch(&predict(&proxy, 9)).await.status, None);
        let refused = r#"groupage_tls_handshakes_failed_total{reason="client_certificate"}"#;
        until_metric(&proxy, refused, 1 + number as u64).await;
    }
    assert_eq!(hand.pending_requests(), 0);
    // After an authority is no longer trusted, sessions that began before are not resumed either.
    folder.file("callers.crt", &authority.pem);
    until_metric(&proxy, r#"groupage_tls_reloads_total{side="callers",result="applied"}"#, 1).await;
    proxy.address = ann.address;
    assert_eq!(proxy.fetch(&predict(&proxy, 9)).await.status, None);
    until_metric(&proxy, r#"groupage_tls_handshakes_failed_total{reason="client_certificate"}"#, 3).await;
}

#[tokio::test]
async fn plaintext_client_gets_400_or_goaway() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let hand = ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), folder.spec_with_certificate(&json!({})));
    let answer = proxy.fetch(&predict(&proxy, 1)).await;
    assert_answer(&answer, 400, "this port requires TLS: use https://\n");
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut received = Vec::new();
    within_timeout(stream.read_to_end(&mut received)).await.unwrap();
    let (settings, goaway) = received.split_at(9);
    assert_eq!((settings[3], goaway[3], goaway[16]), (4, 7, 0x0c), "SETTINGS, and GOAWAY: inadequate security");
    assert!(goaway.ends_with(b"use https://\n"));
    // An HTTP/2 client gets an error instead of silence.
    let h2 = H2Client::connect(proxy.address).await;
    assert!(within_timeout(h2.0.clone().send_request(h2_predict(1))).await.is_err());
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"\0\x01nonsense").await.unwrap();
    let mut received = Vec::new();
    within_timeout(stream.read_to_end(&mut received)).await.ok();
    assert_eq!(received, b"");
    until_metric(&proxy, r#"groupage_tls_handshakes_failed_total{reason="not_tls"}"#, 4).await;
    assert_eq!(hand.pending_requests(), 0, "nothing of it was forwarded");
}

#[tokio::test]
async fn a_handshake_that_does_not_begin_or_end_is_over_in_time_and_gives_its_place_back() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let hand = ScriptedServer::start().await;
    let limits = json!({"proxy": {"client": {"headTimeout": "100ms"}, "process": {"connectionsMax": 2}}});
    let proxy = TestProxy::start_in_front_of(&hand.url(), folder.spec_with_certificate(&limits));
    let mut silent = TcpStream::connect(proxy.address).await.unwrap();
    let mut slow = TcpStream::connect(proxy.address).await.unwrap();
    slow.write_all(b"\x16\x03\x01\x02\0\x01").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut received = Vec::new();
        within_timeout(stream.read_to_end(&mut received)).await.ok();
    }
    for reason in ["silent", "slow"] {
        until_metric(&proxy, &format!("groupage_tls_handshakes_failed_total{{reason=\"{reason}\"}}"), 1).await;
    }
    until_metric(&proxy, "groupage_connections", 0).await;
}

#[tokio::test]
async fn a_captured_port_relays_tls_unless_it_has_certificates_of_its_own() {
    let authority = CertAuthority::new("ca");
    let mut hand = ScriptedServer::start().await;
    // The application speaks TLS itself.
    let app = TlsTunnelEnd::start_server_end(hand.address, local_certificate(&authority).server(HTTP1, None)).await;
    let captures = [format!(":{}@0", app.address.port())];
    let spec = json!({"scheduling": {"policy": "WorkConserving"}, "proxy": {"drain": {"delay": "0s"}}});
    let proxy = TestProxy::start_captured(&captures, "", &spec);
    let arrive = SocketAddr::from(([127, 0, 0, 1], proxy.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive, "localhost", authority.client(HTTP1, None)).await;
    let mut through = proxy;
    through.address = tunnel.address;
    let pending = through.call(predict(&through, 1));
    hand.next_request().await.echo().await;
    assert_answer(&pending.answer().await, 200, &predictions(&[1]));
    assert_eq!(through.metric(r#"groupage_connections_relayed_total{reason="not_http"}"#), 1);

    // The sidecar has certificates, and the application speaks plain HTTP: calls inside TLS are
    // merged.
    let folder = CertFolder::with(&local_certificate(&authority));
    let mut spec = spec;
    merge_json(&mut spec, &folder.spec_with_certificate(&json!({})));
    let captures = [format!(":{}@0", hand.address.port())];
    let mut proxy = TestProxy::start_captured(&captures, "", &spec);
    let arrive = SocketAddr::from(([127, 0, 0, 1], proxy.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive, "localhost", authority.client(HTTP1, None)).await;
    proxy.address = tunnel.address;
    let requests = vec![predict(&proxy, 1), predict(&proxy, 2)];
    let (callers, turn) = proxy.form_batch(&mut hand, requests).await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
    // Data inside TLS that is not HTTP is relayed to the application, without the TLS.
    let app = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let captures = [format!(":{}@0", app.local_addr().unwrap().port())];
    let binary = TestProxy::start_captured(&captures, "", &spec);
    let arrive_binary = SocketAddr::from(([127, 0, 0, 1], binary.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive_binary, "localhost", authority.client(HTTP1, None)).await;
    let mut stream = TcpStream::connect(tunnel.address).await.unwrap();
    stream.write_all(b"\0\x01binary").await.unwrap();
    let mut received = [0; 8];
    let mut accepted = loop {
        let (mut accepted, _) = within_timeout(app.accept()).await.unwrap();
        // The probe of the application sends nothing.
        if within_timeout(accepted.read_exact(&mut received)).await.is_ok() {
            break accepted;
        }
    };
    assert_eq!(&received, b"\0\x01binary");
    accepted.write_all(b"answer").await.unwrap();
    let mut received = [0; 6];
    within_timeout(stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"answer");
    assert_eq!(binary.metric(r#"groupage_connections_relayed_total{reason="not_http"}"#), 1);
    proxy.address = arrive;
    assert_answer(&proxy.fetch(&predict(&proxy, 1)).await, 400, "this port requires TLS: use https://\n");
}
