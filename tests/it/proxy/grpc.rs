//! Calls of the Open Inference Protocol over gRPC, between HTTP/2 clients and a server that the test
//! controls.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version, response};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::http2_endpoints::{
    Body, H2Client, H2PendingRequest, H2ScriptedServer, ReceivedMessage, empty, full, with_trailers,
};
use super::setup::{TestProxy, wait_while, within_timeout};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";
const LIMIT_IN_FORCE: &str = r#"groupage_limit{limit="batch_items_max",source="published"}"#;

/// A call in flight, with its response.
type GrpcRequest = JoinHandle<(response::Parts, ReceivedMessage)>;

/// Returns the settings of a proxy with one slot.
fn spec(http2: &str, routes: &Value) -> Value {
    let connection = json!({"http2": http2, "connectTimeout": "10s"});
    json!({"scheduling": {"slots": 1}, "proxy": {"connection": connection}, "routes": routes})
}

/// Returns a field with less than 128 bytes.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
}

/// Returns the body with a message that has a row for each byte of `data`, in this field.
fn message(data: &[u8], raw: u8) -> Bytes {
    let shape = field(3, &[u8::try_from(data.len()).unwrap()]);
    let tensor = [field(1, b"x"), field(2, b"INT8"), shape].concat();
    framed(&[field(1, b"m"), field(5, &tensor), field(raw, data)].concat())
}

