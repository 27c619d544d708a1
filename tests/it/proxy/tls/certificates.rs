//! Certificate files: those that change while the proxy runs, and those that cannot be used.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::super::binary::Binary;
use super::super::http2_endpoints::H2Client;
use super::super::scripted_server::ScriptedServer;
use super::super::setup::{TestProxy, assert_failure, merge_json, policy_text, predictions, within_timeout};
use super::super::support::client::Client;
use super::super::tunnel::{CertAuthority, TlsTunnelEnd};
use super::{BOTH, CertFolder, HTTP1, TlsUpstream, h2_predict, local_certificate, until_metric};

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
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"tls": tls}}));
    let before = TlsTunnelEnd::start_client_end(proxy.address, "localhost", old.client(BOTH, None)).await;
    let h2 = H2Client::connect(before.address).await;
    let waits = h2.fetch(h2_predict(1));
    let turn = hand.next_request().await;
    let (applied, refused) = (
        r#"groupage_tls_reloads_total{side="callers",result="applied"}"#,
        r#"groupage_tls_reloads_total{side="callers",result="refused"}"#,
    );
    publish(dir.path(), "..2", &[("tls.crt", &second.cert), ("tls.key", &second.key)]);
    until_metric(&proxy, applied, 1).await;
    turn.echo().await;
    let (head, whole) = within_timeout(waits).await.unwrap();
    assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[1]).as_bytes()));
    // The connection stays open, and a new one gets the new certificate.
    let mut after = TlsTunnelEnd::start_client_end(proxy.address, "localhost", new.client(BOTH, None)).await;
    let next = H2Client::connect(after.address).await;
    for (client, item) in [(&h2, 2), (&next, 3)] {
        let pending = client.fetch(h2_predict(item));
        hand.next_request().await.echo().await;
        assert_eq!(within_timeout(pending).await.unwrap().1.body, predictions(&[item]));
    }
    assert!(after.next_handshake().await.is_ok());
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
        assert!(still.next_handshake().await.is_ok(), "{version}");
        let pending = client.fetch(h2_predict(4));
        hand.next_request().await.echo().await;
        assert_eq!(within_timeout(pending).await.unwrap().0.status, 200);
    }
    publish(dir.path(), "..6", &[("tls.crt", &first.cert), ("tls.key", &first.key)]);
    until_metric(&proxy, applied, 2).await;
    assert_eq!(proxy.metric(refused), 3);
}

#[tokio::test]
async fn unusable_certificate_files_fail_the_start_with_their_cause() {
    let authority = CertAuthority::new("ca");
    let (pair, other) = (local_certificate(&authority), local_certificate(&authority));
    let folder = CertFolder::with(&pair);
    let other_key = folder.file("other.key", &other.key);
    let none = folder.file("none", "nothing");
    let large = folder.file("large", &"x".repeat((1 << 20) + 1));
    let missing = folder.path().join("missing").display().to_string();
    for (keys, words) in [
        (json!({"certFile": missing}), ["proxy.tls.certFile", &missing, "No such file", "may read"]),
        (json!({"certFile": none}), ["proxy.tls.certFile", &none, "no certificate", "PEM"]),
        (json!({"certFile": large}), ["proxy.tls.certFile", &large, "1 MiB", "PEM"]),
        (json!({"keyFile": none}), ["proxy.tls.keyFile", &none, "no private key", "not encrypted"]),
        (json!({"keyFile": other_key}), ["proxy.tls.keyFile", &other_key, "does not match", "one pair"]),
        (json!({"clientCaFile": none}), ["proxy.tls.clientCaFile", &none, "no certificate", "PEM"]),
    ] {
        let spec = folder.spec_with_certificate(&json!({"proxy": {"tls": keys}}));
        let error = TestProxy::start("http://127.0.0.1:1", &spec).unwrap_err().to_string();
        assert!(error.starts_with("GRP1106") && words.iter().all(|word| error.contains(word)), "{error}");
    }
    for (keys, words) in [
        (json!({"caFile": missing}), ["proxy.upstreamTls.caFile", &missing, "No such file"]),
        (json!({"certFile": missing, "keyFile": none}), ["proxy.upstreamTls.certFile", &missing, "No such file"]),
        (
            json!({"serverName": "not_a name".replace(' ', "!")}),
            ["proxy.upstreamTls.serverName", "not_a!name", "DNS name"],
        ),
    ] {
        let mut spec = json!({"proxy": {"upstreamTls": {"caFile": folder.file("ca", &authority.pem)}}});
        merge_json(&mut spec, &json!({"proxy": {"upstreamTls": keys}}));
        let error = TestProxy::start("https://127.0.0.1:1", &spec).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_upstream_certificate_is_logged_with_its_cause_and_sighup_reloads_our_own() {
    let behind = TlsUpstream::new();
    let hand = ScriptedServer::start().await;
    let server = behind.server(hand.address, BOTH, None).await;
    let spec = json!({"proxy": {"tls": behind.folder.tls(), "upstreamTls": {"caFile": behind.ca, "serverName": "model.example"}}});
    let binary = Binary::start(&server.url(), &spec, &["--log-access", "100%"]).await;
    let tunnel = TlsTunnelEnd::start_client_end(binary.listen, "localhost", behind.authority.client(HTTP1, None)).await;
    let mut client = within_timeout(Client::connect(tunnel.address)).await.unwrap();
    let answer = within_timeout(client.fetch(&binary.predict(1))).await;
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
    let answer = within_timeout(client.fetch(&binary.predict(1))).await;
    assert_failure(&answer, 502, "GRP3307", "upstream_tls");
}

#[tokio::test]
async fn a_start_without_its_certificate_exits_with_the_configuration_status() {
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
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("GRP1106") && stderr.contains("/nowhere/c"), "{stderr}");
}
