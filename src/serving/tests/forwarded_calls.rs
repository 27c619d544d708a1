//! Calls over a lane: views, errors of the head, and the state of the engine.

use std::sync::Arc;
use std::time::Duration;

use groupage_engine::{Executor, LoadError, MemoryShortage, NumberType};
use groupage_protocol::error::FailureKind;
use groupage_proxy::body::{Body, body_channel};
use groupage_runtime::clock::Clock;
use groupage_runtime::memory::BufferBudget;
use groupage_runtime::telemetry::Metrics;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::{FakeExecutor, TestModel};
use crate::executor_load::LoadedExecutor;
use crate::{DeviceNote, EngineParts, EngineServer, LoadedDevice};

pub(super) fn parts() -> EngineParts {
    let clock = Clock::start();
    EngineParts {
        clock,
        buffers: BufferBudget::new(64 << 20, clock),
        metrics: Arc::new(Metrics::new("local")),
        body_idle_timeout: Duration::from_secs(60),
        replay_ppm: 100_000,
        device: DeviceNote::default(),
    }
}

pub(super) fn serve(model: &TestModel, executor: FakeExecutor) -> EngineServer {
    serve_with(model, executor, parts())
}

pub(super) fn serve_with(model: &TestModel, executor: FakeExecutor, parts: EngineParts) -> EngineServer {
    let load = || Ok::<Box<dyn Executor>, LoadError>(Box::new(executor));
    EngineServer::start_with(model.served.clone(), parts, load).unwrap()
}

pub(super) fn request(method: &Method, path: &str, body: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.body(Body::full(body.to_owned().into())).unwrap()
}

/// Forwards a call, and returns its response with the whole body.
pub(super) async fn send(server: &EngineServer, request: Request<Body>) -> Response<Vec<u8>> {
    let (head, body) = server.forward().forward_once(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes().to_vec())
}

