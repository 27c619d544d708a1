//! Recognised calls: they are dispatched together, and each caller gets the response that it would
//! have had alone.

use std::time::Duration;

use groupage::testkit::server::{Server, ServerConfig};
use http::Request;
use serde_json::{Value, json};

use super::http2_endpoints::{H2Client, full};
use super::pass::by_name;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TestProxy, adaptive_spec, assert_answer, assert_predictions, assert_served, count, header, instances,
    predictions, within_timeout,
};
use super::support::client::Outgoing;
use super::support::wire::{Headers, values};

const EMBEDDINGS: &str = "/v1/embeddings";

pub(super) fn predicts(proxy: &TestProxy, items: std::ops::RangeInclusive<u64>) -> Vec<Outgoing> {
    items.map(|item| proxy.predict(item)).collect()
}

/// Returns a policy with one declared route `/g`, and `:predict` beside it.
fn generic(route: &Value, declared: &Value) -> Value {
    let mut generic = json!({"items": "/texts", "results": "/vectors"});
    generic.as_object_mut().unwrap().extend(declared.as_object().unwrap().clone());
    let mut own = json!({"path": "/g", "protocol": "Generic", "generic": generic});
    own.as_object_mut().unwrap().extend(route.as_object().unwrap().clone());
    json!({"routes": [own, {"path": PREDICT}]})
}

fn texts(proxy: &TestProxy, items: &[&str]) -> Outgoing {
    proxy.post("/g", &[], &json!({"texts": items}).to_string())
}

#[tokio::test]
async fn calls_that_come_while_the_slot_is_busy_leave_as_one_and_each_gets_its_own_answer() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let unbatched = proxy.call(proxy.predict(7));
    hand.next_request().await.echo().await;
    let unbatched = unbatched.answer().await;
    assert_answer(&unbatched, 200, &predictions(&[7]));
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=9)).await;
    assert_eq!(turn.instances(), (1..=9).collect::<Vec<_>>());
    assert_eq!((turn.request.method.as_str(), turn.request.target.as_str()), ("POST", PREDICT));
    turn.echo().await;
    for (item, caller) in (1..).zip(callers) {
        let answer = caller.answer().await;
        assert_answer(&answer, 200, &predictions(&[item]));
        assert_eq!(
            by_name(&answer.headers),
            by_name(&unbatched.headers),
            "it cannot be distinguished from the response to an unbatched call"
        );
    }
    proxy.wait_idle().await;
    assert_eq!(count(&proxy.stats().shared_batches), 1);
    assert_eq!(proxy.metric("groupage_upstream_calls_saved_total"), 8);
    assert_eq!(proxy.metric(r#"groupage_dispatches_total{cause="idle"}"#), 3);
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 11);
    let series = r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="served"}"#;
    assert_eq!(proxy.metric(series), 11);
}

#[tokio::test]
async fn items_of_one_call_stay_together_and_in_order() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let calls = [&[1, 2, 3][..], &[4], &[5, 6]];
    let requests = calls.iter().map(|items| proxy.post(PREDICT, &[], &instances(items))).collect();
    let (callers, turn) = proxy.form_batch(&mut hand, requests).await;
    assert_eq!(turn.instances(), [1, 2, 3, 4, 5, 6]);
    turn.echo().await;
    for (items, caller) in calls.iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(items));
    }
}

