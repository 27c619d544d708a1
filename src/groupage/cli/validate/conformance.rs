//! `groupage validate --against URL`: tests a server against the routes that a policy declares.
//!
//! For each route, one call is sent alone and one with its items twice, as a batch of two callers
//! would be. The answer is split as the proxy splits it, and the part of one caller is compared in
//! shape with the answer to the call sent alone. Nothing else is sent, and no proxy runs.
//!
//! Equality of values is not tested, because models round differently in batches, and neither is
//! behavior under load.

mod sample;
mod judge;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::timeout_at;

use self::judge::judge_batch;
use self::sample::SampleCall;
pub(super) use self::sample::SampleCalls;
use crate::app::{build_route_table, build_upstream};
use crate::body::Body;
use crate::bounded_body::{ReadLimits, ReadResult, read_bounded};
use crate::clock::Clock;
use crate::config::{self, LoadedPolicy, MachineLimits, Overrides, Policy, Sourced};
use crate::error::FailureKind;
use crate::memory::BufferBudget;
use crate::protocol::{Call, DigestKey, Endpoint, UnmergeableReason};
use crate::proxy::RoutingTable;
use crate::telemetry::Metrics;
use crate::upstream::Upstream;

/// Time limit for one answer. A cold model may have to be loaded first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes read of an answer, the default limit of the proxy.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Test result of one route.
#[derive(Debug)]
pub(super) struct RouteResult {
    /// The route as the policy writes it.
    route: String,
    /// Path of the calls.
    path: String,
    /// Number of bytes of the call that was sent alone; 0 if nothing was sent.
    bytes: usize,
    lone: Option<StatusCode>,
    merged: Option<StatusCode>,
    /// The finding and its severity.
    verdict: RouteVerdict,
}

/// Finding on a route.
#[derive(Debug)]
enum RouteVerdict {
    Fits,
    /// The route was not tested, or the test was inconclusive.
    Inconclusive(String),
    Wrong(String),
}

/// A response of the server.
struct ServerAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Client for the server under test, with everything that its calls need.
struct ConformanceClient {
    upstream: Upstream,
    clock: Clock,
    buffers: BufferBudget,
    authority: String,
    table: RoutingTable,
    secret: DigestKey,
    /// Headers added to every call.
    headers: HeaderMap,
}

/// Tests every declared route, and every path that a sample names.
///
/// # Errors
/// The test failed before anything was sent; the error is a message for the user.
pub(super) fn run(
    loaded: &LoadedPolicy,
    url: &str,
    samples: &SampleCalls,
    headers: &HeaderMap,
) -> Result<Vec<RouteResult>, String> {
    let overrides = Overrides { upstream: Some(Sourced::flag("--against", url.to_owned())), ..Overrides::default() };
    let policy =
        config::build(Some(loaded), &overrides, &MachineLimits::default()).map_err(|errors| errors.render(false))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(async {
        let asker = ConformanceClient::new(&policy, headers.clone())?;
        if !asker.upstream.can_connect().await {
            return Err(format!("cannot connect to {url}"));
        }
        let mut results = Vec::new();
        for sample in samples.calls(&policy) {
            results.push(asker.test_route(sample).await);
        }
        Ok(results)
    })
}

// === impl ConformanceClient ===

impl ConformanceClient {
    fn new(policy: &Policy, headers: HeaderMap) -> Result<Self, String> {
        let clock = Clock::start();
        let buffers = BufferBudget::new(2 * ANSWER_BYTES_MAX, clock);
        let metrics = Arc::new(Metrics::new("validate"));
        let upstream = build_upstream(policy, clock, buffers.clone(), metrics)?;
        let authority = match &policy.proxy.upstream {
            Some(config::UpstreamAddress::Http { authority, .. }) => authority.clone(),
            _ => "localhost".to_owned(),
        };
        let table = build_route_table(policy)?;
        Ok(Self { upstream, clock, buffers, authority, table, secret: DigestKey::random(), headers })
    }

    async fn test_route(&self, sample: SampleCall) -> RouteResult {
        let SampleCall { route, method, path, body } = sample;
        let mut result = RouteResult { route, path, bytes: 0, lone: None, merged: None, verdict: RouteVerdict::Fits };
        result.verdict = match body {
            Ok(body) => self.compare(&method, &body, &mut result).await,
            Err(reason) => RouteVerdict::Inconclusive(reason),
        };
        result
    }

