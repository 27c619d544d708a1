//! TLS on both sides: certificates on the data port, `https://` upstreams, and changes of the files
//! of either.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use http::{Request, Version};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::binary::Binary;
use super::h2::{H2Client, H2ScriptedServer, full};
use super::scripted_server::ScriptedServer;
use super::setup::{
    PREDICT, TestProxy, assert_answer, assert_failure, count, instances, lay_over, policy_text, predictions, within,
};
use super::support::client::Outgoing;
use super::support::wire::Framing;
use super::tunnel::{CertAuthority, CertKeyPair, TlsTunnelEnd};

const HTTP1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

/// A folder with a certificate for 127.0.0.1 and `localhost`, and the settings that refer to it.
struct CertFolder {
    dir: tempfile::TempDir,
}

impl CertFolder {
    fn with(pair: &CertKeyPair) -> Self {
        let dir = tempfile::tempdir().unwrap();
        pair.write(dir.path());
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn tls(&self) -> Value {
        json!({"certFile": self.path().join("tls.crt"), "keyFile": self.path().join("tls.key")})
    }

    /// Returns the settings of a proxy that presents this certificate.
    fn shown(&self, over: &Value) -> Value {
        let mut spec = json!({"proxy": {"tls": self.tls()}});
        lay_over(&mut spec, over);
        spec
    }
}

fn local_certificate(authority: &CertAuthority) -> CertKeyPair {
    authority.sign(&["127.0.0.1", "localhost"])
}

/// Returns a call with a host that is independent of the port that it is sent to.
fn predict(proxy: &TestProxy, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[("host", "model.example")], &instances(&[item]))
}

fn h2_predict(item: u64) -> Request<super::h2::Body> {
    Request::post(format!("https://model.example{PREDICT}"))
        .header("content-type", "application/json")
        .body(full(instances(&[item])))
        .unwrap()
}

