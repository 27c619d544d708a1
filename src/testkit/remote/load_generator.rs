//! A load generator that is controlled over HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{
    CallResponse, CallResult, CallsCommand, CommandError, CommandHandler, HttpCall, LedgerCommand, LedgerReport,
    LoadCommand, LoadReport, parse_json, serve, to_json,
};
use crate::boxed_future::BoxedFuture;
use crate::http1::{HttpConnection, Message, ServerAddr};
use crate::integrity::{self, LedgerConfig, LedgerMock, MockConfig};
use crate::load::{self, OpenConfig, OpenLoad};

/// Maximum number of calls in one command. All of them may be in flight, each on its own connection.
const CALLS_MAX: usize = 1024;
/// Maximum time to wait for a response, far above any timeout of a proxy in a test.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of connections of a load.
const CONNECTIONS_MAX: usize = 2048;
/// Duration after which a load ends if no command ends it.
const LOAD_MAX: Duration = Duration::from_secs(3600);

/// A load generator with a control port. Dropping it stops the control server.
#[derive(Debug)]
pub struct RemoteLoadGenerator {
    control: SocketAddr,
    control_task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct LoadGeneratorState {
    load: Mutex<Option<OpenLoad>>,
    /// Loopback port of the ledger mock, if one is configured.
    ledger: Option<u16>,
    /// The mock for the next run. Each mock serves a single run.
    mock: tokio::sync::Mutex<Option<LedgerMock>>,
}

// === impl RemoteLoadGenerator ===

impl RemoteLoadGenerator {
    /// Starts the control server on the current runtime. If `ledger` is set, a misbehaving upstream
    /// for [`LedgerCommand`] listens on that loopback port.
    ///
    /// # Errors
    /// A port cannot be bound.
    pub fn start(control: SocketAddr, ledger: Option<u16>) -> BoxedFuture<'static, io::Result<Self>> {
        Box::pin(async move {
            let listener = TcpListener::bind(control).await?;
            let control = listener.local_addr()?;
            let mock = match ledger {
                Some(port) => Some(start_mock(port).await?),
                None => None,
            };
            let shared = LoadGeneratorState { load: Mutex::default(), ledger, mock: tokio::sync::Mutex::new(mock) };
            let control_task = tokio::spawn(serve(listener, Arc::new(shared)));
            Ok(Self { control, control_task })
        })
    }

    /// Returns the address of the control port.
    #[must_use]
    pub fn control(&self) -> SocketAddr {
        self.control
    }
}

impl Drop for RemoteLoadGenerator {
    fn drop(&mut self) {
        self.control_task.abort();
    }
}

async fn start_mock(port: u16) -> io::Result<LedgerMock> {
    LedgerMock::start(MockConfig { port, ..MockConfig::default() }).await
}

async fn resolve(to: &str) -> Result<SocketAddr, CommandError> {
    let mut found =
        tokio::net::lookup_host(to).await.map_err(|error| CommandError::failed(format!("{to}: {error}")))?;
    found.next().ok_or_else(|| CommandError::failed(format!("{to}: no address")))
}

// === impl LoadGeneratorState ===

impl CommandHandler for LoadGeneratorState {
    async fn handle(&self, method: &Method, path: &str, body: &[u8]) -> Result<String, CommandError> {
        match (method, path) {
            (&Method::POST, "/calls") => to_json(&execute_calls(parse_json(body)?).await?),
            (&Method::POST, "/load") => to_json(&self.start_load(parse_json(body)?).await?),
            (&Method::GET, "/load") => to_json(&self.load_report()?),
            (&Method::DELETE, "/load") => to_json(&self.stop_load().await?),
            (&Method::POST, "/ledger") => to_json(&self.run_ledger(parse_json(body)?).await?),
            _ => Err(CommandError::unknown()),
        }
    }
}

