//! The end of a pod, and application restarts that do not end it: drain hooks
//! (`/drain/TOKEN?wait`), their order, and the calls that are served meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use super::binary::Binary;
use super::http2_endpoints::{H2Client, empty};
use super::scripted_server::{ReservedPort, ScriptedServer, echo};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TOKEN, TestProxy, assert_answer, assert_predictions, count, instances, merge_json, predictions,
    wait_while, within_timeout,
};
use super::support::client::{Answer, Client, Outgoing};
use super::support::wire::{Headers, values};

/// Returns settings under which calls are held until something else dispatches them.
fn holding_spec(over: &Value) -> Value {
    let mut spec = json!({
        "scheduling": {"policy": "Static", "items": 100, "delay": "1m", "slots": 4},
        "limits": {"queueDelayMax": "1m"},
    });
    merge_json(&mut spec, over);
    spec
}

async fn get(port: SocketAddr, path: &str) -> Answer {
    fetch(port, "GET", path, &[]).await
}

async fn fetch(port: SocketAddr, method: &str, path: &str, own: &[(&str, &str)]) -> Answer {
    let own: Headers = own.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let body = (method == "POST").then_some(&b"{}"[..]);
    let mut client = within_timeout(Client::connect(port)).await.unwrap();
    within_timeout(client.fetch(&Outgoing::new(method, path, port, &own, body))).await
}

fn call_hook(port: SocketAddr) -> JoinHandle<Answer> {
    tokio::spawn(async move { get(port, &format!("/drain/{TOKEN}?wait")).await })
}

async fn is_ready(port: SocketAddr) -> bool {
    get(port, "/readyz").await.status == Some(200)
}

async fn stage(port: SocketAddr) -> String {
    let stats: Value = serde_json::from_slice(&get(port, "/api/stats").await.body).unwrap();
    stats["stage"].as_str().unwrap().to_owned()
}

fn ports(proxy: &TestProxy) -> (SocketAddr, SocketAddr) {
    (proxy.running.admin.metrics.unwrap(), proxy.running.admin.local.unwrap())
}

#[tokio::test]
async fn drain_hook_without_token_is_404() {
    let (proxy, _hand) = start_with_scripted_server(json!({})).await;
    let (metrics, local) = ports(&proxy);
    for path in
        ["/drain", "/drain/", "/drain/x", "/drain/x?wait", &format!("/drain/{TOKEN}x"), &format!("/drain/{TOKEN}/")]
    {
        for method in ["GET", "POST"] {
            let answer = fetch(metrics, method, path, &[]).await;
            assert_eq!((answer.status, answer.body.len()), (Some(404), 0), "{method} {path}");
        }
    }
    let right = format!("/drain/{TOKEN}");
    for method in ["POST", "PUT", "DELETE", "HEAD"] {
        assert_eq!(fetch(metrics, method, &right, &[]).await.status, Some(405), "{method}");
    }
    assert_eq!(get(local, &right).await.status, Some(404), "the other port has changes of its own");
    assert_eq!(fetch(metrics, "POST", "/api/drain", &[("content-type", "application/json")]).await.status, Some(404));
    assert_eq!(fetch(local, "POST", "/api/drain", &[]).await.status, Some(415));
    let foreign = [("content-type", "application/json"), ("host", "10.0.0.1")];
    assert_eq!(fetch(local, "POST", "/api/drain", &foreign).await.status, Some(403));
    assert_eq!(stage(local).await, "serving");
    assert_eq!(get(metrics, &right).await.status, Some(200));
    within_timeout(async { while stage(local).await != "flushing" {} }).await;
    assert_eq!(proxy.metric("groupage_draining"), 1);
}