#[tokio::test]
async fn only_calls_that_are_equal_in_every_respect_share_a_batch() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let other = |own: &[(&str, &str)], query: &str, body: &str| proxy.post(&format!("{PREDICT}{query}"), own, body);
    let a = [("authorization", "Bearer a")];
    let requests = vec![
        other(&a, "", r#"{"instances": [1]}"#),
        other(&[("authorization", "Bearer b")], "", r#"{"instances": [2]}"#),
        other(&a, "?v=1", r#"{"instances": [3]}"#),
        other(&[("authorization", "Bearer a"), ("x-unknown", "1")], "", r#"{"instances": [4]}"#),
        other(&a, "", r#"{"instances": [5], "parameters": {"t": 1}}"#),
        // The same in every respect, but written differently.
        other(
            &[("user-agent", "u"), ("x-request-id", "r"), ("authorization", "Bearer a")],
            "",
            r#"{ "instances":[6]}"#,
        ),
        other(&a, "", r#"{"parameters": {"t":1}, "instances": [7]}"#),
    ];
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue(requests).await;
    turn.echo().await;
    first.answer().await;
    let mut received = Vec::new();
    for _ in 0..5 {
        let turn = hand.next_request().await;
        received.push((turn.instances(), header(&turn.request.headers, "authorization"), turn.request.target.clone()));
        turn.echo().await;
    }
    let expected = |items: &[u64], token: &str, query: &str| {
        (items.to_vec(), format!("Bearer {token}"), format!("{PREDICT}{query}"))
    };
    let all = [
        expected(&[1, 6], "a", ""),
        expected(&[2], "b", ""),
        expected(&[3], "a", "?v=1"),
        expected(&[4], "a", ""),
        expected(&[5, 7], "a", ""),
    ];
    assert_eq!(received, all);
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn the_shared_call_has_its_own_id_and_each_answer_that_of_its_caller() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let named = |id| proxy.post(PREDICT, &[("x-request-id", id)], &instances(&[1]));
    // Two callers with the same id are still two callers.
    let (callers, turn) = proxy.form_batch(&mut hand, vec![named("mine"), named("mine"), named("other")]).await;
    let id = header(&turn.request.headers, "x-request-id");
    assert!(!["mine", "other"].contains(&id.as_str()));
    let body = predictions(&[1, 1, 1]);
    let length = body.len();
    let head =
        format!("content-type: application/json\r\nx-request-id: {id}\r\nset-cookie: s\r\ncontent-length: {length}");
    turn.send_raw(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes()).await;
    for (id, caller) in ["mine", "mine", "other"].into_iter().zip(callers) {
        let answer = caller.answer().await;
        assert_answer(&answer, 200, &predictions(&[1]));
        assert_eq!(header(&answer.headers, "x-request-id"), id);
        assert!(values(&answer.headers, "set-cookie").is_empty());
    }
}

#[tokio::test]
async fn clients_of_both_http_versions_share_one_call() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let one = proxy.queue([proxy.predict(1)]).await;
    let request = Request::post(format!("http://{}{PREDICT}", proxy.address))
        .header("content-type", "application/json")
        .body(full(instances(&[2])))
        .unwrap();
    let two = client.fetch(request);
    proxy.wait_queued(2).await;
    turn.echo().await;
    first.answer().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    for caller in one {
        assert_answer(&caller.answer().await, 200, &predictions(&[1]));
    }
    let (head, whole) = within_timeout(two).await.unwrap();
    assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[2]).as_bytes()));
}

#[tokio::test]
async fn two_slots_are_two_calls_at_once_and_no_more() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"scheduling": {"slots": 2}})).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let (second, other) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue(predicts(&proxy, 1..=3)).await;
    assert_eq!((hand.pending_requests(), count(&proxy.stats().in_flight)), (0, 2));
    other.echo().await;
    let turn_of_three = hand.next_request().await;
    assert_eq!(turn_of_three.instances(), [1, 2, 3]);
    turn_of_three.echo().await;
    turn.echo().await;
    assert_served(callers.into_iter().chain([first, second])).await;
}