    async fn compare(&self, method: &Method, body: &Bytes, result: &mut RouteResult) -> RouteVerdict {
        let path = result.path.clone();
        let Some(endpoint) = self.table.routes.recognise(method, &path) else {
            let obstacle = match UnmergeableReason::for_unrecognised_path(&path) {
                UnmergeableReason::OpenInference => "KServe V2 calls are not merged yet and pass through",
                _ => "no adapter supports this path, so its calls pass through",
            };
            return RouteVerdict::Inconclusive(obstacle.to_owned());
        };
        let Some(call) = self.read(&endpoint, method, &path, body) else {
            return RouteVerdict::Inconclusive("the path is not a valid request target".to_owned());
        };
        if let Some(reason) = call.unbatched_reason() {
            return RouteVerdict::Inconclusive(format!(
                "calls like the sample are never merged: `{}`",
                reason.as_str()
            ));
        }
        result.bytes = body.len();
        let lone = self.send(method, &path, call.head.headers.clone(), body.clone()).await;
        let lone = match lone {
            Ok(answer) => answer,
            Err(kind) => {
                return RouteVerdict::Inconclusive(format!(
                    "sent alone, the sample gets no answer: {}",
                    kind.message()
                ));
            }
        };
        result.lone = Some(lone.status);
        if !lone.status.is_success() {
            let status = lone.status.as_u16();
            let advice = match lone.status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    "give a credential, --header 'Authorization: Bearer KEY'".to_owned()
                }
                _ => format!("give a call that it accepts, --sample {path}=FILE"),
            };
            return RouteVerdict::Inconclusive(format!("the server answers the sample alone with {status}: {advice}"));
        }
        self.test_batch(&endpoint, &call, &lone, result).await
    }

    /// Sends the items of the sample twice in one call, and compares a caller's part of the answer
    /// with the answer to the call sent alone.
    async fn test_batch(
        &self,
        endpoint: &Endpoint,
        call: &Call,
        lone: &ServerAnswer,
        result: &mut RouteResult,
    ) -> RouteVerdict {
        let sent = endpoint.write_batch(&[call, call], None);
        let answer = match self.send(&sent.method, &sent.target, sent.headers.clone(), sent.body.clone()).await {
            Ok(answer) => answer,
            Err(kind) => {
                return RouteVerdict::Wrong(format!(
                    "a call with two items gets no answer ({}), but a call with one item does: set `mode: Passthrough`",
                    kind.message()
                ));
            }
        };
        result.merged = Some(answer.status);
        judge_batch(endpoint, call, &sent, (&answer, lone))
    }

    fn read(&self, endpoint: &Endpoint, method: &Method, path: &str, body: &Bytes) -> Option<Call> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(())
            .ok()?;
        let (mut head, ()) = request.into_parts();
        head.headers.extend(self.headers.clone());
        Some(endpoint.parse_call(&head, body.clone(), &self.secret))
    }

    async fn send(
        &self,
        method: &Method,
        target: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ServerAnswer, FailureKind> {
        let mut request =
            Request::builder().method(method).uri(target).body(Body::full(body)).map_err(|_| FailureKind::Internal)?;
        *request.headers_mut() = headers;
        let until = self.clock.instant(self.clock.now().after(ANSWER_LIMIT));
        let response = timeout_at(until, self.upstream.forward().forward_once(request)).await;
        let response = response.map_err(|_| FailureKind::UpstreamTimeout)?.map_err(|failure| failure.kind)?;
        let (head, mut body) = response.into_parts();
        let bounds =
            ReadLimits { max: ANSWER_BYTES_MAX, idle: ANSWER_LIMIT, until: Some(until), floor: None, evictable: false };
        match read_bounded(&mut body, bounds, self.buffers.empty()).await {
            ReadResult::Whole { bytes, .. } => {
                Ok(ServerAnswer { status: head.status, headers: head.headers, body: bytes })
            }
            ReadResult::Stopped { .. } => Err(FailureKind::UpstreamBroken),
        }
    }
}

// === impl RouteResult ===

impl RouteResult {
    pub(super) const fn is_wrong(&self) -> bool {
        matches!(self.verdict, RouteVerdict::Wrong(_))
    }

    /// Formats the result as one line of text.
    pub(super) fn text(&self) -> String {
        let Self { route, path, bytes, lone, merged, verdict } = self;
        let (mark, text) = match verdict {
            RouteVerdict::Fits => ("√", "one item and two items get answers of the same shape"),
            RouteVerdict::Inconclusive(reason) => ("‼", reason.as_str()),
            RouteVerdict::Wrong(reason) => ("×", reason.as_str()),
        };
        let status =
            |status: &Option<StatusCode>| status.map_or("no answer".to_owned(), |status| status.as_u16().to_string());
        let sent = match (bytes, lone) {
            (0, _) | (_, None) => String::new(),
            (bytes, Some(_)) if merged.is_none() => format!("; sent {bytes} bytes alone: {}", status(lone)),
            (bytes, Some(_)) => {
                format!("; sent {bytes} bytes alone: {}, its items twice: {}", status(lone), status(merged))
            }
        };
        format!("{mark} {route} ({path}): {text}{sent}\n")
    }

    pub(super) fn json(&self) -> Value {
        let (verdict, reason) = match &self.verdict {
            RouteVerdict::Fits => ("fits", None),
            RouteVerdict::Inconclusive(reason) => ("untried", Some(reason)),
            RouteVerdict::Wrong(reason) => ("wrong", Some(reason)),
        };
        json!({
            "route": self.route,
            "path": self.path,
            "sent_bytes": self.bytes,
            "alone_status": self.lone.map(|status| status.as_u16()),
            "merged_status": self.merged.map(|status| status.as_u16()),
            "verdict": verdict,
            "why": reason,
        })
    }
}
