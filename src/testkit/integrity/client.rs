//! Clients of the ledger. Each makes one call at a time on a keep-alive connection, cancels some of
//! its calls, and verifies every response.

mod tally;
mod verification;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use self::tally::CallFacts;
use self::verification::{ClientCall, ItemOutcome, classify_truncated};
use super::TENANT_HEADER;
use super::mock::{LedgerMock, MockState, tenant_name};
use super::nonce::{CallForm, ITEMS_MAX, ItemToken, LedgerItem, TENANTS_MAX};
use super::report::LedgerReport;
use crate::boxed_future::BoxedFuture;
use crate::http1::{HttpConnection, IdleState, ServerAddr};
use crate::item::{Route, splitmix64};
use crate::time::{elapsed_since, now};

/// Delay after a failed attempt to connect, and between two checks for open upstream calls.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time to wait until the upstream has no open calls.
const REST_MAX: Duration = Duration::from_secs(6);

/// Configuration of a ledger run.
#[derive(Debug, Clone)]
pub struct LedgerConfig {
    /// Address of the proxy.
    pub proxy: SocketAddr,
    /// Number of items to send.
    pub items: u64,
    /// Number of clients, each with one call in flight. It is limited to the number of clients that
    /// the mock is configured for.
    pub concurrency: usize,
    /// Seed of the calls. The same seed produces the same calls.
    pub seed: u64,
    /// Number of tenants, at most 16. Calls of different tenants are never merged.
    pub tenants: usize,
    /// Share of calls that are cancelled.
    pub cancel_share: f64,
    /// Maximum time until the cancellation of a call, chosen at random, unless it is cancelled
    /// while it is sent.
    pub cancel_after_max: Duration,
    /// Share of items that are poison.
    pub poison_share: f64,
    /// Time without a response after which a call counts as lost.
    pub response_timeout: Duration,
    /// Route of all calls, or `None` to use every form.
    pub route: Option<Route>,
}

/// A run, shared by its clients.
struct LedgerRun {
    config: LedgerConfig,
    target: ServerAddr,
    mock: Arc<MockState>,
    /// Number of items that remain to be sent.
    left: AtomicU64,
    report: Mutex<LedgerReport>,
}

/// A client of a run, which makes one call at a time.
struct LedgerClient {
    run: Arc<LedgerRun>,
    index: usize,
    rng: SmallRng,
    /// Number of calls made, which is the number of the next call.
    calls: u64,
    /// Connection of the previous call, if it can be used again.
    kept: Option<HttpConnection>,
    /// Body and complete request of the current call.
    body: String,
    request: Vec<u8>,
}

/// Point in time at which a call is cancelled.
enum Cancellation {
    Never,
    /// After this number of bytes of the request.
    WhileSending(usize),
    /// When the whole request has been sent.
    AfterSending,
    /// After this time without a response.
    After(Duration),
}

/// Sends the items through the proxy to the mock, and reports their outcomes.
pub fn run(config: LedgerConfig, mock: &LedgerMock) -> BoxedFuture<'_, LedgerReport> {
    Box::pin(run_clients(config, mock))
}

