//! Test servers that run elsewhere, for example in a pod, and are controlled over HTTP: a simulated
//! model server that can be changed at run time, and a load generator that makes calls and counts
//! their outcomes.
//!
//! End-to-end tests run outside the network that they test. Orders and results are the types of
//! this module as JSON, and both ends are the same program. There is no TLS and no authentication.
//! Every client that can connect to the control port can use it, so these servers are for tests and
//! experiments only.
//!
//! | command to a model | effect |
//! |---|---|
//! | `GET /stats` | returns [`ServerStats`](super::server::ServerStats) |
//! | `POST /listen` | binds the data port of a model that was started closed |
//! | `POST /model` | applies a [`ModelUpdate`] immediately |
//!
//! | command to a caller | effect |
//! |---|---|
//! | `POST /calls` | makes [`CallsCommand`] and returns a list of [`CallResult`] |
//! | `POST /load`, `GET /load`, `DELETE /load` | starts, reports or ends a [`LoadCommand`] |
//! | `POST /ledger` | runs a [`LedgerCommand`], if the caller has a mock |
//!
//! A model that is started closed imitates a server that loads its model before it listens. Reports
//! of a load are a [`LoadReport`], and those of the ledger a [`LedgerReport`].

mod load_generator;
mod model;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub use self::load_generator::RemoteLoadGenerator;
pub use self::model::RemoteModel;
use super::item::Route;

/// Maximum size of a command, which contains at most some hundreds of calls.
const COMMAND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Delay after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Calls to one address.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallsCommand {
    /// Destination as `HOST:PORT`. A host name is resolved.
    pub to: String,
    /// The calls, at most 1024.
    pub calls: Vec<HttpCall>,
    /// `true` to make all calls concurrently, each on its own connection, and to send none before
    /// all connections are open. Otherwise the calls are made one after another on one connection.
    pub at_once: bool,
}

/// One HTTP/1.1 request. The headers `host` and `content-length` are added to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpCall {
    /// Request method, sent unchanged.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in order.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Body. All bodies of this protocol are text.
    #[serde(default)]
    pub body: String,
}

/// Result of a call: the response, or the reason for its absence.
pub type CallResult = Result<CallResponse, String>;

/// One response.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallResponse {
    /// Final status code.
    pub status: u16,
    /// Headers in the order received.
    pub headers: Vec<(String, String)>,
    /// Body with its chunks joined.
    pub body: String,
}

/// An open-loop load (Poisson) that verifies every response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadCommand {
    /// Destination as `HOST:PORT`. A host name is resolved once.
    pub to: String,
    /// Route of the calls.
    pub route: Route,
    /// Number of items in each call.
    pub items: usize,
    /// Number of calls per second.
    pub rate: f64,
    /// Maximum number of keep-alive connections. If all are in use, calls wait.
    pub connections: usize,
}

/// Results of a load, running or ended. Each call counts once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Number of calls that were due.
    pub offered: u64,
    /// Number of calls that received a correct 200 response.
    pub served: u64,
    /// Number of calls answered with 429 or 503.
    pub refused: u64,
    /// Number of those that the model server refused itself. While the load is running, this is 0.
    pub refused_by_server: u64,
    /// Number of calls that received an incorrect 200 response. Every such call is a defect. While
    /// the load is running, this is 0 and these calls are counted in `failed`.
    pub wrong: u64,
    /// Number of calls with any other response, or with none.
    pub failed: u64,
    /// Median latency of the calls served since the last report. The final report covers all served
    /// calls.
    pub p50: Duration,
    /// 99th percentile of the latency of the same calls.
    pub p99: Duration,
}

/// A run of the ledger: the clients and the upstream are in this process, and the calls pass
/// through a proxy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LedgerCommand {
    /// Address of the proxy as `HOST:PORT`.
    pub to: String,
    /// Number of items to send.
    pub items: u64,
    /// Number of concurrent clients.
    pub clients: usize,
}

/// Results of a ledger run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Number of items sent.
    pub items: u64,
    /// Number of violated invariants.
    pub violations: u64,
    /// Share of innocent items that were served.
    pub innocent_served: f64,
    /// Share of items that were part of a shared upstream call.
    pub shared: f64,
    /// The complete report in human-readable form.
    pub details: String,
}

/// Change of a running model server. Absent fields are left unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelUpdate {
    /// The a and b of t(n) = a + b·n.
    pub curve: Option<(Duration, Duration)>,
    /// Number of calls computed concurrently.
    pub slots: Option<usize>,
    /// Maximum number of items in one call, or 0 for no limit.
    pub items_max: Option<usize>,
}

/// Status and reason with which a command is rejected.
#[derive(Debug)]
struct CommandError(StatusCode, String);

/// Handler of commands.
trait CommandHandler: Send + Sync + 'static {
    /// Executes a command and returns the response as JSON.
    fn handle(
        &self,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> impl Future<Output = Result<String, CommandError>> + Send;
}

// === impl HttpCall ===

impl HttpCall {
    /// Creates a POST request with a JSON body.
    #[must_use]
    pub fn post(path: &str, body: impl Into<String>) -> Self {
        let json = ("content-type".to_owned(), "application/json".to_owned());
        Self { method: "POST".to_owned(), path: path.to_owned(), headers: vec![json], body: body.into() }
    }

    /// Creates a GET request.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self { method: "GET".to_owned(), path: path.to_owned(), headers: Vec::new(), body: String::new() }
    }
}

// === impl CallResponse ===

impl CallResponse {
    /// Returns the value of the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

// === impl LoadReport ===

impl LoadReport {
    /// Returns the number of calls that did not receive a correct 200 response.
    #[must_use]
    pub fn not_served(&self) -> u64 {
        self.refused + self.wrong + self.failed
    }
}

// === impl CommandError ===

impl CommandError {
    fn unknown() -> Self {
        Self(StatusCode::NOT_FOUND, "unknown command".to_owned())
    }

    fn malformed(error: &serde_json::Error) -> Self {
        Self(StatusCode::BAD_REQUEST, format!("invalid command: {error}"))
    }

    fn failed(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_GATEWAY, why.into())
    }

    fn conflict(why: &str) -> Self {
        Self(StatusCode::CONFLICT, why.to_owned())
    }
}

fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, CommandError> {
    serde_json::from_slice(body).map_err(|error| CommandError::malformed(&error))
}

fn to_json<T: Serialize>(value: &T) -> Result<String, CommandError> {
    serde_json::to_string(value).map_err(|error| CommandError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Accepts connections and handles their commands until the future is dropped.
async fn serve(listener: TcpListener, handler: Arc<impl CommandHandler>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(&*handler, request));
            // A broken connection is the client's concern and is ignored.
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn answer(
    handler: &impl CommandHandler,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let taken = match Limited::new(body, COMMAND_BYTES_MAX).collect().await {
        Ok(body) => handler.handle(&head.method, head.uri.path(), &body.to_bytes()).await,
        Err(_) => Err(CommandError(StatusCode::PAYLOAD_TOO_LARGE, "the command is too long".to_owned())),
    };
    let (status, text) = match taken {
        Ok(text) => (StatusCode::OK, text),
        Err(CommandError(status, why)) => (status, why),
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}
