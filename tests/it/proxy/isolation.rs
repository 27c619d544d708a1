//! One bad call affects no other: replays, bisection, their budget, and quarantine.

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::scripted_server::{AutoResponder, PendingRequest, reply};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, PendingCall, TestProxy, assert_answer, assert_failure, assert_predictions, count, instances, predictions,
};
use super::support::client::Outgoing;
use super::support::upstream::Request;

const BAD: u64 = 666;

fn predicts(proxy: &TestProxy, items: &[u64]) -> Vec<Outgoing> {
    items.iter().map(|item| proxy.predict(*item)).collect()
}

/// Returns the response of a server that fails every call with the bad item. The error contains the
/// items of the call.
fn poisoned_response(request: &Request) -> Vec<u8> {
    let items = super::scripted_server::instances(request);
    if items.contains(&BAD) {
        return reply(500, &format!("{{\"error\":\"cannot: {items:?}\"}}"));
    }
    super::scripted_server::echo(request)
}

fn sizes(auto: &mut AutoResponder) -> Vec<usize> {
    auto.seen().iter().map(|request| super::scripted_server::instances(request).len()).collect()
}

async fn ok(callers: Vec<PendingCall>, items: &[u64]) {
    assert_predictions(items.iter().copied(), callers).await;
}

#[tokio::test]
async fn a_poison_item_at_any_position_fails_its_own_caller_only() {
    for bad in 0..8 {
        let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
        let items: Vec<u64> = (0..8).map(|n| if n == bad { BAD } else { n }).collect();
        let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &items)).await;
        let text = poisoned_response(&turn.request);
        turn.send_raw(&text).await;
        let mut auto = hand.into_auto_responder(poisoned_response);
        for (item, caller) in items.iter().zip(callers) {
            let answer = caller.answer().await;
            if *item == BAD {
                assert_answer(&answer, 500, "{\"error\":\"cannot: [666]\"}");
            } else {
                assert_answer(&answer, 200, &predictions(&[*item]));
            }
        }
        proxy.wait_idle().await;
        let sizes = sizes(&mut auto);
        assert!(sizes.len() <= 2 * 3, "at most 1 + 2·log2 N calls with the batch itself: {sizes:?}");
        assert_eq!(proxy.metric("groupage_isolation_executions_total"), sizes.len() as u64);
        assert_eq!(proxy.metric("groupage_items_isolated_total"), 8);
    }
}

#[tokio::test]
async fn up_to_four_members_are_sent_again_one_by_one_on_the_batchs_own_slot() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let items = [1, BAD, 3, 4];
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &items)).await;
    turn.answer(400, "{\"error\":\"a neighbour's secret\"}").await;
    for item in items {
        let turn = hand.next_request().await;
        // Nothing else is upstream meanwhile, and the original bytes are sent.
        assert_eq!((hand.pending_requests(), count(&proxy.stats().in_flight)), (0, 1));
        assert_eq!(turn.request.body, instances(&[item]).as_bytes());
        if item == BAD { turn.answer(422, "{\"error\":\"mine\"}").await } else { turn.echo().await }
    }
    for (item, caller) in items.into_iter().zip(callers) {
        let answer = caller.answer().await;
        if item == BAD {
            assert_answer(&answer, 422, "{\"error\":\"mine\"}");
        } else {
            assert_answer(&answer, 200, &predictions(&[item]));
        }
    }
}

#[tokio::test]
async fn all_failing_members_get_their_own_error() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2])).await;
    turn.answer(500, "{\"error\":\"both\"}").await;
    for item in [1, 2] {
        hand.next_request().await.answer(500, &format!("{{\"error\":\"own {item}\"}}")).await;
    }
    for (item, caller) in (1..).zip(callers) {
        assert_answer(&caller.answer().await, 500, &format!("{{\"error\":\"own {item}\"}}"));
    }
}

