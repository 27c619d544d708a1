//! Upstreams with `https://`: batches and passed calls, protocol negotiation, and the certificates
//! of both ends.

use std::fs;

use http::{Request, Version};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::http2_endpoints::{H2Client, H2ScriptedServer, empty};
use super::super::scripted_server::ScriptedServer;
use super::super::setup::{assert_answer, assert_failure, assert_predictions, predictions, within_timeout};
use super::super::support::wire::Framing;
use super::super::tunnel::{CertAuthority, TlsTunnelEnd};
use super::{BOTH, HTTP1, TlsUpstream, h2_predict, local_certificate, until_metric};

#[tokio::test]
async fn batches_and_passed_calls_go_to_an_https_upstream() {
    let behind = TlsUpstream::new();
    let mut hand = ScriptedServer::start().await;
    let mut server = behind.server(hand.address, BOTH, None).await;
    let proxy = behind.proxy(&server, &json!({}));
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
    let large = "x".repeat(300_000);
    let pending = proxy.call(proxy.post("/echo", &[("host", "model.example")], &large));
    let turn = hand.next_request().await;
    assert_eq!((turn.request.target.as_str(), turn.request.body.len()), ("/echo", large.len()));
    turn.answer(200, &large).await;
    assert_answer(&pending.answer().await, 200, &large);
    // The tests set `http2: Never`, which overrides the preference of the server.
    while let Ok(shaken) = server.shaken.try_recv() {
        assert_eq!(shaken.unwrap().as_deref(), Some("http/1.1"));
    }
    assert_eq!(
        proxy.metric(r#"groupage_tls_certificate_expiry_seconds{side="upstream"}"#),
        0,
        "the proxy presents none"
    );
}

#[tokio::test]
async fn a_switch_of_protocols_and_the_end_of_either_side_go_through_tls_on_both() {
    let behind = TlsUpstream::new();
    let mut hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, HTTP1, None).await;
    let proxy = behind.proxy(&server, &json!({"proxy": {"tls": behind.folder.tls()}}));
    let tunnel = TlsTunnelEnd::start_client_end(proxy.address, "localhost", behind.authority.client(HTTP1, None)).await;
    let mut client = TcpStream::connect(tunnel.address).await.unwrap();
    client
        .write_all(b"GET /ws HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within_timeout(client.read_u8()).await.unwrap());
    }
    let mut wire = turn.into_wire();
    for word in ["ping", "\0\r\nGET / HTTP/1.1\r\n\r\n"] {
        client.write_all(word.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        within_timeout(wire.body(Framing::Length(word.len() as u64), &mut received)).await.unwrap();
        assert_eq!(received, word.as_bytes());
        within_timeout(wire.write(b"pong")).await.unwrap();
        let mut received = [0; 4];
        within_timeout(client.read_exact(&mut received)).await.unwrap();
        assert_eq!(&received, b"pong");
    }
    client.shutdown().await.unwrap();
    within_timeout(wire.body(Framing::UntilClose, &mut Vec::new())).await.unwrap();
    within_timeout(wire.write(b"the last word")).await.unwrap();
    drop(wire);
    let mut rest = Vec::new();
    within_timeout(client.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"the last word");
}

#[tokio::test]
async fn the_server_selects_the_http_version_inside_tls() {
    let behind = TlsUpstream::new();
    let mut hand = H2ScriptedServer::start().await;
    for (http2, protocols, version) in [
        ("Auto", BOTH, Version::HTTP_2),
        ("Always", BOTH, Version::HTTP_2),
        ("Auto", HTTP1, Version::HTTP_11),
        ("Auto", &[][..], Version::HTTP_11),
        ("Never", BOTH, Version::HTTP_11),
    ] {
        let mut server = behind.server(hand.address, protocols, None).await;
        let proxy = behind.proxy(&server, &json!({"proxy": {"connection": {"http2": http2}}}));
        if http2 == "Auto" {
            // The probe for the server, and the detection of its protocol.
            for _ in 0..2 {
                assert!(server.next_handshake().await.is_ok());
            }
        }
        within_timeout(async {
            loop {
                let first = proxy.call(proxy.predict(0));
                let turn = hand.turn().await;
                let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
                turn.ok(predictions(&[0]));
                assert_answer(&first.answer().await, 200, &predictions(&[0]));
                let turn = hand.turn().await;
                let sent: Value = serde_json::from_slice(&turn.whole.body).unwrap();
                assert_eq!(sent, json!({"instances": [1, 2]}), "{http2} {protocols:?}");
                let (found, scheme) = (turn.head.version, turn.head.uri.scheme_str().map(str::to_owned));
                turn.ok(predictions(&[1, 2]));
                assert_predictions(1.., callers).await;
                if found == version {
                    assert!(version == Version::HTTP_11 || scheme.as_deref() == Some("https"));
                    break;
                }
                // The detection may finish after the first batch.
                assert_eq!((http2, version), ("Auto", Version::HTTP_2), "{protocols:?}");
            }
        })
        .await;
        if http2 == "Auto" && version == Version::HTTP_2 {
            // Another server behind the same address speaks HTTP/1 only. Its choice applies, and
            // the call is forwarded.
            server.set_config(local_certificate(&behind.authority).server(HTTP1, None));
            let client = H2Client::connect(proxy.address).await;
            let pending = client.fetch(Request::get("http://model.example/elsewhere").body(empty()).unwrap());
            let turn = hand.turn().await;
            assert_eq!(turn.head.version, Version::HTTP_11);
            turn.ok("{}");
            assert_eq!(within_timeout(pending).await.unwrap().0.status, 200);
        }
    }
}

#[tokio::test]
async fn a_server_with_another_name_or_authority_gets_no_call_and_the_caller_a_502() {
    let behind = TlsUpstream::new();
    let stranger = CertAuthority::new("stranger");
    let other = behind.folder.file("other.crt", &stranger.pem);
    let hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, None).await;
    for keys in [json!({"serverName": "model.example"}), json!({"caFile": other})] {
        let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": keys}}));
        assert_failure(&proxy.fetch(&proxy.predict(1)).await, 502, "GRP3307", "upstream_tls");
        assert_failure(&proxy.fetch(&proxy.post("/elsewhere", &[], "{}")).await, 502, "GRP3307", "upstream_tls");
        let h2 = H2Client::connect(proxy.address).await;
        let (head, _) = within_timeout(h2.fetch(h2_predict(1))).await.unwrap();
        assert_eq!((head.status.as_u16(), head.headers["x-groupage-error"].to_str().unwrap()), (502, "GRP3307"));
    }
    assert_eq!(hand.pending_requests(), 0);
    // The server's own name, configured separately from the host.
    let mut hand = hand;
    let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": {"serverName": "localhost"}}}));
    let pending = proxy.call(proxy.predict(1));
    hand.next_request().await.echo().await;
    assert_answer(&pending.answer().await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn an_upstream_that_wants_a_certificate_gets_ours_and_files_that_change_are_used() {
    let behind = TlsUpstream::new();
    let callers = CertAuthority::new("callers");
    let mut hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, Some(&callers)).await;
    for http2 in ["Never", "Always"] {
        let without = behind.proxy(&server, &json!({"proxy": {"connection": {"http2": http2}}}));
        assert_failure(&without.fetch(&without.predict(1)).await, 502, "GRP3307", "upstream_tls");
    }
    // The proxy has a certificate, at first of another authority.
    let own = tempfile::tempdir().unwrap();
    let (cert, key) = CertAuthority::new("other").sign(&["groupage"]).write(own.path());
    let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": {"certFile": cert, "keyFile": key}}}));
    assert_failure(&proxy.fetch(&proxy.predict(1)).await, 502, "GRP3307", "upstream_tls");
    let applied = r#"groupage_tls_reloads_total{side="upstream",result="applied"}"#;
    let right = callers.sign(&["groupage"]);
    // Both files are replaced completely, one after the other, as tools do it. In between they do
    // not match.
    for (path, text) in [(&cert, &right.cert), (&key, &right.key)] {
        let new_file = own.path().join("new");
        fs::write(&new_file, text).unwrap();
        fs::rename(&new_file, path).unwrap();
    }
    until_metric(&proxy, applied, 1).await;
    let pending = proxy.call(proxy.predict(1));
    hand.next_request().await.echo().await;
    assert_answer(&pending.answer().await, 200, &predictions(&[1]));
}
