//! Batches of the scheduler: every member is answered as if it were unbatched, with the tokens of
//! its preparation if it has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use groupage_batching::{BatchId, BatchOutcome, Observation, Weight};
use groupage_engine::{Executor, LoadError};
use groupage_protocol::error::Failure;
use groupage_protocol::{
    Call, DigestKey, Endpoint, LimitsSource, MergeRule, ModelKind, PathPattern, Reply, RouteProtocol, RouteRules,
    Routes, SharedHeaderRules,
};
use groupage_proxy::backend::{BatchOutputs, BatchRequest, BufferedReply, StreamedAnswer};
use groupage_runtime::memory::BufferBudget;
use http::{HeaderMap, Method, Request};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::forwarded_calls::{parts, request, send, serve, serve_with};
use super::{FakeExecutor, TestModel};
use crate::{EngineServer, ExecutorSettings};

/// Records the answers to the members of a batch.
#[derive(Debug, Default)]
struct RecordedOutputs {
    replies: BTreeMap<usize, Result<Reply, Failure>>,
    gone: Vec<usize>,
    /// Number of members that were answered before the slot was released.
    answered_before_release: Option<usize>,
}

impl BatchOutputs for RecordedOutputs {
    fn deliver(&mut self, member: usize, result: Result<BufferedReply, Failure>) {
        self.replies.entry(member).or_insert_with(|| result.map(|answer| answer.reply));
    }

    fn deliver_streamed(&mut self, _: usize, _: StreamedAnswer) {
        unreachable!("the engine streams nothing")
    }

    fn on_isolation(&mut self) {
        unreachable!("the engine isolates nothing")
    }

    fn release_slot(&mut self, _: Observation) {
        self.answered_before_release.get_or_insert(self.replies.len());
    }

    fn is_waiting(&self, member: usize) -> bool {
        !self.gone.contains(&member) && !self.replies.contains_key(&member)
    }
}

fn endpoint(path: &str) -> Arc<Endpoint> {
    let rules = RouteRules {
        merge: MergeRule::Always,
        item_count_max: 1024,
        ..RouteRules::new(PathPattern::parse("/*").unwrap(), RouteProtocol::Tei)
    };
    Routes::new(Vec::new(), rules, SharedHeaderRules::default()).recognise(&Method::POST, path).unwrap()
}

fn parse(path: &str, body: &str) -> Arc<Call> {
    let head = Request::post(path).header("content-type", "application/json").body(()).unwrap().into_parts().0;
    let secret = DigestKey::from_bytes([3; 32]);
    Arc::new(endpoint(path).parse_call(&head, Bytes::from(body.to_owned()), &secret))
}

async fn execute(
    server: &EngineServer,
    calls: &[(&str, String)],
    outputs: &mut RecordedOutputs,
    timeout: Option<Duration>,
) -> Observation {
    execute_calls(server, calls.iter().map(|(path, body)| parse(path, body)).collect(), outputs, timeout).await
}

async fn execute_calls(
    server: &EngineServer,
    members: Vec<Arc<Call>>,
    outputs: &mut RecordedOutputs,
    timeout: Option<Duration>,
) -> Observation {
    let request = BatchRequest { id: BatchId(1), endpoint: endpoint("/embed"), members, timeout, deadline_ms: None };
    server.backend().execute(request, outputs).await
}

fn status(outputs: &RecordedOutputs, member: usize) -> u16 {
    outputs.replies[&member].as_ref().unwrap().status.as_u16()
}

#[tokio::test]
async fn a_member_that_is_not_accepted_gets_its_own_error_and_affects_no_other() {
    let model = TestModel::embedding();
    let executor = FakeExecutor::new(10_000);
    let batches = executor.batches.clone();
    let server = serve(&model, executor);
    let long = json!({"inputs": "a ".repeat(100), "truncate": false}).to_string();
    let calls = [
        ("/embed", json!({"inputs": "a"}).to_string()),
        ("/embed", long.clone()),
        ("/embed", "{".to_owned()),
        ("/embed", json!({"inputs": ["b", "c"], "normalize": false}).to_string()),
    ];
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &calls, &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Ok);
    assert_eq!([0, 1, 2, 3].map(|member| status(&outputs, member)), [200, 422, 400, 200]);
    assert_eq!(outputs.answered_before_release, Some(2), "the slot is released before results are delivered");
    assert_eq!(*batches.lock().unwrap(), [3], "the sequences of both others are one packed batch");
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &[("/embed", long.clone()), ("/embed", long)], &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Failed, "nothing was executed, so nothing is learned about the time");
    assert_eq!(batches.lock().unwrap().len(), 1);
}

