//! A whole controller in front of the API server: objects that a user writes, and their effects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use groupage::clock::Clock;
use groupage::controller::certs::parse_certificates;
use groupage::controller::watch::WatchTiming;
use groupage::controller::{ControllerConfig, RunningController, ServerCertificate, start};
use groupage::injector::{RedirectUse, SidecarDefaults};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::api::{FakeApiServer, Fault, FaultKind, HANG};

pub(super) const NAME: &str = "groupage-webhook.groupage-system.svc";
pub(super) const POLICY: (&str, &str, &str) = ("batchpolicies", "a", "emb");

pub(super) fn config() -> ControllerConfig {
    let any = "127.0.0.1:0".parse().unwrap();
    ControllerConfig {
        namespace: "groupage-system".into(),
        name: "c-1".into(),
        replica_stream_address: None,
        stream_address: "https://groupage-stream.groupage-system.svc:9444".into(),
        lease: Some("groupage-controller".into()),
        webhook: any,
        health: any,
        certificate: ServerCertificate::Own {
            secret: "groupage-tls".into(),
            webhooks: Some("groupage-injector".into()),
        },
        names: vec![NAME.into()],
        client_ca: None,
        inject_by_default: false,
        excluded: BTreeSet::new(),
        redirect: RedirectUse::Never,
        native: None,
        sidecar: SidecarDefaults::default(),
        timing: WatchTiming { answer: Duration::from_secs(2), ..WatchTiming::default() },
        streams: None,
        tuner: None,
        drain: Duration::from_millis(1500),
    }
}

async fn controller(api: &FakeApiServer) -> RunningController {
    controller_of(api, config()).await
}

async fn controller_of(api: &FakeApiServer, config: ControllerConfig) -> RunningController {
    let running = start(api.client(), config, Clock::start()).unwrap();
    wait_until_ready(&running).await;
    running
}

/// Waits until the readiness probe succeeds. Its conditions change the cluster state or the served
/// certificate.
pub(super) async fn wait_until_ready(running: &RunningController) {
    let mut changes = running.handles.shared.changes();
    let mut shown = running.handles.certificate.subscribe();
    let wait = async {
        while !get(running, "/readyz").await.starts_with("HTTP/1.1 200") {
            tokio::select! {
                _ = changes.changed() => {}
                _ = shown.changed() => {}
            }
        }
    };
    tokio::time::timeout(HANG, wait).await.unwrap();
}

/// Sends a request, whose head includes its `Host`.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str, body: &str) -> String {
    let text = format!("{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    // A server that rejects a request need not read it completely.
    stream.write_all(text.as_bytes()).await.ok();
    let mut answer = Vec::new();
    // A TLS connection may end without a close notification.
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8(answer).unwrap()
}

pub(super) async fn get(running: &RunningController, path: &str) -> String {
    get_with_hosts(running, path, &["localhost"]).await
}

async fn get_with_hosts(running: &RunningController, path: &str, hosts: &[&str]) -> String {
    let stream = TcpStream::connect(running.health).await.unwrap();
    let hosts: String = hosts.iter().map(|host| format!("\r\nHost: {host}")).collect();
    exchange(stream, &format!("GET {path} HTTP/1.1{hosts}"), "").await
}

/// Returns a TLS client that trusts the certificate that the controller serves.
pub(super) fn tls_connector(running: &RunningController) -> TlsConnector {
    let bundle = running.handles.certificate.subscribe().borrow().clone().unwrap().bundle;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in parse_certificates(bundle.as_bytes()) {
        roots.add(certificate).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(tls))
}

/// Sends a request to the webhook as the API server does.
pub(super) async fn call_webhook(running: &RunningController, head: &str, body: &str) -> String {
    let stream = TcpStream::connect(running.webhook).await.unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let stream = tls_connector(running).connect(name, stream).await.unwrap();
    exchange(stream, &format!("{head}\r\nHost: {NAME}"), body).await
}

pub(super) fn review(pod: &Value) -> String {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "namespace": "a", "object": pod}})
    .to_string()
}

pub(super) const POST: &str = "POST /inject HTTP/1.1\r\nContent-Type: application/json";

