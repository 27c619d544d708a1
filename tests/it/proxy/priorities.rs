//! Priority classes and tenant weights, from the request header to the service order.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_answer, assert_failure, assert_predictions, instances, predictions};
use super::support::client::Outgoing;
use super::support::wire::values;

/// Returns settings with one slot, batches of this many items, and additional keys.
fn adaptive(items: u32, more: Value) -> Value {
    let mut spec = json!({
        "scheduling": {"policy": "Adaptive"},
        "limits": {"slotsMax": 1, "batchItemsMax": items},
        "priority": {"header": "x-priority"},
    });
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    spec
}

fn of(proxy: &TestProxy, class: &str, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[("x-priority", class)], &instances(&[item]))
}

#[tokio::test]
async fn an_interactive_call_joins_the_first_batch_and_the_rest_of_bulk_waits() {
    let (proxy, mut hand) = start_with_scripted_server(adaptive(2, json!({}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([of(&proxy, "bulk", 1), of(&proxy, "bulk", 2), of(&proxy, "interactive", 3)]).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let shared = hand.next_request().await;
    assert_eq!(shared.instances(), [1, 3], "one batch for both classes");
    assert!(values(&shared.request.headers, "x-priority").is_empty(), "a shared call is of no class");
    shared.echo().await;
    let left = hand.next_request().await;
    assert_eq!(left.instances(), [2]);
    assert_eq!(values(&left.request.headers, "x-priority"), [b"bulk"], "an unbatched call is forwarded unchanged");
    left.echo().await;
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_strict_class_is_served_before_all_others() {
    let classes = json!([{"name": "bulk"}, {"name": "urgent", "strict": true}]);
    let spec = adaptive(1, json!({"priority": {"header": "x-priority", "classes": classes}}));
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue([of(&proxy, "no such class", 1), of(&proxy, "bulk", 2)]).await;
    callers.extend(proxy.queue([of(&proxy, "urgent", 3), of(&proxy, "urgent", 4)]).await);
    turn.echo().await;
    first.answer().await;
    for item in [3, 4, 1, 2] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), [item]);
        turn.echo().await;
    }
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn the_target_of_its_class_is_a_calls_slo() {
    let classes = json!([{"name": "patient", "latencyP99": "1h"}, {"name": "hasty", "latencyP99": "20ms"}]);
    let more = json!({"slo": {"latencyP99": "50ms", "late": "Refuse"}, "priority": {"header": "x-priority", "classes": classes}});
    let (proxy, mut hand) = start_with_scripted_server(adaptive(8, more)).await;
    // The call belongs to the first class, like every call that names none.
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let patient = proxy.queue([of(&proxy, "patient", 1)]).await;
    let hasty = proxy.queue([of(&proxy, "hasty", 2)]).await;
    for caller in hasty {
        assert_failure(&caller.answer().await, 504, "GRP3201", "deadline");
    }
    // The policy's own target has passed too.
    proxy.wait_queued(1).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    hand.next_request().await.echo().await;
    for caller in patient {
        assert_answer(&caller.answer().await, 200, &predictions(&[1]));
    }
    proxy.wait_idle().await;
    let counted = |result: &str| proxy.metric(&format!("groupage_slo_calls_total{{result=\"{result}\"}}"));
    assert_eq!((counted("met"), counted("missed")), (2, 1), "each by the target of its class");
    let shown = super::explain::scheduler(&proxy).await;
    let calls = |class: usize, outcome: &str| shown["priorities"][class]["calls"][outcome].as_u64().unwrap();
    assert_eq!((&shown["priorities"][1]["class"], calls(1, "expired")), (&json!("hasty"), 1));
    assert_eq!((calls(0, "served"), calls(0, "expired"), calls(1, "served")), (2, 0, 0));
}

#[tokio::test]
async fn tenants_share_by_weight() {
    let tenants = json!({"header": "x-team", "weights": {"a": 1000}});
    let (proxy, mut hand) = start_with_scripted_server(adaptive(1, json!({"tenants": tenants}))).await;
    let team = |team: &str, item| proxy.post(PREDICT, &[("x-team", team)], &instances(&[item]));
    // The proxy learns the time of a call. Among its first samples, a stall of the machine is not
    // recognised as one.
    for _ in 0..8 {
        let (call, turn) = proxy.occupy_slot(&mut hand).await;
        turn.echo().await;
        call.answer().await;
    }
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue((1..=9).map(|item| team("a", item))).await;
    callers.extend(proxy.queue((10..=12).map(|item| team("b", item))).await);
    turn.echo().await;
    first.answer().await;
    let mut order = Vec::new();
    for _ in 0..12 {
        let turn = hand.next_request().await;
        order.extend(turn.instances());
        turn.echo().await;
    }
    // After one call of tenant b, 1000 calls of tenant a are due. The measured times of calls vary,
    // but not that much.
    assert_eq!(order, [1, 10, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12]);
    assert_predictions(1.., callers).await;
}

#[tokio::test]
async fn a_flood_from_one_address_does_not_delay_another() {
    /// Enough queued items for the second address to count as light.
    const FLOOD: u64 = 128;
    const OTHER: u64 = FLOOD + 1;
    let (proxy, mut hand) = start_with_scripted_server(adaptive(1, json!({}))).await;
    let anonymous = |item| proxy.post(PREDICT, &[], &instances(&[item]));
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=FLOOD).map(anonymous)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
    let mut other = socket.connect(proxy.address).await.unwrap();
    let body = instances(&[OTHER]);
    let head = "host: h\r\ncontent-type: application/json\r\nconnection: close";
    let call = format!("POST {PREDICT} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    other.write_all(call.as_bytes()).await.unwrap();
    proxy.wait_queued(OTHER).await;
    turn.echo().await;
    first.answer().await;
    let mut order = Vec::new();
    for _ in 0..OTHER {
        let turn = hand.next_request().await;
        order.extend(turn.instances());
        turn.echo().await;
    }
    let place = order.iter().position(|item| *item == OTHER).unwrap();
    // The two tenants take turns; which is first depends on the clocks.
    assert!(place < 3, "the call that came last is from another address: {order:?}");
    let mut answer = String::new();
    other.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with(&predictions(&[OTHER])), "{answer}");
    assert_predictions(1.., callers).await;
}