impl LoadGeneratorState {
    fn load(&self) -> MutexGuard<'_, Option<OpenLoad>> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start_load(&self, command: LoadCommand) -> Result<(), CommandError> {
        let target = ServerAddr::Tcp(resolve(&command.to).await?);
        let calls = load::PreparedCalls::new(command.route, command.items.max(1), 1);
        let connections = command.connections.clamp(1, CONNECTIONS_MAX);
        let config = OpenConfig {
            connections_min: connections.min(16),
            connections_max: connections,
            grace: RESPONSE_TIMEOUT,
            ..OpenConfig::new(target, calls, command.rate, LOAD_MAX)
        };
        let mut running = self.load();
        if running.as_ref().is_some_and(|load| !load.is_finished()) {
            return Err(CommandError::conflict("a load is running"));
        }
        *running = Some(load::start_open_loop(config));
        Ok(())
    }

    fn load_report(&self) -> Result<LoadReport, CommandError> {
        let running = self.load();
        let now = running.as_ref().ok_or_else(|| CommandError::conflict("no load is running"))?.snapshot();
        let load::LoadSnapshot { offered, served, refused, failed, p50, p99 } = now;
        Ok(LoadReport { offered, served, refused, refused_by_server: 0, wrong: 0, failed, p50, p99 })
    }

    async fn stop_load(&self) -> Result<LoadReport, CommandError> {
        let running = self.load().take().ok_or_else(|| CommandError::conflict("no load is running"))?;
        running.stop();
        let report = running.finish().await.map_err(|error| CommandError::failed(error.to_string()))?;
        let (p50, p99) = (report.p50(), report.p99());
        let load::Report { offered, served, refused, refused_by_server, wrong, failed, .. } = report;
        Ok(LoadReport { offered, served, refused, refused_by_server, wrong, failed, p50, p99 })
    }

    /// Runs the ledger, and starts a new mock on the same port for the next run.
    async fn run_ledger(&self, command: LedgerCommand) -> Result<LedgerReport, CommandError> {
        let to = resolve(&command.to).await?;
        let port = self.ledger.ok_or_else(|| CommandError::conflict("started without a ledger"))?;
        let mut next_mock = self.mock.lock().await;
        let config = LedgerConfig { concurrency: command.clients, ..LedgerConfig::new(to, command.items) };
        let mock = match next_mock.take() {
            Some(mock) => mock,
            None => start_mock(port).await.map_err(|error| CommandError::failed(error.to_string()))?,
        };
        let report = integrity::run(config, &mock).await;
        mock.shutdown().await;
        *next_mock = start_mock(port).await.ok();
        Ok(LedgerReport {
            items: report.items,
            violations: report.violations(),
            innocent_served: report.innocent_served_ratio(),
            shared: report.shared_ratio(),
            details: format!("{report:#?}"),
        })
    }
}

async fn execute_calls(command: CallsCommand) -> Result<Vec<CallResult>, CommandError> {
    if command.calls.len() > CALLS_MAX {
        return Err(CommandError::failed(format!("more than {CALLS_MAX} calls")));
    }
    let to = resolve(&command.to).await?;
    if !command.at_once {
        return Ok(call_sequentially(&command, to).await);
    }
    let ready = Arc::new(Barrier::new(command.calls.len()));
    let mut running = JoinSet::new();
    for (place, call) in command.calls.iter().cloned().enumerate() {
        let (ready, host) = (Arc::clone(&ready), command.to.clone());
        running.spawn(async move {
            let conn = ServerAddr::Tcp(to).connect().await;
            // Also without a connection, because the other calls wait for this one.
            ready.wait().await;
            let result = match conn {
                Ok(mut conn) => send_call(&mut conn, &host, &call).await,
                Err(error) => Err(error.to_string()),
            };
            (place, result)
        });
    }
    let mut results = running.join_all().await;
    results.sort_unstable_by_key(|(place, _)| *place);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Makes the calls one after another, on one connection as long as it is kept alive.
async fn call_sequentially(command: &CallsCommand, to: SocketAddr) -> Vec<CallResult> {
    let mut results = Vec::with_capacity(command.calls.len());
    let mut kept: Option<HttpConnection> = None;
    for call in &command.calls {
        let conn = match kept.take() {
            Some(conn) => Ok(conn),
            None => ServerAddr::Tcp(to).connect().await.map_err(|error| error.to_string()),
        };
        results.push(match conn {
            Ok(mut conn) => {
                let one = send_call(&mut conn, &command.to, call).await;
                let closes = |answer: &CallResponse| answer.header("connection").is_some_and(|value| value == "close");
                kept = one.as_ref().is_ok_and(|answer| !closes(answer)).then_some(conn);
                one
            }
            Err(error) => Err(error),
        });
    }
    results
}

async fn send_call(conn: &mut HttpConnection, host: &str, call: &HttpCall) -> CallResult {
    let request = call.request(host);
    match tokio::time::timeout(RESPONSE_TIMEOUT, conn.call(&request)).await {
        Ok(Ok(message)) => CallResponse::of(&message),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", RESPONSE_TIMEOUT.as_secs())),
    }
}

// === impl HttpCall ===

impl HttpCall {
    fn request(&self, host: &str) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n{}", self.body.len(), self.body));
        text.into_bytes()
    }
}

// === impl CallResponse ===

impl CallResponse {
    fn of(message: &Message<'_>) -> CallResult {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = message.headers().into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
        // Bodies are compared, so bytes that are not UTF-8 must not be replaced.
        let body = String::from_utf8(message.body.to_vec()).map_err(|_| "the answer is not text".to_owned())?;
        Ok(Self { status: message.status, headers, body })
    }
}