pub(super) fn admission_response(text: &str) -> Value {
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let body = text.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str::<Value>(body).unwrap()["response"].clone()
}

pub(super) fn policy() -> Value {
    json!({"apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": "emb", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "slo": {"latencyP99": "150ms"}}})
}

pub(super) fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "labels": {"app": "x"}, "annotations": {"groupage.dev/inject": "enabled"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "emb", "uid": "u", "controller": true}]},
        "spec": {"containers": [{"name": "server", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running"}})
}

pub(super) fn has_condition(object: &Value, kind: &str, words: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| {
        one["type"] == kind
            && format!("{}/{}", one["status"].as_str().unwrap(), one["reason"].as_str().unwrap()) == words
    })
}

#[tokio::test]
async fn a_policy_gets_a_status_and_a_profile_and_an_edit_creates_another_profile() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    let first = api.until_object(POLICY, |policy| has_condition(policy, "Accepted", "True/Accepted")).await;
    assert_eq!(first["status"]["target"], "app=x");
    assert!(has_condition(&first, "SLOMet", "Unknown/NoPods"), "{first}");
    let profiles = api.until(|api| Some(api.all("batchprofiles")).filter(|all| all.len() == 1)).await;
    assert_eq!(profiles[0]["metadata"]["ownerReferences"][0]["uid"], first["metadata"]["uid"]);
    assert_eq!(first["status"]["currentProfile"], profiles[0]["metadata"]["name"]);
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    api.until(|api| (api.all("batchprofiles").len() == 2).then_some(())).await;
    let second = api.until_object(POLICY, |policy| policy["status"]["observedGeneration"] == 2).await;
    assert_ne!(second["status"]["currentProfile"], first["status"]["currentProfile"]);
    api.until(|api| api.all("events").into_iter().find(|event| event["reason"] == "ProfileUpdated")).await;
    api.assert_nothing_forbidden();
    running.shut_down().await;
}

#[tokio::test]
async fn an_unchanged_status_is_written_once() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    api.until_requested("patch", "batchpolicies/status", 1).await;
    let mut rounds = running.handles.rounds.clone();
    let number = rounds.borrow_and_update().number;
    // Rounds happen every five seconds, even without changes.
    tokio::time::timeout(HANG, rounds.wait_for(|round| round.number >= number + 2)).await.unwrap().unwrap();
    assert_eq!(api.count("patch", "batchpolicies/status"), 1, "{:#?}", api.recorded_requests());
    running.shut_down().await;
}

#[tokio::test]
async fn missing_sidecar_is_reported_with_event() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    api.put(pod("emb-0"));
    let running = controller(&api).await;
    let policy =
        api.until_object(POLICY, |policy| has_condition(policy, "TrafficCaptured", "False/SidecarMissing")).await;
    assert_eq!(policy["status"]["pods"]["matched"], 1);
    let event = api.until(|api| api.all("events").into_iter().find(|event| event["reason"] == "SidecarMissing")).await;
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("StatefulSet"), &json!("emb")));
    assert!(get(&running, "/metrics").await.contains("groupage_controller_pods_missing_sidecar 1"));
    api.assert_nothing_forbidden();
    running.shut_down().await;
}

#[tokio::test]
async fn metrics_on_loopback_need_a_loopback_host_and_probes_take_any() {
    let api = FakeApiServer::start().await;
    let running = controller(&api).await;
    let status = async |path: &str, hosts: &[&str]| {
        let answer = get_with_hosts(&running, path, hosts).await;
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for host in ["localhost", "127.0.0.1:8080", "[::1]:8080"] {
        assert_eq!(status("/metrics", &[host]).await, "200", "{host}");
    }
    for hosts in [&["evil.example"][..], &["10.0.0.1"], &["localhost", "evil.example"], &[]] {
        assert_eq!(status("/metrics", hosts).await, "403", "{hosts:?}");
        for path in ["/livez", "/readyz"] {
            assert_eq!(status(path, hosts).await, "200", "{path} {hosts:?}");
        }
    }
    running.shut_down().await;
}

#[tokio::test]
async fn a_pod_that_is_made_gets_the_sidecar_over_tls() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    let response = admission_response(&call_webhook(&running, POST, &review(&pod("emb-0"))).await);
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(true)));
    assert_eq!(response["patchType"], "JSONPatch");
    assert!(get(&running, "/metrics").await.contains("groupage_webhook_requests_total{result=\"injected\"} 1"));
    running.shut_down().await;
}

