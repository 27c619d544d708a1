//! Load generators that verify every response: open-loop ([`start_open_loop`]) and closed-loop
//! ([`run_closed_loop`]).
//!
//! Requests are built once and sent over keep-alive connections. A response is correct if it begins
//! with the bytes that the simulated model produces for these items, or with those that were recorded
//! before ([`record_calls`]). Calls are counted by their
//! outcome: served, refused (429 and 503), wrong or failed. A call is retried in only one case, in
//! which every HTTP client retries it: a keep-alive connection was closed before the first byte of
//! the response.

mod closed;
mod open;
mod recorded;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;

pub use self::closed::{ClosedConfig, SLICE_INTERVAL, run_closed_loop};
pub use self::open::{OpenConfig, OpenLoad, start_open_loop};
pub use self::recorded::{post_json, record_calls};
use super::http1::Message;
use super::item::{Route, splitmix64};

/// Number of different calls that a load sends in rotation: enough that neighbours in a batch
/// differ.
const VARIETY: u64 = 256;
/// Maximum recorded latency. Larger latencies are recorded as this value.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// Header of every response that the proxy makes itself (`docs/errors.md`).
const OWN_ERROR_HEADER: &str = "x-groupage-error";

/// Form of the calls of a load.
#[derive(Debug, Clone)]
pub struct CallForm {
    /// Route of the calls.
    pub route: Route,
    /// Number of items in each call.
    pub items: usize,
    /// Seed of the items. The same seed produces the same calls.
    pub seed: u64,
    /// Model name in embeddings calls.
    pub model: &'static str,
    /// First word of every text item.
    pub prefix: &'static str,
    /// Number of the API key. Calls with different keys are never merged.
    pub key: Option<usize>,
    /// `true` if the calls request a streamed response.
    pub stream: bool,
}

/// Prebuilt calls of a load.
#[derive(Debug, Clone)]
pub struct PreparedCalls {
    list: Arc<[PreparedCall]>,
    items: usize,
}

#[derive(Debug)]
struct PreparedCall {
    request: Bytes,
    /// First bytes of a correct response.
    expect: Vec<u8>,
}

/// Results of a load.
#[derive(Debug, Clone)]
pub struct Report {
    /// Number of calls that were due.
    pub offered: u64,
    /// Number of calls that received a correct 200 response.
    pub served: u64,
    /// Number of calls answered with 429 or 503.
    pub refused: u64,
    /// Number of those that the model server refused itself, behind a proxy or without one.
    pub refused_by_server: u64,
    /// Number of calls that received an incorrect 200 response. Every such call is a defect.
    pub wrong: u64,
    /// Number of calls with any other response, or with none.
    pub failed: u64,
    /// Number of calls for which no connection became free before the end. They are also counted in
    /// `failed`.
    pub unsent: u64,
    /// Number of calls made by a closed load, including those outside the measured time.
    pub made: u64,
    /// Number of served calls of a closed load, by the [`SLICE_INTERVAL`] in which they ended.
    pub slices: Vec<u64>,
    /// Number of items in each call.
    pub items_per_call: usize,
    /// Time over which `served` was counted.
    pub elapsed: Duration,
    /// Latencies of served calls in nanoseconds. Those of an open load are measured from the
    /// scheduled time.
    pub latency: Histogram<u64>,
}

/// Progress of a running load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Number of calls due since the start.
    pub offered: u64,
    /// Number of calls served since the start.
    pub served: u64,
    /// Number of calls refused since the start.
    pub refused: u64,
    /// Number of calls that failed or received an incorrect response since the start.
    pub failed: u64,
    /// Median latency of the calls served since the last snapshot.
    pub p50: Duration,
    /// 99th percentile of the latency of the calls served since the last snapshot.
    pub p99: Duration,
}

/// Outcome of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOutcome {
    Served,
    Refused,
    RefusedByServer,
    Wrong,
    Failed,
    Unsent,
}

#[derive(Debug)]
struct LoadStats {
    counts: Mutex<LoadCounts>,
}

#[derive(Debug)]
struct LoadCounts {
    /// Results so far, without `made`, `items_per_call` and `elapsed`, which are set at the end.
    report: Report,
    /// Latencies since the last snapshot.
    recent: Histogram<u64>,
}

// === impl CallForm ===

impl CallForm {
    /// Creates a form with one item, the default model, no API key and no streaming.
    #[must_use]
    pub const fn new(route: Route) -> Self {
        Self { route, items: 1, seed: 1, model: "stand-in", prefix: "parcel", key: None, stream: false }
    }
}

// === impl PreparedCalls ===

impl PreparedCalls {
    /// Creates calls of `items` items each. The same seed produces the same calls.
    #[must_use]
    pub fn new(route: Route, items: usize, seed: u64) -> Self {
        Self::from_form(&CallForm { items, seed, ..CallForm::new(route) })
    }

    /// Creates calls of this form.
    #[must_use]
    pub fn from_form(form: &CallForm) -> Self {
        let list = (0..VARIETY).map(|call| PreparedCall::new(form, splitmix64(form.seed ^ splitmix64(call)))).collect();
        Self { list, items: form.items }
    }

    fn get(&self, turn: u64) -> &PreparedCall {
        // Never empty: a constructor makes VARIETY calls, the other refuses an empty list.
        let place = turn % (self.list.len() as u64);
        &self.list[usize::try_from(place).unwrap_or_default()]
    }
}

// === impl PreparedCall ===

