use std::future::Future;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::task::JoinHandle;

use super::*;
use crate::backend::{BatchRequest, Outputs};
use crate::batching::{DeadlineSource, Observed, ObservedOutcome, Policy};
use crate::protocol::{Common, Named, PathPattern, Published, RouteRules, Routes, Secret};

/// Longer than anything here takes; a wait this long is a hang.
const HANG: Duration = Duration::from_secs(10);

/// What the backend does with a batch.
enum Act {
    /// Answers every member with its own body.
    Serve,
    /// Ends without an answer to the last member.
    ForgetOne,
    /// Panics.
    Panic,
}

/// A batch that the backend was given, and that waits for what to do.
struct Given {
    members: usize,
    timeout: Duration,
    deadline_ms: Option<u64>,
    act: oneshot::Sender<Act>,
}

/// A backend at the test's hands.
#[derive(Debug)]
struct ByHand(mpsc::Sender<Given>);

impl Backend for ByHand {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn Outputs) -> BoxFuture<'a, Observed> {
        async move {
            let (act, told) = oneshot::channel();
            let members = request.members.len();
            let given = Given { members, timeout: request.timeout, deadline_ms: request.deadline_ms, act };
            self.0.send(given).await.unwrap();
            let told = told.await.unwrap();
            assert!(!matches!(told, Act::Panic), "asked for by a test");
            let answered = if matches!(told, Act::ForgetOne) { members - 1 } else { members };
            for (member, call) in request.members.iter().enumerate().take(answered) {
                let body = call.body.clone();
                let reply = Reply { status: StatusCode::OK, headers: HeaderMap::new(), body, trailers: None };
                outputs.deliver(member, Ok(reply));
            }
            Observed { duration: Duration::from_millis(1), first_byte: None, outcome: ObservedOutcome::Ok }
        }
        .boxed()
    }

    fn published(&self) -> BoxFuture<'_, Option<Published>> {
        async { None }.boxed()
    }
}

struct Bench {
    scheduler: Scheduler,
    batches: mpsc::Receiver<Given>,
    metrics: Arc<Metrics>,
    endpoint: Arc<Endpoint>,
    clock: Clock,
}

// === impl Bench ===