#[tokio::test]
async fn hook_flushes_held_calls_and_waits_for_them() {
    let (proxy, mut hand) =
        start_with_scripted_server(holding_spec(&json!({"proxy": {"drain": {"delay": "1s"}}}))).await;
    let (metrics, _) = ports(&proxy);
    let callers = proxy.queue((1..=3).map(|item| proxy.predict(item))).await;
    let waits = call_hook(metrics);
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2, 3], "no call is held any longer");
    // Called again, and by a client that does not wait.
    assert_eq!(get(metrics, &format!("/drain/{TOKEN}")).await.status, Some(200));
    let again = call_hook(metrics);
    assert!(is_ready(metrics).await, "for the delay");
    // A client that does not know of the drain yet is served, and its call is not held.
    let late = proxy.call(proxy.predict(4));
    hand.next_request().await.echo().await;
    assert_answer(&late.answer().await, 200, &predictions(&[4]));
    within_timeout(async { while is_ready(metrics).await {} }).await;
    assert!(!waits.is_finished(), "three wait for their answers");
    turn.echo().await;
    assert_predictions(1.., callers).await;
    for hook in [waits, again] {
        let answer = within_timeout(hook).await.unwrap();
        assert_eq!(answer.status, Some(200));
        assert!(String::from_utf8(answer.body).unwrap().contains("every call"));
    }
}

#[tokio::test]
async fn an_application_that_is_restarted_alone_is_served_as_before_once_it_is_back() {
    let port = ReservedPort::reserve();
    let mut hand = port.listen();
    let proxy =
        TestProxy::start_in_front_of(&port.url(), holding_spec(&json!({"proxy": {"drain": {"delay": "100ms"}}})));
    let (metrics, local) = ports(&proxy);
    within_timeout(async { while !is_ready(metrics).await {} }).await;
    for _ in 0..2 {
        let held = proxy.queue([proxy.predict(1)]).await.remove(0);
        let waits = call_hook(metrics);
        hand.next_request().await.echo().await;
        assert_answer(&held.answer().await, 200, &predictions(&[1]));
        assert_eq!(within_timeout(waits).await.unwrap().status, Some(200));
        assert!(!is_ready(metrics).await);
        assert_eq!(stage(local).await, "flushing");
        // The application stops and starts again.
        drop(hand);
        within_timeout(async { while proxy.fetch(&proxy.predict(2)).await.status != Some(503) {} }).await;
        hand = port.listen();
        within_timeout(async { while stage(local).await != "serving" {} }).await;
        assert!(is_ready(metrics).await);
        assert_eq!(proxy.metric("groupage_draining"), 0);
    }
    // Calls are held again, and connections stay open.
    let held = proxy.queue([proxy.predict(3)]).await.remove(0);
    proxy.wait_queued(1).await;
    assert_eq!(hand.pending_requests(), 0);
    proxy.apply(&json!({})).await;
    hand.next_request().await.echo().await;
    let answer = held.answer().await;
    assert_answer(&answer, 200, &predictions(&[3]));
    assert!(values(&answer.headers, "connection").is_empty());
}

#[tokio::test]
async fn hook_returns_at_drain_limit() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"proxy": {"drain": {"limit": "300ms"}}})).await;
    let (caller, turn) = proxy.occupy_slot(&mut hand).await;
    let answer = within_timeout(call_hook(ports(&proxy).0)).await.unwrap();
    assert_eq!(answer.status, Some(200));
    assert!(String::from_utf8(answer.body).unwrap().contains("not answered yet"));
    // No call is cut off by the limit: the application may still answer.
    turn.echo().await;
    assert_answer(&caller.answer().await, 200, &predictions(&[0]));
}