fn json_of(response: &Response<Vec<u8>>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

async fn get(server: &EngineServer, path: &str) -> Response<Vec<u8>> {
    send(server, request(&Method::GET, path, "")).await
}

async fn until_ready(server: &EngineServer) {
    while !server.is_ready() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn views_show_the_model_and_its_limits() {
    let model = TestModel::classifier();
    let server = serve(&model, FakeExecutor::new(16_384));
    until_ready(&server).await;
    let info = json_of(&get(&server, "/info").await);
    assert_eq!(
        (&info["model_id"], &info["max_input_length"], &info["max_batch_tokens"]),
        (&json!("tiny"), &json!(32), &json!(16_384))
    );
    assert_eq!(info["served_model_name"], "tiny");
    assert_eq!(info["model_type"]["classifier"]["id2label"], json!({"0": "joy", "1": "anger", "2": "calm"}));
    assert_eq!((&info["max_client_batch_size"], &info["auto_truncate"]), (&json!(32), &json!(true)));
    let models = json_of(&get(&server, "/v1/models").await);
    assert_eq!(
        models["data"][0],
        json!({"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "groupage"})
    );
    assert_eq!(json_of(&get(&server, "/v1/models/tiny").await), models["data"][0]);
    let missing = get(&server, "/v1/models/other").await;
    assert_eq!((missing.status().as_u16(), &json_of(&missing)["error"]["code"]), (404, &json!("not_found")));
    assert_eq!(server.report()["executor"]["kernels"], "fake");
    assert_eq!(server.identity().borrow().model.as_deref(), Some("tiny"));
}

#[tokio::test]
async fn the_type_of_numbers_is_that_of_the_executor() {
    let (whole, half) = (TestModel::embedding(), TestModel::classifier());
    // On a GPU that is chosen, and on the CPU if that GPU cannot execute the model. The weights of
    // the first model are in F32, and those of the other one in F16.
    for (model, of_gpu, number_type) in [
        (&whole, "bfloat16", NumberType::Bfloat16),
        (&whole, "bfloat16", NumberType::Float32),
        (&half, "float16", NumberType::Float16),
    ] {
        let device = DeviceNote { is_gpu: true, reason: String::new() };
        let (opens, waits) = std::sync::mpsc::channel::<()>();
        let load = move || {
            waits.recv().unwrap();
            Ok::<Box<dyn Executor>, LoadError>(Box::new(FakeExecutor::new(100).with_number_type(number_type)))
        };
        let parts = EngineParts { device, ..parts() };
        let server = EngineServer::start_with(model.served.clone(), parts, load).unwrap();
        assert_eq!(json_of(&get(&server, "/info").await)["model_dtype"], of_gpu, "that of the chosen device");
        opens.send(()).unwrap();
        until_ready(&server).await;
        assert_eq!(json_of(&get(&server, "/info").await)["model_dtype"], number_type.name());
    }
}

#[tokio::test]
async fn health_follows_the_executor() {
    let model = TestModel::embedding();
    let (opens, waits) = std::sync::mpsc::channel::<()>();
    let load = move || {
        waits.recv().unwrap();
        Ok::<Box<dyn Executor>, LoadError>(Box::new(FakeExecutor::new(100).panicking_on(9)))
    };
    let server = EngineServer::start_with(model.served.clone(), parts(), load).unwrap();
    for path in ["/health", "/ping", "/"] {
        let loading = get(&server, path).await;
        assert_eq!(
            (loading.status().as_u16(), json_of(&loading)),
            (503, json!({"error": "unhealthy", "error_type": "Unhealthy"}))
        );
    }
    assert!(!server.is_ready());
    let early = tokio::spawn({
        let server = server.clone();
        async move { send(&server, request(&Method::POST, "/embed", r#"{"inputs": "a"}"#)).await }
    });
    opens.send(()).unwrap();
    assert_eq!(early.await.unwrap().status(), 200, "a call that arrived before the weights were packed is answered");
    let healthy = get(&server, "/health").await;
    assert_eq!((healthy.status().as_u16(), healthy.body().len()), (200, 0));
    let failed = send(&server, request(&Method::POST, "/embed", r#"{"inputs": [9]}"#)).await;
    assert_eq!((failed.status().as_u16(), &json_of(&failed)["error_type"]), (503, &json!("Unhealthy")));
    server.failed().await;
    assert!(!server.is_ready());
    assert_eq!(get(&server, "/health").await.status(), 503);
}

#[tokio::test]
async fn the_device_is_described_with_the_reason_of_its_choice_or_of_the_refusal() {
    let model = TestModel::embedding();
    let describe = async |is_gpu: bool, shortage: Option<MemoryShortage>| {
        let device = DeviceNote { is_gpu, reason: "the reason".to_owned() };
        let refusal = shortage.map(Into::into);
        let load = || Ok::<_, LoadError>(LoadedExecutor { executor: Box::new(FakeExecutor::new(100)), refusal });
        let server = EngineServer::start_with(model.served.clone(), EngineParts { device, ..parts() }, load).unwrap();
        let LoadedDevice { description, is_fallback } = server.loaded().await.unwrap();
        (description, is_fallback)
    };
    // The kernels of the executor are named "fake", which names no device.
    let cpu = "the model tiny is executed on the CPU (fake, 1 threads): the reason";
    assert_eq!(describe(false, None).await, (cpu.to_owned(), false));
    let gpu = "the model tiny is executed on a GPU (fake): the reason";
    assert_eq!(describe(true, None).await, (gpu.to_owned(), false));
    let (workspace, results, total, available) = (500, 100, 1200, 1000);
    let (weights, tokens_max, tokens_possible) = (600, 16_384, 0);
    let shortage = MemoryShortage { weights, workspace, results, total, available, tokens_max, tokens_possible };
    let expected =
        format!("the model tiny is executed on the CPU (fake, 1 threads): the GPU cannot execute it: {shortage}");
    assert_eq!(describe(true, Some(shortage)).await, (expected, true));
}

#[tokio::test]
async fn heads_without_a_route_are_refused_in_the_format_of_their_path() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(100));
    let missing = send(&server, request(&Method::POST, "/v1/chat/completions", "{}")).await;
    assert_eq!(
        (missing.status().as_u16(), &json_of(&missing)["error"]["type"]),
        (404, &json!("invalid_request_error"))
    );
    let missing = send(&server, request(&Method::POST, "/embed_sparse", "{}")).await;
    assert_eq!((missing.status().as_u16(), &json_of(&missing)["error_type"]), (404, &json!("Validation")));
    let missing = get(&server, "/openai/v1/models/other").await;
    assert_eq!((missing.status().as_u16(), &json_of(&missing)["error"]["code"]), (404, &json!("not_found")));
    let wrong = get(&server, "/embed").await;
    assert_eq!((wrong.status().as_u16(), &wrong.headers()["allow"]), (405, &"POST".parse().unwrap()));
    let mut typed = request(&Method::POST, "/embed", r#"{"inputs": "a"}"#);
    typed.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(send(&server, typed).await.status(), 415);
}

#[tokio::test]
async fn the_paths_of_other_servers_of_embeddings_are_those_of_openai() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(100));
    let expected = send(&server, request(&Method::POST, "/v1/embeddings", r#"{"input": "a"}"#)).await;
    for path in ["/embeddings", "/v3/embeddings", "/openai/v1/embeddings"] {
        let embedded = send(&server, request(&Method::POST, path, r#"{"input": "a"}"#)).await;
        assert_eq!((embedded.status().as_u16(), embedded.body()), (200, expected.body()), "{path}");
        let refused = send(&server, request(&Method::POST, path, r#"{"input": []}"#)).await;
        assert_eq!(
            (refused.status().as_u16(), &json_of(&refused)["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{path}"
        );
    }
    assert_eq!(json_of(&get(&server, "/openai/v1/models").await)["data"][0]["id"], "tiny");
}

#[tokio::test]
async fn a_call_that_is_executed_reports_its_size_and_times() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(100));
    until_ready(&server).await;
    let embedded = send(&server, request(&Method::POST, "/embed", r#"{"inputs": ["ä b", [4, 9]]}"#)).await;
    let header = |name| embedded.headers()[name].to_str().unwrap();
    assert_eq!(
        (header("x-compute-characters"), header("x-compute-tokens"), header("x-compute-type")),
        ("5", "6", "fake")
    );
    for name in ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"] {
        assert!(header(name).parse::<u64>().is_ok(), "{name}");
    }
    for (path, body) in [("/tokenize", r#"{"inputs": "a"}"#), ("/embed", "{")] {
        let other = send(&server, request(&Method::POST, path, body)).await;
        assert!(!other.headers().contains_key("x-compute-tokens"), "{path} {body}");
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_and_a_broken_one_is_not_executed() {
    let model = TestModel::embedding();
    let executor = FakeExecutor::new(100);
    let batches = executor.batches.clone();
    let server = serve(&model, executor);
    let large = format!("{{\"inputs\": \"{}\"}}", "w".repeat(2_000_000));
    assert_eq!(send(&server, request(&Method::POST, "/embed", &large)).await.status(), 413);
    let (alive, _reader_alive) = tokio::sync::mpsc::channel(1);
    let (writer, body) = body_channel(parts().buffers.empty(), alive);
    drop(writer);
    let broken = request(&Method::POST, "/embed", "").map(|_| body);
    assert_eq!(send(&server, broken).await.status(), 400);
    assert!(batches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn without_memory_for_the_body_the_call_fails() {
    let model = TestModel::embedding();
    let mut parts = parts();
    parts.buffers = BufferBudget::new(16, parts.clock);
    let server = serve_with(&model, FakeExecutor::new(100), parts);
    let body = format!("{{\"inputs\": \"{}\"}}", "a ".repeat(20));
    let failure = server.forward().forward_once(request(&Method::POST, "/embed", &body)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::BytesFull);
}
