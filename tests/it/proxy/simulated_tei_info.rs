//! Look-up of the limits that a simulated TEI publishes at `/info`: no call waits for it, whatever the
//! server answers, and limits that are found apply to the first batch.

use serde_json::{Value, json};

use super::scripted_server::{PendingRequest, ScriptedServer};
use super::scripted_setup::{start_with_scripted_server, take_look_up};
use super::setup::{PendingCall, TestProxy, adaptive_spec, assert_answer};
use super::support::client::Outgoing;

const LIMITS: &str = r#"{"max_client_batch_size": 2}"#;
const LIMIT_IN_FORCE: &str = r#"groupage_limit{limit="batch_items_max",source="published"}"#;

/// A look-up that is not conclusive.
#[derive(Debug, Clone, Copy)]
enum FailedLookUp {
    Status(u16),
    Reset,
    NotJson,
}

impl FailedLookUp {
    async fn answer(self, info: PendingRequest) {
        match self {
            Self::Status(status) => info.answer(status, "{}").await,
            Self::Reset => info.reset(),
            Self::NotJson => info.answer(200, "<html>").await,
        }
    }
}

fn embed(proxy: &TestProxy, text: &str) -> Outgoing {
    proxy.post("/embed", &[], &json!({"inputs": text}).to_string())
}

/// Answers a request for these texts, and returns their number. Every text has its own vector.
async fn answer(turn: PendingRequest) -> usize {
    assert_eq!(turn.request.target, "/embed");
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    let texts = body["inputs"].as_array().cloned().unwrap_or_else(|| vec![body["inputs"].clone()]);
    let vectors: Vec<[&Value; 1]> = texts.iter().map(|text| [text]).collect();
    turn.answer(200, &json!(vectors).to_string()).await;
    texts.len()
}

async fn assert_answers(callers: Vec<PendingCall>, texts: &[&str]) {
    for (caller, text) in callers.into_iter().zip(texts) {
        assert_answer(&caller.answer().await, 200, &json!([[text]]).to_string());
    }
}

/// Queues calls behind one that occupies the only slot, and returns the sizes of their batches.
async fn batch_sizes(proxy: &TestProxy, hand: &mut ScriptedServer, texts: &[&str]) -> Vec<usize> {
    let first = proxy.call(embed(proxy, "first"));
    let turn = hand.next_request().await;
    let callers = proxy.queue(texts.iter().map(|text| embed(proxy, text))).await;
    answer(turn).await;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < texts.len() {
        sizes.push(answer(hand.next_request().await).await);
    }
    assert_answers(vec![first], &["first"]).await;
    assert_answers(callers, texts).await;
    proxy.wait_idle().await;
    sizes
}

#[tokio::test]
async fn calls_are_answered_one_by_one_while_the_look_up_hangs() {
    for mut spec in [json!({}), adaptive_spec(&json!({}))] {
        // The look-up takes longer than a call may.
        spec["routes"] = json!([{"path": "/embed", "timeout": "2s"}]);
        let (proxy, mut hand) = start_with_scripted_server(spec).await;
        let callers: Vec<PendingCall> = ["a", "b", "c"].map(|text| proxy.call(embed(&proxy, text))).into();
        let mut look_up = None;
        for _ in 0..4 {
            let turn = hand.next_request().await;
            if turn.request.target == "/info" {
                assert!(look_up.replace(turn).is_none(), "one look-up serves all calls");
            } else {
                assert_eq!(answer(turn).await, 1);
            }
        }
        assert_answers(callers, &["a", "b", "c"]).await;
        assert!(look_up.is_some());
    }
}

#[tokio::test]
async fn a_failed_look_up_is_repeated_and_its_limits_apply_to_the_first_batch() {
    for failure in [FailedLookUp::Status(500), FailedLookUp::Status(503), FailedLookUp::Reset, FailedLookUp::NotJson] {
        let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
        let first = proxy.call(embed(&proxy, "first"));
        let (info, turn) = take_look_up(&mut hand).await;
        failure.answer(info).await;
        answer(turn).await;
        assert_answers(vec![first], &["first"]).await;
        let mut look_ups = 1;
        while proxy.metric(LIMIT_IN_FORCE) != 2 {
            let caller = proxy.call(embed(&proxy, "next"));
            loop {
                let turn = hand.next_request().await;
                if turn.request.target == "/info" {
                    look_ups += 1;
                    turn.answer(200, LIMITS).await;
                } else {
                    assert_eq!(answer(turn).await, 1);
                    break;
                }
            }
            assert_answers(vec![caller], &["next"]).await;
            proxy.wait_idle().await;
        }
        assert_eq!(look_ups, 2, "{failure:?}");
        assert_eq!(batch_sizes(&proxy, &mut hand, &["a", "b", "c", "d"]).await, [2, 2], "{failure:?}");
    }
}

