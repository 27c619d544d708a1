//! Servers that speak a recognised protocol but accept one item per call: each caller gets the
//! response that it gets alone, and merging ends.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::scripted_server::{ScriptedServer, reply};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, PendingCall, TestProxy, assert_answer};
use super::support::client::Outgoing;
use super::support::upstream::Request;

/// Number of rounds of [`CALLERS`] simultaneous calls.
const ROUNDS: usize = 12;
/// Number of simultaneous calls: few enough that the members of a failed batch are sent alone
/// without bisection.
const CALLERS: usize = 4;
/// Maximum number of lists that are sent if they are refused as too large. Such a batch is bisected
/// first: two batches, and their halves of several items.
const LISTS_TOO_LARGE: usize = 4;

/// The way in which a server refuses a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListRefusal {
    Status(u16),
    Reset,
    /// Only the first result is returned.
    First,
    NotJson,
    /// As llama.cpp answers: correct except for `usage`, which counts the first item alone.
    FirstUsage,
    Never,
}

/// A route, with the field that contains its items.
#[derive(Debug, Clone, Copy)]
struct RouteShape {
    path: &'static str,
    items: &'static str,
    /// The response to one item.
    one: &'static str,
    /// `true` if a single call carries its item without a list.
    scalar: bool,
}

const KSERVE: RouteShape =
    RouteShape { path: PREDICT, items: "instances", one: r#"{"predictions":[1]}"#, scalar: false };
const ADAPTERS: [RouteShape; 4] = [
    KSERVE,
    RouteShape {
        path: "/v1/embeddings",
        items: "input",
        one: r#"{"object":"list","data":[{"index":0,"embedding":[1]}]}"#,
        scalar: true,
    },
    RouteShape { path: "/embed", items: "inputs", one: "[[1]]", scalar: true },
    RouteShape { path: "/g", items: "texts", one: r#"{"vectors":[1]}"#, scalar: false },
];

fn spec() -> Value {
    let declared = json!({"items": "/texts", "results": "/vectors"});
    json!({"routes": [
        {"path": PREDICT},
        {"path": "/v1/embeddings"},
        {"path": "/embed"},
        {"path": "/g", "protocol": "Generic", "idempotent": "Always", "generic": declared},
    ]})
}

// === impl RouteShape ===

impl RouteShape {
    fn call(self, proxy: &TestProxy, item: usize) -> (Outgoing, String) {
        let text = format!("item {item}");
        let items = if self.scalar { json!(text) } else { json!([text]) };
        let body = json!({self.items: items}).to_string();
        (proxy.post(self.path, &[], &body), json!({"own": body}).to_string())
    }

    /// Returns the number of items of a request; `None` if the request is not a call of this route,
    /// such as one for the model's metadata.
    fn count(self, request: &Request) -> Option<usize> {
        let body: Value = serde_json::from_slice(&request.body).ok()?;
        let items = body.get(self.items)?;
        Some(items.as_array().map_or(1, Vec::len))
    }
}

/// Answers single calls with their own bytes and refuses lists. Returns the recorded sizes of the
/// lists.
fn serve(
    mut hand: ScriptedServer,
    adapter: RouteShape,
    refusal: ListRefusal,
) -> (Arc<Mutex<Vec<usize>>>, JoinHandle<()>) {
    let lists = Arc::new(Mutex::new(Vec::new()));
    let sizes = lists.clone();
    let serving = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let turn = hand.next_request().await;
            let Some(items) = adapter.count(&turn.request) else {
                turn.answer(404, "{}").await;
                continue;
            };
            if items == 1 {
                let body = String::from_utf8(turn.request.body.clone()).unwrap();
                turn.send_raw(&reply(200, &json!({"own": body}).to_string())).await;
                continue;
            }
            sizes.lock().unwrap().push(items);
            match refusal {
                ListRefusal::Status(status) => turn.answer(status, r#"{"error":"one item a call"}"#).await,
                ListRefusal::First => turn.answer(200, adapter.one).await,
                ListRefusal::NotJson => turn.answer(200, "one item a call").await,
                ListRefusal::FirstUsage => turn.send_raw(&first_usage(items)).await,
                ListRefusal::Reset => turn.reset(),
                ListRefusal::Never => held.push(turn),
            }
        }
    });
    (lists, serving)
}

