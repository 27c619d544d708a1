//! Execution of one case: a new proxy in front of a new upstream, the clients in their order, and a
//! list of all faults.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::case::{Call, Case, ExpectedAnswer};
use crate::http2::{self, Http2Client};
use crate::matching::{self, Bindings};
use crate::script::{CaseScript, ClientHeaders};
use crate::settings::Settings;
use crate::support::client::{Answer, Client, Outgoing};
use crate::support::json;
use crate::support::proxy::{Proxy, Start};
use crate::support::report::{Options, shown};
use crate::support::upstream::{Content, Upstream, now};
use crate::support::wire::{self, End};

/// Time after which the next request may start if the proxy does not count the last one.
const NEXT: Duration = Duration::from_millis(2);
/// Maximum time until the proxy enqueues a request.
const SEEN_MAX: Duration = Duration::from_millis(200);
/// Time for stray requests and answers to appear after the last client is done.
const SETTLE: Duration = Duration::from_millis(10);
/// Time that a client waits in addition to all times of its case.
const PATIENCE: Duration = Duration::from_secs(10);
/// Default `timeout` of a route. A silent upstream is abandoned only after it.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a case and returns its faults, of which there are none if it passed.
pub(crate) async fn run(case: Case, paths: &[String], options: &Options) -> Result<Vec<String>, String> {
    let factor = options.factor;
    let settings = Settings::read(case.config.as_ref())?;
    let policy = settings.policy(&case.adapter, paths, factor);
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(|e| e.to_string())?;
    file.write_all(format!("{policy:#}\n").as_bytes()).map_err(|e| e.to_string())?;

    let case = Arc::new(case);
    let script = Arc::new(CaseScript::new(Arc::clone(&case), settings.model_config.as_ref(), factor));
    let upstream = start_upstream(&case, &script).await.map_err(|e| format!("upstream: {e}"))?;
    let binary = options.binary.clone();
    let start = Start { binary, upstream: upstream.address, config: Some(file.path()), metrics: false };
    let mut proxy = Proxy::start(&start).await?;

    let outgoing: Vec<_> = case
        .calls
        .iter()
        .map(|call| Outgoing::new(&call.method, &call.target, proxy.listen, &call.headers, call.body.as_deref()))
        .collect();
    let own = |(call, outgoing): (&Call, &Outgoing)| ClientHeaders {
        client: call.client.clone(),
        headers: outgoing.headers.clone(),
    };
    script.clients(case.calls.iter().zip(&outgoing).map(own).collect());

    let clients = start_clients(&case, outgoing, &proxy, factor).await;
    let mut done = Vec::new();
    for (call, client) in case.calls.iter().zip(clients) {
        let outcome = client.await.map_err(|e| format!("client {}: {e}", call.client))?;
        done.push((call, outcome));
    }
    tokio::time::sleep(SETTLE.mul_f64(factor)).await;

    drop(upstream);

    let mut faults = script.faults();
    let mut ids = Vec::new();
    for (call, outcome) in &mut done {
        let client = &call.client;
        match (outcome, case.answers.iter().find(|answer| answer.client == *client)) {
            (Err(e), _) => faults.push(format!("client {client}: {e}")),
            (Ok((connection, answer)), Some(expected)) => {
                let mut taken = Bindings::default();
                let wrong = judge(expected, call, answer, &mut taken, factor);
                faults.extend(wrong.into_iter().map(|fault| format!("client {client}: {fault}")));
                let stray = connection.as_mut().map(Client::stray).unwrap_or_default();
                if answer.end == Some(End::Proper) && !stray.is_empty() {
                    faults.push(format!("client {client}: more after the answer: {}", shown(&stray, 0)));
                }
                ids.push((client.clone(), taken));
            }
            // The client disconnected early, so its partial answer is not judged.
            (Ok(_), None) => {}
        }
    }
    faults.extend(shared_ids(&ids, &script));
    faults.extend(proxy.fault());
    if !faults.is_empty() && !proxy.tail().is_empty() {
        faults.push(format!("the proxy's log ends with\n{}", proxy.tail().trim_end()));
    }
    Ok(faults)
}

async fn start_upstream(case: &Case, script: &Arc<CaseScript>) -> std::io::Result<Upstream> {
    let script = Arc::clone(script) as Arc<_>;
    if case.is_grpc() { http2::start(script).await } else { Upstream::start(script).await }
}

type Outcome = Result<(Option<Client>, Answer), String>;

