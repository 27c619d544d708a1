//! Batches of the scheduler: every member is answered as if it had been alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use groupage_batching::{BatchId, BatchOutcome, Observation};
use groupage_protocol::error::Failure;
use groupage_protocol::{
    Call, DigestKey, Endpoint, LimitsSource, MergeRule, PathPattern, Reply, RouteProtocol, RouteRules, Routes,
    SharedHeaderRules,
};
use groupage_proxy::backend::{BatchOutputs, BatchRequest, BufferedReply, StreamedAnswer};
use http::{Method, Request};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::lone_calls::{parts, request, send, serve};
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
        path: PathPattern::parse("/*").unwrap(),
        method: Method::POST,
        protocol: RouteProtocol::Tei,
        merge_on_headers: Vec::new(),
        merge_on_fields: Vec::new(),
        merge_over_headers: Vec::new(),
        merge_over_fields: Vec::new(),
        respond_with_headers: Vec::new(),
        respond_with_fields: Vec::new(),
        generic: None,
        merge: MergeRule::Always,
        idempotent: None,
        item_bytes_max: 1 << 20,
        item_nesting_max: 64,
        item_count_max: 1024,
        tokenizer: None,
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
    let members = calls.iter().map(|(path, body)| parse(path, body)).collect();
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
    let long = json!({"inputs": "a ".repeat(100)}).to_string();
    let calls = [
        ("/embed", json!({"inputs": "a"}).to_string()),
        ("/embed", long.clone()),
        ("/embed", "{".to_owned()),
        ("/embed", json!({"inputs": ["b", "c"], "normalize": false}).to_string()),
    ];
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &calls, &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Ok);
    assert_eq!([0, 1, 2, 3].map(|member| status(&outputs, member)), [200, 413, 400, 200]);
    assert_eq!(outputs.answered_before_release, Some(2), "the slot is released before results are delivered");
    assert_eq!(*batches.lock().unwrap(), [3], "the sequences of both others are one packed batch");
    let mut outputs = RecordedOutputs::default();
    let observed = execute(&server, &[("/embed", long.clone()), ("/embed", long)], &mut outputs, None).await;
    assert_eq!(observed.outcome, BatchOutcome::Failed, "nothing was executed, so nothing is learned about the time");
    assert_eq!(batches.lock().unwrap().len(), 1);
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
    let server = serve(&model, FakeExecutor::new(10_000));
    let limits = server.backend().published_limits(&LimitsSource::Info).limits().unwrap();
    assert_eq!((limits.weight_max, limits.items_max, limits.batches_itself), (Some(16_384), None, false));
    assert_eq!(server.backend().batches_text(), Some(false));
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
    fn results_in_a_batch_are_those_of_the_call_alone(calls in proptest::collection::vec(any_call(), 2..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let model = TestModel::embedding();
            let server = EngineServer::start(model.served.clone(), ExecutorSettings::default(), parts()).unwrap();
            let mut outputs = RecordedOutputs::default();
            execute(&server, &calls, &mut outputs, None).await;
            for (member, (path, body)) in calls.iter().enumerate() {
                let alone = send(&server, request(&Method::POST, path, body)).await;
                let shared = outputs.replies[&member].as_ref().unwrap();
                prop_assert_eq!(shared.status, alone.status(), "{} {}", path, body);
                prop_assert_eq!(&shared.headers, alone.headers());
                prop_assert_eq!(&shared.body[..], &alone.body()[..], "{} {}", path, body);
            }
            Ok(())
        })?;
    }
}
