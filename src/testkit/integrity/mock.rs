//! The upstream of the ledger. It writes HTTP/1.1 by hand, because no library can produce these
//! faults.

mod act;
mod control;
mod upstream_call;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use strum::VariantArray as _;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::act::FaultExecution;
use self::control::MockSettings;
pub use self::control::UpstreamArrival;
use self::upstream_call::{UpstreamCall, answer, split_item};
use super::fault::{Fault, FaultSequence};
use super::nonce::{CLIENTS_MAX, CallForm, ItemToken, LedgerItem};
use super::records::{ItemRecords, add};
use super::{POISON, TENANT_HEADER};
use crate::boxed_future::BoxedFuture;
use crate::http1::{HttpConnection, Message};
use crate::item::splitmix64;
use crate::server::SimulatedModel;

/// Delay after a failed accept or bind.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Configuration of the ledger's upstream.
#[derive(Debug, Clone)]
pub struct MockConfig {
    /// Loopback port. 0 selects a free port.
    pub port: u16,
    /// Fixed cost of a call: the a in t(n) = a + b·n.
    pub base: Duration,
    /// Cost of each item: the b in t(n) = a + b·n.
    pub per_item: Duration,
    /// Number of calls computed concurrently. The number of waiting calls is not limited.
    pub slots: usize,
    /// Share of calls without a poison item that meet a fault.
    pub fault_share: f64,
    /// `true` to send unsolicited responses also after calls that arrived alone. A proxy forwards
    /// such a call on a connection of its own client, where an unsolicited response can reach only
    /// that client, as it would without the proxy. The option is therefore for clients that call
    /// the mock directly.
    pub unsolicited_unbatched: bool,
    /// `true` if the proxy may learn a limit, or have one stated, above which it divides a call.
    pub divides: bool,
    /// Size limit for a response that the proxy enforces. Oversized responses exceed it.
    pub answer_bytes_max: usize,
    /// Value of `retry-after` in 429 and 503 responses, in seconds.
    pub retry_after: u32,
    /// Time for which connections are refused by the fault that refuses them.
    pub refuse_duration: Duration,
    /// Pause between two bytes of a dripping body. It must exceed the body idle timeout of the
    /// proxy, or the response never fails.
    pub drip_interval: Duration,
    /// Maximum duration of silence if the peer does not close the connection.
    pub silence_max: Duration,
    /// Maximum number of clients of a run.
    pub clients_max: usize,
    /// Seed of the faults. The same seed produces the same faults in the same order.
    pub seed: u64,
}

/// The running upstream of the ledger. Dropping it stops the upstream.
#[derive(Debug)]
pub struct LedgerMock {
    addr: SocketAddr,
    shared: Arc<MockState>,
    accept: tokio::task::JoinHandle<()>,
}

/// State of the upstream, which the clients of the run share.
#[derive(Debug)]
pub(super) struct MockState {
    config: MockConfig,
    /// Key of the checksums in the nonces and of the random draws, derived from the seed.
    pub(super) key: u64,
    pub(super) records: ItemRecords,
    /// Number of client items that have an outcome.
    pub(super) done: AtomicU64,
    model: SimulatedModel,
    /// Settings that a test changes while the upstream runs.
    changes: MockSettings,
    fault_sequence: FaultSequence,
    /// Number of calls that could have met a fault, which is the index of the next draw.
    drawn: AtomicU64,
    /// Number of calls that met a fault.
    faults: AtomicU64,
    /// Number of faults by kind, in the order of `Fault::VARIANTS`.
    by_kind: [AtomicU64; Fault::VARIANTS.len()],
    /// Number of calls that arrived and are not answered.
    open: AtomicU64,
    /// Notified to close the listener for a short time.
    refuse: Notify,
}

/// State of the connection after a response.
enum AfterResponse {
    Keep(HttpConnection),
    Close,
}

/// Guard that counts a call as open until it is dropped.
struct OpenGuard<'a>(&'a AtomicU64);

