//! Tests of the driver with a scripted backend.

use std::net::Ipv4Addr;
use std::sync::Mutex;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::sync::Notify;

use super::*;
use crate::backend::{BatchOutputs, BatchRequest, BufferedReply, LimitsLookUp};
use crate::batching::{BatchOutcome, CallOrigin, Observation, Tick};
use crate::memory::BufferBudget;
use crate::protocol::{
    Call, DigestKey, LimitsSource, PathPattern, PublishedLimits, Reply, RouteProtocol, RouteRules, Routes,
    SharedHeaderRules,
};

/// A backend that answers every member with the number of members, once `release` is notified.
#[derive(Debug, Default)]
struct ScriptedBackend {
    sizes: Mutex<Vec<usize>>,
    release: Notify,
    panics: bool,
    aborted: Arc<Notify>,
    /// The published limits. By default there are none.
    limits: Mutex<Option<LimitsLookUp>>,
}

/// Notifies when a future that holds it is dropped before it completes.
struct AbortNotifier(Option<Arc<Notify>>);

impl Drop for AbortNotifier {
    fn drop(&mut self) {
        if let Some(aborted) = &self.0 {
            aborted.notify_one();
        }
    }
}

impl Backend for ScriptedBackend {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn BatchOutputs) -> BoxFuture<'a, Observation> {
        async move {
            let members = request.members.len();
            self.sizes.lock().unwrap().push(members);
            let mut aborted = AbortNotifier(Some(self.aborted.clone()));
            self.release.notified().await;
            aborted.0 = None;
            assert!(!self.panics, "the test makes the backend panic");
            for member in 0..members {
                let reply = Reply {
                    status: StatusCode::OK,
                    headers: HeaderMap::new(),
                    body: members.to_string().into(),
                    trailers: None,
                };
                outputs.deliver(member, Ok(BufferedReply::new(reply, &BufferBudget::new(1 << 20, Clock::start()))));
            }
            Observation { duration: Duration::from_millis(1), first_byte: None, outcome: BatchOutcome::Ok }
        }
        .boxed()
    }

    fn is_merging_unsafe(&self, _call: &Call) -> bool {
        false
    }

    fn take_replay(&self) -> bool {
        true
    }

    fn published_limits(&self, _source: &LimitsSource) -> LimitsLookUp {
        self.limits.lock().unwrap().unwrap_or(LimitsLookUp::Known(None))
    }

    fn batches_text(&self) -> Option<bool> {
        None
    }
}

fn endpoint() -> Arc<Endpoint> {
    let rules = RouteRules::new(PathPattern::parse("/*").unwrap(), RouteProtocol::Auto);
    Routes::new(vec![], rules, SharedHeaderRules::default()).recognise(&Method::POST, "/v1/embeddings").unwrap()
}

pub(super) fn submission() -> Submission {
    let endpoint = endpoint();
    let request = Request::post("/v1/embeddings").header("content-type", "application/json").body(()).unwrap();
    let body = Bytes::from_static(b"{\"model\":\"m\",\"input\":\"a\"}");
    let call = endpoint.parse_call(&request.into_parts().0, body, &DigestKey::from_bytes([7; 32]));
    Submission {
        call: Arc::new(call),
        endpoint,
        scope: ScopeId(0),
        priority: PriorityId(0),
        tenant_weight: 1,
        unbatched: false,
        origin: CallOrigin::Client,
        client: None,
        batches_itself: None,
        deadline: None,
        later: None,
        slo: None,
        caller_deadline: None,
        timeout: Some(Duration::from_secs(30)),
        pending_limits: None,
        published_items_max: None,
        published_weight_max: None,
        division: None,
    }
}

struct TestScheduler {
    scheduler: Scheduler,
    backend: Arc<ScriptedBackend>,
    metrics: Arc<Metrics>,
    /// One endpoint for all calls: keys of different endpoints never merge.
    submission: Submission,
}

fn start_scheduler(backend: ScriptedBackend) -> TestScheduler {
    start_scheduler_with(backend, LearnedState::default(), None)
}

fn start_scheduler_with(
    backend: ScriptedBackend,
    learned_state: LearnedState,
    learned: Option<Arc<Notify>>,
) -> TestScheduler {
    let backend = Arc::new(backend);
    let metrics = Arc::new(Metrics::new("test"));
    let config = SchedulerConfig { limits: Limits::default(), seed: 1, learned_state, learned };
    let scheduler = Scheduler::start(config, Clock::start(), backend.clone(), metrics.clone()).unwrap();
    TestScheduler { scheduler, backend, metrics, submission: submission() }
}

impl TestScheduler {
    fn submit(&self) -> tokio::task::JoinHandle<SubmitOutcome> {
        self.submit_with(false)
    }

    fn submit_with(&self, limits_pending: bool) -> tokio::task::JoinHandle<SubmitOutcome> {
        let handle = self.scheduler.handle.clone();
        let Submission { call, endpoint, .. } = &self.submission;
        let pending_limits = limits_pending.then_some(LimitsSource::Info);
        let submission = Submission { call: call.clone(), endpoint: endpoint.clone(), pending_limits, ..submission() };
        tokio::spawn(async move { handle.submit(submission).await })
    }

