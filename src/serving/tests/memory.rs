//! The memory of responses in the budget of buffers.

use groupage_runtime::memory::BufferBudget;
use http::{Method, Response};
use serde_json::{Value, json};

use super::forwarded_calls::{parts, request, send, serve_with};
use super::{FakeExecutor, TestModel};
use crate::EngineServer;

/// A budget with room for 49,152 bytes of responses.
const BUDGET: usize = 64 << 10;

fn serve(model: &TestModel) -> (EngineServer, BufferBudget, FakeExecutor) {
    let mut parts = parts();
    parts.buffers = BufferBudget::new(BUDGET, parts.clock);
    let (buffers, executor) = (parts.buffers.clone(), FakeExecutor::new(10_000));
    let copy = FakeExecutor { batches: executor.batches.clone(), ..FakeExecutor::new(10_000) };
    (serve_with(model, copy, parts), buffers, executor)
}

async fn post(server: &EngineServer, path: &str, body: &Value) -> Response<Vec<u8>> {
    send(server, request(&Method::POST, path, &body.to_string())).await
}

/// Calls with a response that never fits, beside one of the same route that does.
fn calls() -> [(&'static str, Value, Value); 3] {
    let text = "a ".repeat(30);
    [
        // 32 tokens of 48 numbers take 24,576 bytes.
        ("/embed_all", json!({"inputs": [text, text]}), json!({"inputs": text})),
        ("/tokenize", json!({"inputs": "a ".repeat(200)}), json!({"inputs": vec![text; 9]})),
        ("/decode", json!({"ids": vec![19; 2000]}), json!({"ids": vec![19; 300]})),
    ]
}

#[tokio::test]
async fn a_response_that_can_never_fit_is_refused_before_it_is_built() {
    let model = TestModel::embedding();
    let (server, buffers, executor) = serve(&model);
    for (path, large, small) in calls() {
        let refused = post(&server, path, &large).await;
        let error: Value = serde_json::from_slice(refused.body()).unwrap();
        assert_eq!((refused.status().as_u16(), &error["error_type"]), (413, &json!("Validation")), "{path}");
        assert!(error["error"].as_str().unwrap().contains("bufferedBytesMax"), "{error}");
        let answered = post(&server, path, &small).await;
        assert_eq!(answered.status(), 200, "{path}");
    }
    assert_eq!(*executor.batches.lock().unwrap(), [1], "what is refused is not executed");
    assert_eq!(buffers.held(), 0, "a response is charged until it is taken");
}

/// The guide states this factor.
#[tokio::test]
async fn a_text_to_tokenize_needs_160_bytes_for_each_of_its_own() {
    let model = TestModel::embedding();
    let (server, ..) = serve(&model);
    // 16 tokens that a model may add are charged as well.
    let fitting = 49_152 / 160 - 16;
    for (length, status) in [(fitting, 200), (fitting + 1, 413)] {
        let text = "a".repeat(length);
        assert_eq!(post(&server, "/tokenize", &json!({"inputs": text})).await.status(), status, "{length}");
    }
}

#[tokio::test]
async fn without_memory_for_the_response_a_call_is_refused_until_there_is_some() {
    let model = TestModel::embedding();
    let (server, buffers, executor) = serve(&model);
    for (path, _, small) in calls() {
        let others = buffers.charge_unchecked(BUDGET - 2000);
        let refused = post(&server, path, &small).await;
        let error: Value = serde_json::from_slice(refused.body()).unwrap();
        assert_eq!((refused.status().as_u16(), &error["error_type"]), (429, &json!("Overloaded")), "{path}");
        drop(others);
        assert_eq!(post(&server, path, &small).await.status(), 200, "{path}");
    }
    assert_eq!(*executor.batches.lock().unwrap(), [1]);
}

#[tokio::test]
async fn a_response_is_charged_with_its_size_until_it_is_taken() {
    let model = TestModel::embedding();
    let (server, buffers, _) = serve(&model);
    for (path, _, small) in calls() {
        let response = server.forward().forward_once(request(&Method::POST, path, &small.to_string())).await.unwrap();
        let held = buffers.held();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        assert_eq!(held, body.len(), "{path}");
    }
}
