//! Identity run: callers with similar identities make calls in random spellings, and a server that
//! runs one request at a time returns to each call its own number and the identity that the server
//! received. No call may get the number or the identity of another one.

mod caller;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use groupage::batching::rng::SplitMix64;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::caller::Identity;
use super::support::client::{Answer, Client};
use super::support::json::{self, Json};
use super::support::proxy::{Proxy, Start};
use super::support::upstream::{Reply, Request, Script, Upstream, now};
use super::support::wire::{End, nominates};

/// Name by which the run is selected.
pub(crate) const NAME: &str = "identity";
/// Number of calls of each caller in a short and in a full run, for each scheduling policy. A full
/// run has 200 000 calls.
const CALLS_EACH: (u64, u64) = (60, 1_563);
/// Number of callers, which are as many connections.
const CALLERS: u64 = 64;
/// Number of base identities. Each has variants that differ in one part.
const BASES: u64 = 3;
/// Time for which the server is busy with one request: well above the time that a debug build of the
/// proxy needs for a call, so that calls queue at the server.
const SERVICE: Duration = Duration::from_millis(5);
/// Minimum ratio of calls to requests upstream. Below it too few calls share a batch for the run to
/// show anything.
const CALLS_PER_REQUEST: f64 = 1.1;
const STATIC: &str = "apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: identity}
spec: {scheduling: {policy: Static, items: 8, delay: 10ms}}
";

/// Server that runs one request at a time and answers each instance with itself and the identity of
/// the request.
#[derive(Debug)]
struct IdentityServer {
    /// Instant at which the last request ends.
    busy: Mutex<Instant>,
    requests: AtomicU64,
    unreadable: Mutex<Vec<String>>,
}

/// Number of calls with each outcome.
#[derive(Debug, Default)]
struct Tally {
    served: u64,
    /// First calls that failed or that got another answer than their own.
    faults: Vec<String>,
}

/// Runs the calls under the default policy and under `Static`, both at once. Returns the
/// measurements and the failed checks as lines.
pub(crate) async fn run(binary: PathBuf, full: bool) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let config = folder.path().join("policy.yaml");
    std::fs::write(&config, STATIC).map_err(|error| error.to_string())?;
    let calls = if full { CALLS_EACH.1 } else { CALLS_EACH.0 };
    let (adaptive, fixed) = tokio::try_join!(
        run_policy("Adaptive", None, binary.clone(), calls),
        run_policy("Static", Some(&config), binary.clone(), calls)
    )?;
    Ok([adaptive, fixed].concat())
}

async fn run_policy(policy: &str, config: Option<&Path>, binary: PathBuf, calls: u64) -> Result<Vec<String>, String> {
    let server = Arc::new(IdentityServer {
        busy: Mutex::new(now()),
        requests: AtomicU64::new(0),
        unreadable: Mutex::new(Vec::new()),
    });
    let upstream = Upstream::start(Arc::<IdentityServer>::clone(&server)).await.map_err(|error| error.to_string())?;
    let mut proxy = Proxy::start(&Start { binary, upstream: upstream.address, config, metrics: false }).await?;
    let mut callers = JoinSet::new();
    let mut tally = Tally::default();
    for number in 0..CALLERS {
        // One call comes before each caller, so that the load rises and shows what the server runs at
        // once. Of a load that never varies, the proxy may not learn it.
        tally.add(make_calls(proxy.listen, CALLERS + number, 1).await);
        callers.spawn(make_calls(proxy.listen, number, calls));
    }
    while let Some(done) = callers.join_next().await {
        tally.add(done.map_err(|error| error.to_string())?);
    }
    let requests = server.requests.load(Ordering::Relaxed);
    let count = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let shared = count(tally.served) / count(requests.max(1));
    let mut lines = vec![format!(
        "{policy}: {} of {} calls answered, {shared:.2} per request",
        tally.served,
        (calls + 1) * CALLERS
    )];
    lines.extend(tally.faults.iter().take(5).map(|fault| format!("FAILED: {policy}: {fault}")));
    let unreadable = server.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone();
    lines.extend(unreadable.iter().take(5).map(|fault| format!("FAILED: {policy}: request upstream: {fault}")));
    if shared < CALLS_PER_REQUEST {
        lines.push(format!("FAILED: {policy}: fewer than {CALLS_PER_REQUEST} calls per request"));
    }
    if let Some(fault) = proxy.fault() {
        lines.push(format!("FAILED: {policy}: {fault}"));
        lines.extend(proxy.tail().lines().map(str::to_owned));
    }
    Ok(lines)
}

/// Makes calls one after another on one connection, each with another identity.
async fn make_calls(proxy: SocketAddr, caller: u64, calls: u64) -> Tally {
    let mut draw = SplitMix64::new(caller);
    let mut tally = Tally::default();
    let mut client = None;
    for number in 0..calls {
        let identity = Identity::draw(&mut draw, BASES);
        let nonce = format!("{caller}-{number}");
        match call(&mut client, proxy, &identity.spell(&nonce, &mut draw)).await {
            Ok(answer) if is_own(&answer, &nonce, &identity) => {
                tally.served += 1;
                // The proxy ends a connection after some number of calls, and announces it.
                if nominates(&answer.headers, "close") {
                    client = None;
                }
            }
            Ok(answer) => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                tally.faults.push(format!("{nonce} of {identity:?}: {:?} {:?} {body}", answer.status, answer.end));
                client = None;
            }
            Err(error) => tally.faults.push(format!("{nonce} of {identity:?}: {error}")),
        }
    }
    tally
}

async fn call(client: &mut Option<Client>, proxy: SocketAddr, request: &[u8]) -> Result<Answer, String> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(proxy).await.map_err(|error| error.to_string())?),
    };
    client.write_raw(request).await.map_err(|error| error.to_string())?;
    let mut answer = Answer::default();
    client.receive("POST", &mut answer).await;
    Ok(answer)
}

/// Returns `true` if the answer has the number of the call and its identity, and nothing else.
fn is_own(answer: &Answer, nonce: &str, identity: &Identity) -> bool {
    let body = json::parse(&answer.body).ok();
    let predictions = body.as_ref().and_then(|body| body.get("predictions")).and_then(Json::elements);
    let texts: Vec<_> = predictions.unwrap_or_default().iter().filter_map(Json::as_str).collect();
    answer.status == Some(200)
        && answer.end == Some(End::Proper)
        && texts == [format!("{nonce} {}", identity.received())]
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, other: Self) {
        self.served += other.served;
        self.faults.extend(other.faults);
    }
}

// === impl IdentityServer ===

impl Script for IdentityServer {
    fn reply(&self, request: Request) -> Reply {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let identity = caller::received(&request);
        let body = json::parse(&request.body).ok();
        let instances = body.as_ref().and_then(|body| body.get("instances")).and_then(Json::elements);
        let texts = instances.unwrap_or_default().iter().map(|item| item.as_str().unwrap_or_default());
        let predictions: Vec<_> = texts.map(|nonce| format!("{nonce} {identity}")).collect();
        let arrival = now();
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        *busy = (*busy).max(arrival) + SERVICE;
        let body = serde_json::json!({ "predictions": predictions }).to_string();
        Reply { delay: *busy - arrival, ..Reply::plain(200, "application/json", body) }
    }

    fn unreadable(&self, why: &End) {
        // Connections that the proxy closes between two requests have no end worth a report.
        if matches!(why, End::Garbled(_)) {
            self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{why:?}"));
        }
    }
}
