//! The real binary: its logs, its access log, and its shutdown.

#[cfg(not(feature = "engine"))]
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::binary::Binary;
use super::http2_endpoints::{H2Client, full};
use super::scripted_server::{ReservedPort, ScriptedServer, echo, reply};
use super::setup::{PREDICT, assert_answer, instances, predictions, within_timeout};
use super::support::client::{Answer, Client, Outgoing};
use super::support::wire::{End, Headers};

fn start_call(binary: &Binary, request: Outgoing) -> tokio::task::JoinHandle<Answer> {
    let listen = binary.listen;
    tokio::spawn(async move {
        let mut client = Client::connect(listen).await.unwrap();
        client.fetch(&request).await
    })
}

/// Returns settings under which calls are held for a minute, or until something else dispatches
/// them.
fn holding_spec() -> Value {
    json!({
        "scheduling": {"policy": "Static", "items": 100, "delay": "1m"},
        "limits": {"queueDelayMax": "1m"},
    })
}

#[tokio::test]
async fn sigterm_flushes_answers_and_exits() {
    let mut hand = ScriptedServer::start().await;
    let mut binary = Binary::start(&hand.url(), &holding_spec(), &[]).await;
    let mut idle = binary.client().await;
    let passes = start_call(&binary, Outgoing::new("GET", "/slow", binary.listen, &Headers::new(), None));
    let slow = hand.next_request().await;
    let callers: Vec<_> = (1..=5).map(|item| start_call(&binary, binary.predict(item))).collect();
    binary.until_queued(5).await;
    binary.signal(Signal::TERM);
    let turn = hand.next_request().await;
    assert_eq!(turn.instances().len(), 5, "no call is held any longer, and the held calls are sent together");
    turn.echo().await;
    for (item, caller) in (1..).zip(callers) {
        assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[item]));
    }
    slow.answer(200, "{}").await;
    assert_answer(&within_timeout(passes).await.unwrap(), 200, "{}");
    let mut answer = Answer::default();
    within_timeout(idle.receive("GET", &mut answer)).await;
    assert_eq!(answer.end, Some(End::Closed), "an idle connection is closed");
    assert_eq!(binary.end().await.code(), Some(0));
    assert!(binary.log.lines().iter().any(|line| line["msg"] == "drained"));
    assert!(tokio::net::TcpStream::connect(binary.listen).await.is_err());
}

#[tokio::test]
async fn sigint_drains_like_sigterm() {
    let hand = ScriptedServer::start().await;
    let mut binary = Binary::start(&hand.url(), &json!({}), &[]).await;
    binary.signal(Signal::INT);
    assert_eq!(binary.end().await.code(), Some(0));
}

#[tokio::test]
async fn second_sigterm_exits_at_once() {
    let mut hand = ScriptedServer::start().await;
    let mut binary = Binary::start(&hand.url(), &json!({}), &[]).await;
    let caller = start_call(&binary, binary.predict(1));
    let _turn = hand.next_request().await;
    binary.signal(Signal::TERM);
    binary.log.until(|line| line["msg"].as_str().is_some_and(|text| text.starts_with("draining"))).await;
    binary.signal(Signal::TERM);
    binary.end().await;
    let answer = within_timeout(caller).await.unwrap();
    assert_ne!(answer.end, Some(End::Proper));
    assert!(binary.log.lines().iter().any(|line| line["level"] == "WARN"), "it reports that a call was not answered");
}

#[tokio::test]
async fn the_process_ends_within_the_drain_limit_despite_an_open_call() {
    let mut hand = ScriptedServer::start().await;
    let mut binary = Binary::start(&hand.url(), &json!({"proxy": {"drain": {"limit": "150ms"}}}), &[]).await;
    let caller = start_call(&binary, binary.predict(1));
    let _turn = hand.next_request().await;
    binary.signal(Signal::TERM);
    binary.end().await;
    let answer = within_timeout(caller).await.unwrap();
    assert_eq!((answer.status, answer.end), (Some(503), Some(End::Proper)));
    assert_eq!(super::support::wire::values(&answer.headers, "x-groupage-error"), [b"GRP3105"]);
    assert_eq!(super::support::wire::values(&answer.headers, "x-groupage-reason"), [b"draining"]);
    assert!(binary.log.lines().iter().any(|line| line["msg"] == "the drain limit passed with calls unanswered"));
}