/// Starts the clients in file order, each after the request before it is enqueued.
async fn start_clients(
    case: &Case,
    outgoing: Vec<Outgoing>,
    proxy: &Proxy,
    factor: f64,
) -> Vec<tokio::task::JoinHandle<Outcome>> {
    let patience = patience(case).mul_f64(factor);
    let mut clients = Vec::new();
    let mut stats = Stats::open(proxy).await;
    let mut before = stats.read().await;
    let last = outgoing.len();
    let mut http2_clients = Vec::new();
    for _ in outgoing.iter().filter(|_| case.is_grpc()) {
        http2_clients.push(http2::connect(proxy.listen).await);
    }
    let mut http2_clients = http2_clients.into_iter();
    let started = now();
    for (at, (call, outgoing)) in case.calls.iter().zip(outgoing).enumerate() {
        tokio::time::sleep_until(started + call.at.mul_f64(factor)).await;
        let (sent, is_sent) = oneshot::channel();
        let leaves = call.disconnect.map(|after| after.mul_f64(factor));
        clients.push(match http2_clients.next() {
            Some(connected) => tokio::spawn(grpc_client(connected, (proxy.listen, outgoing), patience, sent)),
            None => tokio::spawn(client(proxy.listen, outgoing, leaves, patience, sent)),
        });
        if at + 1 < last {
            // The sender is dropped without a message if the client cannot connect.
            is_sent.await.ok();
            before = stats.wait(before, factor).await;
        }
    }
    clients
}

async fn client(
    proxy: SocketAddr,
    outgoing: Outgoing,
    leaves: Option<Duration>,
    patience: Duration,
    sent_signal: oneshot::Sender<()>,
) -> Outcome {
    let mut client = Client::connect(proxy).await.map_err(|e| format!("connect: {e}"))?;
    let mut answer = Answer::default();
    // After a timeout, the part of the answer that has arrived is judged.
    let sent = tokio::time::timeout(patience, client.send(&outgoing, &mut answer)).await.is_ok();
    // The receiver of the last client is dropped already.
    sent_signal.send(()).ok();
    if let Some(after) = leaves {
        tokio::time::sleep(after).await;
        return Ok((None, answer));
    }
    if sent {
        tokio::time::timeout(patience, client.receive(&outgoing.method, &mut answer)).await.ok();
    }
    Ok((Some(client), answer))
}

async fn grpc_client(
    connected: Result<Http2Client, String>,
    (proxy, outgoing): (SocketAddr, Outgoing),
    patience: Duration,
    sent_signal: oneshot::Sender<()>,
) -> Outcome {
    let answer = tokio::time::timeout(patience, http2::fetch(connected?, proxy, &outgoing, sent_signal)).await;
    Ok((None, answer.map_err(|_| "no response in time".to_owned())??))
}

/// Returns a time that is longer than all times of the case together.
fn patience(case: &Case) -> Duration {
    let replies = case.upstream.iter().map(|(_, reply)| {
        reply.delay
            + match &reply.content {
                Content::Events(events, _) => events.iter().map(|(at, _)| *at).max().unwrap_or_default(),
                Content::Hang => ROUTE_TIMEOUT,
                Content::Whole(_) | Content::Cut(..) | Content::Reset => Duration::ZERO,
            }
    });
    let calls = case.calls.iter().map(|call| call.at);
    PATIENCE + replies.sum::<Duration>() + calls.max().unwrap_or_default()
}