// === impl MockConfig ===

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            port: 0,
            base: Duration::from_micros(300),
            per_item: Duration::from_micros(10),
            slots: 4,
            fault_share: 0.02,
            unsolicited_unbatched: false,
            divides: false,
            answer_bytes_max: 256 * 1024,
            retry_after: 0,
            refuse_duration: Duration::from_millis(2),
            drip_interval: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
            clients_max: 4096,
            seed: 1,
        }
    }
}

// === impl LedgerMock ===

impl LedgerMock {
    /// Binds the loopback port and serves on the current runtime until the handle is dropped.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub fn start(config: MockConfig) -> BoxedFuture<'static, io::Result<Self>> {
        Box::pin(async move {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, config.port)).await?;
            Self::serve(config, listener)
        })
    }

    /// Serves on a bound listener.
    fn serve(config: MockConfig, listener: TcpListener) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        let shared = Arc::new(MockState {
            key: splitmix64(config.seed),
            records: ItemRecords::new(config.clients_max.min(CLIENTS_MAX), config.divides),
            done: AtomicU64::new(0),
            model: SimulatedModel::new(config.base, config.per_item, config.slots, usize::MAX),
            changes: MockSettings::new(),
            fault_sequence: FaultSequence::new(config.seed),
            drawn: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            by_kind: std::array::from_fn(|_| AtomicU64::new(0)),
            open: AtomicU64::new(0),
            refuse: Notify::new(),
            config,
        });
        let accept = tokio::spawn(accept(listener, addr, Arc::clone(&shared)));
        Ok(Self { addr, shared, accept })
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address as a value of `--upstream`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of items of the current run that have an outcome.
    #[must_use]
    pub fn items_done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Stops the upstream. Its port is free when this returns.
    pub fn shutdown(mut self) -> BoxedFuture<'static, ()> {
        Box::pin(async move {
            self.accept.abort();
            // The task was aborted above, so the join error is expected.
            (&mut self.accept).await.ok();
        })
    }

    pub(super) fn shared(&self) -> &Arc<MockState> {
        &self.shared
    }
}