#[tokio::test]
async fn during_the_drain_delay_the_process_is_ready_and_serves_calls_without_holding() {
    let mut hand = ScriptedServer::start().await;
    let mut spec = holding_spec();
    spec["proxy"] = json!({"drain": {"delay": "1500ms"}});
    let mut binary = Binary::start(&hand.url(), &spec, &[]).await;
    let early = start_call(&binary, binary.predict(1));
    binary.until_queued(1).await;
    binary.signal(Signal::TERM);
    hand.next_request().await.echo().await;
    assert_answer(&within_timeout(early).await.unwrap(), 200, &predictions(&[1]));
    // A new connection, as from a client that does not know of the drain yet: its calls are served,
    // and it stays open.
    let mut client = binary.client().await;
    for item in 2..=3 {
        let request = binary.predict(item);
        let served = async { hand.next_request().await.echo().await };
        let (answer, ()) = within_timeout(async { tokio::join!(client.fetch(&request), served) }).await;
        assert_answer(&answer, 200, &predictions(&[item]));
        assert!(super::support::wire::values(&answer.headers, "connection").is_empty());
    }
    assert_eq!(binary.get(binary.metrics, "/readyz").await.status, Some(200));
    assert_eq!(binary.end().await.code(), Some(0));
}

/// The fields of an access log record.
const FIELDS: [&str; 18] = [
    "time_us",
    "route",
    "protocol",
    "tenant",
    "key",
    "class",
    "deadline_us",
    "items",
    "weight",
    "bytes",
    "queue_us",
    "exec_us",
    "batch",
    "batch_items",
    "cause",
    "outcome",
    "reason",
    "status",
];

#[tokio::test]
async fn the_access_log_has_a_record_for_every_call() {
    let mut hand = ScriptedServer::start().await;
    let mut binary =
        Binary::start(&hand.url(), &json!({"routes": [{"path": "/v1/models/*"}]}), &["--log-access", "100%"]).await;
    let unbatched = start_call(&binary, binary.predict(1));
    let turn = hand.next_request().await;
    let own: Headers = [("content-type", "application/json"), ("x-api-key", "k"), ("x-request-timeout-ms", "9000")]
        .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
        .to_vec();
    let shared: Vec<_> = [&[2_u64][..], &[3, 4]]
        .map(|items| {
            start_call(&binary, Outgoing::new("POST", PREDICT, binary.listen, &own, Some(instances(items).as_bytes())))
        })
        .into_iter()
        .collect();
    binary.until_queued(3).await;
    turn.echo().await;
    within_timeout(unbatched).await.unwrap();
    hand.next_request().await.echo().await;
    for caller in shared {
        assert_eq!(within_timeout(caller).await.unwrap().status, Some(200));
    }
    let passes = start_call(&binary, Outgoing::new("GET", "/x", binary.listen, &Headers::new(), None));
    hand.next_request().await.answer(404, "{}").await;
    within_timeout(passes).await.unwrap();
    binary.signal(Signal::TERM);
    binary.end().await;
    let lines = binary.access.lines();
    assert_eq!(lines.len(), 4);
    for line in &lines {
        let mut fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let merged = line["outcome"] == "served";
        let mut expected = [&FIELDS[..], if merged { &["parts", "process"] } else { &[] }].concat();
        expected.sort_unstable();
        assert_eq!(fields, expected);
        assert!(line["time_us"].as_u64().unwrap() > 1_700_000_000_000_000);
    }
    let of = |outcome: &str, items: u64| {
        lines.iter().find(|line| line["outcome"] == outcome && line["items"] == items).unwrap()
    };
    let one = of("served", 1);
    assert_eq!(
        (&one["route"], &one["protocol"], &one["status"]),
        (&json!("/v1/models/*"), &json!("kserve_v1"), &json!(200))
    );
    let two = of("served", 2);
    assert_eq!((&two["batch_items"], &two["cause"], &two["bytes"]), (&json!(3), &json!("idle"), &json!(21)));
    assert!(two["deadline_us"].as_u64().is_some_and(|left| left > 8_000_000 && left <= 9_000_000));
    assert_eq!(two["tenant"].as_str().map(str::len), Some(8));
    assert_eq!(two["key"].as_str().map(str::len), Some(8));
    assert!(two["queue_us"].as_u64().unwrap() > 0 && two["exec_us"].as_u64().unwrap() > 0);
    let parts = two["parts"].as_array().unwrap();
    assert!(parts.iter().all(|part| part[2].as_str().map(str::len) == Some(8)), "digests: {parts:?}");
    let differ = parts.iter().zip(one["parts"].as_array().unwrap()).filter(|(two, one)| two != one);
    let differ: Vec<_> = differ.map(|(part, _)| (&part[0], &part[1])).collect();
    assert_eq!(differ, [(&json!("caller"), &json!(""))], "the others bear a key");
    assert_eq!(two["process"], one["process"]);
    let passed = of("passed", 0);
    assert_eq!(
        (&passed["protocol"], &passed["reason"], &passed["status"]),
        (&json!("none"), &json!("not_recognised"), &json!(404))
    );
}

