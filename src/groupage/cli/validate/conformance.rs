//! `groupage validate --against URL`: tests a server against the routes that a policy declares.
//!
//! For each route, and for each form in which it accepts an item, one call is sent alone and one
//! with its items twice, as a batch of two callers would be. The answer is split as the proxy
//! splits it, and the part of one caller is compared in shape with the answer to the call sent
//! alone. No proxy runs.
//!
//! Equality of values is not part of the verdict, because models round differently in batches.
//! `groupage check --local` reports it too (`values`), and the limits of the server (`limits`).
//! Behavior under load is not tested.

mod sample;
mod judge;
mod limits;
mod result;
mod shape;
mod tensors;
mod values;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use strum::VariantArray as _;
use tokio::time::timeout_at;

use self::judge::{is_refusal_of_form, judge_batch, judge_refusal};
pub(super) use self::result::RouteResult;
use self::result::RouteVerdict;
pub(super) use self::sample::SampleCalls;
use self::sample::{SampleCall, TestCommand, is_wildcard};
use crate::app::{build_route_table, build_upstream};
use crate::body::Body;
use crate::bounded_body::{ReadLimits, ReadResult, read_bounded};
use crate::clock::Clock;
use crate::config::{self, LoadedPolicy, MachineLimits, Overrides, Policy, SourcedValue};
use crate::error::FailureKind;
use crate::memory::BufferBudget;
use crate::protocol::{Call, CallForm, DigestKey, Endpoint};
use crate::proxy::RoutingTable;
use crate::telemetry::Metrics;
use crate::upstream::Upstream;

/// Time limit for one answer. A cold model may have to be loaded first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes read of an answer, the default limit of the proxy.
const ANSWER_BYTES_MAX: usize = 64 << 20;

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
    command: TestCommand,
}

/// Calls of one form: one to send alone, and the other member of its batch, if it is not the same
/// call again.
struct TestCalls {
    form: CallForm,
    call: Call,
    other: Option<Call>,
}