async fn until_metric(proxy: &TestProxy, series: &str, value: u64) {
    within(async {
        while proxy.metric(series) != value {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn calls_through_tls_share_a_batch_whatever_version_they_speak_and_get_their_own_bytes() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let mut hand = ScriptedServer::start().await;
    let mut proxy = TestProxy::before(&hand.url(), folder.shown(&json!({})));
    let mut one = TlsTunnelEnd::start_client_end(proxy.address, "localhost", authority.client(HTTP1, None)).await;
    let mut two = TlsTunnelEnd::start_client_end(proxy.address, "localhost", authority.client(BOTH, None)).await;
    proxy.address = one.address;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    assert_eq!(one.shaken().await.unwrap().as_deref(), Some("http/1.1"));
    let h2 = H2Client::connect(two.address).await;
    let mut callers = Vec::new();
    let mut asked = Vec::new();
    for item in [1, 2] {
        callers.extend(proxy.queue([predict(&proxy, item)]).await);
        let before = count(&proxy.stats().items_accepted);
        asked.push(h2.ask(h2_predict(10 + item)));
        proxy.until(|stats| count(&stats.items_accepted) > before).await;
    }
    assert_eq!(two.shaken().await.unwrap().as_deref(), Some("h2"), "the better one of both");
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let turn = hand.turn().await;
    assert_eq!(turn.instances(), [1, 11, 2, 12]);
    turn.echo().await;
    for (item, caller) in [1, 2].into_iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(&[item]));
    }
    for (item, asked) in [11, 12].into_iter().zip(asked) {
        let (head, whole) = within(asked).await.unwrap();
        assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[item]).as_bytes()));
    }
    // A call that is not merged passes through unchanged in both directions, even if it is larger
    // than TLS processes at once.
    let large = "x".repeat(300_000);
    let asked = proxy.call(proxy.post("/echo", &[], &large));
    let turn = hand.turn().await;
    assert_eq!(turn.request.body, large.as_bytes());
    turn.answer(200, &large).await;
    assert_answer(&asked.answer().await, 200, &large);
    assert!(proxy.metric(r#"groupage_tls_certificate_expiry_seconds{side="callers"}"#) > 1_700_000_000);
}

/// Publishes files as the kubelet publishes a Secret: the directory that all names lead through is
/// swapped atomically.
fn publish(folder: &Path, version: &str, files: &[(&str, &str)]) {
    fs::create_dir(folder.join(version)).unwrap();
    for (name, text) in files {
        fs::write(folder.join(version).join(name), text).unwrap();
        if !folder.join(name).exists() {
            symlink(format!("..data/{name}"), folder.join(name)).unwrap();
        }
    }
    symlink(version, folder.join("..tmp")).unwrap();
    fs::rename(folder.join("..tmp"), folder.join("..data")).unwrap();
}

#[tokio::test]
async fn certificates_that_change_are_shown_to_the_next_client_and_no_call_is_lost() {
    let (old, new) = (CertAuthority::new("old"), CertAuthority::new("new"));
    let (first, second) = (local_certificate(&old), local_certificate(&new));
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), "..1", &[("tls.crt", &first.cert), ("tls.key", &first.key)]);
    let tls = json!({"certFile": dir.path().join("tls.crt"), "keyFile": dir.path().join("tls.key")});
    let mut hand = ScriptedServer::start().await;
    let proxy = TestProxy::before(&hand.url(), json!({"proxy": {"tls": tls}}));
    let before = TlsTunnelEnd::start_client_end(proxy.address, "localhost", old.client(BOTH, None)).await;
    let h2 = H2Client::connect(before.address).await;
    let waits = h2.ask(h2_predict(1));
    let turn = hand.turn().await;
    let (applied, refused) = (
        r#"groupage_tls_reloads_total{side="callers",result="applied"}"#,
        r#"groupage_tls_reloads_total{side="callers",result="refused"}"#,
    );
    publish(dir.path(), "..2", &[("tls.crt", &second.cert), ("tls.key", &second.key)]);
    until_metric(&proxy, applied, 1).await;
    turn.echo().await;
    let (head, whole) = within(waits).await.unwrap();
    assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[1]).as_bytes()));
    // The connection stays open, and a new one gets the new certificate.
    let mut after = TlsTunnelEnd::start_client_end(proxy.address, "localhost", new.client(BOTH, None)).await;
    let next = H2Client::connect(after.address).await;
    for (client, item) in [(&h2, 2), (&next, 3)] {
        let asked = client.ask(h2_predict(item));
        hand.turn().await.echo().await;
        assert_eq!(within(asked).await.unwrap().1.body, predictions(&[item]));
    }
    assert!(after.shaken().await.is_ok());
    // A pair that does not match, a file without a certificate, and one without a key: the previous
    // certificate stays in use, and each failure is counted once.
    for (number, (version, cert, key)) in [
        ("..3", &first.cert, &second.key),
        ("..4", &"nothing".to_owned(), &second.key),
        ("..5", &second.cert, &"nothing".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        publish(dir.path(), version, &[("tls.crt", cert), ("tls.key", key)]);
        until_metric(&proxy, refused, 1 + number as u64).await;
        let mut still = TlsTunnelEnd::start_client_end(proxy.address, "localhost", new.client(BOTH, None)).await;
        let client = H2Client::connect(still.address).await;
        assert!(still.shaken().await.is_ok(), "{version}");
        let asked = client.ask(h2_predict(4));
        hand.turn().await.echo().await;
        assert_eq!(within(asked).await.unwrap().0.status, 200);
    }
    publish(dir.path(), "..6", &[("tls.crt", &first.cert), ("tls.key", &first.key)]);
    until_metric(&proxy, applied, 2).await;
    assert_eq!(proxy.metric(refused), 3);
}