/// Returns the response of a server that fails or garbles some calls and includes secrets of its
/// own.
fn leaky_response(request: &super::support::upstream::Request) -> Vec<u8> {
    if request.method != "POST" || request.target.contains("canary-path") {
        return b"HTTP/1.1 500 canary-status\r\nx-secret: canary-answer\r\nset-cookie: canary-cookie\r\ncontent-length: 11\r\n\r\ncanary-body".to_vec();
    }
    let body = String::from_utf8_lossy(&request.body);
    match body.matches("canary").count() {
        0 => echo(request),
        1 => reply(200, "{\"predictions\":[\"canary-answer\"]}"),
        n if n % 2 == 0 => reply(500, "{\"error\":\"canary-error\"}"),
        _ => reply(200, "{\"predictions\":[\"canary-too-few\"]}"),
    }
}

#[tokio::test]
async fn logs_metrics_and_statistics_contain_no_data_of_callers_or_servers() {
    let hand = ScriptedServer::start().await;
    let spec = json!({
        "proxy": {"client": {"bodyIdleTimeout": "100ms"}},
        "tenants": {"header": "x-canary-tenant"},
        // Guarantees that the first ten calls share a batch.
        "scheduling": {"policy": "Static", "items": 10, "delay": "30ms"},
        "limits": {"queueDelayMax": "1m"},
    });
    // The name of a header that the operator configured is a setting, not a secret of a client; its
    // values are secrets.
    let name = "x-canary-tenant";
    let mut binary = Binary::start(&hand.url(), &spec, &["--log-level", "trace", "--log-access", "100%"]).await;
    let _auto = hand.into_auto_responder(leaky_response);
    let own: Headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer canary-token"),
        ("cookie", "c=canary-cookie"),
        ("x-api-key", "canary-key"),
        ("x-request-id", "canary-id"),
        (name, "canary-tenant"),
        ("x-canary-name", "canary-value"),
    ]
    .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
    .to_vec();
    let post = |path: &str, body: &str| Outgoing::new("POST", path, binary.listen, &own, Some(body.as_bytes()));
    let model = "/v1/models/canary-model:predict?q=canary-query";
    let mut callers = Vec::new();
    for n in 0..20 {
        // They share batches of all sizes: served, failed as a whole, or with a wrong number of
        // results.
        callers.push(start_call(
            &binary,
            post(model, &format!("{{\"instances\":[\"canary-item-{n}\"],\"f\":\"canary-field\"}}")),
        ));
    }
    for body in ["{\"instances\":[\"canary\",", "canary", "{\"instances\":[\"canary-a\"],\"instances\":[\"canary-b\"]}"]
    {
        callers.push(start_call(&binary, post(model, body)));
    }
    callers.push(start_call(&binary, post("/canary-path/x?canary-query", "canary-body")));
    callers.push(start_call(&binary, Outgoing::new("CANARY", "/canary-path", binary.listen, &own, None)));
    for caller in callers {
        assert!(within_timeout(caller).await.unwrap().status.is_some());
    }
    // Heads that are rejected, a body that stalls, a client that disconnects.
    for text in [
        "GET /canary-path HTTP/1.1\r\nhost: h\r\ncanary name: canary\r\n\r\n",
        "canary\r\n\r\n",
        "POST /v1/models/canary:predict HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"canary",
    ] {
        let mut client = binary.client().await;
        client.write_raw(text.as_bytes()).await.unwrap();
        let mut answer = Answer::default();
        within_timeout(client.receive("GET", &mut answer)).await;
    }
    let h2 = H2Client::connect(binary.listen).await;
    let request = http::Request::post(format!("http://canary-host{model}"))
        .header("content-type", "application/json")
        .header("authorization", "Bearer canary-token")
        .header("x-canary-name", "canary-value")
        .body(full("{\"instances\":[\"canary\"]}"))
        .unwrap();
    within_timeout(h2.fetch(request)).await.unwrap();
    let mut shown = String::new();
    for (port, path) in [(binary.metrics, "/metrics"), (binary.admin, "/api/stats")] {
        shown.push_str(&String::from_utf8(binary.get(port, path).await.body).unwrap());
    }
    binary.signal(Signal::TERM);
    binary.end().await;
    let lines = binary.log.lines();
    for message in
        ["isolating a failed batch", "the response to a batch cannot be split", "the proxy answers the call itself"]
    {
        assert!(lines.iter().any(|line| line["msg"] == message), "no log line reports this failure: {message}");
    }
    for line in &lines {
        let own = line["target"].as_str().is_some_and(|target| target.starts_with("groupage"));
        for field in ["ts", "level", "target", "msg"] {
            // Log lines of libraries may lack a message at this level.
            assert!(line[field].is_string() || (field == "msg" && !own), "{line}");
        }
    }
    assert!(binary.access.lines().len() > 20);
    // The access log contains the names of the headers and fields that form merge keys, but not
    // their values.
    let access = binary.access.text().replace("\"header\",\"x-canary-name\"", "");
    for text in [binary.log.text(), access, shown] {
        let text = text.to_ascii_lowercase().replace(name, "");
        let found = text.lines().find(|line| line.contains("canary"));
        assert_eq!(found, None);
    }
}