#[tokio::test]
async fn a_server_whose_look_up_always_fails_is_merged_in_the_end() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (mut look_ups, mut calls) = (0, 0);
    loop {
        let callers = proxy.queue(["a", "b", "c"].map(|text| embed(&proxy, text))).await;
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 3 {
            let turn = hand.next_request().await;
            if turn.request.target == "/info" {
                look_ups += 1;
                turn.answer(500, "{}").await;
            } else {
                sizes.push(answer(turn).await);
            }
        }
        assert_answers(callers, &["a", "b", "c"]).await;
        calls += 3;
        if sizes.contains(&2) {
            break;
        }
    }
    assert_eq!(look_ups, 3);
    assert!(calls > 3);
}

#[tokio::test]
async fn a_server_of_embeddings_without_a_sign_of_tei_is_not_looked_up() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    for _ in 0..10 {
        let next = proxy.call(proxy.post("/v1/embeddings", &[], r#"{"input":"a"}"#));
        let turn = hand.next_request().await;
        assert_eq!(turn.request.target, "/v1/embeddings");
        turn.answer(200, "{}").await;
        assert_answer(&next.answer().await, 200, "{}");
    }
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn calls_held_in_a_window_are_merged_if_the_look_up_ends_within_it() {
    let spec = json!({
        "scheduling": {"policy": "Window", "items": 100, "delay": "500ms"},
        "limits": {"queueDelayMax": "1m"},
        "routes": [{"path": "/embed", "protocol": "TEI"}],
    });
    for (status, body, expected) in [(404, "{}", vec![3]), (200, LIMITS, vec![2, 1])] {
        let (proxy, mut hand) = start_with_scripted_server(spec.clone()).await;
        let callers = proxy.queue(["a", "b", "c"].map(|text| embed(&proxy, text))).await;
        let info = hand.next_request().await;
        assert_eq!(info.request.target, "/info");
        info.answer(status, body).await;
        let mut sizes = Vec::new();
        while sizes.len() < expected.len() {
            sizes.push(answer(hand.next_request().await).await);
        }
        assert_eq!(sizes, expected);
        assert_answers(callers, &["a", "b", "c"]).await;
    }
}

#[tokio::test]
async fn calls_at_the_path_of_sagemaker_are_merged_once_the_type_of_the_model_is_known() {
    let spec = json!({"routes": [{"path": "/invocations", "protocol": "TEI"}]});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let pair = |first: &str| proxy.post("/invocations", &[], &json!({"inputs": [first, "other"]}).to_string());
    let score = |turn: PendingRequest| async move {
        assert_eq!(turn.request.target, "/invocations");
        let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
        let inputs = body["inputs"].as_array().unwrap().clone();
        // A list of two texts is one pair, whose answer is not in a list.
        let is_pair = inputs[0].is_string();
        let scores = |pair: &Value| json!([{"label": pair[0], "score": 0.5}]);
        let answer = if is_pair { scores(&body["inputs"]) } else { inputs.iter().map(scores).collect() };
        turn.answer(200, &answer.to_string()).await;
        if is_pair { 1 } else { inputs.len() }
    };
    let answer_of = |first: &str| json!([{"label": first, "score": 0.5}]).to_string();

    let caller = proxy.call(pair("first"));
    let (info, turn) = take_look_up(&mut hand).await;
    assert_eq!(score(turn).await, 1);
    assert_answer(&caller.answer().await, 200, &answer_of("first"));
    info.answer(200, r#"{"max_client_batch_size": 8, "model_type": {"classifier": {"id2label": {}}}}"#).await;
    proxy.wait_idle().await;

    // The first one occupies the only slot.
    let mut sizes = Vec::new();
    while !sizes.contains(&3) {
        sizes.clear();
        let blocking = proxy.call(pair("first"));
        let turn = hand.next_request().await;
        let callers = proxy.queue(["a", "b", "c"].map(pair)).await;
        score(turn).await;
        assert_answer(&blocking.answer().await, 200, &answer_of("first"));
        while sizes.iter().sum::<usize>() < 3 {
            sizes.push(score(hand.next_request().await).await);
        }
        for (caller, text) in callers.into_iter().zip(["a", "b", "c"]) {
            assert_answer(&caller.answer().await, 200, &answer_of(text));
        }
        proxy.wait_idle().await;
    }
}