fn first_usage(items: usize) -> Vec<u8> {
    let data: Vec<Value> = (0..items).map(|index| json!({"index": index, "embedding": [1]})).collect();
    let body = json!({"object": "list", "data": data, "usage": {"prompt_tokens": 2, "total_tokens": 2}}).to_string();
    let text = String::from_utf8(reply(200, &body)).unwrap();
    text.replacen("content-type", "Server: llama.cpp\r\ncontent-type", 1).into_bytes()
}

/// Sends simultaneous calls in rounds, and returns the statuses other than 200.
async fn call_in_rounds(proxy: &TestProxy, adapter: RouteShape) -> Vec<Option<u16>> {
    let mut others = Vec::new();
    for round in 0..ROUNDS {
        let calls = (0..CALLERS).map(|caller| adapter.call(proxy, round * CALLERS + caller));
        let callers: Vec<(PendingCall, String)> = calls.map(|(request, own)| (proxy.call(request), own)).collect();
        for (caller, own) in callers {
            let answer = caller.answer().await;
            if answer.status == Some(200) {
                assert_answer(&answer, 200, &own);
            } else {
                others.push(answer.status);
            }
        }
    }
    others
}

#[tokio::test]
async fn every_caller_gets_its_own_answer_and_two_batches_end_merging() {
    let statuses = [400, 404, 413, 422, 500, 501].map(ListRefusal::Status);
    for refusal in statuses.into_iter().chain([ListRefusal::Reset, ListRefusal::First, ListRefusal::NotJson]) {
        for adapter in ADAPTERS {
            let (proxy, hand) = start_with_scripted_server(spec()).await;
            let (lists, serving) = serve(hand, adapter, refusal);
            let others = call_in_rounds(&proxy, adapter).await;
            assert_eq!(others, [], "{refusal:?} at {}", adapter.path);
            let lists = lists.lock().unwrap().clone();
            let most = if refusal == ListRefusal::Status(413) { LISTS_TOO_LARGE } else { 2 };
            assert!((1..=most).contains(&lists.len()), "{lists:?} were sent, {refusal:?} at {}", adapter.path);
            serving.abort();
        }
    }
}

#[tokio::test]
async fn a_server_whose_usage_counts_the_first_item_alone_is_not_merged() {
    let embeddings = ADAPTERS[1];
    let (proxy, hand) = start_with_scripted_server(spec()).await;
    let (lists, serving) = serve(hand, embeddings, ListRefusal::FirstUsage);
    assert_eq!(call_in_rounds(&proxy, embeddings).await, [], "each caller gets its own usage");
    let lists = lists.lock().unwrap().clone();
    assert!((1..=2).contains(&lists.len()), "{lists:?} were sent");
    assert!(proxy.metric(r#"groupage_mismatches_total{kind="usage"}"#) > 0);
    serving.abort();
}

#[tokio::test]
async fn a_list_that_is_never_answered_costs_two_batches() {
    let mut spec = spec();
    for route in spec["routes"].as_array_mut().unwrap() {
        route["timeout"] = json!("300ms");
    }
    for adapter in ADAPTERS {
        let (proxy, hand) = start_with_scripted_server(spec.clone()).await;
        let (lists, serving) = serve(hand, adapter, ListRefusal::Never);
        let others = call_in_rounds(&proxy, adapter).await;
        let lists = lists.lock().unwrap().clone();
        assert!((1..=2).contains(&lists.len()), "{lists:?} were sent at {}", adapter.path);
        // Calls that wait for the only slot behind such a batch may expire with it.
        assert!(others.len() <= 2 * CALLERS && others.iter().all(|status| *status == Some(504)), "{others:?}");
        serving.abort();
    }
}

#[tokio::test]
async fn a_limit_of_one_item_is_shown_as_a_reason() {
    let (proxy, hand) = start_with_scripted_server(spec()).await;
    let (_, serving) = serve(hand, KSERVE, ListRefusal::Status(413));
    call_in_rounds(&proxy, KSERVE).await;
    proxy.wait_idle().await;
    assert!(proxy.metric(r#"groupage_calls_passed_total{reason="merge_refused"}"#) > 0);
    serving.abort();
}

#[tokio::test]
async fn a_suspension_of_merging_is_shown_as_a_gauge_and_a_reason() {
    let (proxy, hand) = start_with_scripted_server(spec()).await;
    let (_, serving) = serve(hand, KSERVE, ListRefusal::Status(422));
    call_in_rounds(&proxy, KSERVE).await;
    proxy.wait_idle().await;
    assert_eq!(proxy.metric("groupage_merging_suspended"), 1);
    assert!(proxy.metric(r#"groupage_calls_passed_total{reason="merge_refused"}"#) > 0);
    serving.abort();
}