#[tokio::test]
async fn connections_close_after_drain_delay() {
    let (proxy, hand) = start_with_scripted_server(json!({"proxy": {"drain": {"delay": "1500ms"}}})).await;
    let (metrics, local) = ports(&proxy);
    let _auto = hand.into_auto_responder(|_| super::scripted_server::reply(200, "{}"));
    let get_it = proxy.request("GET", "/x", &[], None);
    let mut clients = [proxy.client().await, proxy.client().await];
    let h2 = H2Client::connect(proxy.address).await;
    let over_h2 = || http::Request::get("http://model.example/x").body(empty()).unwrap();
    let json = [("content-type", "application/json")];
    assert_eq!(fetch(local, "POST", "/api/drain", &json).await.status, Some(200));
    assert_eq!(stage(local).await, "draining");
    for client in &mut clients {
        let answer = within_timeout(client.fetch(&get_it)).await;
        assert_eq!((answer.status, values(&answer.headers, "connection").len()), (Some(200), 0));
    }
    assert_eq!(within_timeout(h2.fetch(over_h2())).await.unwrap().0.status, 200);
    assert!(is_ready(metrics).await && !h2.0.is_closed(), "no early GOAWAY");
    within_timeout(async { while is_ready(metrics).await {} }).await;
    // A connection in use is closed with its next response, also a new connection.
    let mut fresh = proxy.client().await;
    for client in [&mut clients[0], &mut fresh] {
        let answer = within_timeout(client.fetch(&get_it)).await;
        assert_eq!((answer.status, values(&answer.headers, "connection")), (Some(200), vec![&b"close"[..]]));
    }
    // An idle connection has a short time in which its next call is still served.
    let answer = within_timeout(clients[1].fetch(&get_it)).await;
    assert_eq!((answer.status, values(&answer.headers, "connection")), (Some(200), vec![&b"close"[..]]));
    wait_while(|| !h2.0.is_closed()).await;
    wait_while(|| proxy.metric("groupage_connections") > 0).await;
    // The proxy keeps serving until it receives a signal.
    assert_eq!(proxy.fetch(&get_it).await.status, Some(200));
}

fn drain_command(admin: SocketAddr) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.args(["drain", "--admin", &admin.to_string()]).env_remove("GROUPAGE_ADMIN").output().unwrap()
}

#[test]
fn drain_command_reports_unreachable_admin_port() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let out = drain_command(nobody);
    assert_eq!(out.status.code(), Some(69));
    assert!(String::from_utf8(out.stderr).unwrap().contains(&nobody.to_string()));
}

/// Starts a sidecar in front of an application that answers at once. Only the sidecar has the
/// address of the application.
async fn start_sidecar(snapshot: &Value) -> (Binary, SocketAddr, super::scripted_server::AutoResponder) {
    let hand = ScriptedServer::start().await;
    let captures = [format!("http:{}@0", hand.address.port())];
    let policy = snapshot.to_string();
    let env = [("GROUPAGE_POLICY", policy.as_str()), ("GROUPAGE_DRAIN_TOKEN", TOKEN), ("GROUPAGE_GRACE", "20s")];
    let binary = Binary::in_a_pod(&captures, &env, &[]).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, binary.listen.port()));
    (binary, address, hand.into_auto_responder(echo))
}

#[tokio::test]
async fn a_sigterm_during_the_drain_hook_ends_nothing_before_the_hook_is_answered() {
    let mut hand = ScriptedServer::start().await;
    let captures = [format!(":{}@0", hand.address.port())];
    let policy = json!({
        "scheduling": {"policy": "WorkConserving", "slots": 4},
        "proxy": {"drain": {"delay": "300ms"}},
    });
    let policy = policy.to_string();
    let env = [("GROUPAGE_POLICY", policy.as_str()), ("GROUPAGE_DRAIN_TOKEN", TOKEN)];
    let mut binary = Binary::in_a_pod(&captures, &env, &[]).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, binary.listen.port()));
    let call = |item: u64| {
        let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
        let call = Outgoing::new("POST", PREDICT, address, &json, Some(instances(&[item]).as_bytes()));
        tokio::spawn(async move { Client::connect(address).await.unwrap().fetch(&call).await })
    };
    let caller = call(1);
    let turn = hand.next_request().await;
    let waits = call_hook(binary.metrics);
    within_timeout(async { while stage(binary.admin).await != "flushing" {} }).await;
    // A container that is not a native sidecar receives its signal while the application's hook
    // runs, not after it.
    binary.signal(Signal::TERM);
    binary.log.until(|line| line["msg"].as_str().is_some_and(|text| text.starts_with("draining"))).await;
    let late = call(2);
    hand.next_request().await.echo().await;
    assert_answer(&within_timeout(late).await.unwrap(), 200, &predictions(&[2]));
    assert!(!waits.is_finished());
    turn.echo().await;
    assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[1]));
    assert_eq!(within_timeout(waits).await.unwrap().status, Some(200));
    assert_eq!(binary.end().await.code(), Some(0));
}