/// Tests every declared route, and every path that a sample names. `server` is the flag with the
/// URL of the server, and the URL.
///
/// # Errors
/// The test failed before anything was sent; the error is a message for the user.
pub(super) fn run(
    loaded: &LoadedPolicy,
    (flag, url): (&'static str, &str),
    samples: &SampleCalls,
    headers: &HeaderMap,
) -> Result<Vec<RouteResult>, String> {
    let overrides = Overrides { upstream: Some(SourcedValue::flag(flag, url.to_owned())), ..Overrides::default() };
    let policy =
        config::build(Some(loaded), &overrides, &MachineLimits::default()).map_err(|errors| errors.render(false))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(async {
        let client = ConformanceClient::new(&policy, headers.clone(), samples.command)?;
        if !client.upstream.can_connect().await {
            return Err(format!("cannot connect to {url}"));
        }
        let mut results = Vec::new();
        for sample in samples.calls(&policy) {
            results.extend(client.test_route(sample).await);
        }
        Ok(results)
    })
}

// === impl ConformanceClient ===

impl ConformanceClient {
    fn new(policy: &Policy, headers: HeaderMap, command: TestCommand) -> Result<Self, String> {
        let clock = Clock::start();
        let buffers = BufferBudget::new(2 * ANSWER_BYTES_MAX, clock);
        let metrics = Arc::new(Metrics::new("validate"));
        let upstream = build_upstream(policy, clock, buffers.clone(), metrics)?;
        let authority = match &policy.proxy.upstream {
            Some(config::UpstreamAddress::Http { authority, .. }) => authority.clone(),
            _ => "localhost".to_owned(),
        };
        let table = build_route_table(policy)?;
        Ok(Self { upstream, clock, buffers, authority, table, secret: DigestKey::random(), headers, command })
    }

    /// Tests a route with its sample in each form that the route accepts, the sample's own first.
    async fn test_route(&self, sample: SampleCall) -> Vec<RouteResult> {
        let prepared = self.prepare_calls(&sample).await;
        let SampleCall { route, path, .. } = sample;
        let (endpoint, calls) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => return vec![RouteResult::untested(route, path, reason)],
        };
        let several = calls.len() > 1;
        let mut results: Vec<RouteResult> = Vec::new();
        for TestCalls { form, call, other } in calls {
            let members = [&call, other.as_ref().unwrap_or(&call)];
            let (mut result, mut more) = (RouteResult::untested(route.clone(), path.clone(), String::new()), true);
            result.form = several.then_some(form);
            let is_success = |status: Option<StatusCode>| status.is_some_and(|status| status.is_success());
            let accepts_other = results.iter().any(|other| is_success(other.unbatched_status));
            result.verdict = match self.send_call(&call, &mut result).await {
                Ok(unbatched) if unbatched.status.is_success() => {
                    self.test_batch(&endpoint, members, &unbatched, &mut result).await
                }
                Ok(unbatched) => {
                    more = is_refusal_of_form(unbatched.status);
                    judge_refusal(&endpoint, &self.command.sample_flag(&path), form, unbatched.status, accepts_other)
                }
                Err(reason) => {
                    more = false;
                    RouteVerdict::Inconclusive(reason)
                }
            };
            if self.command == TestCommand::Check && results.is_empty() && is_success(result.batch_status) {
                result.limits = self.find_limits(&endpoint, &members).await;
            }
            // A server that answers no batch answers none in another form either.
            more &= !result.is_wrong() || is_success(result.batch_status) || !is_success(result.unbatched_status);
            results.push(result);
            if !more {
                break;
            }
        }
        results
    }

    /// Returns the endpoint of a sample, and the calls to send.
    async fn prepare_calls(&self, sample: &SampleCall) -> Result<(Arc<Endpoint>, Vec<TestCalls>), String> {
        let SampleCall { method, path, body, other, .. } = sample;
        // A path with a wildcard has no endpoint.
        if let Err(reason) = body
            && is_wildcard(path)
        {
            return Err(reason.clone());
        }
        let recognised = self.endpoint(method, path)?;
        let body = match body {
            Ok(body) => body.clone(),
            Err(reason) => self.generate_tensors(&recognised, path).await.ok_or_else(|| reason.clone())?,
        };
        let endpoint = self.choose_endpoint(recognised, sample, &body).await?;
        let calls = match other {
            Some(other) => self.pair(&endpoint, method, path, [body, other.clone()]),
            None => self.calls(&endpoint, method, path, body),
        };
        Ok((endpoint, calls?))
    }

    fn endpoint(&self, method: &Method, path: &str) -> Result<Arc<Endpoint>, String> {
        let obstacle = "no adapter supports this path, so its calls pass through";
        self.table.routes.recognise(method, path).ok_or_else(|| obstacle.to_owned())
    }

    /// Returns the calls to send: the sample, and its first item in each other form that the route
    /// accepts.
    fn calls(&self, endpoint: &Endpoint, method: &Method, path: &str, body: Bytes) -> Result<Vec<TestCalls>, String> {
        let call = self.read(endpoint, method, path, body).ok_or("the path is not a valid request target")?;
        if let Some(reason) = call.unbatched_reason() {
            return Err(format!("calls like the sample are never merged: `{}`", reason.as_str()));
        }
        let in_form = |form: CallForm, place: usize| {
            let call = self.read(endpoint, method, path, endpoint.body_in_form(&call, form, place)?)?;
            call.unbatched_reason().is_none().then_some(call)
        };
        // If the results are in a map, no item may occur twice.
        if !call.exclusive.is_empty() {
            let (Some(one), other @ Some(_)) = (in_form(CallForm::List, 0), in_form(CallForm::List, 1)) else {
                let flag = self.command.sample_flag(path);
                return Err(format!("its results are in a map: give a call with two items, {flag}"));
            };
            return Ok(vec![TestCalls { form: CallForm::List, call: one, other }]);
        }
        let own = endpoint.form_of(&call).unwrap_or(CallForm::List);
        let others = CallForm::VARIANTS.iter().filter(|form| **form != own);
        let others = others.filter_map(|form| Some(TestCalls { form: *form, call: in_form(*form, 0)?, other: None }));
        let others: Vec<TestCalls> = others.collect();
        Ok(std::iter::once(TestCalls { form: own, call, other: None }).chain(others).collect())
    }

    /// Returns the two calls of a recorded pair.
    fn pair(
        &self,
        endpoint: &Endpoint,
        method: &Method,
        path: &str,
        bodies: [Bytes; 2],
    ) -> Result<Vec<TestCalls>, String> {
        let [call, other] = bodies.map(|body| self.read(endpoint, method, path, body));
        let (Some(call), Some(other)) = (call, other) else {
            return Err("the path is not a valid request target".to_owned());
        };
        if let Some(reason) = call.unbatched_reason().or(other.unbatched_reason()) {
            return Err(format!("calls like the samples are never merged: `{}`", reason.as_str()));
        }
        if call.merge != other.merge {
            return Err("the two samples never share a batch, because they differ in more than their items".to_owned());
        }
        let form = endpoint.form_of(&call).unwrap_or(CallForm::List);
        Ok(vec![TestCalls { form, call, other: Some(other) }])
    }

    /// Sends a call alone. The error is the reason that it has no answer.
    async fn send_call(&self, call: &Call, result: &mut RouteResult) -> Result<ServerAnswer, String> {
        result.bytes = call.body.len();
        let sent = self.send(&call.head.method, &result.path, call.head.headers.clone(), call.body.clone()).await;
        let unbatched = sent.map_err(|kind| format!("sent alone, the sample gets no answer: {}", kind.message()))?;
        result.unbatched_status = Some(unbatched.status);
        Ok(unbatched)
    }

    /// Sends the items of both members in one call, and compares their parts of the answer with the
    /// answers to them alone: the first in shape, and both by their values.
    async fn test_batch(
        &self,
        endpoint: &Endpoint,
        members: [&Call; 2],
        unbatched: &ServerAnswer,
        result: &mut RouteResult,
    ) -> RouteVerdict {
        let sent = endpoint.write_batch(&members, None);
        let answer = match self.send(&sent.method, &sent.target, sent.headers.clone(), sent.body.clone()).await {
            Ok(answer) => answer,
            Err(kind) => {
                return RouteVerdict::Wrong(format!(
                    "a call with two items gets no answer ({}), but a call with one item does: set `mode: Passthrough`",
                    kind.message()
                ));
            }
        };
        result.batch_status = Some(answer.status);
        let (verdict, parts) = judge_batch(endpoint, members, &sent, (&answer, unbatched));
        let answers = (&answer, unbatched);
        result.comparisons = self.compare_members(endpoint, (members, result.path.as_str()), answers, &parts).await;
        verdict
    }

    /// Sends a call alone and returns the body of a successful answer.
    async fn send_member(&self, call: &Call, path: &str) -> Option<Bytes> {
        let sent = self.send(&call.head.method, path, call.head.headers.clone(), call.body.clone()).await;
        sent.ok().filter(|answer| answer.status.is_success()).map(|answer| answer.body)
    }

    fn read(&self, endpoint: &Endpoint, method: &Method, path: &str, body: Bytes) -> Option<Call> {
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
        Some(endpoint.parse_call(&head, body, &self.secret))
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
        let bounds = ReadLimits { until: Some(until), ..ReadLimits::new(ANSWER_BYTES_MAX, ANSWER_LIMIT) };
        match read_bounded(&mut body, bounds, self.buffers.empty()).await {
            ReadResult::Whole { bytes, .. } => {
                Ok(ServerAnswer { status: head.status, headers: head.headers, body: bytes })
            }
            ReadResult::Stopped { .. } => Err(FailureKind::UpstreamBroken),
        }
    }
}