impl PreparedCall {
    fn new(form: &CallForm, mark: u64) -> Self {
        let route = form.route;
        let raw: Vec<String> = (0..form.items as u64).map(|place| item(form, splitmix64(mark ^ place))).collect();
        let raw: Vec<&str> = raw.iter().map(String::as_str).collect();
        let mut body = String::from("{");
        if route == Route::Embeddings {
            write!(body, r#""model":"{}","#, form.model).ok();
        }
        if form.stream {
            body.push_str(r#""stream":true,"#);
        }
        write!(body, r#""{}":[{}]}}"#, route.items_field(), raw.join(",")).ok();
        let key = form.key.map(|key| format!("authorization: Bearer key-{key}\r\n")).unwrap_or_default();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: stand-in\r\n{key}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            route.path(),
            body.len()
        );
        Self { request: request.into(), expect: route.write_results(&raw).into_bytes() }
    }

    fn outcome(&self, answer: &Message<'_>) -> CallOutcome {
        match answer.status {
            200 if answer.body.starts_with(&self.expect) => CallOutcome::Served,
            200 => CallOutcome::Wrong,
            429 | 503 if answer.header(OWN_ERROR_HEADER).is_none() => CallOutcome::RefusedByServer,
            429 | 503 => CallOutcome::Refused,
            _ => CallOutcome::Failed,
        }
    }
}

/// Returns a JSON item as clients of the route send it: a short text, or a list of numbers.
fn item(form: &CallForm, mark: u64) -> String {
    match form.route {
        Route::Predict => {
            let feature =
                |shift: u32| f64::from(u32::try_from((mark >> shift) & 0x3f).unwrap_or_default()) / 8.0 + 0.0625;
            format!("[{},{},{},{}]", feature(0), feature(8), feature(16), feature(24))
        }
        Route::Embeddings | Route::Embed | Route::Ledger => {
            format!(r#""{} {mark:016x} to be weighed""#, form.prefix)
        }
    }
}

// === impl LoadStats ===

impl LoadStats {
    fn new() -> Self {
        let histogram = || Histogram::new_with_max(nanos(LATENCY_MAX), 3).unwrap_or_else(|_| fallback_histogram());
        let report = Report {
            offered: 0,
            served: 0,
            refused: 0,
            refused_by_server: 0,
            wrong: 0,
            failed: 0,
            unsent: 0,
            made: 0,
            slices: Vec::new(),
            items_per_call: 0,
            elapsed: Duration::ZERO,
            latency: histogram(),
        };
        Self { counts: Mutex::new(LoadCounts { report, recent: histogram() }) }
    }

    fn counts(&self) -> MutexGuard<'_, LoadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, outcome: CallOutcome, latency: Duration) {
        let LoadCounts { report, recent } = &mut *self.counts();
        match outcome {
            CallOutcome::Served => {
                report.served += 1;
                report.latency.saturating_record(nanos(latency));
                recent.saturating_record(nanos(latency));
            }
            CallOutcome::Refused => report.refused += 1,
            CallOutcome::RefusedByServer => {
                report.refused += 1;
                report.refused_by_server += 1;
            }
            CallOutcome::Wrong => report.wrong += 1,
            CallOutcome::Failed => report.failed += 1,
            CallOutcome::Unsent => {
                report.failed += 1;
                report.unsent += 1;
            }
        }
    }

    fn snapshot(&self) -> LoadSnapshot {
        let LoadCounts { report, recent } = &mut *self.counts();
        let quantile = |q| Duration::from_nanos(recent.value_at_quantile(q));
        let snapshot = LoadSnapshot {
            offered: report.offered,
            served: report.served,
            refused: report.refused,
            failed: report.failed + report.wrong,
            p50: quantile(0.5),
            p99: quantile(0.99),
        };
        recent.reset();
        snapshot
    }

    /// Records a served call that ended `after` the start of the measured time.
    fn record_slice(&self, after: Duration) {
        let slice = usize::try_from(after.as_nanos() / SLICE_INTERVAL.as_nanos()).unwrap_or_default();
        let slices = &mut self.counts().report.slices;
        if slices.len() <= slice {
            slices.resize(slice + 1, 0);
        }
        slices[slice] += 1;
    }

    fn report(&self, items_per_call: usize, elapsed: Duration) -> Report {
        Report { items_per_call, elapsed, ..self.counts().report.clone() }
    }
}

/// Fallback for the fallible constructor, which never fails: three significant digits and a
/// constant maximum are valid arguments.
fn fallback_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are within the library's range of 0 to 5")
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Report ===

impl Report {
    /// Combines the results of this load with those of a load that ran at the same time.
    #[must_use]
    pub fn merge(mut self, other: &Self) -> Self {
        self.offered += other.offered;
        self.served += other.served;
        self.refused += other.refused;
        self.refused_by_server += other.refused_by_server;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.made += other.made;
        if self.slices.len() < other.slices.len() {
            self.slices.resize(other.slices.len(), 0);
        }
        for (own, theirs) in self.slices.iter_mut().zip(&other.slices) {
            *own += theirs;
        }
        // Both histograms have the same range, so every value fits.
        self.latency.add(&other.latency).ok();
        self
    }

    /// Returns the number of calls served per second.
    #[must_use]
    pub fn calls_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.served as f64 / seconds } else { 0.0 }
    }

    /// Returns the number of items served per second.
    #[must_use]
    pub fn items_per_second(&self) -> f64 {
        self.calls_per_second() * self.items_per_call as f64
    }

    /// Returns a quantile of the latency of served calls.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(quantile))
    }

    /// Returns the mean latency of served calls.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.latency.mean() / 1e9)
    }

    /// Returns the share of all due calls that were served within `limit`.
    #[must_use]
    pub fn share_within(&self, limit: Duration) -> f64 {
        if self.offered == 0 {
            return 0.0;
        }
        self.latency.count_between(0, nanos(limit)) as f64 / self.offered as f64
    }

    /// Returns the median latency of served calls.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// Returns the 99th percentile of the latency of served calls.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }
}