    async fn permit(&self) -> UnbatchedPermit {
        match self.submit().await.unwrap() {
            SubmitOutcome::Unbatched(permit) => permit,
            other => panic!("expected a slot for an unbatched call, got {other:?}"),
        }
    }

    async fn until(&self, condition: impl Fn(&crate::telemetry::LiveCounts) -> bool) {
        while !condition(&self.metrics.stats) {
            tokio::task::yield_now().await;
        }
    }

    async fn queued(&self, items: u64) {
        self.until(|stats| stats.queue_items.load(Ordering::Relaxed) == items).await;
    }
}

#[tokio::test]
async fn an_unbatched_call_gets_the_slot_and_gives_it_back_when_dropped() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let first = fixture.permit().await;
    assert_eq!(first.details.held, None, "nothing else was in flight");
    drop(first);
    drop(fixture.permit().await);
    fixture.until(|stats| stats.in_flight.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn calls_that_wait_for_a_slot_leave_as_one_batch() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let permit = fixture.permit().await;
    let waiting: Vec<_> = (0..3).map(|_| fixture.submit()).collect();
    fixture.queued(3).await;
    drop(permit);
    fixture.backend.release.notify_one();
    for call in waiting {
        let SubmitOutcome::Reply(answer, details) = call.await.unwrap() else { panic!("expected a reply") };
        assert_eq!(&answer.reply.body[..], b"3");
        assert_eq!(details.batch_items, 3);
        assert_eq!(details.held, Some(WaitReason::Limit));
    }
    assert_eq!(*fixture.backend.sizes.lock().unwrap(), [3]);
}

#[tokio::test]
async fn calls_leave_one_by_one_until_the_published_limits_are_known_and_within_them_afterwards() {
    let fixture = start_scheduler(ScriptedBackend {
        limits: Mutex::new(Some(LimitsLookUp::Pending)),
        ..ScriptedBackend::default()
    });
    let permit = fixture.permit().await;
    let waiting: Vec<_> = (0..4).map(|_| fixture.submit_with(true)).collect();
    fixture.queued(4).await;
    drop(permit);
    fixture.queued(3).await;
    assert!(fixture.backend.sizes.lock().unwrap().is_empty(), "the first of them left unbatched");
    let limits = PublishedLimits { items_max: Some(2), ..PublishedLimits::default() };
    *fixture.backend.limits.lock().unwrap() = Some(LimitsLookUp::Known(Some(limits)));
    let mut outcomes = Vec::new();
    for call in waiting {
        fixture.backend.release.notify_one();
        // The permit of a call that left unbatched is released when it is dropped.
        outcomes.push(match call.await.unwrap() {
            SubmitOutcome::Unbatched(_) => 1,
            SubmitOutcome::Reply(_, details) => details.calls,
            other => panic!("expected an answer, got {other:?}"),
        });
    }
    assert_eq!(outcomes, [1, 2, 2, 1]);
    assert_eq!(*fixture.backend.sizes.lock().unwrap(), [2]);
}