/// A response to one member that arrives slowly delays no other, and is the response of its client.
#[tokio::test]
async fn a_member_with_a_slow_response_delays_no_other_member() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2, 3])).await;
    turn.answer(500, "{\"error\":\"all\"}").await;
    let mut slow = hand.next_request().await;
    let body = predictions(&[1]);
    let (first, rest) = body.split_at(1);
    slow.send_part(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{first}", body.len()).as_bytes()).await;
    for _ in 0..2 {
        hand.next_request().await.echo().await;
    }
    let mut callers = callers.into_iter();
    let delayed = callers.next().unwrap();
    ok(callers.collect(), &[2, 3]).await;
    assert_eq!(count(&proxy.stats().in_flight), 1, "the server still computes a response");
    slow.send_part(rest.as_bytes()).await;
    slow.finish_response();
    assert_answer(&delayed.answer().await, 200, &body);
    proxy.wait_idle().await;
}

/// A slow response that ends while a smaller batch is sent is delivered at once.
#[tokio::test]
async fn a_slow_response_does_not_wait_for_the_next_smaller_batch() {
    let spec = json!({"failure": {"isolateAbove": 1}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2, 3, 4])).await;
    turn.answer(500, "{\"error\":\"all\"}").await;
    hand.next_request().await.answer(500, "{\"error\":\"the first half\"}").await;
    let mut slow = hand.next_request().await;
    let body = predictions(&[1]);
    slow.send_part(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes()).await;
    hand.next_request().await.echo().await;
    let half = hand.next_request().await;
    assert_eq!(half.instances(), [3, 4]);
    slow.send_part(body.as_bytes()).await;
    slow.finish_response();
    let mut callers = callers.into_iter();
    ok(callers.by_ref().take(2).collect(), &[1, 2]).await;
    half.echo().await;
    ok(callers.collect(), &[3, 4]).await;
}

#[tokio::test]
async fn empty_budget_still_allows_one_replay_each() {
    /// With more than 33 members, a bisection empties the budget: it allows one replay for each
    /// member, less the first send of the batch, and the reserve of 30.
    const MEMBERS: usize = 64;
    const BUDGET: usize = MEMBERS - 1 + 30;
    let spec = json!({"failure": {"isolateAbove": 1, "replayBudget": "0%"}, "limits": {"batchItemsMax": MEMBERS}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[BAD; MEMBERS])).await;
    assert_eq!(turn.instances().len(), MEMBERS);
    let text = poisoned_response(&turn.request);
    turn.send_raw(&text).await;
    let mut auto = hand.into_auto_responder(poisoned_response);
    for caller in callers {
        assert_answer(&caller.answer().await, 500, "{\"error\":\"cannot: [666]\"}");
    }
    let sizes = sizes(&mut auto);
    assert_eq!(sizes.iter().filter(|size| **size == 1).count(), MEMBERS, "{sizes:?}");
    // A complete bisection makes two calls fewer for parts of several members than it has members.
    let parts: Vec<usize> = (0..sizes.len()).filter(|at| sizes[*at] > 1).collect();
    assert!((1..MEMBERS - 2).contains(&parts.len()), "some parts were refused: {sizes:?}");
    assert!(parts.iter().all(|at| *at < BUDGET), "a part was sent with an empty budget: {sizes:?}");
}

/// Returns a policy with one declared route `/g`, and `:predict` beside it.
fn generic(idempotent: &str, on_mismatch: &str) -> Value {
    let declared = json!({"items": "/texts", "results": "/vectors", "onMismatch": on_mismatch});
    json!({"routes": [{"path": "/g", "protocol": "Generic", "idempotent": idempotent, "generic": declared}, {"path": PREDICT}]})
}

fn texts(proxy: &TestProxy) -> Vec<Outgoing> {
    ["a", "b"].iter().map(|text| proxy.post("/g", &[], &json!({"texts": [text]}).to_string())).collect()
}