async fn queued(server: &EngineServer, path: &str, body: &Value) -> Call {
    let mut call = Arc::into_inner(parse(path, &body.to_string())).unwrap();
    let prepared = server.backend().prepare_call(&call).unwrap().await;
    call.weight = prepared.weight.unwrap_or(call.weight);
    call.attachment = prepared.attachment;
    call
}

#[tokio::test]
async fn a_call_is_tokenised_before_it_is_queued_and_not_again() {
    let model = TestModel::embedding();
    let parts = parts();
    let (metrics, buffers) = (parts.metrics.clone(), parts.buffers.clone());
    let tokenised =
        |times: usize| assert!(metrics.render().contains(&format!("groupage_engine_tokenize_seconds_count {times}\n")));
    let server = serve_with(&model, FakeExecutor::new(10_000), parts);
    let first = queued(&server, "/embed", &json!({"inputs": ["a b", "c"]})).await;
    let second = queued(&server, "/embed", &json!({"inputs": "a b d e"})).await;
    let refused = queued(&server, "/embed", &json!({"inputs": "a ".repeat(100), "truncate": false})).await;
    assert_eq!((first.weight, second.weight), (Weight { sum: 7, max: 4 }, Weight { sum: 6, max: 6 }));
    assert!(buffers.held() > 0, "the tokens are charged while the calls are queued");
    tokenised(3);
    let members: Vec<Arc<Call>> = [first, second, refused].map(Arc::new).to_vec();
    let mut outputs = RecordedOutputs::default();
    execute_calls(&server, members.clone(), &mut outputs, None).await;
    assert_eq!([0, 1, 2].map(|member| status(&outputs, member)), [200, 200, 422]);
    tokenised(3);
    drop(outputs);
    assert_eq!(buffers.held(), 0);
    let mut outputs = RecordedOutputs::default();
    execute_calls(&server, members, &mut outputs, None).await;
    assert_eq!([0, 1, 2].map(|member| status(&outputs, member)), [200, 200, 422], "a second execution tokenises again");
    tokenised(4);
}

#[tokio::test]
async fn an_unbatched_call_carries_its_tokens() {
    let model = TestModel::embedding();
    let parts = parts();
    let metrics = parts.metrics.clone();
    let server = serve_with(&model, FakeExecutor::new(10_000), parts);
    let body = json!({"inputs": "a b"});
    let call = queued(&server, "/embed", &body).await;
    let mut unbatched = request(&Method::POST, "/embed", &body.to_string());
    unbatched.extensions_mut().insert(call.attachment.unwrap());
    let answer = send(&server, unbatched).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-compute-tokens"], "4");
    assert!(metrics.render().contains("groupage_engine_tokenize_seconds_count 1\n"));
}

#[tokio::test]
async fn without_memory_for_its_tokens_a_call_is_tokenised_when_it_is_executed() {
    let model = TestModel::embedding();
    let mut parts = parts();
    parts.buffers = BufferBudget::new(4096, parts.clock);
    let others = parts.buffers.charge_unchecked(4096);
    let server = serve_with(&model, FakeExecutor::new(10_000), parts);
    let call = queued(&server, "/embed", &json!({"inputs": "a b"})).await;
    assert_eq!((call.weight.sum, call.attachment.is_none()), (4, true));
    drop(others);
    let mut outputs = RecordedOutputs::default();
    execute_calls(&server, vec![Arc::new(call)], &mut outputs, None).await;
    assert_eq!(status(&outputs, 0), 200);
}