#[tokio::test]
async fn the_level_of_the_log_changes_while_it_runs() {
    let port = ReservedPort::reserve();
    let binary = Binary::start(&port.url(), &json!({}), &["--log-level", "warn,groupage=info"]).await;
    let set = async |level: &str| {
        let own = vec![("content-type".to_owned(), b"application/json".to_vec())];
        let body = json!({"level": level}).to_string();
        let request = Outgoing::new("POST", "/api/log-level", binary.admin, &own, Some(body.as_bytes()));
        let mut client = within_timeout(Client::connect(binary.admin)).await.unwrap();
        assert_eq!(within_timeout(client.fetch(&request)).await.status, Some(200));
    };
    // A call that the proxy answers itself is logged at level debug.
    let refused =
        async || assert_eq!(within_timeout(start_call(&binary, binary.predict(1))).await.unwrap().status, Some(503));
    refused().await;
    set("debug").await;
    refused().await;
    binary.log.until(|line| line["code"] == "GRP3301").await;
    let is_refusal = |line: &&Value| line["code"] == "GRP3301";
    assert_eq!(binary.log.lines().iter().filter(is_refusal).count(), 1, "not at the level before");
}

#[test]
#[cfg(not(feature = "engine"))]
fn every_command_of_a_build_without_the_engine_refuses_a_model_with_the_same_code() {
    for command in ["proxy", "doctor", "demo"] {
        let mut process = Command::new(env!("CARGO_BIN_EXE_groupage"));
        let output = process.args([command, "--engine", "/models/m"]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{command}: {text}");
        assert!(text.contains("--features engine"), "{command}: {text}");
    }
}