/// The clients' view of a service: its endpoints, and the results of their calls.
#[derive(Debug, Default)]
struct ServiceClients {
    /// Locked for reading until a client has connected and its first call is answered, so that none is
    /// on its way to an address that was removed.
    endpoints: RwLock<Vec<SocketAddr>>,
    turn: AtomicU64,
    served: AtomicU64,
    failed: Mutex<Vec<String>>,
    over: AtomicBool,
}

/// Sends one call after the other on a kept connection, and reconnects only after
/// `connection: close`.
async fn keep_calling(service: Arc<ServiceClients>, client: u64) {
    let mut item = client * 1_000_000;
    while !service.over.load(Ordering::Relaxed) {
        let endpoints = service.endpoints.read().await;
        let turn = usize::try_from(service.turn.fetch_add(1, Ordering::Relaxed)).unwrap();
        let to = endpoints[turn % endpoints.len()];
        let mut connecting = Some(endpoints);
        let mut connection = within_timeout(Client::connect(to)).await.unwrap();
        loop {
            item += 1;
            let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
            let call = Outgoing::new("POST", PREDICT, to, &json, Some(instances(&[item]).as_bytes()));
            let answer = within_timeout(connection.fetch(&call)).await;
            connecting.take();
            if answer.status != Some(200) || answer.body != predictions(&[item]).as_bytes() {
                service.failed.lock().unwrap().push(format!("{to}: {:?} {:?}", answer.status, answer.end));
                return;
            }
            service.served.fetch_add(1, Ordering::Relaxed);
            let closes = values(&answer.headers, "connection").iter().any(|value| *value == b"close");
            if closes || service.over.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_ends_under_load_and_no_call_of_a_client_that_keeps_its_connection_fails() {
    let snapshot = json!({
        // Calls are held most of the time.
        "scheduling": {"policy": "Static", "items": 6, "delay": "20ms"},
        "limits": {"queueDelayMax": "1m"},
        "proxy": {"drain": {"delay": "600ms"}, "connection": {"http2": "Never"}},
    });
    let (mut ends, old, app) = start_sidecar(&snapshot).await;
    let (stays, new, _other) = start_sidecar(&snapshot).await;
    let service = Arc::new(ServiceClients::default());
    *service.endpoints.write().await = vec![old, new];
    let clients: Vec<_> = (0..16).map(|client| tokio::spawn(keep_calling(service.clone(), client))).collect();
    let served = |more: u64| {
        let before = count(&service.served);
        let service = service.clone();
        within_timeout(async move {
            while count(&service.served) < before + more {
                tokio::task::yield_now().await;
            }
        })
    };
    served(200).await;
    // The pod is deleted: both hooks run at the same moment.
    let (metrics, admin) = (ends.metrics, ends.admin);
    let waits = call_hook(metrics);
    let own = tokio::task::spawn_blocking(move || drain_command(admin));
    let out = within_timeout(own).await.unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!waits.is_finished(), "it returns at once");
    served(50).await;
    // New connections still arrive here until the failed readiness is known everywhere.
    within_timeout(async { while is_ready(metrics).await {} }).await;
    *service.endpoints.write().await = vec![new];
    assert_eq!(within_timeout(waits).await.unwrap().status, Some(200));
    // The application is stopped at once, and the sidecar after it.
    drop(app);
    ends.signal(Signal::TERM);
    assert_eq!(ends.end().await.code(), Some(0));
    served(100).await;
    service.over.store(true, Ordering::Relaxed);
    for client in clients {
        within_timeout(client).await.unwrap();
    }
    assert_eq!(*service.failed.lock().unwrap(), Vec::<String>::new());
    drop(stays);
}
