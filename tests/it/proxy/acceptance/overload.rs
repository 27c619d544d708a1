//! Overload by more calls than the server and the queue can take.

use http::Request;
use serde_json::json;

use super::super::http2_endpoints::{Body, H2Client, full};
use super::super::scripted_server::echo;
use super::super::scripted_setup::start_with_scripted_server;
use super::super::setup::{
    PREDICT, TestProxy, adaptive_spec, assert_answer, assert_failure, assert_served, count, instances, predictions,
    within_timeout,
};
use super::super::support::client::{Client, Outgoing};

/// Number of streams of one HTTP/2 connection. The policy's default limit is 128.
const STREAMS: usize = 100;

fn post(proxy: &TestProxy, item: u64) -> Request<Body> {
    Request::post(format!("http://{}{PREDICT}", proxy.address))
        .header("content-type", "application/json")
        .body(full(instances(&[item])))
        .unwrap()
}

/// The server hangs. 500 of 2000 calls wait, the others are rejected at once, no buffer grows, and
/// every waiting call is served once the server recovers.
#[tokio::test]
async fn a_stuck_server_with_2000_callers_causes_1500_quick_refusals_and_recovers() {
    let spec = json!({"limits": {"queueItemsMax": 500, "slotsMax": 1}, "routes": [{"path": PREDICT, "timeout": "1m"}]});
    let (proxy, mut hand) = start_with_scripted_server(adaptive_spec(&spec)).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut clients = Vec::new();
    for _ in 0..2000 / STREAMS {
        clients.push(H2Client::connect(proxy.address).await);
    }
    let waiting: Vec<_> = (0..500).map(|item| client_of(&clients, item).fetch(post(&proxy, item))).collect();
    proxy.wait_queued(500).await;
    let held = proxy.running.metrics.render();
    let held = gauge(&held, "groupage_buffered_bytes");
    let refused: Vec<_> = (500..2000).map(|item| client_of(&clients, item).fetch(post(&proxy, item))).collect();
    for refused in refused {
        let (head, _) = within_timeout(refused).await.unwrap();
        assert_eq!(head.status, 503);
        assert_eq!(head.headers["x-groupage-reason"], "queue_full");
        let after: u64 = head.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(after >= 1);
    }
    assert_eq!(count(&proxy.stats().queue_items), 500);
    assert_eq!(
        gauge(&proxy.running.metrics.render(), "groupage_buffered_bytes"),
        held,
        "no state of refused calls is kept"
    );
    let _auto = hand.into_auto_responder(echo);
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    for (item, caller) in (0..).zip(waiting) {
        let (head, whole) = within_timeout(caller).await.unwrap();
        assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, predictions(&[item]).as_bytes()));
    }
    proxy.wait_idle().await;
    assert_answer(&proxy.fetch(&proxy.predict(7)).await, 200, &predictions(&[7]));
}

fn client_of(clients: &[H2Client], item: u64) -> &H2Client {
    clients.iter().cycle().nth(usize::try_from(item).unwrap()).unwrap()
}

fn gauge(text: &str, name: &str) -> String {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap().to_owned()
}

/// Calls, disconnects and admin requests flood a full queue. Nothing panics, and the queued calls
/// are served.
#[tokio::test]
async fn a_flood_of_commands_on_a_full_queue_ends_nothing() {
    let (proxy, mut hand) =
        start_with_scripted_server(adaptive_spec(&json!({"limits": {"queueItemsMax": 4, "slotsMax": 1}}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue((1..=4).map(|item| proxy.predict(item))).await;
    let admin = proxy.running.admin.local.unwrap();
    let questions = tokio::spawn(async move {
        for path in ["/api/scheduler", "/api/stats", "/metrics"].iter().cycle().take(300) {
            let mut client = within_timeout(Client::connect(admin)).await.unwrap();
            let own = vec![("host".to_owned(), admin.to_string().into_bytes())];
            let request = Outgoing::new("GET", path, admin, &own, None);
            assert_eq!(within_timeout(client.fetch(&request)).await.status, Some(200));
        }
    });
    for round in 0..40 {
        let flood: Vec<_> = (0..20).map(|item| proxy.call(proxy.predict(100 + item))).collect();
        for caller in flood {
            if round % 2 == 0 {
                // The call may be in any state by now.
                caller.0.abort();
            } else {
                assert_failure(&caller.answer().await, 503, "GRP3101", "queue_full");
            }
        }
    }
    callers.remove(1).disconnect().await;
    within_timeout(questions).await.unwrap();
    let _auto = hand.into_auto_responder(echo);
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    assert_served(callers).await;
    proxy.wait_idle().await;
    assert_answer(&proxy.fetch(&proxy.predict(7)).await, 200, &predictions(&[7]));
}
