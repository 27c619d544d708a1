//! A proxy in this process, its clients, and the calls they make. `scripted_setup` puts it in front
//! of a server that the test controls.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use groupage::app::{AppOptions, AppliedSettings, RunningApp, start};
use groupage::config::{self, MachineLimits, Overrides, Policy, SourcedValue};
use groupage::error::BoxError;
use groupage::telemetry::LiveCounts;
use groupage::telemetry::log::LevelHandle;
use groupage::testkit::server::{Server, ServerConfig, ServerHandle};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::support::client::{Answer, Client, Outgoing};
use super::support::wire::{End, Headers, values};

/// Longer than any operation takes here, even on a busy machine.
pub(super) const HANG: Duration = Duration::from_secs(20);

/// Token in the path of the drain hook.
pub(super) const TOKEN: &str = "6f1c0e2d9a";

/// A proxy that runs in this process.
#[derive(Debug)]
pub(super) struct TestProxy {
    pub(super) running: RunningApp,
    /// Address of the data port.
    pub(super) address: SocketAddr,
    /// Overrides that apply to every policy of this proxy.
    flags: Overrides,
}

/// A call in progress on a connection of its own. Aborting it closes the connection.
#[derive(Debug)]
pub(super) struct PendingCall(pub(super) JoinHandle<Answer>);

/// Waits for an effect that the test caused, for at most [`HANG`].
#[track_caller]
pub(super) fn within_timeout<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        match tokio::time::timeout(HANG, work).await {
            Ok(done) => done,
            Err(_) => panic!("nothing happened for {HANG:?} at {place}"),
        }
    }
}

/// Waits while a condition holds, for at most [`HANG`].
#[track_caller]
pub(super) fn wait_while(holds: impl Fn() -> bool) -> impl Future<Output = ()> {
    within_timeout(async move {
        while holds() {
            tokio::task::yield_now().await;
        }
    })
}

/// Returns the policy of a test, on top of settings for this machine and for ports that the kernel
/// picks. JSON is valid YAML. The scheduling policy is `WorkConserving` unless the test sets
/// another one: it learns nothing, so a test can predict the members of a batch.
pub(super) fn policy_text(spec: &Value) -> String {
    let any = "127.0.0.1:0";
    let connection = json!({"http2": "Never", "connectTimeout": "10s"});
    let mut all = json!({
        "proxy": {"listen": [any], "admin": {"metrics": any, "local": any}, "connection": connection},
        "scheduling": {"policy": "WorkConserving"},
    });
    merge_json(&mut all, spec);
    all.to_string()
}