/// The response breaks off after the batch was sent, on a route that is not declared idempotent.
#[tokio::test]
async fn a_declared_route_is_not_replayed_unless_it_is_configured_as_idempotent() {
    type Answer = fn(PendingRequest) -> BoxFuture<'static, ()>;
    let broken: [(Answer, &str, &str); 3] = [
        (|turn| Box::pin(async { turn.answer(500, "{}").await }), "GRP3305", "batch_failed"),
        (|turn| Box::pin(async { drop(turn) }), "GRP3302", "upstream_broken"),
        (|turn| Box::pin(async { turn.answer(200, r#"{"vectors":[1]}"#).await }), "GRP3304", "mismatch"),
    ];
    for idempotent in ["Auto", "Never"] {
        for (answer, code, reason) in broken {
            // A single batch that is not replayed ends merging, so each case has its own proxy.
            let (proxy, mut hand) = start_with_scripted_server(generic(idempotent, "Isolate")).await;
            let (callers, turn) = proxy.form_batch(&mut hand, texts(&proxy)).await;
            answer(turn).await;
            for caller in callers {
                assert_failure(&caller.answer().await, 502, code, reason);
            }
            proxy.wait_idle().await;
            assert_eq!(hand.pending_requests(), 0);
        }
    }
    let (proxy, mut hand) = start_with_scripted_server(generic("Always", "Isolate")).await;
    let (callers, turn) = proxy.form_batch(&mut hand, texts(&proxy)).await;
    turn.answer(500, "{}").await;
    for text in ["a", "b"] {
        let turn = hand.next_request().await;
        assert_eq!(turn.request.body, json!({"texts": [text]}).to_string().as_bytes());
        turn.answer(200, &json!({"vectors": [text]}).to_string()).await;
    }
    for (text, caller) in ["a", "b"].into_iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, &json!({"vectors": [text]}).to_string());
    }
}

#[tokio::test]
async fn a_route_may_fail_a_mismatch_instead_of_isolating_it() {
    let (proxy, mut hand) = start_with_scripted_server(generic("Always", "Fail")).await;
    let (callers, turn) = proxy.form_batch(&mut hand, texts(&proxy)).await;
    turn.answer(200, r#"{"vectors":[1,2,3]}"#).await;
    for caller in callers {
        assert_failure(&caller.answer().await, 502, "GRP3304", "mismatch");
    }
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0);
}

/// Checks that a broken response to a batch is not delivered to any member, and that its members
/// are sent again alone.
async fn check_replayed(broken: impl AsyncFn(PendingRequest)) -> TestProxy {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    proxy.grow_batch_size(&mut hand, 3).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2, 3])).await;
    broken(turn).await;
    for item in [1, 2, 3] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), [item]);
        turn.echo().await;
    }
    ok(callers, &[1, 2, 3]).await;
    proxy.wait_idle().await;
    proxy
}

#[tokio::test]
async fn wrong_result_count_is_never_delivered() {
    for wrong in ["[]", "[1,2]", "[1,2,3,4]", "{\"1\":1}", "null"] {
        let proxy = check_replayed(async |turn| turn.answer(200, &format!("{{\"predictions\":{wrong}}}")).await).await;
        let kinds =
            ["count", "shape"].map(|kind| proxy.metric(&format!("groupage_mismatches_total{{kind=\"{kind}\"}}")));
        assert_eq!(kinds.iter().sum::<u64>(), 1, "{wrong}");
    }
}

