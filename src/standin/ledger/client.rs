//! The ledger's clients: one call after the other on a kept connection each, some of them left before the answer, every answer checked.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memchr::memmem;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::mock::{LedgerMock, Shared, tenant_name};
use super::nonce::{Digest, Form, ITEMS_MAX, Item, Nonce, TENANTS_MAX, hex, numbers};
use super::report::Report;
use super::{FAULT_HEADER, POISON, TENANT_HEADER};
use crate::standin::item::{Route, spread};
use crate::standin::time::{now, since};
use crate::standin::wire::{Conn, Idle, Message, Target};

/// Different codes of own errors that are told apart; there are fewer.
const CODES_MAX: usize = 64;
/// A client that cannot connect waits this long.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);
/// How long the upstream may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(6);

/// A run of the ledger.
#[derive(Debug, Clone)]
pub struct LedgerConfig {
    /// Where the proxy listens.
    pub proxy: SocketAddr,
    /// Items to send.
    pub items: u64,
    /// Clients, each with one call in flight; at most what the mock's books are made for.
    pub concurrency: usize,
    /// The same seed gives the same calls.
    pub seed: u64,
    /// Tenants, at most 16; a tenant never shares with another.
    pub tenants: usize,
    /// Share of calls that are left.
    pub cancel_share: f64,
    /// A call is left at a random time within this long, if it is not left while it is being sent.
    pub cancel_within: Duration,
    /// Share of items that are poison.
    pub poison_share: f64,
    /// A call without an answer for this long is lost.
    pub patience: Duration,
    /// Only calls of this form; absent: of all of them in turn.
    pub only: Option<Route>,
}

struct Run {
    config: LedgerConfig,
    target: Target,
    mock: Arc<Shared>,
    left: AtomicU64,
    report: Mutex<Report>,
}

struct Client {
    run: Arc<Run>,
    index: usize,
    rng: SmallRng,
    calls: u64,
    kept: Option<Conn>,
    body: String,
    request: Vec<u8>,
}

/// One call, and what it must be answered.
struct Call {
    form: Form,
    poison: bool,
    tenant: usize,
    nonces: Vec<Nonce>,
    /// The models that may answer: from the one that did when the call began to the one that does now.
    releases: (u64, u64),
}

/// When a call is left.
enum Leave {
    Never,
    WhileSending(usize),
    AfterSending,
    After(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Served,
    /// The proxy's own error, by its code.
    Own(String),
    /// The upstream's 429 or 503 as it is.
    Overloaded,
    /// Another error of the upstream.
    Upstream,
    Faulted,
    Cancelled,
    Misdelivered,
    Blamed,
    Lost,
}

#[derive(Deserialize)]
struct Embeddings {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: [u32; 4],
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow, alias = "predictions")]
    results: Vec<Cow<'a, str>>,
}