#[tokio::test]
async fn files_that_cannot_be_used_end_the_start_with_what_is_wrong() {
    let authority = CertAuthority::new("ca");
    let (pair, other) = (local_certificate(&authority), local_certificate(&authority));
    let folder = CertFolder::with(&pair);
    let other_key = folder.file("other.key", &other.key);
    let none = folder.file("none", "nothing");
    let large = folder.file("large", &"x".repeat((1 << 20) + 1));
    let missing = folder.path().join("missing").display().to_string();
    for (keys, says) in [
        (json!({"certFile": missing}), ["proxy.tls.certFile", &missing, "No such file", "may read"]),
        (json!({"certFile": none}), ["proxy.tls.certFile", &none, "no certificate", "PEM"]),
        (json!({"certFile": large}), ["proxy.tls.certFile", &large, "1 MiB", "PEM"]),
        (json!({"keyFile": none}), ["proxy.tls.keyFile", &none, "no private key", "not encrypted"]),
        (json!({"keyFile": other_key}), ["proxy.tls.keyFile", &other_key, "does not match", "one pair"]),
        (json!({"clientCaFile": none}), ["proxy.tls.clientCaFile", &none, "no certificate", "PEM"]),
    ] {
        let spec = folder.shown(&json!({"proxy": {"tls": keys}}));
        let error = TestProxy::start("http://127.0.0.1:1", &spec).unwrap_err().to_string();
        assert!(error.starts_with("GRP1106") && says.iter().all(|word| error.contains(word)), "{error}");
    }
    for (keys, says) in [
        (json!({"caFile": missing}), ["proxy.upstreamTls.caFile", &missing, "No such file"]),
        (json!({"certFile": missing, "keyFile": none}), ["proxy.upstreamTls.certFile", &missing, "No such file"]),
        (
            json!({"serverName": "not_a name".replace(' ', "!")}),
            ["proxy.upstreamTls.serverName", "not_a!name", "DNS name"],
        ),
    ] {
        let mut spec = json!({"proxy": {"upstreamTls": {"caFile": folder.file("ca", &authority.pem)}}});
        lay_over(&mut spec, &json!({"proxy": {"upstreamTls": keys}}));
        let error = TestProxy::start("https://127.0.0.1:1", &spec).unwrap_err().to_string();
        assert!(says.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn callers_with_other_certificates_share_no_batch_and_without_one_there_is_no_call() {
    let (authority, callers) = (CertAuthority::new("ca"), CertAuthority::new("callers"));
    let folder = CertFolder::with(&local_certificate(&authority));
    let ca = folder.file("callers.crt", &callers.pem);
    let mut hand = ScriptedServer::start().await;
    let mut proxy = TestProxy::before(&hand.url(), folder.shown(&json!({"proxy": {"tls": {"clientCaFile": ca}}})));
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
        let turn = hand.turn().await;
        seen.push(turn.instances());
        turn.echo().await;
    }
    seen.sort();
    assert_eq!(seen, [vec![1, 3], vec![2]], "two connections of one certificate are one caller's");
    for (item, caller) in (1..).zip(waiting) {
        assert_answer(&caller.answer().await, 200, &predictions(&[item]));
    }
    // A client without a certificate, and one with a certificate of another authority.
    let strangers =
        [authority.client(HTTP1, None), authority.client(HTTP1, Some(&CertAuthority::new("other").sign(&["eve"])))];
    for (number, stranger) in strangers.into_iter().enumerate() {
        let tunnel = TlsTunnelEnd::start_client_end(port, "localhost", stranger).await;
        proxy.address = tunnel.address;
        assert_eq!(proxy.ask(&predict(&proxy, 9)).await.status, None);
        let refused = r#"groupage_tls_handshakes_failed_total{reason="client_certificate"}"#;
        until_metric(&proxy, refused, 1 + number as u64).await;
    }
    assert_eq!(hand.waiting(), 0);
    // After an authority is no longer trusted, sessions that began before are not resumed either.
    folder.file("callers.crt", &authority.pem);
    until_metric(&proxy, r#"groupage_tls_reloads_total{side="callers",result="applied"}"#, 1).await;
    proxy.address = ann.address;
    assert_eq!(proxy.ask(&predict(&proxy, 9)).await.status, None);
    until_metric(&proxy, r#"groupage_tls_handshakes_failed_total{reason="client_certificate"}"#, 3).await;
}

#[tokio::test]
async fn plaintext_client_gets_400_or_goaway() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let hand = ScriptedServer::start().await;
    let proxy = TestProxy::before(&hand.url(), folder.shown(&json!({})));
    let answer = proxy.ask(&predict(&proxy, 1)).await;
    assert_answer(&answer, 400, "this port requires TLS: use https://\n");
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut said = Vec::new();
    within(stream.read_to_end(&mut said)).await.unwrap();
    let (settings, goaway) = said.split_at(9);
    assert_eq!((settings[3], goaway[3], goaway[16]), (4, 7, 0x0c), "SETTINGS, and GOAWAY: inadequate security");
    assert!(goaway.ends_with(b"use https://\n"));
    // An HTTP/2 client gets an error instead of silence.
    let h2 = H2Client::connect(proxy.address).await;
    assert!(within(h2.0.clone().send_request(h2_predict(1))).await.is_err());
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"\0\x01nonsense").await.unwrap();
    let mut said = Vec::new();
    within(stream.read_to_end(&mut said)).await.ok();
    assert_eq!(said, b"");
    until_metric(&proxy, r#"groupage_tls_handshakes_failed_total{reason="not_tls"}"#, 4).await;
    assert_eq!(hand.waiting(), 0, "nothing of it was forwarded");
}

#[tokio::test]
async fn a_handshake_that_does_not_begin_or_end_is_over_in_time_and_gives_its_place_back() {
    let authority = CertAuthority::new("ca");
    let folder = CertFolder::with(&local_certificate(&authority));
    let hand = ScriptedServer::start().await;
    let limits = json!({"proxy": {"client": {"headTimeout": "100ms"}, "process": {"connectionsMax": 2}}});
    let proxy = TestProxy::before(&hand.url(), folder.shown(&limits));
    let mut silent = TcpStream::connect(proxy.address).await.unwrap();
    let mut slow = TcpStream::connect(proxy.address).await.unwrap();
    slow.write_all(b"\x16\x03\x01\x02\0\x01").await.unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut said = Vec::new();
        within(stream.read_to_end(&mut said)).await.ok();
    }
    for reason in ["silent", "slow"] {
        until_metric(&proxy, &format!("groupage_tls_handshakes_failed_total{{reason=\"{reason}\"}}"), 1).await;
    }
    until_metric(&proxy, "groupage_connections", 0).await;
}

/// A model server behind TLS, and the settings of a proxy that trusts its authority.
struct TlsUpstream {
    authority: CertAuthority,
    folder: CertFolder,
    ca: String,
}

impl TlsUpstream {
    fn new() -> Self {
        let authority = CertAuthority::new("ca");
        let folder = CertFolder::with(&local_certificate(&authority));
        let ca = folder.file("ca.crt", &authority.pem);
        Self { authority, folder, ca }
    }

    async fn server(&self, to: SocketAddr, protocols: &[&str], clients: Option<&CertAuthority>) -> TlsTunnelEnd {
        TlsTunnelEnd::start_server_end(to, local_certificate(&self.authority).server(protocols, clients)).await
    }

    fn proxy(&self, server: &TlsTunnelEnd, over: &Value) -> TestProxy {
        let mut spec = json!({"proxy": {"upstreamTls": {"caFile": self.ca}}});
        lay_over(&mut spec, over);
        TestProxy::before(&server.url(), spec)
    }
}

#[tokio::test]
async fn batches_go_to_an_https_upstream_and_so_does_what_passes_through() {
    let behind = TlsUpstream::new();
    let mut hand = ScriptedServer::start().await;
    let mut server = behind.server(hand.address, BOTH, None).await;
    let proxy = behind.proxy(&server, &json!({}));
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let turn = hand.turn().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    for (item, caller) in (1..).zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(&[item]));
    }
    let large = "x".repeat(300_000);
    let asked = proxy.call(proxy.post("/echo", &[("host", "model.example")], &large));
    let turn = hand.turn().await;
    assert_eq!((turn.request.target.as_str(), turn.request.body.len()), ("/echo", large.len()));
    turn.answer(200, &large).await;
    assert_answer(&asked.answer().await, 200, &large);
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
    let mut turn = hand.turn().await;
    turn.part(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(client.read_u8()).await.unwrap());
    }
    let mut wire = turn.into_wire();
    for word in ["ping", "\0\r\nGET / HTTP/1.1\r\n\r\n"] {
        client.write_all(word.as_bytes()).await.unwrap();
        let mut came = Vec::new();
        within(wire.body(Framing::Length(word.len() as u64), &mut came)).await.unwrap();
        assert_eq!(came, word.as_bytes());
        within(wire.write(b"pong")).await.unwrap();
        let mut came = [0; 4];
        within(client.read_exact(&mut came)).await.unwrap();
        assert_eq!(&came, b"pong");
    }
    client.shutdown().await.unwrap();
    within(wire.body(Framing::UntilClose, &mut Vec::new())).await.unwrap();
    within(wire.write(b"the last word")).await.unwrap();
    drop(wire);
    let mut rest = Vec::new();
    within(client.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"the last word");
}