#[tokio::test]
async fn a_batch_ends_at_its_item_limit_and_the_next_one_has_the_rest() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"batchItemsMax": 4}})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=6)).await;
    assert_eq!(turn.instances(), [1, 2, 3, 4]);
    turn.echo().await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [5, 6]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
    assert_eq!(proxy.metric(r#"groupage_dispatches_total{cause="full"}"#), 1);
}

#[tokio::test]
async fn static_batches_leave_when_they_are_full_and_not_before() {
    let spec =
        json!({"scheduling": {"policy": "Static", "items": 3, "delay": "1m"}, "limits": {"queueDelayMax": "1m"}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let mut callers = proxy.queue(predicts(&proxy, 1..=2)).await;
    assert_eq!((hand.pending_requests(), count(&proxy.stats().queue_items)), (0, 2));
    callers.extend(proxy.queue([proxy.predict(3)]).await);
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2, 3]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_window_closes_after_its_delay_although_it_is_not_full() {
    let spec =
        json!({"scheduling": {"policy": "Window", "items": 100, "delay": "30ms"}, "limits": {"queueDelayMax": "1m"}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let callers = proxy.queue(predicts(&proxy, 1..=2)).await;
    let turn = hand.next_request().await;
    assert_eq!(turn.instances(), [1, 2]);
    turn.echo().await;
    assert_predictions(1.., callers).await;
    assert_eq!(proxy.metric(r#"groupage_dispatches_total{cause="delay"}"#), 1);
}

async fn overload(status: u16, head: &str, kept: &[(&str, &str)]) {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=8)).await;
    let body = "{\"error\":\"the upstream's own\"}";
    let text = format!(
        "HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n{head}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    turn.send_raw(text.as_bytes()).await;
    for caller in callers {
        let answer = caller.answer().await;
        assert_answer(&answer, status, "{\"error\":\"upstream overloaded\"}");
        for (name, value) in kept {
            assert_eq!(header(&answer.headers, name), *value);
        }
        assert_eq!(header(&answer.headers, "x-groupage-error"), "GRP3308");
    }
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0, "nothing was sent again");
    let shown = super::explain::scheduler(&proxy).await;
    let pauses = &shown["pauses"][0];
    let recorded = (&pauses["count"], &pauses["requested_us"], &pauses["held_us"]);
    assert_eq!(recorded, (&json!(1), &json!(7_000_000), &json!(100_000)));
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=8)).await;
    assert_eq!(turn.instances().len(), 4);
    turn.echo().await;
    hand.next_request().await.echo().await;
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn an_overload_is_answered_to_every_member_and_the_next_batch_is_smaller() {
    let hints = [("retry-after", "7"), ("x-ratelimit-remaining", "0")];
    overload(429, "retry-after: 7\r\nx-ratelimit-remaining: 0\r\n", &hints).await;
    overload(503, "retry-after: 7\r\n", &hints[..1]).await;
}

#[tokio::test]
async fn a_limit_that_the_server_names_is_kept_from_then_on() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=8)).await;
    assert_eq!(turn.instances().len(), 8);
    let response = "{\"message\":\"batch size 8 > maximum allowed batch size 3\",\"code\":422,\"type\":\"Validation\"}";
    turn.answer(422, response).await;
    for part in [&[1, 2, 3][..], &[4, 5, 6], &[7, 8]] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), part);
        turn.echo().await;
    }
    assert_predictions(1.., callers).await;
    proxy.wait_idle().await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, 1..=4)).await;
    assert_eq!(turn.instances(), [1, 2, 3]);
    turn.echo().await;
    hand.next_request().await.echo().await;
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_limit_that_the_server_publishes_is_never_passed() {
    let mut server = ServerConfig { items_max: Some(3), publish: true, ..ServerConfig::default() };
    server.base = Duration::from_millis(20);
    let server = Server::start(server).await.unwrap();
    let proxy = TestProxy::start_in_front_of(&server.url(), json!({}));
    let one = |n: u32| proxy.post("/embed", &[], &json!({"inputs": format!("text {n}")}).to_string());
    let callers: Vec<_> = (0..12).map(|n| proxy.call(one(n))).collect();
    assert_served(callers).await;
    let stats = server.stats();
    assert_eq!((stats.items, stats.too_large), (12, 0));
    assert!(stats.calls < 12, "{stats:?}");
}

