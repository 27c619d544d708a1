//! Tests of the simulated model server: the duration of calls by its cost curve, slots, queue and
//! internal batching, and its responses.
//!
//! Times are compared with lower bounds, because the machine may delay a call. Upper bounds leave
//! room for several intervals.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{
    CurveShape, Engine, InternalBatching, Server, ServerAddr, ServerConfig, ServerHandle, SimulatedModel,
    TooLargeResponse, chat_text,
};
use crate::http1::HttpConnection;
use crate::item::Route;
use crate::refusal::ListResponse;
use crate::time::{elapsed_since, now};

/// A cost that keeps the tests fast.
const QUICK: Duration = Duration::from_millis(2);
/// A cost for tests with an upper bound: longer than the delays by the scheduler of the machine.
const SLOW: Duration = Duration::from_millis(150);

fn request(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: stand-in\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn start(config: ServerConfig) -> (ServerHandle, HttpConnection) {
    let running = Server::start(config).await.unwrap();
    let conn = running.target().connect().await.unwrap();
    (running, conn)
}

async fn call(conn: &mut HttpConnection, path: &str, body: &str) -> (u16, String) {
    let answer = conn.call(&request(path, body)).await.unwrap();
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_call_takes_at_least_the_base_plus_the_time_of_its_items() {
    let config = ServerConfig { base: QUICK, per_item: QUICK, ..ServerConfig::default() };
    let (_running, mut conn) = start(config).await;
    let start_time = now();
    call(&mut conn, "/embed", r#"{"inputs":["a","b","c"]}"#).await;
    assert!(elapsed_since(start_time) >= QUICK * 4);
}

#[test]
fn curve_shapes_round_up_or_have_a_knee() {
    let of = |shape| SimulatedModel::new(QUICK, QUICK, 1, 1).with_shape(shape);
    assert_eq!(of(CurveShape::NextPow2).cost(5, None), QUICK * 9);
    assert_eq!(of(CurveShape::NextPow2).cost(8, None), QUICK * 9);
    assert_eq!(of(CurveShape::Knee { items: 4, beyond: QUICK * 10 }).cost(6, None), QUICK * 25);
}

#[tokio::test]
async fn internal_batching_merges_queued_calls_and_is_bounded() {
    let inner =
        InternalBatching { front: Duration::ZERO, front_item: Duration::ZERO, items_max: 4, admitted_items_max: 8 };
    let engine = Arc::new(Engine::new(Arc::new(SimulatedModel::new(QUICK * 5, Duration::ZERO, 1, 4)), inner));
    let start_time = now();
    let calls: Vec<_> = [1, 3, 3]
        .into_iter()
        .map(|items| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move { engine.run(items).await.is_ok() })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(engine.run(2).await.is_err(), "the items inside exceed admitted_items_max");
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert!(elapsed_since(start_time) >= QUICK * 10, "seven items take two iterations of at most four");
    assert!(engine.run(8).await.is_ok(), "all items have left");
}

#[tokio::test]
async fn calls_that_wait_for_a_server_that_batches_are_computed_together() {
    let inner =
        InternalBatching { front: Duration::ZERO, front_item: Duration::ZERO, items_max: 3, admitted_items_max: 64 };
    let config = ServerConfig { base: SLOW, per_item: Duration::ZERO, inner: Some(inner), ..ServerConfig::default() };
    let running = Arc::new(Server::start(config).await.unwrap());
    let start_time = now();
    let calls: Vec<_> = (0..7)
        .map(|_| {
            let running = Arc::clone(&running);
            tokio::spawn(async move {
                let mut conn = running.target().connect().await.unwrap();
                call(&mut conn, "/embed", r#"{"inputs":"a"}"#).await.0
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
    // At best, three iterations: one of the first call, and two of three calls. Without batching
    // there would be seven.
    let took = elapsed_since(start_time);
    assert!(took >= SLOW * 3 && took < SLOW * 7, "{took:?}");
    assert_eq!(running.stats().calls, 7);
}

#[tokio::test]
async fn slots_and_curve_can_be_changed_while_the_model_runs() {
    let model = Arc::new(SimulatedModel::new(SLOW, Duration::ZERO, 3, 64));
    let run = |calls: u32| {
        let calls: Vec<_> = (0..calls)
            .map(|_| {
                let model = Arc::clone(&model);
                tokio::spawn(async move { model.run(1).await.is_ok() })
            })
            .collect();
        async move {
            let start_time = now();
            for call in calls {
                assert!(call.await.unwrap());
            }
            elapsed_since(start_time)
        }
    };
    let busy = run(3);
    tokio::task::yield_now().await;
    model.set_slots(1);
    busy.await;
    assert!(run(3).await >= SLOW * 3, "with one slot, one after the other");
    model.set_slots(3);
    assert!(run(6).await < SLOW * 6, "with three slots, concurrently");
    model.set_curve(QUICK, QUICK);
    assert_eq!(model.cost(2, None), QUICK * 3);
}

#[tokio::test]
async fn one_slot_computes_calls_sequentially_and_two_slots_compute_two_concurrently() {
    for (slots, rounds) in [(1, 4), (2, 2)] {
        let model = Arc::new(SimulatedModel::new(QUICK * 5, Duration::ZERO, slots, 4));
        let start_time = now();
        let calls: Vec<_> = (0..4)
            .map(|_| {
                tokio::spawn({
                    let model = Arc::clone(&model);
                    async move { model.run(1).await.is_ok() }
                })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
        assert!(elapsed_since(start_time) >= QUICK * 5 * rounds, "{slots} slots");
    }
}

#[tokio::test]
async fn a_cancelled_call_leaves_the_queue() {
    let model = SimulatedModel::new(Duration::from_secs(60), Duration::ZERO, 1, 1);
    let mut running = std::pin::pin!(model.run(1));
    let mut waiting = Box::pin(model.run(1));
    assert!(tokio::time::timeout(Duration::ZERO, &mut running).await.is_err());
    assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
    assert!(model.run(1).await.is_err(), "the queue is full");
    drop(waiting);
    assert!(tokio::time::timeout(Duration::ZERO, model.run(1)).await.is_err(), "the call waits in the queue");
}

#[tokio::test]
async fn a_call_to_a_full_queue_is_answered_503_with_retry_after() {
    let config = ServerConfig { base: Duration::from_secs(60), queue_max: 0, ..ServerConfig::default() };
    let (running, mut first) = start(config).await;
    first.outbox.send(&request("/embed", r#"{"inputs":"a"}"#)).await.unwrap();
    // The second call is refused only after the first one has taken the slot.
    let mut second = running.target().connect().await.unwrap();
    loop {
        let request = request("/embed", r#"{"inputs":"b"}"#);
        match tokio::time::timeout(Duration::from_millis(50), second.call(&request)).await {
            Ok(answer) => {
                let answer = answer.unwrap();
                assert_eq!((answer.status, answer.header("retry-after")), (503, Some(&b"1"[..])));
                break;
            }
            // This call arrived before the first one and holds the slot. Disconnect to free the
            // slot, and retry.
            Err(_) => second = running.target().connect().await.unwrap(),
        }
    }
    assert_eq!(running.stats().refused, 1);
}

#[tokio::test]
async fn too_many_items_are_refused_with_the_message_of_tei() {
    let config =
        ServerConfig { base: Duration::ZERO, per_item: Duration::ZERO, items_max: Some(1), ..ServerConfig::default() };
    let (running, mut conn) = start(config.clone()).await;
    let (status, body) = call(&mut conn, "/embed", r#"{"inputs":["a","b"]}"#).await;
    assert_eq!(
        (status, body.as_str()),
        (422, r#"{"error":"batch size 2 > maximum allowed batch size 1","error_type":"Validation"}"#)
    );
    assert_eq!(running.stats().too_large, 1);

    let (_running, mut conn) = start(ServerConfig { too_large: TooLargeResponse::StatusOnly, ..config }).await;
    assert_eq!(call(&mut conn, "/v1/models/m:predict", r#"{"instances":[1,2]}"#).await.0, 413);
}

#[tokio::test]
async fn answers_depend_on_the_items_alone_and_are_counted() {
    let config = ServerConfig { base: Duration::ZERO, per_item: Duration::ZERO, ..ServerConfig::default() };
    let (running, mut conn) = start(config).await;
    let (status, body) = call(&mut conn, "/v1/models/m:predict", r#"{"instances":[1,2]}"#).await;
    assert_eq!((status, body), (200, Route::Predict.write_results(&["1", "2"])));
    let (_, body) = call(&mut conn, "/v1/embeddings", r#"{"model":"m","input":"abcdef"}"#).await;
    assert!(body.starts_with(&Route::Embeddings.write_results(&[r#""abcdef""#])));
    assert!(body.ends_with(r#","model":"m","usage":{"prompt_tokens":2,"total_tokens":2}}"#));
    assert_eq!(call(&mut conn, "/v1/embeddings", r#"{"input":[]}"#).await.0, 400);
    let stats = running.stats();
    assert_eq!((stats.calls, stats.items, stats.failed, stats.connections), (2, 3, 1, 1));
    assert_eq!(stats.sizes, [0, 1, 1]);
}

#[tokio::test]
async fn info_is_404_unless_published_and_poison_fails_the_call() {
    let config = ServerConfig { poison: Some("bad".to_owned()), base: Duration::ZERO, ..ServerConfig::default() };
    let (_running, mut conn) = start(config.clone()).await;
    assert_eq!(conn.call(b"GET /info HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap().status, 404);
    assert_eq!(conn.call(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap().status, 200);
    assert_eq!(call(&mut conn, "/ledger", r#"{"items":["good","bad one"]}"#).await.0, 500);
    assert_eq!(call(&mut conn, "/ledger", r#"{"items":["good"]}"#).await.0, 200);

    let (_running, mut conn) = start(ServerConfig { publish: true, ..config }).await;
    assert_eq!(conn.call(b"GET /info HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap().status, 200);
}

#[tokio::test]
async fn single_item_server_refuses_lists_as_configured() {
    let (one, two) = (r#"{"inputs":["a"]}"#, r#"{"inputs":["a","b"]}"#);
    for refusal in ListResponse::TERMINATING {
        let config = ServerConfig { lists: Some(refusal), base: Duration::ZERO, ..ServerConfig::default() };
        let (running, mut conn) = start(config).await;
        assert_eq!(call(&mut conn, "/embed", one).await, (200, Route::Embed.write_results(&[r#""a""#])));
        match (refusal, conn.call(&request("/embed", two)).await) {
            (ListResponse::Status(status), Ok(answer)) => assert_eq!(answer.status, status),
            (ListResponse::Reset, Err(_)) => {}
            (ListResponse::FirstResultOnly, Ok(answer)) => {
                assert_eq!(answer.body, Route::Embed.write_results(&[r#""a""#]).as_bytes());
            }
            (ListResponse::NotJson, Ok(answer)) => {
                assert_eq!((answer.status, answer.body), (200, &b"one item a call"[..]));
            }
            (refusal, answer) => panic!("{refusal:?}: {answer:?}"),
        }
        assert_eq!((running.stats().lists, running.stats().calls), (1, 1));
    }
}

#[tokio::test]
async fn a_call_with_the_slow_text_has_the_fixed_cost_configured_for_it() {
    let config =
        ServerConfig { slow: Some(("slow".to_owned(), SLOW)), base: Duration::ZERO, ..ServerConfig::default() };
    let (_running, mut conn) = start(config).await;
    let start_time = now();
    call(&mut conn, "/embed", r#"{"inputs":["slow"]}"#).await;
    assert!(elapsed_since(start_time) >= SLOW);
}

#[tokio::test]
async fn a_unix_socket_is_served_and_is_removed_at_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.sock");
    let (running, mut conn) =
        start(ServerConfig { listen: ServerAddr::Unix(path.clone()), ..ServerConfig::default() }).await;
    assert_eq!(call(&mut conn, "/embed", r#"{"inputs":"a"}"#).await.0, 200);
    assert!(path.exists());
    running.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_served_only_if_enabled() {
    for http2 in [true, false] {
        let running = Server::start(ServerConfig { http2, ..ServerConfig::default() }).await.unwrap();
        let stream = TokioIo::new(TcpStream::connect(running.addr()).await.unwrap());
        let (mut send, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("http://stand-in/health").body(Empty::<Bytes>::new()).unwrap();
        assert_eq!(send.send_request(request).await.is_ok_and(|answer| answer.status() == 200), http2);
    }
}

#[tokio::test]
async fn draining_server_answers_open_calls_and_refuses_connections() {
    let (running, mut conn) = start(ServerConfig { base: QUICK * 10, ..ServerConfig::default() }).await;
    let target = running.target().clone();
    let mut idle = target.connect().await.unwrap();
    call(&mut idle, "/embed", r#"{"inputs":"kept"}"#).await;
    conn.outbox.send(&request("/embed", r#"{"inputs":"a"}"#)).await.unwrap();
    while running.shared.model.slots_free() > 0 {
        tokio::task::yield_now().await;
    }
    let drained = tokio::spawn(running.drain(Duration::from_secs(30)));
    idle.inbox.drain_until_closed().await;
    assert!(target.connect().await.is_err(), "the port is closed");
    let answer = conn.inbox.read_answer().await.unwrap();
    assert_eq!((answer.status, answer.close), (200, true));
    assert!(drained.await.unwrap(), "all calls were answered");
}

#[tokio::test]
async fn chat_holds_a_slot_for_its_tokens_and_is_answered_by_its_messages() {
    let config = ServerConfig { base: QUICK, per_item: QUICK, queue_max: 0, ..ServerConfig::default() };
    let (running, mut conn) = start(config).await;
    let messages = r#"[{"role": "user","content":"a"}]"#;
    let start_time = now();
    let body = format!(r#"{{"model":"m","messages":{messages},"max_tokens":4}}"#);
    let (status, plain) = call(&mut conn, "/v1/chat/completions", &body).await;
    assert!(status == 200 && plain.contains(&chat_text(messages)), "{plain}");
    assert!(elapsed_since(start_time) >= QUICK * 5);
    let body = format!(r#"{{"messages":{messages},"max_tokens":1,"stream":true}}"#);
    let (_, stream) = call(&mut conn, "/v1/chat/completions", &body).await;
    assert!(stream.contains(&chat_text(messages)) && stream.ends_with("data: [DONE]\n\n"), "{stream}");
    assert_eq!(call(&mut conn, "/v1/chat/completions", "{}").await.0, 400);
    let stats = running.stats();
    assert_eq!((stats.calls, stats.failed, stats.in_flight_max), (2, 1, 1));
}