#[tokio::test]
async fn inside_tls_the_server_says_which_version_it_speaks() {
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
                assert!(server.shaken().await.is_ok());
            }
        }
        within(async {
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
                for (item, caller) in (1..).zip(callers) {
                    assert_answer(&caller.answer().await, 200, &predictions(&[item]));
                }
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
            server.speak(local_certificate(&behind.authority).server(HTTP1, None));
            let client = H2Client::connect(proxy.address).await;
            let asked = client.ask(Request::get("http://model.example/elsewhere").body(super::h2::empty()).unwrap());
            let turn = hand.turn().await;
            assert_eq!(turn.head.version, Version::HTTP_11);
            turn.ok("{}");
            assert_eq!(within(asked).await.unwrap().0.status, 200);
        }
    }
}

#[tokio::test]
async fn a_server_of_another_name_or_authority_gets_no_call_and_the_caller_an_honest_answer() {
    let behind = TlsUpstream::new();
    let stranger = CertAuthority::new("stranger");
    let other = behind.folder.file("other.crt", &stranger.pem);
    let hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, None).await;
    for keys in [json!({"serverName": "model.example"}), json!({"caFile": other})] {
        let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": keys}}));
        assert_failure(&proxy.ask(&proxy.predict(1)).await, 502, "GRP3307", "upstream_tls");
        assert_failure(&proxy.ask(&proxy.post("/elsewhere", &[], "{}")).await, 502, "GRP3307", "upstream_tls");
        let h2 = H2Client::connect(proxy.address).await;
        let (head, _) = within(h2.ask(h2_predict(1))).await.unwrap();
        assert_eq!((head.status.as_u16(), head.headers["x-groupage-error"].to_str().unwrap()), (502, "GRP3307"));
    }
    assert_eq!(hand.waiting(), 0);
    // The server's own name, configured separately from the host.
    let mut hand = hand;
    let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": {"serverName": "localhost"}}}));
    let asked = proxy.call(proxy.predict(1));
    hand.turn().await.echo().await;
    assert_answer(&asked.answer().await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn an_upstream_that_wants_a_certificate_gets_ours_and_files_that_change_are_used() {
    let behind = TlsUpstream::new();
    let callers = CertAuthority::new("callers");
    let mut hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, Some(&callers)).await;
    for http2 in ["Never", "Always"] {
        let without = behind.proxy(&server, &json!({"proxy": {"connection": {"http2": http2}}}));
        assert_failure(&without.ask(&without.predict(1)).await, 502, "GRP3307", "upstream_tls");
    }
    // The proxy has a certificate, at first of another authority.
    let own = tempfile::tempdir().unwrap();
    let (cert, key) = CertAuthority::new("other").sign(&["groupage"]).write(own.path());
    let proxy = behind.proxy(&server, &json!({"proxy": {"upstreamTls": {"certFile": cert, "keyFile": key}}}));
    assert_failure(&proxy.ask(&proxy.predict(1)).await, 502, "GRP3307", "upstream_tls");
    let applied = r#"groupage_tls_reloads_total{side="upstream",result="applied"}"#;
    let right = callers.sign(&["groupage"]);
    // Both files are replaced completely, one after the other, as tools do it. In between they do
    // not match.
    for (path, text) in [(&cert, &right.cert), (&key, &right.key)] {
        let beside = own.path().join("new");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, path).unwrap();
    }
    until_metric(&proxy, applied, 1).await;
    let asked = proxy.call(proxy.predict(1));
    hand.turn().await.echo().await;
    assert_answer(&asked.answer().await, 200, &predictions(&[1]));
}