impl Drop for LedgerMock {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn accept(listener: TcpListener, addr: SocketAddr, shared: Arc<MockState>) {
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        let Some(listening) = &listener else {
            tokio::time::sleep(RETRY_DELAY).await;
            listener = TcpListener::bind(addr).await.ok();
            continue;
        };
        tokio::select! {
            accepted = listening.accept() => match accepted.and_then(|(stream, _)| HttpConnection::tcp(stream)) {
                Ok(conn) => {
                    connections.spawn(serve(conn, Arc::clone(&shared)));
                }
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            },
            () = shared.refuse.notified() => {
                listener = None;
                tokio::time::sleep(shared.config.refuse_duration).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut conn: HttpConnection, shared: Arc<MockState>) {
    // Any input other than a complete request ends the connection: the peer disconnected, or
    // attempted HTTP/2.
    while let Ok(Some(request)) = conn.inbox.read_request().await {
        let (method, path) = request.target();
        let form = CallForm::of_path(path).filter(|_| method == "POST");
        let Some(form) = form else {
            if conn.outbox.send(&answer("404 Not Found", "", b"{}")).await.is_err() {
                return;
            }
            continue;
        };
        let call = shared.read(form, &request);
        let beside = shared.open.fetch_add(1, Ordering::AcqRel);
        shared.changes.record_arrival(call.items.len(), call.members, beside, call.too_large);
        let open = OpenGuard(&shared.open);
        let next = shared.answer(&call, conn).await;
        drop(open);
        match next {
            Ok(AfterResponse::Keep(kept)) if !call.close => conn = kept,
            // The peer disconnected, or the connection must be closed.
            Ok(AfterResponse::Keep(_) | AfterResponse::Close) | Err(_) => return,
        }
    }
}

// === impl MockState ===

impl MockState {
    /// Returns the current model release.
    pub(super) fn release(&self) -> u64 {
        self.changes.release.load(Ordering::SeqCst)
    }

    /// Returns `true` if the clients must make no further calls.
    pub(super) fn is_enough(&self) -> bool {
        self.changes.enough.load(Ordering::Relaxed)
    }

    /// Returns the number of calls that have not been answered.
    pub(super) fn upstream_open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the number of injected faults, by the name of their kind.
    pub(super) fn faults(&self) -> Vec<(&'static str, u64)> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Fault::VARIANTS.iter().zip(&self.by_kind).map(|(fault, count)| (fault.name(), get(count))).collect()
    }

    /// Parses a call and enters it into the records.
    fn read(&self, form: CallForm, request: &Message<'_>) -> UpstreamCall {
        let counts = &self.records.counts;
        let tenant = request.header(TENANT_HEADER).unwrap_or_default();
        let route = form.route();
        let raw = route.extract_items(request.body).map(|items| items.raw).unwrap_or_default();
        let mut items = Vec::with_capacity(raw.len());
        let mut mixed = false;
        for raw in &raw {
            let read = split_item(form, raw).and_then(|(name, nonce)| Some((name, ItemToken::read(nonce, self.key)?)));
            let Some((name, (nonce, item))) = read else {
                add(&counts.corrupt, 1);
                continue;
            };
            mixed |= name.as_bytes() != tenant || tenant_name(item.tenant).as_bytes() != tenant;
            mixed |= item.form.route() != route;
            items.push((nonce, item));
        }
        add(&counts.corrupt, usize::from(raw.is_empty()));
        add(&counts.mixed_tenants, usize::from(mixed));
        let entered: Vec<LedgerItem> = items.iter().map(|&(_, item)| item).collect();
        let members = self.records.on_arrival(&entered);
        let too_large = items.len() > self.changes.items_max.load(Ordering::Relaxed);
        UpstreamCall { form, items, close: request.close, members, release: self.release(), too_large }
    }

    /// Responds to a call: with a refusal, an error for a poison item, a fault, or the result.
    async fn answer(&self, call: &UpstreamCall, mut conn: HttpConnection) -> io::Result<AfterResponse> {
        if let Some(refusal) = self.changes.shared_refusal().filter(|_| call.members > 1) {
            return act::refuse(refusal, call, self.config.silence_max, conn).await;
        }
        if call.too_large {
            conn.outbox.send(&answer("413 Payload Too Large", "", b"")).await?;
            return Ok(AfterResponse::Keep(conn));
        }
        if let Some((nonce, _)) = call.items.iter().find(|(_, item)| item.poison) {
            self.compute(call).await?;
            let body = format!(r#"{{"error":"{POISON}{nonce}"}}"#);
            let status = if nonce.expected_result(0, 0)[0] & 1 == 0 {
                "500 Internal Server Error"
            } else {
                "422 Unprocessable Entity"
            };
            conn.outbox.send(&answer(status, "", body.as_bytes())).await?;
            return Ok(AfterResponse::Keep(conn));
        }
        // Calls without a poison item draw a fault. The draw depends only on the seed and the
        // number of the call.
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut rng = SmallRng::seed_from_u64(self.key ^ splitmix64(drawn));
        if rng.random_bool(self.config.fault_share.clamp(0.0, 1.0)) {
            let fault = self.fault_sequence.fault_at(self.faults.fetch_add(1, Ordering::Relaxed));
            // Behind a proxy, an unsolicited response to a call that arrived alone proves nothing,
            // see `MockConfig::unsolicited_unbatched`. It is replaced by a harmless response.
            let harmless =
                fault.unsolicited_delay().is_some() && call.members < 2 && !self.config.unsolicited_unbatched;
            let fault = if harmless { Fault::IndexShuffled } else { fault };
            if let Some(at) = Fault::VARIANTS.iter().position(|&kind| kind == fault) {
                add(&self.by_kind[at], 1);
            }
            if fault.computes() {
                self.compute(call).await?;
            }
            return FaultExecution { shared: self, call, rng }.fault(fault, conn).await;
        }
        self.compute(call).await?;
        conn.outbox.send(&answer("200 OK", "", call.body().as_bytes())).await?;
        Ok(AfterResponse::Keep(conn))
    }

    /// Waits until the simulated model has executed the call.
    async fn compute(&self, call: &UpstreamCall) -> io::Result<()> {
        self.model.run(call.items.len()).await.map_err(|not_run| io::Error::other(format!("{not_run:?}")))
    }
}

// === impl OpenGuard ===

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the name of a tenant in requests.
pub(super) fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}