/// Sends the items through the proxy to the mock, and reports what became of them.
pub async fn run(config: LedgerConfig, mock: &LedgerMock) -> Report {
    let begun = now();
    let clients = config.concurrency.clamp(1, mock.shared().books.clients());
    let run = Arc::new(Run {
        target: Target::Tcp(config.proxy),
        mock: Arc::clone(mock.shared()),
        left: AtomicU64::new(config.items),
        report: Mutex::default(),
        config,
    });
    let mut tasks = JoinSet::new();
    for index in 0..clients {
        tasks.spawn(Client::new(Arc::clone(&run), index).run());
    }
    tasks.join_all().await;
    let elapsed = since(begun);
    let rested = now();
    while run.mock.upstream_open() > 0 && since(rested) < REST_MAX {
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
    let counts = &run.mock.books.counts;
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Report {
        elapsed,
        oversent: get(&counts.oversent),
        after_answer: get(&counts.after_answer),
        mixed: get(&counts.mixed),
        corrupt: get(&counts.corrupt),
        torn: get(&counts.torn),
        late: get(&counts.late),
        stale: get(&counts.stale),
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
    /// A run as the issue has it: 3 % of calls left, 2 % of items poison, three tenants, 128 clients.
    #[must_use]
    pub fn new(proxy: SocketAddr, items: u64) -> Self {
        Self {
            proxy,
            items,
            concurrency: 128,
            seed: 1,
            tenants: 3,
            cancel_share: 0.03,
            cancel_within: Duration::from_millis(15),
            poison_share: 0.02,
            patience: Duration::from_secs(30),
            only: None,
        }
    }
}

// === impl Run ===

impl Run {
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n` of the items that are left to send.
    fn take(&self, n: usize) -> usize {
        let wanted = n as u64;
        let took = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left > 0).then(|| left.saturating_sub(wanted)));
        usize::try_from(took.unwrap_or_default().min(wanted)).unwrap_or_default()
    }
}

// === impl Client ===

impl Client {
    fn new(run: Arc<Run>, index: usize) -> Self {
        let rng = SmallRng::seed_from_u64(spread(run.config.seed) ^ spread(index as u64));
        Self { run, index, rng, calls: 0, kept: None, body: String::new(), request: Vec::new() }
    }

    async fn run(mut self) {
        while !self.run.mock.is_enough() {
            let n = if self.rng.random_bool(0.5) { 1 } else { self.rng.random_range(1..=ITEMS_MAX) };
            let n = self.run.take(n);
            if n == 0 {
                return;
            }
            self.one(n).await;
        }
    }

    async fn one(&mut self, n: usize) {
        let mut call = self.prepare(n);
        let number = self.calls;
        self.calls += 1;
        let run = Arc::clone(&self.run);
        run.mock.books.begin(self.index, number, n);
        let begun = now();
        let (outcome, unasked) = self.exchange(&mut call).await;
        let waited = since(begun);
        let (shared, arrived) = run.mock.books.end(self.index, number, outcome == Outcome::Served);
        if self.kept.is_none() && outcome == Outcome::Lost {
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
        let alone = arrived && !shared;
        run.report().enter(n as u64, &call, outcome, &Circumstances { shared, alone, unasked, waited });
        run.mock.done.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Draws a call and writes its request.
    fn prepare(&mut self, n: usize) -> Call {
        let tenant = self.rng.random_range(0..self.run.config.tenants.clamp(1, TENANTS_MAX));
        // Drawn in any case: the same seed gives the same items.
        let drawn = match self.rng.random_range(0..8) {
            0..3 => Form::OpenAi,
            3 if n == 1 => Form::OpenAiSingle,
            3..6 => Form::KServe,
            _ => Form::Generic,
        };
        let form = match self.run.config.only {
            None => drawn,
            Some(Route::Predict) => Form::KServe,
            Some(Route::Ledger) => Form::Generic,
            Some(Route::Embeddings | Route::Embed) => Form::OpenAi,
        };
        let release = self.run.mock.release();
        let mut call =
            Call { form, poison: false, tenant, nonces: Vec::with_capacity(n), releases: (release, release) };
        let name = tenant_name(tenant);
        self.body.clear();
        self.body.push_str(match form {
            Form::OpenAi => r#"{"model":"ledger","input":["#,
            Form::OpenAiSingle => r#"{"model":"ledger","input":"#,
            Form::KServe => r#"{"instances":["#,
            Form::Generic => r#"{"items":["#,
        });
        for place in 0..n {
            let poison = self.rng.random_bool(self.run.config.poison_share.clamp(0.0, 1.0));
            let item = Item { client: self.index, call: self.calls, place, tenant, form, poison };
            let nonce = item.nonce(self.run.mock.key);
            call.poison |= poison;
            call.nonces.push(nonce);
            if place > 0 {
                self.body.push(',');
            }
            self.write_item(form, &name, nonce);
        }
        self.body.push_str(if form == Form::OpenAiSingle { "}" } else { "]}" });
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

    fn write_item(&mut self, form: Form, tenant: &str, nonce: Nonce) {
        match form {
            Form::KServe => write!(self.body, r#"{{"tenant":"{tenant}","nonce":"{nonce}"}}"#),
            Form::OpenAi | Form::OpenAiSingle | Form::Generic => write!(self.body, r#""{tenant}/{nonce}""#),
        }
        .ok();
    }

    fn leave(&mut self) -> Leave {
        let config = &self.run.config;
        if !self.rng.random_bool(config.cancel_share.clamp(0.0, 1.0)) {
            return Leave::Never;
        }
        match self.rng.random_range(0..6) {
            0 => Leave::WhileSending(self.rng.random_range(0..self.request.len())),
            1 => Leave::AfterSending,
            _ => Leave::After(config.cancel_within.mul_f64(self.rng.random())),
        }
    }

    /// Makes the call; returns its outcome and whether more came back than was asked for.
    async fn exchange(&mut self, call: &mut Call) -> (Outcome, bool) {
        let leave = self.leave();
        let reset = self.rng.random();
        let mut kept = self.kept.take();
        let mut unasked = false;
        if let Some(conn) = &mut kept {
            let idle = conn.inbox.idle();
            unasked = idle == Idle::Unasked;
            if idle != Idle::Quiet {
                kept = None;
            }
        }
        let conn = match kept {
            Some(conn) => Ok(conn),
            None => self.run.target.connect().await,
        };
        let Ok(mut conn) = conn else { return (Outcome::Lost, unasked) };
        let request = match leave {
            Leave::WhileSending(n) => self.request.get(..n).unwrap_or_default(),
            Leave::AfterSending | Leave::Never | Leave::After(_) => &self.request,
        };
        // A server may answer and close without having read it all: what it says is read all the same.
        conn.outbox.send(request).await.ok();
        let wait = match leave {
            Leave::Never => self.run.config.patience,
            Leave::After(wait) => wait,
            Leave::WhileSending(_) | Leave::AfterSending => {
                close(conn, reset);
                return (Outcome::Cancelled, unasked);
            }
        };
        let ended = match tokio::time::timeout(wait, conn.inbox.answer()).await {
            Ok(Ok(answer)) => {
                call.releases.1 = self.run.mock.release();
                Some((call.judge(&answer), answer.close))
            }
            Ok(Err(_)) => None,
            Err(_) if matches!(leave, Leave::Never) => return (Outcome::Lost, unasked),
            Err(_) => {
                close(conn, reset);
                return (Outcome::Cancelled, unasked);
            }
        };
        let Some((outcome, closes)) = ended else { return (cut(conn.inbox.rest()), unasked) };
        if !conn.inbox.rest().is_empty() {
            unasked = true;
        } else if !closes {
            self.kept = Some(conn);
        }
        (outcome, unasked)
    }
}

fn close(conn: Conn, reset: bool) {
    if reset {
        conn.reset();
    }
}

/// An answer that was cut off: excused only if it says that it is a fault that met this call alone.
fn cut(came: &[u8]) -> Outcome {
    if memmem::find(came, FAULT_HEADER.as_bytes()).is_some() { Outcome::Faulted } else { Outcome::Lost }
}

// === impl Call ===

impl Call {
    fn judge(&self, answer: &Message<'_>) -> Outcome {
        let fault = answer.header(FAULT_HEADER).is_some();
        if answer.status == 200 {
            return match self.is_right(answer.body) {
                // The mock has never given a right answer to poison.
                Some(true) if !self.poison => Outcome::Served,
                _ if fault => Outcome::Faulted,
                _ => Outcome::Misdelivered,
            };
        }
        if let Some(code) = answer.header("x-groupage-error") {
            return Outcome::Own(String::from_utf8_lossy(code).into_owned());
        }
        if !self.poison && memmem::find(answer.body, POISON.as_bytes()).is_some() {
            return Outcome::Blamed;
        }
        match answer.status {
            _ if fault => Outcome::Faulted,
            429 | 503 => Outcome::Overloaded,
            _ => Outcome::Upstream,
        }
    }

    /// Whether a 200 holds the right answer to each item, and nothing else; `None` where it is of another form.
    fn is_right(&self, body: &[u8]) -> Option<bool> {
        let (first, last) = self.releases;
        if !self.form.indexed() {
            let results = serde_json::from_slice::<Results<'_>>(body).ok()?.results;
            let right = |expect: Vec<Digest>| results.iter().map(|result| result.as_ref()).eq(expect.iter().map(hex));
            return Some((first..=last).any(|release| right(self.expect(release))));
        }
        let data = serde_json::from_slice::<Embeddings>(body).ok()?.data;
        Some((first..=last).any(|release| self.is_right_embedding(&data, release)))
    }

    /// The right answer of a model to each item.
    fn expect(&self, release: u64) -> Vec<Digest> {
        self.nonces.iter().map(|nonce| nonce.digest(self.tenant, release)).collect()
    }

    fn is_right_embedding(&self, data: &[Embedding], release: u64) -> bool {
        let expect = self.expect(release);
        let mut seen = [false; ITEMS_MAX];
        let right = data.iter().all(|one| {
            let new = seen.get_mut(one.index).is_some_and(|seen| !std::mem::replace(seen, true));
            new && expect.get(one.index).is_some_and(|digest| numbers(digest) == one.embedding)
        });
        right && data.len() == expect.len()
    }
}

/// What else is known of a call that has ended.
struct Circumstances {
    /// It was part of a shared upstream call at least once.
    shared: bool,
    /// It arrived upstream, and never with others.
    alone: bool,
    unasked: bool,
    waited: Duration,
}

// === impl Report ===

impl Report {
    fn enter(&mut self, n: u64, call: &Call, outcome: Outcome, facts: &Circumstances) {
        self.items += n;
        self.calls += 1;
        self.shared += if facts.shared { n } else { 0 };
        self.unasked += u64::from(facts.unasked);
        if outcome != Outcome::Cancelled {
            self.slowest = self.slowest.max(facts.waited);
        }
        if call.poison {
            self.poisoned += n;
            let wrongly = matches!(outcome, Outcome::Served | Outcome::Misdelivered | Outcome::Lost);
            self.poisoned_answered += if wrongly { 0 } else { n };
        } else if outcome != Outcome::Cancelled {
            self.innocent += n;
            self.innocent_served += if outcome == Outcome::Served { n } else { 0 };
            self.innocent_unreplayable += if outcome.is_final(facts.alone) { n } else { 0 };
        }
        *match outcome {
            Outcome::Served => &mut self.served,
            Outcome::Own(code) => {
                let known = self.own_errors.len() < CODES_MAX || self.own_errors.contains_key(&code);
                self.own_errors.entry(if known { code } else { "other".to_owned() }).or_default()
            }
            Outcome::Overloaded | Outcome::Upstream => &mut self.upstream_errors,
            Outcome::Faulted => &mut self.faulted,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Misdelivered => &mut self.misdelivered,
            Outcome::Blamed => &mut self.blamed,
            Outcome::Lost => &mut self.lost,
        } += n;
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether an innocent call ended so because of something that may not be sent again.
    fn is_final(&self, alone: bool) -> bool {
        match self {
            Self::Served | Self::Cancelled | Self::Misdelivered | Self::Blamed | Self::Lost => false,
            Self::Overloaded | Self::Faulted => true,
            // Timeout, connection refused, answer too large; alone nothing is replayed.
            Self::Own(code) => alone || matches!(code.as_str(), "GRP3301" | "GRP3303" | "GRP3306"),
            Self::Upstream => alone,
        }
    }
}