#[tokio::test]
async fn the_logs_say_in_words_what_is_wrong_with_the_upstreams_certificate_and_sighup_reads_ours_again() {
    let behind = TlsUpstream::new();
    let hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, None).await;
    let spec = json!({"proxy": {"tls": behind.folder.tls(), "upstreamTls": {"caFile": behind.ca, "serverName": "model.example"}}});
    let binary = Binary::start(&server.url(), &spec, &["--log-access", "100%"]).await;
    let tunnel = TlsTunnelEnd::start_client_end(binary.listen, "localhost", behind.authority.client(HTTP1, None)).await;
    let mut client = within(super::support::client::Client::connect(tunnel.address)).await.unwrap();
    let answer = within(client.ask(&binary.predict(1))).await;
    assert_failure(&answer, 502, "GRP3307", "upstream_tls");
    let line = binary.access.until(|line| line["status"] == 502).await;
    assert_eq!(line["reason"], "upstream_tls");
    let line = binary.log.until(|line| line["msg"] == "upstream not reachable").await;
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("for another name") && error.contains("proxy.upstreamTls.serverName"), "{error}");
    // The kernel does not report a file that is written in place and never closed. A signal makes
    // the process read it.
    fs::remove_file(behind.folder.path().join("tls.key")).unwrap();
    binary.signal(Signal::HUP);
    let line = binary.log.until(|line| line["msg"] == "certificates refused; the previous ones stay in use").await;
    assert!(line["error"].as_str().unwrap().contains("proxy.tls.keyFile"), "{line}");
    let answer = within(client.ask(&binary.predict(1))).await;
    assert_failure(&answer, 502, "GRP3307", "upstream_tls");
}