async fn run_clients(config: LedgerConfig, mock: &LedgerMock) -> LedgerReport {
    let begun = now();
    let clients = config.concurrency.clamp(1, mock.shared().records.clients());
    let run = Arc::new(LedgerRun {
        target: ServerAddr::Tcp(config.proxy),
        mock: Arc::clone(mock.shared()),
        left: AtomicU64::new(config.items),
        report: Mutex::default(),
        config,
    });
    let mut tasks = JoinSet::new();
    for index in 0..clients {
        tasks.spawn(LedgerClient::new(Arc::clone(&run), index).run());
    }
    tasks.join_all().await;
    let elapsed = elapsed_since(begun);
    // Calls that were cancelled may still be open upstream.
    let finished = now();
    while run.mock.upstream_open() > 0 && elapsed_since(finished) < REST_MAX {
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
    let counts = &run.mock.records.counts;
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    LedgerReport {
        elapsed,
        oversent: get(&counts.replayed_too_often),
        after_answer: get(&counts.after_answer),
        mixed: get(&counts.mixed_tenants),
        corrupt: get(&counts.corrupt),
        torn: get(&counts.partial_calls),
        late: get(&counts.arrived_after_end),
        stale: get(&counts.unknown_calls),
        upstream_open: run.mock.upstream_open(),
        upstream_calls: get(&counts.calls),
        upstream_items: get(&counts.items),
        upstream_items_max: get(&counts.items_max),
        faults: run.mock.faults(),
        ..run.report().clone()
    }
}

// === impl LedgerConfig ===

impl LedgerConfig {
    /// Creates the default configuration: 3 % of calls cancelled, 2 % of items poison, three
    /// tenants and 128 clients.
    #[must_use]
    pub fn new(proxy: SocketAddr, items: u64) -> Self {
        Self {
            proxy,
            items,
            concurrency: 128,
            seed: 1,
            tenants: 3,
            cancel_share: 0.03,
            cancel_after_max: Duration::from_millis(15),
            poison_share: 0.02,
            response_timeout: Duration::from_secs(30),
            route: None,
        }
    }
}

// === impl LedgerRun ===

impl LedgerRun {
    fn report(&self) -> MutexGuard<'_, LedgerReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n` of the items that remain to be sent.
    fn take(&self, n: usize) -> usize {
        let wanted = n as u64;
        let took = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left > 0).then(|| left.saturating_sub(wanted)));
        usize::try_from(took.unwrap_or_default().min(wanted)).unwrap_or_default()
    }
}

// === impl LedgerClient ===

impl LedgerClient {
    fn new(run: Arc<LedgerRun>, index: usize) -> Self {
        let rng = SmallRng::seed_from_u64(splitmix64(run.config.seed) ^ splitmix64(index as u64));
        Self { run, index, rng, calls: 0, kept: None, body: String::new(), request: Vec::new() }
    }

    async fn run(mut self) {
        while !self.run.mock.is_enough() {
            let n = if self.rng.random_bool(0.5) { 1 } else { self.rng.random_range(1..=ITEMS_MAX) };
            let n = self.run.take(n);
            if n == 0 {
                return;
            }
            self.make_call(n).await;
        }
    }