#[tokio::test]
async fn members_whose_responses_do_not_fit_together_are_executed_one_after_the_other() {
    let model = TestModel::embedding();
    let mut parts = parts();
    // Room for one response: 32 tokens of 48 numbers take 24,576 bytes, and their text takes more. A
    // single response may use three quarters.
    parts.buffers = BufferBudget::new(48 << 10, parts.clock);
    let (buffers, executor) = (parts.buffers.clone(), FakeExecutor::new(10_000));
    let batches = executor.batches.clone();
    let server = serve_with(&model, executor, parts);
    let call = |texts: Vec<String>| ("/embed_all", json!({"inputs": texts}).to_string());
    let (fitting, large) = (call(vec!["a ".repeat(30)]), call(vec!["a ".repeat(30); 2]));
    let mut outputs = RecordedOutputs::default();
    let calls = [fitting.clone(), fitting.clone(), large, fitting];
    let observed = execute(&server, &calls, &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Ok);
    assert_eq!([0, 1, 2, 3].map(|member| status(&outputs, member)), [200, 200, 413, 200]);
    assert_eq!(*batches.lock().unwrap(), [1, 1, 1]);
    assert_eq!(outputs.answered_before_release, Some(3), "the slot is released after the last execution");
    let body = |member: usize| outputs.replies[&member].as_ref().unwrap().body.clone();
    assert!(body(0) == body(1) && body(0) == body(3));
    let others = buffers.charge_unchecked(40 << 10);
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &calls[..2], &mut outputs, None).await;
    assert_eq!([0, 1].map(|member| status(&outputs, member)), [429, 429], "other calls have the memory");
    assert_eq!((observed.outcome, batches.lock().unwrap().len()), (BatchOutcome::Failed, 3));
    drop(others);
    assert_eq!(buffers.held(), 0);
}

#[tokio::test]
async fn verification_is_limited_by_the_calls_of_clients() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(10_000));
    let backend = server.backend();
    let reserve = (0..1000).take_while(|_| backend.take_replay()).count();
    assert!((1..1000).contains(&reserve), "{reserve}");
    server.set_replay_share(1_000_000);
    let calls = vec![("/embed", json!({"inputs": "a"}).to_string()); 5];
    execute(&server, &calls, &mut RecordedOutputs::default(), None).await;
    assert!((0..1000).take_while(|_| backend.take_replay()).count() >= 5, "one for each call at 100 %");
}

#[tokio::test]
async fn a_member_that_has_gone_is_not_executed() {
    let model = TestModel::embedding();
    let executor = FakeExecutor::new(10_000);
    let batches = executor.batches.clone();
    let server = serve(&model, executor);
    let call = ("/embed", json!({"inputs": "a"}).to_string());
    let mut outputs = RecordedOutputs { gone: vec![0, 2], ..RecordedOutputs::default() };
    execute(&server, &[call.clone(), call.clone(), call], &mut outputs, None).await;
    assert_eq!(outputs.replies.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(*batches.lock().unwrap(), [1]);
}

#[tokio::test]
async fn a_result_that_is_not_finite_is_an_error_of_its_member() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(10_000).overflowing_on(9));
    let calls = [json!([8]), json!([[7], [9]]), json!([[7], [8]])];
    let calls = calls.map(|inputs| ("/embed", json!({"inputs": inputs}).to_string()));
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &calls, &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Ok);
    assert_eq!([0, 1, 2].map(|member| status(&outputs, member)), [200, 424, 200]);
}

#[tokio::test]
async fn a_panic_of_the_executor_answers_all_members() {
    let model = TestModel::embedding();
    let server = serve(&model, FakeExecutor::new(10_000).panicking_on(9));
    let calls = [("/embed", json!({"inputs": "a"}).to_string()), ("/embed", json!({"inputs": [9]}).to_string())];
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &calls, &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Failed);
    assert_eq!([0, 1].map(|member| status(&outputs, member)), [503, 503]);
    server.failed().await;
}