/// Returns the differences between an answer and the expected one.
fn judge(expected: &ExpectedAnswer, call: &Call, answer: &Answer, taken: &mut Bindings, factor: f64) -> Vec<String> {
    let mut faults = Vec::new();
    if answer.status != Some(expected.status) {
        let actual = answer.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        faults.push(format!("status: expected {}, actual {actual}", expected.status));
    }
    let expects_continue =
        wire::values(&call.headers, "expect").iter().any(|v| v.eq_ignore_ascii_case(b"100-continue"));
    match &expected.interim {
        Some(interim) if *interim != answer.interim => {
            faults.push(format!("interim: expected {interim:?}, actual {:?}", answer.interim));
        }
        // If the case lists no interim responses, only a client that expects a 100 may get one.
        None if !matches!((answer.interim.as_slice(), expects_continue), ([], _) | ([100], true)) => {
            faults.push(format!("interim: none expected, actual {:?}", answer.interim));
        }
        Some(_) | None => {}
    }
    let end = matching::body(expected.mode, &expected.body, &answer.body, &answer.headers, taken);
    let rest = [
        matching::subset(&expected.headers, &answer.headers, taken),
        matching::absent(&expected.headers_absent, &answer.headers),
    ];
    faults.extend([end].into_iter().chain(rest).filter_map(Result::err));
    for (name, value) in &expected.grpc {
        let actual = [wire::values(&answer.trailers, name), wire::values(&answer.headers, name)].concat();
        if actual != [value.as_slice()] {
            let shown: Vec<_> = actual.iter().map(|value| String::from_utf8_lossy(value)).collect();
            faults.push(format!("{name}: expected {}, actual {shown:?}", String::from_utf8_lossy(value)));
        }
    }
    match (&answer.end, expected.truncated) {
        (Some(End::Proper), false) | (Some(End::Closed | End::Reset), true) => {}
        (Some(End::Proper), true) => faults.push("end: expected a close without the proper end".to_owned()),
        (None, _) => faults.push("end: none within the time".to_owned()),
        (Some(end), _) => faults.push(format!("end: {end:?}")),
    }
    if let (Some(limit), Some(sent), Some(done)) = (expected.done_before, answer.sent, answer.done) {
        let (took, limit) = (done.saturating_duration_since(sent), limit.mul_f64(factor));
        if took > limit {
            faults.push(format!("complete after {took:?}, expected {limit:?} at the latest"));
        }
    }
    faults
}

/// Returns the faults of generated ids: each client must have its own, and none may be one that was
/// sent to or received from the upstream.
fn shared_ids(ids: &[(String, Bindings)], script: &CaseScript) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, (client, taken)) in ids.iter().enumerate() {
        for id in taken.values() {
            let shown = String::from_utf8_lossy(id);
            if script.seen(id) {
                faults.push(format!("client {client}: id `{shown}` is the upstream's"));
            }
            for (other, theirs) in ids.iter().skip(at + 1) {
                if theirs.values().any(|their| their == id) {
                    faults.push(format!("clients {client} and {other}: one id `{shown}`"));
                }
            }
        }
    }
    faults
}

/// Call counters of the proxy, read over a persistent connection to its admin port.
struct Stats {
    admin: Option<(Client, Outgoing)>,
}

/// Number of calls by progress.
#[derive(Debug, Clone, Copy, Default)]
struct CallProgress {
    /// Offered to the scheduler, which fixes their order.
    offered: u64,
    /// Passed through for any reason, or answered.
    done: u64,
}

// === impl Stats ===

impl Stats {
    async fn open(proxy: &Proxy) -> Self {
        let Some(address) = proxy.admin else { return Self { admin: None } };
        let question = Outgoing::new("GET", "/api/stats", address, &Vec::new(), None);
        Self { admin: Client::connect(address).await.ok().map(|client| (client, question)) }
    }

    async fn read(&mut self) -> Option<CallProgress> {
        let (client, question) = self.admin.as_mut()?;
        let answer = tokio::time::timeout(SEEN_MAX, client.fetch(question)).await.ok();
        let counted = answer.and_then(|answer| {
            let stats = json::parse(&answer.body).ok()?;
            let of = |name| stats.get("calls")?.get(name)?.as_u64();
            let passed: u64 = stats.get("passed")?.value()?.as_object()?.values().filter_map(Value::as_u64).sum();
            Some(CallProgress { offered: of("offered")?, done: passed + of("answered")? })
        });
        if counted.is_none() {
            // Without the counters, a fixed pause keeps the order.
            self.admin = None;
        }
        counted
    }

    /// Waits until one more call is offered to the scheduler. A call that never is (it is passed
    /// through, answered at once or incomplete) gets a fixed time instead.
    async fn wait(&mut self, before: Option<CallProgress>, factor: f64) -> Option<CallProgress> {
        let started: Instant = now();
        loop {
            let counted = self.read().await;
            let waited = now().saturating_duration_since(started);
            match (before, counted) {
                (Some(before), Some(counted)) if counted.offered > before.offered => return Some(counted),
                // Neither offered nor done: the proxy is still reading the call.
                (Some(before), Some(counted)) if counted.done == before.done && waited < SEEN_MAX => {
                    tokio::task::yield_now().await;
                }
                // Done without being offered, not noticed in time, or no counters: the fixed time
                // applies.
                _ if waited >= NEXT.mul_f64(factor) => return counted,
                (_, None) => tokio::time::sleep(NEXT.mul_f64(factor)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    }
}