    /// Makes a call with `n` items and reports its outcome.
    async fn make_call(&mut self, n: usize) {
        let mut call = self.prepare(n);
        let number = self.calls;
        self.calls += 1;
        let run = Arc::clone(&self.run);
        run.mock.records.on_call_start(self.index, number, n);
        let begun = now();
        let (outcome, unasked) = self.exchange(&mut call).await;
        let waited = elapsed_since(begun);
        let (shared, arrived) = run.mock.records.on_call_end(self.index, number, outcome == ItemOutcome::Served);
        if self.kept.is_none() && outcome == ItemOutcome::Lost {
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
        let unbatched = arrived && !shared;
        run.report().record(n as u64, &call, outcome, &CallFacts { shared, unbatched, unasked, waited });
        run.mock.done.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Generates a random call and writes its request.
    fn prepare(&mut self, n: usize) -> ClientCall {
        let tenant = self.rng.random_range(0..self.run.config.tenants.clamp(1, TENANTS_MAX));
        // Drawn even if unused, so that the same seed always produces the same items.
        let drawn = match self.rng.random_range(0..8) {
            0..3 => CallForm::OpenAi,
            3 if n == 1 => CallForm::OpenAiSingle,
            3..6 => CallForm::KServe,
            _ => CallForm::Generic,
        };
        let form = match self.run.config.route {
            None => drawn,
            Some(Route::Predict) => CallForm::KServe,
            Some(Route::Ledger) => CallForm::Generic,
            Some(Route::Embeddings | Route::Embed) => CallForm::OpenAi,
        };
        let release = self.run.mock.release();
        let mut call =
            ClientCall { form, poison: false, tenant, nonces: Vec::with_capacity(n), releases: (release, release) };
        let name = tenant_name(tenant);
        self.body.clear();
        self.body.push_str(match form {
            CallForm::OpenAi => r#"{"model":"ledger","input":["#,
            CallForm::OpenAiSingle => r#"{"model":"ledger","input":"#,
            CallForm::KServe => r#"{"instances":["#,
            CallForm::Generic => r#"{"items":["#,
        });
        for place in 0..n {
            let poison = self.rng.random_bool(self.run.config.poison_share.clamp(0.0, 1.0));
            let item = LedgerItem { client: self.index, call: self.calls, place, tenant, form, poison };
            let nonce = item.nonce(self.run.mock.key);
            call.poison |= poison;
            call.nonces.push(nonce);
            if place > 0 {
                self.body.push(',');
            }
            self.write_item(form, &name, nonce);
        }
        self.body.push_str(if form == CallForm::OpenAiSingle { "}" } else { "]}" });
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: ledger\r\n{TENANT_HEADER}: {name}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            form.path(),
            self.body.len()
        );
        self.request.clear();
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(self.body.as_bytes());
        call
    }

    fn write_item(&mut self, form: CallForm, tenant: &str, nonce: ItemToken) {
        match form {
            CallForm::KServe => write!(self.body, r#"{{"tenant":"{tenant}","nonce":"{nonce}"}}"#),
            CallForm::OpenAi | CallForm::OpenAiSingle | CallForm::Generic => write!(self.body, r#""{tenant}/{nonce}""#),
        }
        .ok();
    }

    fn draw_cancellation(&mut self) -> Cancellation {
        let config = &self.run.config;
        if !self.rng.random_bool(config.cancel_share.clamp(0.0, 1.0)) {
            return Cancellation::Never;
        }
        match self.rng.random_range(0..6) {
            0 => Cancellation::WhileSending(self.rng.random_range(0..self.request.len())),
            1 => Cancellation::AfterSending,
            _ => Cancellation::After(config.cancel_after_max.mul_f64(self.rng.random())),
        }
    }

    /// Takes the kept connection, and returns whether unsolicited bytes arrived. The connection must
    /// be silent between two calls: bytes that are already here answer no call.
    fn take_kept(&mut self) -> (Option<HttpConnection>, bool) {
        let Some(mut conn) = self.kept.take() else { return (None, false) };
        let idle = conn.inbox.poll_idle();
        ((idle == IdleState::Quiet).then_some(conn), idle == IdleState::Unasked)
    }

    /// Makes the call. Returns its outcome, and whether unsolicited bytes arrived.
    async fn exchange(&mut self, call: &mut ClientCall) -> (ItemOutcome, bool) {
        let cancellation = self.draw_cancellation();
        let reset = self.rng.random();
        let (kept, mut unasked) = self.take_kept();
        let conn = match kept {
            Some(conn) => Ok(conn),
            None => self.run.target.connect().await,
        };
        let Ok(mut conn) = conn else { return (ItemOutcome::Lost, unasked) };
        let request = match cancellation {
            Cancellation::WhileSending(n) => self.request.get(..n).unwrap_or_default(),
            Cancellation::AfterSending | Cancellation::Never | Cancellation::After(_) => &self.request,
        };
        // A server may respond and close before it has read the whole request. The response is read
        // anyway.
        conn.outbox.send(request).await.ok();
        let wait = match cancellation {
            Cancellation::Never => self.run.config.response_timeout,
            Cancellation::After(wait) => wait,
            Cancellation::WhileSending(_) | Cancellation::AfterSending => {
                close_connection(conn, reset);
                return (ItemOutcome::Cancelled, unasked);
            }
        };
        let ended = match tokio::time::timeout(wait, conn.inbox.read_answer()).await {
            Ok(Ok(answer)) => {
                call.releases.1 = self.run.mock.release();
                Some((call.classify(&answer), answer.close))
            }
            Ok(Err(_)) => None,
            Err(_) if matches!(cancellation, Cancellation::Never) => return (ItemOutcome::Lost, unasked),
            Err(_) => {
                close_connection(conn, reset);
                return (ItemOutcome::Cancelled, unasked);
            }
        };
        let Some((outcome, closes)) = ended else { return (classify_truncated(conn.inbox.unread()), unasked) };
        if !conn.inbox.unread().is_empty() {
            unasked = true;
        } else if !closes {
            self.kept = Some(conn);
        }
        (outcome, unasked)
    }
}

/// Closes a connection, with a TCP reset if `reset` is set.
fn close_connection(conn: HttpConnection, reset: bool) {
    if reset {
        conn.reset();
    }
}