#[tokio::test]
async fn a_batch_that_exceeds_its_time_is_answered_and_not_executed_later() {
    let model = TestModel::embedding();
    let (executor, gate) = FakeExecutor::new(10_000).gated();
    let batches = executor.batches.clone();
    let server = serve(&model, executor);
    let held = tokio::spawn({
        let server = server.clone();
        async move { send(&server, request(&Method::POST, "/embed", r#"{"inputs": "a"}"#)).await }
    });
    gate.wait_entered().await;
    let mut outputs = RecordedOutputs::default();
    let calls = [("/embed", json!({"inputs": "b"}).to_string()), ("/embed", json!({"inputs": "c"}).to_string())];
    let observed = execute(&server, &calls, &mut outputs, Some(Duration::ZERO)).await;
    assert_eq!(observed.outcome, BatchOutcome::TimedOut);
    assert!(outputs.replies.values().all(Result::is_err) && outputs.replies.len() == 2);
    gate.open();
    assert_eq!(held.await.unwrap().status(), 200);
    send(&server, request(&Method::POST, "/embed", r#"{"inputs": "d"}"#)).await;
    assert_eq!(*batches.lock().unwrap(), [1, 1]);
}

#[tokio::test]
async fn the_engine_publishes_its_own_limits() {
    let model = TestModel::embedding();
    let (created, gate) = std::sync::mpsc::channel();
    let load = move || {
        gate.recv().unwrap();
        Ok::<Box<dyn Executor>, LoadError>(Box::new(FakeExecutor::new(10_000)))
    };
    let server = EngineServer::start_with(model.served.clone(), parts(), load).unwrap();
    let published = || server.backend().published_limits(&LimitsSource::Info).limits().unwrap();
    let limits = published();
    assert_eq!((limits.weight_max, limits.items_max, limits.batches_itself), (Some(16_384), None, false));
    created.send(()).unwrap();
    server.loaded().await.unwrap();
    assert_eq!(published().weight_max, Some(10_000), "the executor has less memory");
    assert_eq!(server.backend().batches_text(), Some(false));
    assert_eq!(limits.model_kind, Some(ModelKind::Embedding));
    for (model, kind) in
        [(TestModel::reranker(), ModelKind::Reranker), (TestModel::classifier(), ModelKind::Classifier)]
    {
        let server = serve(&model, FakeExecutor::new(10_000));
        let limits = server.backend().published_limits(&LimitsSource::Info).limits().unwrap();
        assert_eq!(limits.model_kind, Some(kind));
    }
}

/// Returns headers without those that depend on the time of the execution.
fn without_times(headers: &HeaderMap) -> HeaderMap {
    let is_constant =
        |name: &str| !name.starts_with("x-") || name == "x-compute-tokens" || name == "x-compute-characters";
    headers.iter().filter(|(name, _)| is_constant(name.as_str())).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// A text, often longer than the model takes, or token ids, some of them unknown.
fn input() -> impl Strategy<Value = Value> {
    let text = "[a-z ,.0-9日]{0,40}".prop_map(|text| json!(text));
    let ids = proptest::collection::vec(0..162_u32, 0..6).prop_map(|ids| json!(ids));
    prop_oneof![4 => text, 1 => ids]
}

/// A call of a route of an embedding model, accepted or not.
fn any_call() -> impl Strategy<Value = (&'static str, String)> {
    let inputs = prop_oneof![input(), proptest::collection::vec(input(), 0..4).prop_map(|list| json!(list))];
    let path = proptest::sample::select(vec!["/embed", "/embed_all", "/v1/embeddings", "/tokenize", "/predict"]);
    (path, inputs, any::<bool>(), proptest::option::of(0..50_u32)).prop_map(|(path, inputs, flag, dimensions)| {
        let format = if flag { "base64" } else { "float" };
        let body = json!({"inputs": inputs, "input": inputs, "truncate": flag, "normalize": flag,
            "dimensions": dimensions, "encoding_format": format});
        (path, body.to_string())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With the real executor. Calls of different routes and options share a batch here, which the
    /// scheduler does not do.
    #[test]
    fn results_in_a_batch_are_those_of_the_unbatched_call(calls in proptest::collection::vec(any_call(), 2..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let model = TestModel::embedding();
            let server = EngineServer::start(model.served.clone(), ExecutorSettings::default(), parts()).unwrap();
            let mut outputs = RecordedOutputs::default();
            execute(&server, &calls, &mut outputs, None).await;
            for (member, (path, body)) in calls.iter().enumerate() {
                let unbatched = send(&server, request(&Method::POST, path, body)).await;
                let shared = outputs.replies[&member].as_ref().unwrap();
                prop_assert_eq!(shared.status, unbatched.status(), "{} {}", path, body);
                prop_assert_eq!(without_times(&shared.headers), without_times(unbatched.headers()));
                prop_assert_eq!(&shared.body[..], &unbatched.body()[..], "{} {}", path, body);
            }
            Ok(())
        })?;
    }
}