#[tokio::test]
async fn a_start_without_its_certificate_ends_with_the_code_for_settings() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        file.path(),
        policy_text(&json!({"proxy": {"tls": {"certFile": "/nowhere/c", "keyFile": "/nowhere/k"}}})),
    )
    .unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_groupage"))
        .args(["proxy", "--log-format", "json", "--upstream", "http://127.0.0.1:1", "--config"])
        .arg(file.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("GRP1106") && said.contains("/nowhere/c"), "{said}");
}

#[tokio::test]
async fn a_captured_port_carries_tls_on_as_it_is_unless_it_has_certificates_of_its_own() {
    let authority = CertAuthority::new("ca");
    let mut hand = ScriptedServer::start().await;
    // The application speaks TLS itself.
    let app = TlsTunnelEnd::start_server_end(hand.address, local_certificate(&authority).server(HTTP1, None)).await;
    let captures = [format!(":{}@0", app.address.port())];
    let spec = json!({"scheduling": {"policy": "WorkConserving"}, "proxy": {"drain": {"delay": "0s"}}});
    let proxy = TestProxy::captured(&captures, "", &spec);
    let arrive = SocketAddr::from(([127, 0, 0, 1], proxy.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive, "localhost", authority.client(HTTP1, None)).await;
    let mut through = proxy;
    through.address = tunnel.address;
    let asked = through.call(predict(&through, 1));
    hand.turn().await.echo().await;
    assert_answer(&asked.answer().await, 200, &predictions(&[1]));
    assert_eq!(through.metric(r#"groupage_connections_relayed_total{reason="not_http"}"#), 1);

    // The sidecar has certificates, and the application speaks plain HTTP: calls inside TLS are
    // merged.
    let folder = CertFolder::with(&local_certificate(&authority));
    let mut spec = spec;
    lay_over(&mut spec, &folder.shown(&json!({})));
    let captures = [format!(":{}@0", hand.address.port())];
    let mut proxy = TestProxy::captured(&captures, "", &spec);
    let arrive = SocketAddr::from(([127, 0, 0, 1], proxy.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive, "localhost", authority.client(HTTP1, None)).await;
    proxy.address = tunnel.address;
    let requests = vec![predict(&proxy, 1), predict(&proxy, 2)];
    let (callers, turn) = proxy.share(&mut hand, requests).await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    for (item, caller) in (1..).zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(&[item]));
    }
    // Data inside TLS that is not HTTP is relayed to the application, without the TLS.
    let app = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let captures = [format!(":{}@0", app.local_addr().unwrap().port())];
    let binary = TestProxy::captured(&captures, "", &spec);
    let arrive_binary = SocketAddr::from(([127, 0, 0, 1], binary.address.port()));
    let tunnel = TlsTunnelEnd::start_client_end(arrive_binary, "localhost", authority.client(HTTP1, None)).await;
    let mut stream = TcpStream::connect(tunnel.address).await.unwrap();
    stream.write_all(b"\0\x01binary").await.unwrap();
    let mut came = [0; 8];
    let mut accepted = loop {
        let (mut accepted, _) = within(app.accept()).await.unwrap();
        // The probe of the application sends nothing.
        if within(accepted.read_exact(&mut came)).await.is_ok() {
            break accepted;
        }
    };
    assert_eq!(&came, b"\0\x01binary");
    accepted.write_all(b"answer").await.unwrap();
    let mut came = [0; 6];
    within(stream.read_exact(&mut came)).await.unwrap();
    assert_eq!(&came, b"answer");
    assert_eq!(binary.metric(r#"groupage_connections_relayed_total{reason="not_http"}"#), 1);
    proxy.address = arrive;
    assert_answer(&proxy.ask(&predict(&proxy, 1)).await, 400, "this port requires TLS: use https://\n");
}