#[tokio::test]
async fn non_json_batch_response_is_never_delivered() {
    for body in
        ["<html>busy</html>", "", "{\"predictions\":[1,2,3]", "{\"predictions\":[1,2,3]} {}", "{\"other\":[1,2,3]}"]
    {
        check_replayed(async |turn| turn.answer(200, body).await).await;
    }
    check_replayed(async |turn| turn.send_raw(b"HTTP/1.1 204 No Content\r\n\r\n").await).await;
    check_replayed(async |turn| {
        turn.send_raw(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n").await;
    })
    .await;
    let squeezed = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 23\r\n\r\n{\"predictions\":[1,2,3]}";
    check_replayed(async |turn| turn.send_raw(squeezed.as_bytes()).await).await;
    check_replayed(async |turn| turn.send_raw(b"not HTTP at all\r\n\r\n").await).await;
}

/// The response breaks off after the batch was sent, on a route that may be replayed.
#[tokio::test]
async fn an_answer_that_is_cut_anywhere_is_never_delivered() {
    let whole = reply(200, &predictions(&[1, 2, 3]));
    for at in (0..whole.len()).step_by(7) {
        check_replayed(async |mut turn| turn.send_part(whole.get(..at).unwrap()).await).await;
    }
    check_replayed(async |turn| turn.reset()).await;
    // The last chunk is missing, although every byte of the JSON has arrived.
    check_replayed(async |mut turn| {
        turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        turn.chunk(predictions(&[1, 2, 3]).as_bytes()).await;
    })
    .await;
}

#[tokio::test]
async fn a_cost_class_whose_answers_cannot_be_split_is_not_merged_for_a_while() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"failure": {"quarantine": "1s"}})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2])).await;
    turn.answer(200, "{\"predictions\":[1]}").await;
    for _ in 0..2 {
        hand.next_request().await.echo().await;
    }
    ok(callers, &[1, 2]).await;
    proxy.wait_idle().await;
    let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[3, 4])).await;
    assert_eq!(turn.instances(), [3]);
    turn.echo().await;
    hand.next_request().await.echo().await;
    ok(callers, &[3, 4]).await;
    assert!(proxy.metric(r#"groupage_calls_passed_total{reason="quarantined"}"#) >= 2);
    // The quarantine ends by itself.
    let merged_again = async {
        loop {
            let (callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[5, 6])).await;
            let shared = turn.instances().len() == 2;
            turn.echo().await;
            if !shared {
                hand.next_request().await.echo().await;
            }
            ok(callers, &[5, 6]).await;
            proxy.wait_idle().await;
            if shared {
                return;
            }
        }
    };
    super::setup::within_timeout(merged_again).await;
}

#[tokio::test]
async fn a_duplicate_or_missing_index_is_a_mismatch() {
    for indexes in [[0, 0], [0, 2], [1, 2]] {
        let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
        let one = |text: &str| proxy.post("/v1/embeddings", &[], &json!({"input": text}).to_string());
        let (callers, turn) = proxy.form_batch(&mut hand, vec![one("a"), one("b")]).await;
        let data: Vec<Value> = indexes.iter().map(|index| json!({"index": index, "embedding": [1]})).collect();
        turn.answer(200, &json!({"object": "list", "data": data}).to_string()).await;
        for text in ["a", "b"] {
            let turn = hand.next_request().await;
            assert_eq!(turn.request.body, json!({"input": text}).to_string().as_bytes());
            turn.answer(200, &json!({"own": text}).to_string()).await;
        }
        for (text, caller) in ["a", "b"].into_iter().zip(callers) {
            assert_answer(&caller.answer().await, 200, &json!({"own": text}).to_string());
        }
        assert_eq!(proxy.metric(r#"groupage_mismatches_total{kind="index"}"#), 1);
    }
}

#[tokio::test]
async fn a_member_that_left_is_not_sent_again() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (mut callers, turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2, 3])).await;
    callers.remove(1).disconnect().await;
    proxy.wait_until(|stats| count(&stats.answered) == 2).await;
    turn.answer(500, "{}").await;
    for item in [1, 3] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), [item]);
        turn.echo().await;
    }
    ok(callers, &[1, 3]).await;
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0);
}

/// Takes ten seconds: a server may continue to compute for that long after its first byte.
#[tokio::test]
async fn a_stalled_shared_answer_is_abandoned_and_its_members_are_sent_unbatched() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let (callers, mut turn) = proxy.form_batch(&mut hand, predicts(&proxy, &[1, 2, 3])).await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4096\r\n\r\n{").await;
    for item in 1..=3 {
        let unbatched = hand.next_request().await;
        assert_eq!(unbatched.instances(), [item]);
        unbatched.echo().await;
    }
    ok(callers, &[1, 2, 3]).await;
    drop(turn);
}
