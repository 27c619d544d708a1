//! Calls with more items than the server accepts or the policy allows: their parts reach the server
//! within the limit, and the client receives one response or one error.

use serde_json::{Value, json};

use super::scripted_server::{PendingRequest, ScriptedServer};
use super::scripted_setup::{start_with_scripted_server, take_look_up};
use super::setup::{PREDICT, TestProxy, assert_answer, header, instances, predictions};

const DIVIDED: &str = "groupage_calls_divided_total";
const PARTS: &str = "groupage_call_parts_total";

fn stated(items: u32) -> Value {
    json!({"limits": {"batchItemsMax": items}})
}

/// Answers requests until this many items were sent, and returns the items of each.
async fn echo_items(hand: &mut ScriptedServer, items: usize) -> Vec<Vec<u64>> {
    let mut sent: Vec<Vec<u64>> = Vec::new();
    while sent.iter().map(Vec::len).sum::<usize>() < items {
        let turn = hand.next_request().await;
        sent.push(turn.instances());
        turn.echo().await;
    }
    sent
}

#[tokio::test]
async fn a_call_above_a_stated_limit_is_sent_in_parts_and_answered_whole() {
    let (proxy, mut hand) = start_with_scripted_server(stated(4)).await;
    let items: Vec<u64> = (1..=10).collect();
    let headers = [("accept-encoding", "gzip"), ("x-request-id", "own")];
    let caller = proxy.call(proxy.post(PREDICT, &headers, &instances(&items)));
    let sent = echo_items(&mut hand, 10).await;
    assert!(sent.iter().all(|part| part.len() <= 4), "{sent:?}");
    assert_eq!(sent.concat().len(), 10);
    assert_answer(&caller.answer().await, 200, &predictions(&items));
    assert_eq!((proxy.metric(DIVIDED), proxy.metric(PARTS)), (1, 3));
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 10);
    proxy.wait_idle().await;
}

#[tokio::test]
async fn the_default_limit_divides_no_call() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let items: Vec<u64> = (0..129).collect();
    let caller = proxy.call(proxy.post(PREDICT, &[], &instances(&items)));
    assert_eq!(echo_items(&mut hand, 129).await.len(), 1);
    assert_answer(&caller.answer().await, 200, &predictions(&items));
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="client_batch_full"}"#), 1);
    assert_eq!(proxy.metric(DIVIDED), 0);
}

#[tokio::test]
async fn the_last_part_shares_a_batch_with_another_call() {
    let (proxy, mut hand) = start_with_scripted_server(stated(4)).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let large = proxy.queue([proxy.post(PREDICT, &[], &instances(&[1, 2, 3, 4, 5, 6]))]).await.remove(0);
    proxy.wait_queued(6).await;
    let small = proxy.queue([proxy.post(PREDICT, &[], &instances(&[7, 8]))]).await.remove(0);
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    let sent = echo_items(&mut hand, 8).await;
    assert!(sent.contains(&vec![5, 6, 7, 8]), "{sent:?}");
    assert_answer(&large.answer().await, 200, &predictions(&[1, 2, 3, 4, 5, 6]));
    assert_answer(&small.answer().await, 200, &predictions(&[7, 8]));
}