fn framed(message: &[u8]) -> Bytes {
    Bytes::from([&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat())
}

fn send_call(client: &H2Client, data: &[u8]) -> GrpcRequest {
    let request = Request::post(format!("http://model.example{INFER}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    client.fetch(request.body(full(message(data, 7))).unwrap())
}

/// Returns a response with a message and a status in the trailers.
fn ok(body: Bytes) -> Response<Body> {
    let trailers: HeaderMap =
        [(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))].into_iter().collect();
    Response::builder().header("content-type", "application/grpc").body(with_trailers(body, trailers)).unwrap()
}

/// Answers a call with the data of these rows.
fn answer(turn: H2PendingRequest, data: &[u8]) {
    assert_eq!((turn.head.uri.path(), turn.head.version), (INFER, Version::HTTP_2));
    assert_eq!(turn.head.headers["te"], "trailers");
    assert_eq!(turn.whole.body, message(data, 7));
    turn.answer(ok(message(data, 6)));
}

async fn assert_rows(request: GrpcRequest, data: &[u8]) {
    let (head, whole) = within_timeout(request).await.unwrap();
    assert_eq!(
        (head.status.as_u16(), &head.headers["content-type"]),
        (200, &HeaderValue::from_static("application/grpc"))
    );
    assert_eq!(whole.body, message(data, 6));
    assert_eq!(whole.trailers.unwrap()["grpc-status"], "0");
}

/// Asserts a response without a message, and returns its head.
async fn assert_failed(request: GrpcRequest, status: &str, message: &str) -> response::Parts {
    let (head, whole) = within_timeout(request).await.unwrap();
    assert_eq!((head.status.as_u16(), whole.body.len(), whole.trailers), (200, 0, None));
    assert_eq!(
        (&head.headers["grpc-status"], &head.headers["grpc-message"]),
        (&status.parse().unwrap(), &message.parse().unwrap())
    );
    head
}

/// Starts a proxy in front of a server that publishes a maximum of two rows, and waits until the limit
/// is in force.
async fn start_with_published_size(hand: &mut H2ScriptedServer) -> (TestProxy, H2Client) {
    let proxy = TestProxy::start_in_front_of(&hand.url(), spec("Auto", &json!([])));
    let client = H2Client::connect(proxy.address).await;
    // The model `m`, with `max_batch_size: 2`.
    let config = framed(&field(1, &[field(1, b"m"), vec![4 << 3, 2]].concat()));
    while proxy.metric(LIMIT_IN_FORCE) != 2 {
        let request = send_call(&client, b"a");
        loop {
            let turn = hand.turn().await;
            if turn.head.uri.path() == CONFIG {
                assert_eq!(turn.whole.body, framed(&field(1, b"m")));
                turn.answer(ok(config.clone()));
            } else {
                answer(turn, b"a");
                break;
            }
        }
        assert_rows(request, b"a").await;
        proxy.wait_idle().await;
    }
    (proxy, client)
}

#[tokio::test]
async fn a_call_with_more_rows_than_the_server_accepts_is_sent_in_parts() {
    let mut hand = H2ScriptedServer::start().await;
    let (_proxy, client) = start_with_published_size(&mut hand).await;
    let request = send_call(&client, b"abcde");
    for part in [&b"ab"[..], b"cd", b"e"] {
        answer(hand.turn().await, part);
    }
    assert_rows(request, b"abcde").await;
    // The first part that fails ends the call.
    let request = send_call(&client, b"abcde");
    answer(hand.turn().await, b"ab");
    let invalid = Response::builder().header("grpc-status", "3").header("grpc-message", "bad row");
    hand.turn().await.answer(invalid.header("content-type", "application/grpc").body(empty()).unwrap());
    let head = assert_failed(request, "3", "bad row").await;
    assert_eq!(head.headers["x-groupage-items"], "2-3");
}

#[tokio::test]
async fn rows_of_a_model_that_publishes_no_batch_size_are_sent_whole() {
    let tensor = [field(1, b"x"), field(2, b"INT8"), field(3, &[3, 2])].concat();
    let call = framed(&[field(1, b"m"), field(5, &tensor), field(7, b"abcdef")].concat());
    // A size of zero is not written.
    let config = framed(&field(1, &field(1, b"m")));
    for routes in [json!([]), json!([{"path": INFER, "protocol": "OpenInferenceV2"}])] {
        let mut hand = H2ScriptedServer::start().await;
        let proxy = TestProxy::start_in_front_of(&hand.url(), spec("Always", &routes));
        let client = H2Client::connect(proxy.address).await;
        let (mut published, mut since) = (false, 0);
        // No call waits for the look-up, so the first ones may precede its result.
        while since < 10 || proxy.metric(r#"groupage_calls_passed_total{reason="open_inference"}"#) == 0 {
            let request = Request::post(format!("http://model.example{INFER}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            let request = client.fetch(request.body(full(call.clone())).unwrap());
            let mut turn = hand.turn().await;
            if turn.head.uri.path() == CONFIG {
                turn.answer(ok(config.clone()));
                published = true;
                turn = hand.turn().await;
            }
            assert_eq!(turn.whole.body, call, "{routes}");
            turn.answer(ok(call.clone()));
            let (head, whole) = within_timeout(request).await.unwrap();
            assert_eq!((head.status.as_u16(), whole.body), (200, call.clone()));
            since += usize::from(published);
        }
    }
}

#[tokio::test]
async fn calls_are_merged_without_a_route_up_to_the_size_that_a_simulated_triton_publishes() {
    let mut hand = H2ScriptedServer::start().await;
    let (proxy, client) = start_with_published_size(&mut hand).await;
    let first = send_call(&client, b"a");
    let turn = hand.turn().await;
    let mut requests = Vec::new();
    for (queued, data) in (1..).zip([b"b", b"c", b"d"]) {
        requests.push((send_call(&client, data), data));
        proxy.wait_queued(queued).await;
    }
    answer(turn, b"a");
    answer(hand.turn().await, b"bc");
    answer(hand.turn().await, b"d");
    assert_rows(first, b"a").await;
    for (request, data) in requests {
        assert_rows(request, data).await;
    }
}

/// Sends two calls with the row `b`, which share a batch. Returns them with the request of the batch.
async fn form_batch(proxy: &TestProxy, hand: &mut H2ScriptedServer) -> ([GrpcRequest; 2], H2PendingRequest) {
    let clients = [H2Client::connect(proxy.address).await, H2Client::connect(proxy.address).await];
    let first = send_call(&clients[0], b"a");
    let (mut turn, mut look_up) = (hand.turn().await, hand.turn().await);
    if turn.head.uri.path() == CONFIG {
        std::mem::swap(&mut turn, &mut look_up);
    }
    // The status of a server without the method.
    let unimplemented = Response::builder().header("grpc-status", "12").body(empty()).unwrap();
    look_up.answer(unimplemented);
    answer(turn, b"a");
    assert_rows(first, b"a").await;
    // A route that names the protocol merges without a published size, once the look-up has ended.
    loop {
        let first = send_call(&clients[0], b"a");
        let turn = hand.turn().await;
        let requests = clients.each_ref().map(|client| send_call(client, b"b"));
        proxy.wait_queued(2).await;
        answer(turn, b"a");
        assert_rows(first, b"a").await;
        let turn = hand.turn().await;
        if turn.whole.body == message(b"b", 7) {
            answer(turn, b"b");
            answer(hand.turn().await, b"b");
            for request in requests {
                assert_rows(request, b"b").await;
            }
            continue;
        }
        assert_eq!(turn.whole.body, message(b"bb", 7));
        return (requests, turn);
    }
}

/// Starts a proxy that merges on a route of the protocol, with further settings.
fn start_merging(hand: &H2ScriptedServer, settings: &Value) -> TestProxy {
    let mut spec = spec("Always", &json!([{"path": INFER, "protocol": "OpenInferenceV2"}]));
    spec.as_object_mut().unwrap().extend(settings.as_object().cloned().unwrap());
    TestProxy::start_in_front_of(&hand.url(), spec)
}

#[tokio::test]
async fn every_member_of_a_batch_receives_the_overload_of_the_server_without_its_text() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = start_merging(&hand, &json!({}));
    let (requests, turn) = form_batch(&proxy, &mut hand).await;
    let busy = Response::builder().header("grpc-status", "14").header("grpc-message", "secret b");
    turn.answer(busy.header("content-type", "application/grpc").body(empty()).unwrap());
    for request in requests {
        assert_failed(request, "14", "upstream overloaded").await;
    }
}

#[tokio::test]
async fn members_of_a_batch_are_compared_with_their_unbatched_responses() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = start_merging(&hand, &json!({"verify": "100%"}));
    let (requests, turn) = form_batch(&proxy, &mut hand).await;
    turn.answer(ok(message(b"bc", 6)));
    let [one, other] = requests;
    assert_rows(one, b"b").await;
    assert_rows(other, b"c").await;
    // The client has its response, and the server answers the same call alone with another row.
    for _ in 0..2 {
        answer(hand.turn().await, b"b");
    }
    let results = |result: &str| proxy.metric(&format!("groupage_verify_total{{result=\"{result}\"}}"));
    wait_while(|| results("equal") + results("different") < 2).await;
    assert_eq!((results("equal"), results("different")), (1, 1));
}

#[tokio::test]
async fn a_failure_of_the_proxy_is_a_status_in_a_head_without_a_message() {
    let hand = H2ScriptedServer::start().await;
    let url = hand.url();
    drop(hand);
    let proxy = TestProxy::start_in_front_of(&url, spec("Always", &json!([])));
    let client = H2Client::connect(proxy.address).await;
    let head = assert_failed(send_call(&client, b"a"), "14", "upstream not reachable").await;
    assert_eq!(head.headers["x-groupage-error"], "GRP3301");
}
