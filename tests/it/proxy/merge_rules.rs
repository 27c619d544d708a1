//! The rules of routes for merging: completions to a server that is known not to batch by itself are
//! merged, those to an engine that names itself are not, and a route decides otherwise.

use serde_json::{Value, json};

use super::scripted_server::{PendingRequest, ScriptedServer, reply};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PendingCall, TestProxy, adaptive_spec};
use super::support::client::Outgoing;

const PATH: &str = "/v1/completions";
/// One call at a time, so that others are queued beside it.
const SLOTS: &str = r#"{"limits": {"slotsMax": 1}}"#;

/// The responses of a server to the look-ups of the proxy.
#[derive(Debug, Clone, Copy)]
struct ServerNames {
    models: (u16, &'static str),
    version: (u16, &'static str),
    info: (u16, &'static str),
    /// A line of the head of each response to a call.
    head: &'static str,
}

/// A server that has none of the documents.
const SERIAL: ServerNames = ServerNames { models: (404, "{}"), version: (404, "{}"), info: (404, "{}"), head: "" };

fn spec(routes: &Value) -> Value {
    let mut spec = adaptive_spec(&serde_json::from_str(SLOTS).unwrap());
    if !routes.is_null() {
        spec["routes"] = routes.clone();
    }
    spec
}

fn completion(proxy: &TestProxy, prompt: &str) -> Outgoing {
    proxy.post(PATH, &[], &json!({"prompt": prompt, "max_tokens": 4}).to_string())
}

fn prompts(turn: &PendingRequest) -> Vec<String> {
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    let prompts = body["prompt"].as_array().cloned().unwrap_or_else(|| vec![body["prompt"].clone()]);
    prompts.iter().map(|prompt| prompt.as_str().unwrap().to_owned()).collect()
}

/// Answers a call with one choice for each prompt.
async fn answer(turn: PendingRequest, names: ServerNames) -> Vec<String> {
    assert_eq!(turn.request.target, PATH);
    let prompts = prompts(&turn);
    let choice = |(index, prompt): (usize, &String)| json!({"index": index, "text": prompt.to_uppercase()});
    let choices: Vec<Value> = prompts.iter().enumerate().map(choice).collect();
    let text = reply(200, &json!({"object": "text_completion", "choices": choices}).to_string());
    let text = String::from_utf8(text).unwrap().replacen("\r\n", &format!("\r\n{}", names.head), 1);
    turn.send_raw(text.as_bytes()).await;
    prompts
}

async fn answer_look_up(turn: PendingRequest, names: ServerNames) -> bool {
    let (status, body) = match turn.request.target.as_str() {
        "/v1/models" => names.models,
        "/version" => names.version,
        "/info" => names.info,
        _ => return false,
    };
    turn.answer(status, body).await;
    true
}

/// Takes the next call, and answers the look-ups before it.
async fn next_call(hand: &mut ScriptedServer, names: ServerNames) -> PendingRequest {
    loop {
        let turn = hand.next_request().await;
        if turn.request.target == PATH {
            return turn;
        }
        assert!(answer_look_up(turn, names).await);
    }
}

async fn assert_answers(calls: Vec<PendingCall>, prompts: &[&str]) {
    for (call, prompt) in calls.into_iter().zip(prompts) {
        let answer = call.answer().await;
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, Some(200));
        assert_eq!(body["choices"], json!([{"index": 0, "text": prompt.to_uppercase()}]));
    }
}

/// Queues calls behind one that occupies the only slot, and returns the prompts of each request.
async fn queue_behind_one(proxy: &TestProxy, hand: &mut ScriptedServer, names: ServerNames) -> Vec<Vec<String>> {
    let first = proxy.call(completion(proxy, "first"));
    let turn = next_call(hand, names).await;
    let calls = proxy.queue(["a", "b"].map(|prompt| completion(proxy, prompt))).await;
    answer(turn, names).await;
    let mut requests: Vec<Vec<String>> = Vec::new();
    while requests.iter().flatten().count() < 2 {
        requests.push(answer(next_call(hand, names).await, names).await);
    }
    assert_answers(vec![first], &["first"]).await;
    assert_answers(calls, &["a", "b"]).await;
    proxy.wait_idle().await;
    requests
}

/// Sends calls one by one until the proxy has looked up all documents of the server.
async fn let_server_be_known(proxy: &TestProxy, hand: &mut ScriptedServer, names: ServerNames) {
    let first = proxy.call(completion(proxy, "x"));
    let (mut call, mut look_ups) = (None, 0);
    while call.is_none() || look_ups < 3 {
        let turn = hand.next_request().await;
        if turn.request.target == PATH {
            call = Some(turn);
        } else {
            assert!(answer_look_up(turn, names).await);
            look_ups += 1;
        }
    }
    answer(call.unwrap(), names).await;
    assert_answers(vec![first], &["x"]).await;
    proxy.wait_idle().await;
}

/// Returns the requests once the results of the look-ups are in force: the proxy reads them in a
/// task of its own.
async fn requests_once_merged(proxy: &TestProxy, hand: &mut ScriptedServer, names: ServerNames) -> Vec<Vec<String>> {
    for _ in 0..100 {
        let requests = queue_behind_one(proxy, hand, names).await;
        if requests.len() == 1 {
            return requests;
        }
    }
    panic!("no calls were merged");
}

#[tokio::test]
async fn completions_are_merged_before_a_server_that_does_not_batch_by_itself() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&Value::Null)).await;
    // Nothing is known of the server, so the first calls share no batch.
    let_server_be_known(&proxy, &mut hand, SERIAL).await;
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="generation"}"#), 1);
    assert_eq!(requests_once_merged(&proxy, &mut hand, SERIAL).await, [["a", "b"]]);
}