#[tokio::test]
async fn a_part_that_fails_ends_the_call_with_its_error() {
    let (proxy, mut hand) = start_with_scripted_server(stated(2)).await;
    let caller = proxy.call(proxy.post(PREDICT, &[], &instances(&[1, 2, 3, 4, 5, 6])));
    let mut turn = hand.next_request().await;
    while turn.instances() != [3, 4] {
        turn.echo().await;
        turn = hand.next_request().await;
    }
    turn.answer(422, r#"{"error":"item 1"}"#).await;
    // The parts that follow may have been sent before the error arrived.
    let others = tokio::spawn(async move {
        loop {
            hand.next_request().await.echo().await;
        }
    });
    let answer = caller.answer().await;
    assert_answer(&answer, 422, r#"{"error":"item 1"}"#);
    assert_eq!(header(&answer.headers, "x-groupage-items"), "2-3", "the items of the call, from 0");
    proxy.wait_idle().await;
    others.abort();
}

#[tokio::test]
async fn a_part_waits_for_room_in_the_queue() {
    let limits = json!({"limits": {"batchItemsMax": 2, "queueItemsMax": 3, "slotsMax": 1}});
    let (proxy, mut hand) = start_with_scripted_server(limits).await;
    // Half of the queue holds one part, so that the second one is queued after the first is answered.
    let large = proxy.call(proxy.post(PREDICT, &[], &instances(&[1, 2, 3, 4])));
    let first = hand.next_request().await;
    assert_eq!(first.instances(), [1, 2]);
    let mut others = proxy.queue([proxy.predict(7)]).await;
    others.extend(proxy.queue([proxy.post(PREDICT, &[], &instances(&[8, 9]))]).await);
    // Once one of the others is in flight, two of three places are taken.
    first.echo().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [7]);
    turn.echo().await;
    assert_eq!(echo_items(&mut hand, 4).await, [[8, 9], [3, 4]]);
    assert_answer(&large.answer().await, 200, &predictions(&[1, 2, 3, 4]));
    for (other, items) in others.into_iter().zip([&[7][..], &[8, 9]]) {
        assert_answer(&other.answer().await, 200, &predictions(items));
    }
}

#[tokio::test]
async fn a_call_above_a_published_limit_is_divided() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let embed = |inputs: Value| proxy.post("/embed", &[], &json!({"inputs": inputs}).to_string());
    let echo = async |turn: PendingRequest| {
        let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
        let texts = body["inputs"].as_array().cloned().unwrap_or_else(|| vec![body["inputs"].clone()]);
        turn.answer(200, &json!(texts.iter().map(|text| [text]).collect::<Vec<_>>()).to_string()).await;
        texts.len()
    };
    let first = proxy.call(embed(json!("first")));
    let (info, turn) = take_look_up(&mut hand).await;
    info.answer(200, r#"{"max_client_batch_size": 2}"#).await;
    echo(turn).await;
    assert_answer(&first.answer().await, 200, r#"[["first"]]"#);
    // The limits apply once their look-up has ended, and no call waits for it.
    let large = json!(["a", "b", "c", "d", "e"]);
    while proxy.metric(DIVIDED) == 0 {
        let caller = proxy.call(embed(large.clone()));
        let mut sent = 0;
        while sent < 5 {
            sent += echo(hand.next_request().await).await;
        }
        assert_answer(&caller.answer().await, 200, r#"[["a"],["b"],["c"],["d"],["e"]]"#);
    }
    assert_eq!(proxy.metric(PARTS), 3);
}

#[tokio::test]
async fn rows_of_tensors_are_divided_like_items() {
    let path = "/v2/models/m/infer";
    let policy = json!({
        "limits": {"batchItemsMax": 2},
        "routes": [{"path": path, "method": "POST", "protocol": "OpenInferenceV2"}],
    });
    let (proxy, mut hand) = start_with_scripted_server(policy).await;
    let tensor = |name: &str, data: &[u64]| {
        format!(r#"{{"name":"{name}","shape":[{},1],"datatype":"FP32","data":{data:?}}}"#, data.len())
    };
    let inputs = |data: &[u64]| format!(r#"{{"inputs":[{}]}}"#, tensor("x", data));
    let outputs = |data: &[u64]| format!(r#"{{"model_name":"m","outputs":[{}]}}"#, tensor("y", data));
    // A call is divided once the look-up of the model's configuration has ended.
    while proxy.metric(DIVIDED) == 0 {
        let caller = proxy.call(proxy.post(path, &[], &inputs(&[1, 2, 3, 4, 5])));
        let mut sent = 0;
        while sent < 5 {
            let turn = hand.next_request().await;
            if turn.request.body.is_empty() {
                turn.answer(404, "{}").await;
                continue;
            }
            let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
            let rows: Vec<u64> = serde_json::from_value(body["inputs"][0]["data"].clone()).unwrap();
            assert!(rows.len() <= 2 || rows.len() == 5, "{body}");
            assert_eq!(body["inputs"][0]["shape"], json!([rows.len(), 1]));
            sent += rows.len();
            turn.answer(200, &outputs(&rows)).await;
        }
        assert_answer(&caller.answer().await, 200, &outputs(&[1, 2, 3, 4, 5]));
    }
    assert_eq!((proxy.metric(DIVIDED), proxy.metric(PARTS)), (1, 3));
}

#[tokio::test]
async fn tensors_whose_first_dimension_is_not_the_batch_are_sent_whole() {
    let path = "/v2/models/m/infer";
    let call = r#"{"inputs":[{"name":"x","shape":[3,2],"datatype":"FP32","data":[1,2,3,4,5,6]}]}"#;
    let answer = r#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[7]}]}"#;
    for protocol in ["Auto", "OpenInferenceV2"] {
        let routes = json!([{"path": path, "method": "POST", "protocol": protocol}]);
        let (proxy, mut hand) =
            start_with_scripted_server(json!({"limits": {"batchItemsMax": 2}, "routes": routes})).await;
        let (mut published, mut since) = (false, 0);
        // No call waits for the look-up, so the first ones may precede its result.
        while since < 10 || proxy.metric(r#"groupage_calls_passed_total{reason="open_inference"}"#) == 0 {
            let caller = proxy.call(proxy.post(path, &[], call));
            let mut turn = hand.next_request().await;
            if turn.request.body.is_empty() {
                turn.answer(200, r#"{"max_batch_size":0}"#).await;
                published = true;
                turn = hand.next_request().await;
            }
            assert_eq!(turn.request.body, call.as_bytes(), "{protocol}");
            turn.answer(200, answer).await;
            assert_answer(&caller.answer().await, 200, answer);
            since += usize::from(published);
        }
        assert_eq!(proxy.metric(DIVIDED), 0, "{protocol}");
    }
}

#[tokio::test]
async fn a_limit_that_the_server_named_divides_the_next_call() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let call = || proxy.post(PREDICT, &[], &instances(&[1, 2, 3]));
    let refusal = r#"{"error":"batch-size must be <= 2"}"#;
    let first = proxy.call(call());
    hand.next_request().await.answer(400, refusal).await;
    assert_answer(&first.answer().await, 400, refusal);
    proxy.wait_idle().await;
    let second = proxy.call(call());
    assert_eq!(echo_items(&mut hand, 3).await.len(), 2);
    assert_answer(&second.answer().await, 200, &predictions(&[1, 2, 3]));
}

#[tokio::test]
async fn a_call_whose_responses_cannot_be_joined_is_sent_whole_from_then_on() {
    let (proxy, mut hand) = start_with_scripted_server(stated(2)).await;
    for round in 0..2 {
        let caller = proxy.call(proxy.post(PREDICT, &[], &instances(&[1, 2, 3])));
        let counted = |items: usize| json!({"predictions": vec![1; items], "count": items}).to_string();
        let mut requests = 0;
        loop {
            let turn = hand.next_request().await;
            requests += 1;
            let items = turn.instances().len();
            turn.answer(200, &counted(items)).await;
            if items == 3 {
                break;
            }
        }
        assert_answer(&caller.answer().await, 200, &counted(3));
        assert_eq!(requests, if round == 0 { 3 } else { 1 });
    }
    assert_eq!(proxy.metric(DIVIDED), 1);
}

#[tokio::test]
async fn the_parts_of_a_client_that_left_are_withdrawn() {
    let (proxy, mut hand) = start_with_scripted_server(stated(2)).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let large = proxy.queue([proxy.post(PREDICT, &[], &instances(&[1, 2, 3, 4]))]).await.remove(0);
    proxy.wait_queued(4).await;
    large.disconnect().await;
    proxy.wait_queued(0).await;
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    assert_still_serves(&proxy, &mut hand).await;
}

async fn assert_still_serves(proxy: &TestProxy, hand: &mut ScriptedServer) {
    let caller = proxy.call(proxy.predict(9));
    assert_eq!(echo_items(hand, 1).await, [[9]]);
    assert_answer(&caller.answer().await, 200, &predictions(&[9]));
}
