//! Adaptation of the proxy to an upstream that changes under a steady load.
//!
//! The ledger follows every item: none is lost, duplicated or answered wrongly, whatever changes.
//! The adaptation is measured at the upstream, by the batches that arrive there once the change is
//! learned and the proxy is steady again.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use groupage::batching::BatcherReport as Learned;
use groupage::testkit::Route;
use groupage::testkit::integrity::{self, LedgerConfig, LedgerMock, LedgerReport, MockConfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::setup::{TestProxy, adaptive_spec, within_timeout};
use crate::{ms, quiet};

/// Time within which the proxy batches for less capacity: 15 times the latency of a direct call
/// when 24 clients share the one slot of four that is left, at 10 ms per call.
const LESS_ROOM: Duration = Duration::from_millis(15 * 24 * 10);
/// Maximum time to adapt to a change. Two seconds suffice on an idle machine. On shared cores the
/// limiter may decide wrongly once, and the time covers twice the rest that follows.
const ADAPTATION_MAX: Duration = Duration::from_secs(24);
/// Time by which the first model is learned.
const WARM: Duration = Duration::from_millis(800);
/// Duration of an observation of the upstream.
const WINDOW: Duration = Duration::from_millis(800);
/// Interval between two reads of the learned state.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// A proxy under a steady load.
struct Live {
    proxy: TestProxy,
    mock: Arc<LedgerMock>,
    run: JoinHandle<LedgerReport>,
}

/// Arrivals at the upstream in a span of time, and the changes of the learned state in it.
#[derive(Debug)]
struct SpanObservation {
    /// Accepted items per second.
    rate: f64,
    /// Mean number of items per batch.
    size: f64,
    /// Number of items of the largest batch.
    largest: usize,
    refused: usize,
    /// Successive values of the slots in use. `ceilings` has those of the learned batch limit.
    slots: Vec<u32>,
    ceilings: Vec<u64>,
}

impl Live {
    async fn start(mock: MockConfig, spec: &Value, clients: usize) -> Self {
        let mock = Arc::new(LedgerMock::start(MockConfig { fault_share: 0.0, ..mock }).await.unwrap());
        let proxy = TestProxy::start_in_front_of(&mock.url(), adaptive_spec(spec));
        let config = LedgerConfig {
            concurrency: clients,
            tenants: 1,
            cancel_share: 0.0,
            poison_share: 0.0,
            route: Some(Route::Predict),
            ..LedgerConfig::new(proxy.address, u64::MAX)
        };
        let upstream = Arc::clone(&mock);
        let run = tokio::spawn(async move { integrity::run(config, &upstream).await });
        Self { proxy, mock, run }
    }

    /// Observes the upstream and the learned state for `span`.
    async fn watch(&self, span: Duration) -> SpanObservation {
        let begun = self.mock.clock();
        let mut ticks = tokio::time::interval(READ_INTERVAL);
        let (mut slots, mut ceilings) = (Vec::new(), Vec::new());
        while self.mock.clock() < begun + span {
            ticks.tick().await;
            slots.push(within_timeout(self.proxy.running.learned()).await.unwrap().slots);
            ceilings.push(self.proxy.metric(r#"groupage_limit{limit="batch_items_max",source="learned"}"#));
        }
        slots.dedup();
        ceilings.dedup();
        self.seen(begun..self.mock.clock(), slots, ceilings)
    }

    /// Observes three times and returns the observation with the median rate, because the machine
    /// may pause during any of them.
    async fn steady(&self) -> SpanObservation {
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(self.watch(WINDOW / 2).await);
        }
        let mut slots: Vec<u32> = seen.iter().flat_map(|seen| seen.slots.iter().copied()).collect();
        slots.dedup();
        seen.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        SpanObservation { slots, ..seen.swap_remove(1) }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of a test")]
    fn seen(&self, span: Range<Duration>, slots: Vec<u32>, ceilings: Vec<u64>) -> SpanObservation {
        let all = self.mock.arrivals(span.clone());
        let refused = all.iter().filter(|arrival| arrival.refused).count();
        let taken: Vec<_> = all.iter().filter(|arrival| !arrival.refused).collect();
        let items: usize = taken.iter().map(|arrival| arrival.items).sum();
        SpanObservation {
            rate: items as f64 / (span.end - span.start).as_secs_f64(),
            size: items as f64 / (taken.len().max(1) as f64),
            largest: taken.iter().map(|arrival| arrival.items).max().unwrap_or_default(),
            refused,
            slots,
            ceilings,
        }
    }

    /// Waits until the learned state satisfies `holds`.
    #[track_caller]
    fn adapted(&self, holds: impl Fn(&Learned) -> bool) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        let begun = self.mock.clock();
        async move {
            let mut ticks = tokio::time::interval(READ_INTERVAL);
            loop {
                ticks.tick().await;
                let learned = within_timeout(self.proxy.running.learned()).await.unwrap();
                let took = self.mock.clock() - begun;
                if holds(&learned) {
                    return;
                }
                assert!(took < ADAPTATION_MAX, "not adapted at {place}: {learned:?}");
            }
        }
    }

    /// Ends the load and verifies that every item got exactly one correct answer.
    async fn end(self) {
        self.mock.stop_clients();
        let report = within_timeout(self.run).await.unwrap();
        assert_eq!(report.violations(), 0, "{report:#?}");
        assert_eq!(report.served, report.items, "no call was refused: {report:#?}");
        self.proxy.wait_idle().await;
    }
}

/// Returns `true` if the learned duration of a batch of `items` is between 0.75 and 1.5 times
/// `real`. After a change that was missed, it would be half or twice as long.
fn takes(learned: &Learned, items: u32, real: Duration) -> bool {
    let Some((_, cost)) = learned.classes.first() else { return false };
    let time = Duration::from_nanos(cost.batch_nanos + cost.item_nanos * u64::from(items));
    time > real.mul_f64(0.75) && time < real.mul_f64(1.5)
}

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The service time doubles at once, and later returns to its first value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_slows_down_and_recovers_is_learned_anew_both_times() {
    let _quiet = quiet().await;
    let mock = MockConfig { base: ms(8), per_item: us(250), slots: 1, ..MockConfig::default() };
    let live = Live::start(mock, &json!({}), 32).await;
    live.adapted(|learned| takes(learned, 32, ms(16))).await;
    live.watch(WARM).await;
    let before = live.steady().await;
    live.mock.set_curve(ms(16), us(500));
    live.adapted(|learned| takes(learned, 32, ms(32))).await;
    let slow = live.steady().await;
    assert!(slow.rate > before.rate / 2.0 * 0.7, "{before:?} {slow:?}");
    live.mock.set_curve(ms(8), us(250));
    live.adapted(|learned| takes(learned, 32, ms(16))).await;
    let again = live.steady().await;
    assert!(again.rate > before.rate * 0.7, "{before:?} {again:?}");
    live.end().await;
}

/// The new model costs more per item, so that batches gain little: calls may be merged or forwarded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_model_is_not_slower_than_direct_calls_and_no_caller_gets_a_mixture_of_both() {
    let _quiet = quiet().await;
    let mock = MockConfig { base: ms(8), per_item: us(250), slots: 1, ..MockConfig::default() };
    let live = Live::start(mock, &json!({}), 32).await;
    live.watch(WARM).await;
    live.mock.set_curve(ms(1), ms(2));
    live.mock.replace_model();
    live.watch(WARM).await;
    let after = live.steady().await;
    // Direct calls are answered at 333 items per second, batches of 32 at 492.
    assert!(after.rate > 333.0 * 0.85, "{after:?}");
    live.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_vanish_and_come_back_are_used_as_far_as_they_go() {
    let _quiet = quiet().await;
    let mock = MockConfig { base: ms(10), per_item: us(100), slots: 4, ..MockConfig::default() };
    let live = Live::start(mock, &json!({"limits": {"batchItemsMax": 4}}), 24).await;
    live.adapted(|learned| (3..=8).contains(&learned.slots)).await;
    let four = live.steady().await;
    live.mock.set_slots(1);
    live.watch(LESS_ROOM).await;
    let one = live.steady().await;
    live.mock.set_slots(4);
    live.watch(WARM).await;
    let again = live.steady().await;
    // Lower bound: the rate of one slot with batches of the observed mean size. Batches of four
    // would give more.
    assert!(one.rate > one.size / 0.0104 * 0.85, "{four:?} {one:?} {again:?}");
    assert!(four.rate > one.rate * 2.0 && again.rate > one.rate * 2.0, "{four:?} {one:?} {again:?}");
    live.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_falls_under_load_is_found_without_refused_calls() {
    let _quiet = quiet().await;
    let mock = MockConfig { base: ms(8), per_item: us(250), slots: 1, ..MockConfig::default() };
    let live = Live::start(mock, &json!({"limits": {"batchItemsMax": 64}}), 64).await;
    // A process that has just started may overestimate the duration of the first calls, and
    // approach the limit in steps.
    let begun = live.mock.clock();
    let mut before = live.watch(WINDOW).await;
    while before.largest <= 32 {
        assert!(live.mock.clock() - begun < ADAPTATION_MAX, "no large batch: {before:?}");
        before = live.watch(WINDOW).await;
    }
    live.mock.set_items_max(Some(16));
    let begun = live.mock.clock();
    while live.watch(READ_INTERVAL).await.ceilings.last().is_none_or(|ceiling| !(1..=17).contains(ceiling)) {
        assert!(live.mock.clock() - begun < ADAPTATION_MAX, "the limit was not found");
    }
    // The limit may be probed again from time to time, at most one step above it. A limiter that
    // opened during a pause of the machine closes again.
    let begun = live.mock.clock();
    let mut after = live.watch(WINDOW).await;
    let kept = |seen: &SpanObservation| seen.ceilings.iter().all(|ceiling| (8..=17).contains(ceiling));
    while after.refused > 3 || after.largest > 16 || after.size < 7.0 || !kept(&after) {
        let learned = within_timeout(live.proxy.running.learned()).await.unwrap();
        assert!(live.mock.clock() - begun < ADAPTATION_MAX, "{before:?} {after:?} {learned:?}");
        after = live.watch(WINDOW).await;
    }
    live.end().await;
}