#[tokio::test]
async fn completions_from_before_the_look_ups_are_measured_with_those_that_are_merged() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&Value::Null)).await;
    let_server_be_known(&proxy, &mut hand, SERIAL).await;
    assert_eq!(requests_once_merged(&proxy, &mut hand, SERIAL).await, [["a", "b"]]);
    let shown = super::explain::scheduler(&proxy).await;
    assert_eq!(shown["cost_classes"].as_array().unwrap().len(), 1, "{shown}");
}

#[tokio::test]
async fn completions_to_a_simulated_engine_that_names_itself_are_never_merged() {
    let vllm = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}"#;
    let sglang = r#"{"object":"list","data":[{"id":"m","owned_by":"sglang"}]}"#;
    let tgi = r#"{"model_id":"m","max_total_tokens":4096,"max_client_batch_size":4}"#;
    for names in [
        ServerNames { models: (200, vllm), ..SERIAL },
        ServerNames { models: (200, sglang), ..SERIAL },
        ServerNames { models: (401, "{}"), version: (200, r#"{"version":"0.9.1"}"#), ..SERIAL },
        ServerNames { info: (200, tgi), ..SERIAL },
        ServerNames { head: "server: llama.cpp\r\n", ..SERIAL },
        // A server with a list of models that the proxy may not read stays unknown.
        ServerNames { models: (401, "{}"), ..SERIAL },
        ServerNames { models: (500, "{}"), ..SERIAL },
    ] {
        let (proxy, mut hand) = start_with_scripted_server(spec(&Value::Null)).await;
        let_server_be_known(&proxy, &mut hand, names).await;
        for _ in 0..3 {
            let requests = queue_behind_one(&proxy, &mut hand, names).await;
            assert_eq!(requests.len(), 2, "{names:?} {requests:?}");
        }
        assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="generation"}"#), 10, "{names:?}");
    }
}

#[tokio::test]
async fn a_route_that_always_merges_looks_nothing_up_and_merges_before_an_engine() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&json!([{"path": PATH, "merge": "Always"}]))).await;
    let first = proxy.call(completion(&proxy, "first"));
    let turn = hand.next_request().await;
    let calls = proxy.queue(["a", "b"].map(|prompt| completion(&proxy, prompt))).await;
    answer(turn, SERIAL).await;
    assert_eq!(answer(hand.next_request().await, SERIAL).await, ["a", "b"]);
    assert_answers(vec![first], &["first"]).await;
    assert_answers(calls, &["a", "b"]).await;
}

#[tokio::test]
async fn a_route_that_never_merges_queues_its_calls_and_reports_why() {
    for (path, protocol, body) in
        [(PATH, "OpenAI", r#"{"prompt":"a","max_tokens":4}"#), ("/v1/embeddings", "Auto", r#"{"input":"a"}"#)]
    {
        let routes = json!([{"path": path, "protocol": protocol, "merge": "Never"}]);
        let (proxy, mut hand) = start_with_scripted_server(spec(&routes)).await;
        let first = proxy.call(proxy.post(path, &[], body));
        let turn = hand.next_request().await;
        let calls = proxy.queue([body, body].map(|body| proxy.post(path, &[], body))).await;
        assert_eq!(hand.pending_requests(), 0, "the only slot is busy");
        turn.answer(200, "{}").await;
        for _ in 0..2 {
            let turn = hand.next_request().await;
            assert_eq!(turn.request.body, body.as_bytes());
            turn.answer(200, "{}").await;
        }
        for call in calls.into_iter().chain([first]) {
            assert_eq!(call.answer().await.status, Some(200));
        }
        proxy.wait_idle().await;
        assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="merge_never"}"#), 3, "{path}");
    }
}
