//! Tests that commands are executed and that reports match what happened.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{
    CallResult, CallsCommand, HttpCall, LedgerCommand, LedgerReport, LoadCommand, LoadReport, ModelUpdate,
    RemoteLoadGenerator, RemoteModel,
};
use crate::http1::ServerAddr;
use crate::item::Route;
use crate::server::{ServerConfig, ServerStats};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn send_command(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: stand-in\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut conn = ServerAddr::Tcp(to).connect().await.unwrap();
    let answer = conn.call(request.as_bytes()).await.unwrap();
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

fn quick() -> ServerConfig {
    ServerConfig { base: Duration::ZERO, per_item: Duration::ZERO, queue_max: 1000, ..ServerConfig::default() }
}

fn predict(item: usize) -> HttpCall {
    HttpCall::post("/v1/models/m:predict", format!(r#"{{"instances":["{item}"]}}"#))
}

#[tokio::test]
async fn closed_model_refuses_connections_until_listen_order() {
    let model = RemoteModel::start(quick(), ANY, true).await.unwrap();
    assert_eq!(model.data_addr(), None);
    assert_eq!(send_command(model.control_addr(), "GET", "/stats", "").await.0, 409);
    assert_eq!(send_command(model.control_addr(), "POST", "/listen", "").await.0, 200);
    let serving = model.data_addr().unwrap();
    let caller = RemoteLoadGenerator::start(ANY, None).await.unwrap();
    let calls = CallsCommand { to: serving.to_string(), calls: vec![predict(1), predict(2)], at_once: false };
    let (status, text) =
        send_command(caller.control(), "POST", "/calls", &serde_json::to_string(&calls).unwrap()).await;
    assert_eq!(status, 200, "{text}");
    let results: Vec<CallResult> = serde_json::from_str(&text).unwrap();
    assert!(results.iter().all(|one| one.as_ref().is_ok_and(|answer| answer.status == 200)), "{results:?}");
    let stats: ServerStats =
        serde_json::from_str(&send_command(model.control_addr(), "GET", "/stats", "").await.1).unwrap();
    assert_eq!((stats.calls, stats.items, stats.connections), (2, 2, 1));
}

#[tokio::test]
async fn calls_at_once_have_a_connection_each_and_keep_their_order() {
    let model = RemoteModel::start(quick(), ANY, false).await.unwrap();
    let caller = RemoteLoadGenerator::start(ANY, None).await.unwrap();
    let to = model.data_addr().unwrap().to_string();
    let list: Vec<HttpCall> = (0..40).map(predict).collect();
    let mut answers = Vec::new();
    for at_once in [false, true] {
        let calls = CallsCommand { to: to.clone(), calls: list.clone(), at_once };
        let text = send_command(caller.control(), "POST", "/calls", &serde_json::to_string(&calls).unwrap()).await.1;
        let results: Vec<CallResult> = serde_json::from_str(&text).unwrap();
        answers.push(results.into_iter().map(|one| one.unwrap().body).collect::<Vec<_>>());
    }
    assert_eq!(answers[0], answers[1]);
    let stats: ServerStats =
        serde_json::from_str(&send_command(model.control_addr(), "GET", "/stats", "").await.1).unwrap();
    assert_eq!(stats.connections, 41);
}

#[tokio::test]
async fn a_change_of_the_model_is_in_force_at_once() {
    let model = RemoteModel::start(quick(), ANY, false).await.unwrap();
    let change = ModelUpdate { items_max: Some(1), ..ModelUpdate::default() };
    let body = serde_json::to_string(&change).unwrap();
    assert_eq!(send_command(model.control_addr(), "POST", "/model", &body).await.0, 200);
    let two = r#"{"instances":["a","b"]}"#;
    assert_eq!(send_command(model.data_addr().unwrap(), "POST", "/v1/models/m:predict", two).await.0, 422);
}

#[tokio::test]
async fn a_load_is_counted_until_it_is_ended() {
    let model = RemoteModel::start(quick(), ANY, false).await.unwrap();
    let caller = RemoteLoadGenerator::start(ANY, None).await.unwrap();
    let to = model.data_addr().unwrap().to_string();
    let load = LoadCommand { to, route: Route::Predict, items: 1, rate: 1000.0, connections: 4 };
    let body = serde_json::to_string(&load).unwrap();
    assert_eq!(send_command(caller.control(), "DELETE", "/load", "").await.0, 409, "none is running");
    assert_eq!(send_command(caller.control(), "POST", "/load", &body).await.0, 200);
    assert_eq!(send_command(caller.control(), "POST", "/load", &body).await.0, 409, "one at a time");
    loop {
        let now: LoadReport =
            serde_json::from_str(&send_command(caller.control(), "GET", "/load", "").await.1).unwrap();
        if now.served >= 20 {
            break;
        }
    }
    let report: LoadReport =
        serde_json::from_str(&send_command(caller.control(), "DELETE", "/load", "").await.1).unwrap();
    assert!(report.served >= 20 && report.served == report.offered && report.not_served() == 0, "{report:?}");
}

#[tokio::test]
async fn the_ledger_can_be_run_again_on_the_same_port() {
    let port = tokio::net::TcpListener::bind(ANY).await.unwrap().local_addr().unwrap().port();
    let caller = RemoteLoadGenerator::start(ANY, Some(port)).await.unwrap();
    // There is no proxy, so nothing is shared and no invariant can be violated.
    let ledger = LedgerCommand { to: format!("127.0.0.1:{port}"), items: 200, clients: 4 };
    for _ in 0..2 {
        let body = serde_json::to_string(&ledger).unwrap();
        let (status, text) = send_command(caller.control(), "POST", "/ledger", &body).await;
        assert_eq!(status, 200, "{text}");
        let report: LedgerReport = serde_json::from_str(&text).unwrap();
        assert!(report.items >= 200 && report.shared == 0.0, "{}", report.details);
    }
}

#[tokio::test]
async fn unknown_host_and_invalid_order_are_rejected_with_message() {
    let caller = RemoteLoadGenerator::start(ANY, None).await.unwrap();
    let calls =
        CallsCommand { to: "no-such-host.invalid:80".to_owned(), calls: vec![HttpCall::get("/")], at_once: false };
    let (status, text) =
        send_command(caller.control(), "POST", "/calls", &serde_json::to_string(&calls).unwrap()).await;
    assert!(status == 502 && text.contains("no-such-host.invalid"), "{status} {text}");
    assert_eq!(send_command(caller.control(), "POST", "/calls", "{").await.0, 400);
    assert_eq!(send_command(caller.control(), "GET", "/nothing", "").await.0, 404);
}