#[tokio::test]
async fn a_caller_that_leaves_the_queue_is_never_sent() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let permit = fixture.permit().await;
    let (stays, leaves) = (fixture.submit(), fixture.submit());
    fixture.queued(2).await;
    leaves.abort();
    fixture.queued(1).await;
    drop(permit);
    assert!(matches!(stays.await.unwrap(), SubmitOutcome::Unbatched(_)));
    assert!(fixture.backend.sizes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_without_remaining_callers_is_aborted() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let permit = fixture.permit().await;
    let waiting: Vec<_> = (0..2).map(|_| fixture.submit()).collect();
    fixture.queued(2).await;
    drop(permit);
    fixture.until(|stats| stats.shared_batches.load(Ordering::Relaxed) == 1).await;
    for call in waiting {
        call.abort();
    }
    fixture.backend.aborted.notified().await;
    fixture.until(|stats| stats.in_flight.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn a_panic_of_the_backend_fails_its_own_batch_only() {
    let fixture = start_scheduler(ScriptedBackend { panics: true, ..ScriptedBackend::default() });
    let permit = fixture.permit().await;
    let waiting: Vec<_> = (0..2).map(|_| fixture.submit()).collect();
    fixture.queued(2).await;
    drop(permit);
    fixture.backend.release.notify_one();
    for call in waiting {
        let SubmitOutcome::Failed(failure, _) = call.await.unwrap() else { panic!("expected a failure") };
        assert_eq!(failure.kind, FailureKind::Internal);
    }
    drop(fixture.permit().await);
}

#[tokio::test]
async fn a_panic_of_the_driver_fails_its_calls_and_serves_the_next() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let permit = fixture.permit().await;
    let waiting = fixture.submit();
    fixture.queued(1).await;
    fixture.scheduler.handle.panic().await;
    let SubmitOutcome::Failed(failure, _) = waiting.await.unwrap() else { panic!("expected a failure") };
    assert_eq!(failure.kind, FailureKind::Internal);
    let fresh = fixture.permit().await;
    drop(permit);
    let second = fixture.submit();
    fixture.queued(1).await;
    drop(fresh);
    assert!(
        matches!(second.await.unwrap(), SubmitOutcome::Unbatched(_)),
        "a slot of an earlier run is not released to the new run"
    );
}

#[tokio::test]
async fn three_panics_within_a_minute_fail_the_scheduler() {
    let fixture = start_scheduler(ScriptedBackend::default());
    for life in 0..3 {
        fixture.scheduler.handle.panic().await;
        if life < 2 {
            // A call that is served shows that the driver has restarted.
            while !matches!(fixture.submit().await.unwrap(), SubmitOutcome::Unbatched(_)) {}
        }
    }
    fixture.scheduler.failed().await;
}

#[tokio::test]
async fn new_limits_hold_at_once_and_also_after_a_panic() {
    let fixture = start_scheduler(ScriptedBackend::default());
    let permit = fixture.permit().await;
    let small = Limits { queue_items_max: 1, ..Limits::default() };
    assert!(fixture.scheduler.handle.set_limits(small).await);
    let queued = fixture.submit();
    fixture.queued(1).await;
    let full = async || match fixture.submit().await.unwrap() {
        SubmitOutcome::Failed(failure, _) => failure.kind,
        other => panic!("expected a rejection, got {other:?}"),
    };
    assert_eq!(full().await, FailureKind::QueueFull);
    fixture.scheduler.handle.panic().await;
    assert!(matches!(queued.await.unwrap(), SubmitOutcome::Failed(..)));
    let fresh = fixture.permit().await;
    let _queued = fixture.submit();
    fixture.queued(1).await;
    assert_eq!(full().await, FailureKind::QueueFull);
    drop((permit, fresh));
}

#[tokio::test]
async fn a_scheduler_starts_with_the_learned_state_of_another() {
    let learned = Arc::new(Notify::new());
    let first = start_scheduler_with(ScriptedBackend::default(), LearnedState::default(), Some(learned.clone()));
    for _ in 0..3 {
        let mut permit = first.permit().await;
        permit.set_outcome(BatchOutcome::Ok);
        drop(permit);
        learned.notified().await;
    }
    let learned_state = first.scheduler.handle.snapshot().await.unwrap();
    let name = &first.submission.call.cost_class;
    assert_eq!(learned_state.classes.iter().map(|(name, _)| name).collect::<Vec<_>>(), [name]);
    let second = start_scheduler_with(ScriptedBackend::default(), learned_state.clone(), None);
    let report = second.scheduler.handle.report().await.unwrap();
    let cost = &report.classes.first().unwrap().1;
    assert!(cost.samples > 0 && !cost.points.is_empty(), "{cost:?}");
    // The same name maps to the same cost class, so new observations add to the seeded ones.
    drop(second.permit().await);
    second.until(|stats| stats.batches.load(Ordering::Relaxed) == 1).await;
    assert_eq!(second.scheduler.handle.report().await.unwrap().classes.len(), 1);
    second.scheduler.handle.reset().await;
    assert!(second.scheduler.handle.report().await.unwrap().classes.is_empty());
}

/// Observes calls that pass through one after the other, each answered before or after its body is
/// complete.
async fn passed(calls: u32, answered_first: bool) -> ShadowReport {
    let config =
        SchedulerConfig { limits: Limits::default(), seed: 1, learned_state: LearnedState::default(), learned: None };
    let metrics = Arc::new(Metrics::new("test"));
    let shadow = ShadowRecorder::start(&config, Clock::start(), Arc::new(ScriptedBackend::default()), metrics);
    for _ in 0..calls {
        let Submission { call, endpoint, scope, priority, .. } = submission();
        let passing = ObservedCall {
            endpoint,
            scope,
            priority,
            tenant_weight: 1,
            client: Ipv4Addr::LOCALHOST.into(),
            began: Tick::default(),
            deadline: None,
            later: None,
            slo: None,
            names_protocol: false,
        };
        let (coming, awaited) = shadow.register_call();
        let come = || {
            coming.on_body_complete(Box::new(passing), DeferredParse(Box::new(move || Arc::try_unwrap(call).unwrap())));
        };
        if answered_first {
            awaited.on_response(true);
            come();
        } else {
            come();
            awaited.on_response(true);
        }
    }
    shadow.report().await.unwrap()
}

#[tokio::test]
async fn passed_calls_are_learned_from_even_if_they_are_parsed_late() {
    // Nothing runs in between: the task parses the first call after the last one has been answered.
    // The first eight calls are learned from. If the machine pauses in one of them, that call is an
    // outlier and is excluded.
    let calls = passed(64, false).await.calls;
    assert!((32..=56).contains(&calls), "{calls}");
}

#[tokio::test]
async fn a_call_answered_before_its_body_is_complete_is_not_learned_from() {
    assert_eq!(passed(12, true).await.calls, 0);
}
