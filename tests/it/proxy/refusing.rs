//! Servers that speak a recognised route and take one item a call: each caller gets what it gets alone, and merging ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::hand::{Hand, reply};
use super::setup::{Caller, PREDICT, Proxy, assert_answer, by_hand};
use super::support::client::Outgoing;
use super::support::upstream::Request;

/// Rounds of [`CALLERS`] calls at once.
const ROUNDS: usize = 12;
const CALLERS: usize = 8;

/// How a server answers a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Status(u16),
    Reset,
    /// The first result only.
    First,
    NotJson,
    Never,
}

/// A route, and where its items stand.
#[derive(Debug, Clone, Copy)]
struct Adapter {
    path: &'static str,
    items: &'static str,
    /// The answer to one item.
    one: &'static str,
    /// Lone calls carry their item without a list.
    scalar: bool,
}

const KSERVE: Adapter = Adapter { path: PREDICT, items: "instances", one: r#"{"predictions":[1]}"#, scalar: false };
const ADAPTERS: [Adapter; 4] = [
    KSERVE,
    Adapter {
        path: "/v1/embeddings",
        items: "input",
        one: r#"{"object":"list","data":[{"index":0,"embedding":[1]}]}"#,
        scalar: true,
    },
    Adapter { path: "/embed", items: "inputs", one: "[[1]]", scalar: true },
    Adapter { path: "/g", items: "texts", one: r#"{"vectors":[1]}"#, scalar: false },
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

// === impl Adapter ===

impl Adapter {
    fn call(self, proxy: &Proxy, item: usize) -> (Outgoing, String) {
        let text = format!("item {item}");
        let items = if self.scalar { json!(text) } else { json!([text]) };
        let body = json!({self.items: items}).to_string();
        (proxy.post(self.path, &[], &body), json!({"own": body}).to_string())
    }

    fn is_list(self, request: &Request) -> bool {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        body[self.items].as_array().is_some_and(|items| items.len() > 1)
    }
}

/// Answers lone calls with their own bytes and refuses lists, which it counts.
fn serve(mut hand: Hand, adapter: Adapter, refusal: Refusal) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let serving = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let turn = hand.turn().await;
            if !adapter.is_list(&turn.request) {
                let body = String::from_utf8(turn.request.body.clone()).unwrap();
                turn.raw(&reply(200, &json!({"own": body}).to_string())).await;
                continue;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            match refusal {
                Refusal::Status(status) => turn.answer(status, r#"{"error":"one item a call"}"#).await,
                Refusal::First => turn.answer(200, adapter.one).await,
                Refusal::NotJson => turn.answer(200, "one item a call").await,
                Refusal::Reset => drop(turn),
                Refusal::Never => held.push(turn),
            }
        }
    });
    (lists, serving)
}

/// Has callers call side by side in rounds; how many answers were not the lone one's.
async fn drive(proxy: &Proxy, adapter: Adapter) -> Vec<Option<u16>> {
    let mut others = Vec::new();
    for round in 0..ROUNDS {
        let calls = (0..CALLERS).map(|caller| adapter.call(proxy, round * CALLERS + caller));
        let callers: Vec<(Caller, String)> = calls.map(|(request, own)| (proxy.call(request), own)).collect();
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
    let statuses = [400, 404, 413, 422, 500, 501].map(Refusal::Status);
    for refusal in statuses.into_iter().chain([Refusal::Reset, Refusal::First, Refusal::NotJson]) {
        for adapter in ADAPTERS {
            let (proxy, hand) = by_hand(spec()).await;
            let (lists, serving) = serve(hand, adapter, refusal);
            let others = drive(&proxy, adapter).await;
            assert_eq!(others, [], "{refusal:?} at {}", adapter.path);
            let lists = lists.load(Ordering::Relaxed);
            assert!((1..=2).contains(&lists), "{lists} lists were sent, {refusal:?} at {}", adapter.path);
            serving.abort();
        }
    }
}

#[tokio::test]
async fn a_list_that_is_never_answered_costs_two_batches() {
    let spec = json!({"routes": [{"path": PREDICT, "timeout": "300ms"}]});
    let (proxy, hand) = by_hand(spec).await;
    let (lists, serving) = serve(hand, KSERVE, Refusal::Never);
    let others = drive(&proxy, KSERVE).await;
    assert!((1..=2).contains(&lists.load(Ordering::Relaxed)));
    assert!(others.len() <= 2 * CALLERS && others.iter().all(|status| *status == Some(504)), "{others:?}");
    serving.abort();
}

#[tokio::test]
async fn the_end_of_merging_is_a_gauge_and_a_reason() {
    let (proxy, hand) = by_hand(spec()).await;
    let (_, serving) = serve(hand, KSERVE, Refusal::Status(422));
    drive(&proxy, KSERVE).await;
    proxy.idle().await;
    assert_eq!(proxy.metric("groupage_merging_suspended"), 1);
    assert!(proxy.metric(r#"groupage_calls_passed_total{reason="merge_refused"}"#) > 0);
    serving.abort();
}