#[tokio::test]
async fn an_item_that_the_server_marks_as_failed_fails_only_its_caller() {
    let declared = json!({"perItemError": {"field": "/error", "status": 422}});
    let (proxy, mut hand) = start_with_scripted_server(generic(&json!({}), &declared)).await;
    let (callers, turn) = proxy.form_batch(&mut hand, vec![texts(&proxy, &["a"]), texts(&proxy, &["b"])]).await;
    turn.answer(200, r#"{"vectors":[[1], {"error": "too long"}]}"#).await;
    let [a, b] = <[_; 2]>::try_from(callers).unwrap();
    assert_answer(&a.answer().await, 200, r#"{"vectors":[[1]]}"#);
    assert_answer(&b.answer().await, 422, r#"{"error": "too long"}"#);
}

#[tokio::test]
async fn a_batch_is_sent_to_the_declared_path_and_an_unbatched_call_to_its_own() {
    let (proxy, mut hand) = start_with_scripted_server(generic(&json!({}), &json!({"upstreamPath": "/g_batch"}))).await;
    let unbatched = proxy.call(texts(&proxy, &["a"]));
    let turn = hand.next_request().await;
    assert_eq!(turn.request.target, "/g");
    turn.answer(200, r#"{"vectors":[1]}"#).await;
    assert_answer(&unbatched.answer().await, 200, r#"{"vectors":[1]}"#);
    let (callers, turn) = proxy.form_batch(&mut hand, vec![texts(&proxy, &["a"]), texts(&proxy, &["b"])]).await;
    assert_eq!(turn.request.target, "/g_batch");
    turn.answer(200, r#"{"vectors":[1,2]}"#).await;
    for (body, caller) in [r#"{"vectors":[1]}"#, r#"{"vectors":[2]}"#].into_iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, body);
    }
}

#[tokio::test]
async fn embeddings_are_renumbered_and_their_usage_is_shared_out() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let one = |text: &str| proxy.post(EMBEDDINGS, &[], &json!({"model": "m", "input": text}).to_string());
    let (callers, turn) = proxy.form_batch(&mut hand, vec![one("aaaa"), one("b"), one("cccc")]).await;
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    assert_eq!(body, json!({"model": "m", "input": ["aaaa", "b", "cccc"]}));
    // Out of order, as some servers answer.
    let response = r#"{"object":"list","data":[{"index":2,"embedding":[0.30]},{"index":0,"embedding":[1e-5]},{"index":1,"embedding":[-0]}],"model":"m","usage":{"prompt_tokens":9,"total_tokens":9}}"#;
    turn.answer(200, response).await;
    let mut total = 0;
    for (value, caller) in ["1e-5", "-0", "0.30"].into_iter().zip(callers) {
        let answer = caller.answer().await;
        let text = String::from_utf8(answer.body.clone()).unwrap();
        assert!(
            text.starts_with(&format!(r#"{{"object":"list","data":[{{"index":0,"embedding":[{value}]}}],"model":"m""#)),
            "{text}"
        );
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        total += body["usage"]["total_tokens"].as_u64().unwrap();
        assert_eq!(header(&answer.headers, "x-groupage-usage"), "estimated");
    }
    assert_eq!(total, 9);
}

fn names(headers: &Headers) -> Vec<&str> {
    headers.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn a_shared_call_has_only_the_headers_common_to_all_members() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = |id: &str| {
        let own = [
            ("authorization", "Bearer a"),
            ("x-model-version", "3"),
            ("x-request-id", id),
            ("x-forwarded-for", id),
            ("user-agent", id),
            ("x-groupage-debug", "1"),
            ("accept-encoding", "gzip"),
        ];
        proxy.post(PREDICT, &own, &instances(&[1]))
    };
    let (callers, turn) = proxy.form_batch(&mut hand, vec![own("a"), own("b")]).await;
    let mut header_names = names(&turn.request.headers);
    header_names.sort_unstable();
    assert_eq!(
        header_names,
        ["authorization", "content-length", "content-type", "host", "x-model-version", "x-request-id"]
    );
    turn.echo().await;
    assert_served(callers).await;
}

#[tokio::test]
async fn weights_of_any_size_share_a_batch_without_harm() {
    let weighed = json!({"weight": "/w"});
    for spec in [generic(&json!({}), &weighed), adaptive_spec(&generic(&json!({}), &weighed))] {
        let (proxy, mut hand) = start_with_scripted_server(spec).await;
        let heavy = format!(r#"{{"texts":[{{"w":{}}},{{"w":{0}}}]}}"#, u64::MAX);
        let requests = [proxy.post("/g", &[], &heavy), proxy.post("/g", &[], &heavy)];
        let (first, turn) = proxy.occupy_slot(&mut hand).await;
        let callers = proxy.queue(requests).await;
        turn.echo().await;
        assert_eq!(first.answer().await.status, Some(200));
        let mut left = 4;
        while left > 0 {
            let turn = hand.next_request().await;
            let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
            let items = body["texts"].as_array().unwrap().len();
            left -= items;
            turn.answer(200, &json!({"vectors": vec![1; items]}).to_string()).await;
        }
        for caller in callers {
            assert_answer(&caller.answer().await, 200, r#"{"vectors":[1,1]}"#);
        }
        proxy.wait_idle().await;
        let again = proxy.call(proxy.predict(1));
        hand.next_request().await.echo().await;
        assert_eq!(again.answer().await.status, Some(200), "the scheduler continues");
    }
}