impl Bench {
    fn new(policy: Policy) -> Self {
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::new("local"));
        let (given, batches) = mpsc::channel(16);
        let config = Config { limits: Limits { policy, ..Limits::default() }, seed: 1 };
        let scheduler = Scheduler::start(config, clock, Arc::new(ByHand(given)), metrics.clone()).unwrap();
        Self { scheduler, batches, metrics, endpoint: endpoint(), clock }
    }

    fn submission(&self, word: &str) -> Submission {
        let head = Request::post("/v1/embeddings").header("content-type", "application/json").body(()).unwrap();
        let body = Bytes::from(format!(r#"{{"input":"{word}"}}"#));
        let call = Arc::new(self.endpoint.read(&head.into_parts().0, body, &Secret::random()));
        Submission {
            call,
            endpoint: self.endpoint.clone(),
            scope: ScopeId(0),
            alone: false,
            deadline: None,
            later: None,
            caller_deadline: None,
            timeout: Duration::from_secs(7),
            published_items_max: None,
        }
    }

    fn submit(&self, submission: Submission) -> JoinHandle<Outcome> {
        let handle = self.scheduler.handle.clone();
        tokio::spawn(async move { handle.submit(submission).await })
    }

    /// Submits a call and waits until it is queued beside the others.
    async fn queue(&self, word: &str, queued: u64) -> JoinHandle<Outcome> {
        let waits = self.submit(self.submission(word));
        self.until(|stats| stats.queue_items.load(Ordering::Relaxed) == queued).await;
        waits
    }

    /// Takes the only slot with a call that goes alone.
    async fn occupy(&self) -> Grant {
        granted(within(self.submit(self.submission("first"))).await.unwrap())
    }

    async fn until(&self, holds: impl Fn(&crate::telemetry::Stats) -> bool) {
        within(async {
            while !holds(&self.metrics.stats) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn batch(&mut self) -> Given {
        within(self.batches.recv()).await.unwrap()
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.expect("nothing happened for ten seconds")
}

fn endpoint() -> Arc<Endpoint> {
    let any = RouteRules {
        path: PathPattern::parse("/*").unwrap(),
        method: Method::POST,
        protocol: Named::Auto,
        merge_on_headers: Vec::new(),
        merge_on_fields: Vec::new(),
        merge_over_headers: Vec::new(),
        merge_over_fields: Vec::new(),
        respond_with_headers: Vec::new(),
        generic: None,
        idempotent: None,
        item_bytes_max: 1 << 20,
        item_nesting_max: 64,
        item_count_max: 128,
    };
    Routes::new(Vec::new(), any, Common::default()).recognise(&Method::POST, "/v1/embeddings").unwrap()
}

fn granted(outcome: Outcome) -> Grant {
    match outcome {
        Outcome::Alone(grant) => grant,
        other => panic!("not alone: {other:?}"),
    }
}

fn failure(outcome: Outcome) -> FailureKind {
    match outcome {
        Outcome::Failed(failure, _) => failure.kind,
        other => panic!("no failure: {other:?}"),
    }
}

fn body(outcome: Outcome) -> Bytes {
    match outcome {
        Outcome::Reply(reply, _) => reply.body,
        other => panic!("no reply: {other:?}"),
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_slot_leave_together_and_each_gets_its_own_answer() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    drop(first);
    let given = bench.batch().await;
    assert_eq!((given.members, given.timeout, given.deadline_ms), (2, Duration::from_secs(7), None));
    assert!(given.act.send(Act::Serve).is_ok());
    assert_eq!(body(within(a).await.unwrap()), r#"{"input":"a"}"#);
    assert_eq!(body(within(b).await.unwrap()), r#"{"input":"b"}"#);
    bench.until(|stats| stats.in_flight.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn a_panic_of_the_driver_fails_what_it_held_and_the_next_call_is_served() {
    let bench = Bench::new(Policy::WorkConserving);
    let _kept = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    bench.scheduler.handle.panic().await;
    assert_eq!(failure(within(a).await.unwrap()), FailureKind::Internal);
    assert_eq!(failure(within(b).await.unwrap()), FailureKind::Internal);
    // The queue is empty and every slot free, whatever the first life had given away.
    granted(within(bench.submit(bench.submission("c"))).await.unwrap());
}

#[tokio::test]
async fn a_slot_that_comes_back_from_before_a_panic_frees_none_of_the_new_life() {
    let bench = Bench::new(Policy::WorkConserving);
    let old = bench.occupy().await;
    bench.scheduler.handle.panic().await;
    let new = bench.occupy().await;
    let mut waits = bench.queue("a", 1).await;
    drop(old);
    // Another event goes through the driver after the old slot's end; the call still waits.
    let behind = bench.queue("b", 2).await;
    assert!((&mut waits).now_or_never().is_none(), "the batch of the old life counted for the new one");
    behind.abort();
    bench.until(|stats| stats.queue_items.load(Ordering::Relaxed) == 1).await;
    drop(new);
    granted(within(waits).await.unwrap());
}

#[tokio::test]
async fn the_third_panic_in_a_minute_is_reported_and_nobody_waits_for_ever() {
    let bench = Bench::new(Policy::WorkConserving);
    let _kept = bench.occupy().await;
    for _ in 0..2 {
        bench.scheduler.handle.panic().await;
        drop(bench.occupy().await);
    }
    assert!(bench.scheduler.failed().now_or_never().is_none(), "two panics are not the end");
    let _kept = bench.occupy().await;
    let waits = bench.queue("a", 1).await;
    bench.scheduler.handle.panic().await;
    within(bench.scheduler.failed()).await;
    assert_eq!(failure(within(waits).await.unwrap()), FailureKind::Internal);
    // With the driver gone a call is refused at once.
    failure(within(bench.submit(bench.submission("late"))).await.unwrap());
}

#[tokio::test]
async fn a_call_whose_caller_left_the_queue_is_never_sent() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let leaves = bench.queue("leaves", 1).await;
    let a = bench.queue("a", 2).await;
    let b = bench.queue("b", 3).await;
    leaves.abort();
    bench.until(|stats| stats.queue_items.load(Ordering::Relaxed) == 2).await;
    drop(first);
    let given = bench.batch().await;
    assert_eq!(given.members, 2);
    assert!(given.act.send(Act::Serve).is_ok());
    body(within(a).await.unwrap());
    body(within(b).await.unwrap());
}

#[tokio::test]
async fn a_batch_that_everybody_left_is_ended_and_its_slot_is_free() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    drop(first);
    let mut given = bench.batch().await;
    a.abort();
    b.abort();
    within(given.act.closed()).await;
    bench.until(|stats| stats.in_flight.load(Ordering::Relaxed) == 0).await;
    drop(bench.occupy().await);
}

#[tokio::test]
async fn a_batch_that_one_member_left_goes_on_for_the_others() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    drop(first);
    let given = bench.batch().await;
    a.abort();
    assert!(given.act.send(Act::Serve).is_ok());
    assert_eq!(body(within(b).await.unwrap()), r#"{"input":"b"}"#);
}

#[tokio::test]
async fn a_member_that_the_backend_forgets_gets_an_internal_error() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    drop(first);
    assert!(bench.batch().await.act.send(Act::ForgetOne).is_ok());
    body(within(a).await.unwrap());
    assert_eq!(failure(within(b).await.unwrap()), FailureKind::Internal);
}

#[tokio::test]
async fn a_backend_that_panics_fails_its_batch_only_and_gives_the_slot_back() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    drop(first);
    assert!(bench.batch().await.act.send(Act::Panic).is_ok());
    assert_eq!(failure(within(a).await.unwrap()), FailureKind::Internal);
    assert_eq!(failure(within(b).await.unwrap()), FailureKind::Internal);
    drop(bench.occupy().await);
}

#[tokio::test]
async fn draining_sends_what_a_long_hold_keeps_and_holds_nothing_after() {
    let mut bench = Bench::new(Policy::Static { items: 100, delay: Duration::from_secs(3600) });
    let scope = Limits::default().scopes.remove(0);
    let limits = Limits {
        policy: Policy::Static { items: 100, delay: Duration::from_secs(3600) },
        scopes: vec![crate::batching::ScopeLimits { queue_delay_max: Duration::from_secs(3600), ..scope }],
        ..Limits::default()
    };
    let (given, batches) = mpsc::channel(16);
    let config = Config { limits, seed: 1 };
    bench.scheduler = Scheduler::start(config, bench.clock, Arc::new(ByHand(given)), bench.metrics.clone()).unwrap();
    bench.batches = batches;
    let a = bench.queue("a", 1).await;
    let b = bench.queue("b", 2).await;
    within(bench.scheduler.handle.drain()).await;
    assert!(bench.batch().await.act.send(Act::Serve).is_ok());
    body(within(a).await.unwrap());
    body(within(b).await.unwrap());
    drop(bench.occupy().await);
}

#[tokio::test]
async fn a_shared_call_carries_the_latest_deadline_and_only_if_every_member_has_one() {
    let mut bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let due = |bench: &Bench, ms| {
        let at = bench.clock.now().after(Duration::from_millis(ms));
        let deadline = Some(Deadline { at, source: DeadlineSource::Caller });
        Submission { caller_deadline: Some(at), deadline, ..bench.submission("due") }
    };
    let early = bench.submit(due(&bench, 100_000));
    let late = bench.submit(due(&bench, 900_000));
    bench.until(|stats| stats.queue_items.load(Ordering::Relaxed) == 2).await;
    drop(first);
    let given = bench.batch().await;
    assert!(given.deadline_ms.is_some_and(|ms| ms > 800_000 && ms <= 900_000), "{:?}", given.deadline_ms);
    let open = bench.queue("open", 1).await;
    let timed = bench.submit(due(&bench, 100_000));
    bench.until(|stats| stats.queue_items.load(Ordering::Relaxed) == 2).await;
    assert!(given.act.send(Act::Serve).is_ok());
    body(within(early).await.unwrap());
    body(within(late).await.unwrap());
    let given = bench.batch().await;
    assert_eq!(given.deadline_ms, None);
    assert!(given.act.send(Act::Serve).is_ok());
    body(within(open).await.unwrap());
    body(within(timed).await.unwrap());
}

#[tokio::test]
async fn a_call_that_expires_in_the_queue_is_answered_and_not_sent() {
    let bench = Bench::new(Policy::WorkConserving);
    let first = bench.occupy().await;
    let at = bench.clock.now().after(Duration::from_millis(5));
    let deadline = Some(Deadline { at, source: DeadlineSource::Slo });
    let expires = bench.submit(Submission { deadline, ..bench.submission("expires") });
    assert_eq!(failure(within(expires).await.unwrap()), FailureKind::Deadline);
    assert!(bench.clock.now() >= at, "not before its time");
    drop(first);
    bench.until(|stats| stats.in_flight.load(Ordering::Relaxed) == 0).await;
    assert_eq!(bench.metrics.stats.batches.load(Ordering::Relaxed), 1);
}