fn policy(flags: &Overrides, spec: &Value) -> Policy {
    let loaded =
        config::load(&policy_text(spec), "test.yaml").unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    config::build(Some(&loaded), flags, &MachineLimits::default())
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

/// Merges the keys of `over` into `under`.
pub(super) fn merge_json(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge_json(under.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

/// Returns the policy of a test that uses the adaptive policy.
pub(super) fn adaptive_spec(spec: &Value) -> Value {
    let mut all = json!({"scheduling": {"policy": "Adaptive"}});
    merge_json(&mut all, spec);
    all
}

/// Starts a stand-in server, and a proxy with the adaptive policy in front of it.
pub(super) async fn start_with_stand_in(config: ServerConfig, spec: &Value) -> (TestProxy, ServerHandle) {
    let server = Server::start(config).await.unwrap();
    (TestProxy::start_in_front_of(&server.url(), adaptive_spec(spec)), server)
}

// === impl TestProxy ===

impl TestProxy {
    pub(super) fn start_in_front_of(upstream: &str, spec: Value) -> Self {
        let started = Self::start(upstream, &spec);
        drop(spec);
        started.unwrap()
    }

    pub(super) fn start(upstream: &str, spec: &Value) -> Result<Self, BoxError> {
        let upstream = Some(SourcedValue::flag("--upstream", upstream.to_owned()));
        Self::with(Overrides { upstream, ..Overrides::default() }, spec)
    }

    /// Starts a proxy as a sidecar that captures these ports of its pod.
    pub(super) fn start_captured(captures: &[String], pod_ips: &str, spec: &Value) -> Self {
        let capture = Some(SourcedValue::flag("--capture", captures.to_vec()));
        let pod_ips = Some(SourcedValue::flag("GROUPAGE_POD_IPS", pod_ips.to_owned()));
        Self::with(Overrides { capture, pod_ips, ..Overrides::default() }, spec).unwrap()
    }

    fn with(flags: Overrides, spec: &Value) -> Result<Self, BoxError> {
        let drain_token = Some(TOKEN.to_owned());
        let running =
            start(AppOptions { policy: policy(&flags, spec), level: LevelHandle::disabled(), seed: 1, drain_token })?;
        let address = *running.listen.first().unwrap();
        Ok(Self { running, address, flags })
    }

    /// Applies other settings.
    pub(super) async fn apply(&self, spec: &Value) -> AppliedSettings {
        within_timeout(self.running.control().apply(policy(&self.flags, spec))).await.unwrap()
    }

    pub(super) fn stats(&self) -> &LiveCounts {
        &self.running.metrics.stats
    }

    /// Waits until the proxy's counters satisfy a condition.
    #[track_caller]
    pub(super) fn wait_until(&self, holds: impl Fn(&LiveCounts) -> bool) -> impl Future<Output = ()> {
        let metrics = Arc::clone(&self.running.metrics);
        wait_while(move || !holds(&metrics.stats))
    }

    /// Waits until this many items are queued.
    #[track_caller]
    pub(super) fn wait_queued(&self, items: u64) -> impl Future<Output = ()> {
        self.wait_until(move |stats| count(&stats.queue_items) == items)
    }

    /// Waits until nothing is queued or in flight.
    #[track_caller]
    pub(super) fn wait_idle(&self) -> impl Future<Output = ()> {
        self.wait_until(|stats| count(&stats.queue_items) == 0 && count(&stats.in_flight) == 0)
    }

    pub(super) async fn client(&self) -> Client {
        within_timeout(Client::connect(self.address)).await.unwrap()
    }

    /// Returns a request as a client writes it.
    pub(super) fn request(&self, method: &str, target: &str, own: &[(&str, &str)], body: Option<&[u8]>) -> Outgoing {
        let own: Headers = own.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Outgoing::new(method, target, self.address, &own, body)
    }

    /// Returns a JSON call.
    pub(super) fn post(&self, target: &str, own: &[(&str, &str)], body: &str) -> Outgoing {
        let json = [("content-type", "application/json")];
        let own: Vec<_> = json.into_iter().chain(own.iter().copied()).collect();
        self.request("POST", target, &own, Some(body.as_bytes()))
    }

    /// Returns a call of one item on a merged route.
    pub(super) fn predict(&self, item: u64) -> Outgoing {
        self.post(PREDICT, &[], &instances(&[item]))
    }

    /// Sends a request on a connection of its own and returns the response.
    pub(super) async fn fetch(&self, request: &Outgoing) -> Answer {
        let mut client = self.client().await;
        within_timeout(client.fetch(request)).await
    }

    /// Sends a request on a connection of its own without waiting for the answer.
    pub(super) fn call(&self, request: Outgoing) -> PendingCall {
        let address = self.address;
        PendingCall(tokio::spawn(async move {
            let mut client = Client::connect(address).await.unwrap();
            client.fetch(&request).await
        }))
    }

    /// Queues calls behind a busy slot, in this order.
    pub(super) async fn queue(&self, requests: impl IntoIterator<Item = Outgoing>) -> Vec<PendingCall> {
        let mut callers = Vec::new();
        for request in requests {
            let before = count(&self.stats().items_accepted);
            callers.push(self.call(request));
            self.wait_until(|stats| count(&stats.items_accepted) > before).await;
        }
        callers
    }

    /// Returns the value of one series, or zero if it does not exist. All values here are integers.
    pub(super) fn metric(&self, series: &str) -> u64 {
        let text = self.running.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

// === impl PendingCall ===

impl PendingCall {
    #[track_caller]
    pub(super) fn answer(self) -> impl Future<Output = Answer> {
        let done = within_timeout(self.0);
        async { done.await.unwrap() }
    }

    /// Disconnects the client: its connection is closed when this returns.
    pub(super) async fn disconnect(self) {
        self.0.abort();
        assert!(within_timeout(self.0).await.is_err(), "it had its answer already");
    }
}

/// A route that is merged without a policy. The responses to different callers are distinguishable.
pub(super) const PREDICT: &str = "/v1/models/m:predict";

/// Returns the body of a `:predict` call.
pub(super) fn instances(items: &[u64]) -> String {
    format!(r#"{{"instances": {items:?}}}"#)
}

/// Returns the response to it, as `PendingRequest::echo` sends it.
pub(super) fn predictions(items: &[u64]) -> String {
    format!(r#"{{"predictions":{items:?}}}"#).replace(' ', "")
}

pub(super) fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Returns the only value of a header.
#[track_caller]
pub(super) fn header(headers: &Headers, name: &str) -> String {
    match values(headers, name)[..] {
        [value] => String::from_utf8(value.to_vec()).unwrap(),
        ref other => panic!("{name}: {} values", other.len()),
    }
}

/// Checks that the response is complete and has this status and this body.
#[track_caller]
pub(super) fn assert_answer(answer: &Answer, status: u16, body: &str) {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!((answer.status, &answer.end), (Some(status), &Some(End::Proper)), "{text:.300}");
    assert!(text == body, "expected {body:.300}, actual {text:.300}");
}

/// Checks that every call is answered with 200.
#[track_caller]
pub(super) fn assert_served(callers: impl IntoIterator<Item = PendingCall>) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        for caller in callers {
            assert_eq!(caller.answer().await.status, Some(200), "at {place}");
        }
    }
}

/// Checks that each call is answered with the prediction for its item.
#[track_caller]
pub(super) fn assert_predictions(
    items: impl IntoIterator<Item = u64>,
    callers: impl IntoIterator<Item = PendingCall>,
) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        for (item, caller) in items.into_iter().zip(callers) {
            let answer = caller.answer().await;
            let text = String::from_utf8_lossy(&answer.body);
            let is_right =
                answer.status == Some(200) && answer.end == Some(End::Proper) && text == predictions(&[item]);
            assert!(is_right, "item {item}, at {place}: {:?} {:?} {text:.300}", answer.status, answer.end);
        }
    }
}

/// Checks that the response is one of the proxy's own, with this code and reason word.
#[track_caller]
pub(super) fn assert_failure(answer: &Answer, status: u16, code: &str, reason: &str) {
    assert_eq!(answer.status, Some(status), "{:.300}", String::from_utf8_lossy(&answer.body));
    assert_eq!(header(&answer.headers, "x-groupage-error"), code);
    assert_eq!(header(&answer.headers, "x-groupage-reason"), reason);
    // The response names the setting, or the header of the client, that limited the call.
    assert!(status != 504 || !header(&answer.headers, "x-groupage-limit").is_empty());
    let overload = matches!(status, 429 | 503);
    let after = values(&answer.headers, "retry-after").len();
    let after_ms = values(&answer.headers, "retry-after-ms").len();
    assert_eq!(
        (after, after_ms),
        (usize::from(overload), usize::from(overload)),
        "a hint on 429 and 503, nowhere else"
    );
    if overload {
        let seconds: u64 = header(&answer.headers, "retry-after").parse().unwrap();
        let millis: u64 = header(&answer.headers, "retry-after-ms").parse().unwrap();
        assert!(seconds >= 1 && millis >= 1 && seconds * 1000 >= millis, "{seconds} s, {millis} ms");
    }
}