#[tokio::test]
async fn invalid_webhook_requests_are_refused_and_counted() {
    let api = FakeApiServer::start().await;
    let running = controller(&api).await;
    assert!(call_webhook(&running, POST, "{}").await.starts_with("HTTP/1.1 400"));
    assert!(call_webhook(&running, POST, &"x".repeat((3 << 20) + 1)).await.starts_with("HTTP/1.1 413"));
    assert!(call_webhook(&running, "GET /inject HTTP/1.1", "").await.starts_with("HTTP/1.1 405"));
    assert!(call_webhook(&running, "POST /elsewhere HTTP/1.1", "").await.starts_with("HTTP/1.1 404"));
    assert!(call_webhook(&running, "POST /inject HTTP/1.1", "{}").await.starts_with("HTTP/1.1 415"));
    assert!(get(&running, "/metrics").await.contains("groupage_webhook_requests_total{result=\"malformed\"} 2"));
    running.shut_down().await;
}

#[tokio::test]
async fn refused_writes_are_retried_and_delay_no_others() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    for (resource, what) in [("batchpolicies/status", FaultKind::Conflict), ("batchprofiles", FaultKind::Status(500))] {
        let verb = if resource == "batchprofiles" { "create" } else { "patch" };
        api.fault(Fault::always(what).for_verb_and_resource(verb, resource).times(2));
    }
    let running = controller(&api).await;
    api.until_object(POLICY, |policy| has_condition(policy, "Accepted", "True/Accepted")).await;
    api.until(|api| (api.all("batchprofiles").len() == 1).then_some(())).await;
    assert!(api.count("patch", "batchpolicies/status") <= 6, "{:#?}", api.recorded_requests());
    running.shut_down().await;
}

#[tokio::test]
async fn an_unused_profile_is_written_as_used_by_none() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    let running = controller(&api).await;
    let is_used = |profile: &Value| profile["status"]["usedBy"] == json!(["emb"]);
    let first = api.until(|api| api.all("batchprofiles").into_iter().find(is_used)).await;
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    api.until(|api| {
        let mut all = api.all("batchprofiles").into_iter();
        all.find(|one| one["metadata"]["name"] == first["metadata"]["name"] && one["status"]["usedBy"] == json!([]))
    })
    .await;
    running.shut_down().await;
}

#[tokio::test]
async fn the_return_of_the_api_server_ends_every_wait() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    let never = Duration::from_secs(300);
    let timing = WatchTiming {
        backoff: (never, never),
        probe: Duration::from_millis(50),
        answer: Duration::from_secs(2),
        ..WatchTiming::default()
    };
    let running = controller_of(&api, ControllerConfig { timing, ..config() }).await;
    api.until_object(POLICY, |policy| has_condition(policy, "Accepted", "True/Accepted")).await;
    let mut reached = running.handles.shared.reach().subscribe();
    api.fault(Fault::always(FaultKind::Reset));
    api.end_watches("");
    tokio::time::timeout(HANG, reached.wait_for(|reached| !reached)).await.unwrap().unwrap();
    api.until_requested("get", "version", api.count("get", "version") + 3).await;
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    api.clear_faults();
    api.until_object(POLICY, |policy| policy["status"]["observedGeneration"] == 2).await;
    running.shut_down().await;
}

#[tokio::test]
async fn a_shutdown_releases_the_lease() {
    let api = FakeApiServer::start().await;
    let running = controller(&api).await;
    let lease = ("leases", "groupage-system", "groupage-controller");
    api.until_object(lease, |lease| lease["spec"]["holderIdentity"] == "c-1").await;
    running.shut_down().await;
    let lease = api.get(lease.0, lease.1, lease.2).unwrap();
    assert!(lease["spec"].get("holderIdentity").is_none(), "{lease}");
}
