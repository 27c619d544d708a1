//! Stand-ins that run elsewhere, in a pod say, and are told over HTTP what to do: a model that can be changed, and a caller that calls and counts.
//!
//! End-to-end tests stand outside the network that they test. What is asked and what comes back are the types here, as JSON, so both ends are one
//! program. No TLS and no credentials: whoever reaches the control port may use it, so it is for tests and tries and for nothing else.
//!
//! | of a model | |
//! |---|---|
//! | `GET /stats` | [`Stats`](super::server::Stats) so far |
//! | `POST /listen` | binds the data port, where the model was begun closed: a model that has loaded |
//! | `POST /model` | a [`ModelChange`], in force at once |
//!
//! | of a caller | |
//! |---|---|
//! | `POST /calls` | [`Calls`] to a list of [`Heard`] |
//! | `POST /load`, `GET /load`, `DELETE /load` | begins a [`Load`]; how it is doing; ends it, both [`LoadReport`] |
//! | `POST /ledger` | a [`Ledger`] to a [`LedgerReport`], where the caller has a ledger's mock |

mod caller;
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

pub use self::caller::Caller;
pub use self::model::Model;
use super::item::Route;

/// An order holds some hundreds of calls at most.
const ORDER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Calls to one address.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Calls {
    /// `HOST:PORT`; a name is looked up.
    pub to: String,
    /// At most 1024.
    pub calls: Vec<Call>,
    /// All side by side, each on a connection that was made before the first one left; otherwise one after the other on one connection.
    pub at_once: bool,
}

/// One HTTP/1.1 request; framing and `host` are added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// As it goes out.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// In order.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Text, as all bodies here are.
    #[serde(default)]
    pub body: String,
}

/// What came back for a call: an answer, or why there is none.
pub type Heard = Result<Answer, String>;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// The final status.
    pub status: u16,
    /// In order, as they came.
    pub headers: Vec<(String, String)>,
    /// Chunks joined.
    pub body: String,
}

/// An open-loop load (Poisson) whose every answer is checked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// `HOST:PORT`; a name is looked up once.
    pub to: String,
    /// What is called.
    pub route: Route,
    /// Items in each call.
    pub items: usize,
    /// Calls in a second.
    pub rate: f64,
    /// Kept connections at most; calls wait for one.
    pub connections: usize,
}

/// What became of a load so far; a call counts once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Calls that were to be sent.
    pub offered: u64,
    /// Answered 200, rightly.
    pub served: u64,
    /// Answered 429 or 503.
    pub refused: u64,
    /// Answered 200, wrongly: there is no excuse for one.
    pub wrong: u64,
    /// Any other answer or none.
    pub failed: u64,
    /// Of what was served since it was last looked at; in the last report, of all.
    pub p50: Duration,
    /// The same.
    pub p99: Duration,
}

/// A run of the ledger: clients here, their calls through a proxy, the upstream here again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ledger {
    /// `HOST:PORT` of the proxy.
    pub to: String,
    /// Items to send.
    pub items: u64,
    /// Clients side by side.
    pub clients: usize,
}

/// What a run of the ledger has found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Items sent.
    pub items: u64,
    /// Everything that must not happen.
    pub violations: u64,
    /// Share of the innocent that were served.
    pub innocent_served: f64,
    /// Share of items that left in a shared call.
    pub shared: f64,
    /// All of the books, for people.
    pub books: String,
}

/// What shall be different in a running model; what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelChange {
    /// The a and b of t(n) = a + b·n.
    pub curve: Option<(Duration, Duration)>,
    /// Calls computed at once.
    pub slots: Option<usize>,
    /// Items that one call may have; 0: any number.
    pub items_max: Option<usize>,
}

/// Why an order was not carried out.
#[derive(Debug)]
struct Refusal(StatusCode, String);

/// Who takes orders.
trait Desk: Send + Sync + 'static {
    /// The answer to an order, as JSON.
    fn take(&self, method: &Method, path: &str, body: &[u8]) -> impl Future<Output = Result<String, Refusal>> + Send;
}

// === impl Call ===

impl Call {
    /// A POST of JSON.
    #[must_use]
    pub fn post(path: &str, body: impl Into<String>) -> Self {
        let json = ("content-type".to_owned(), "application/json".to_owned());
        Self { method: "POST".to_owned(), path: path.to_owned(), headers: vec![json], body: body.into() }
    }

    /// A GET.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self { method: "GET".to_owned(), path: path.to_owned(), headers: Vec::new(), body: String::new() }
    }
}

// === impl Answer ===

impl Answer {
    /// The value of the first header of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

// === impl LoadReport ===

impl LoadReport {
    /// Calls that did not get what they should have.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.refused + self.wrong + self.failed
    }
}

// === impl Refusal ===

impl Refusal {
    fn unknown() -> Self {
        Self(StatusCode::NOT_FOUND, "no such order".to_owned())
    }

    fn malformed(error: &serde_json::Error) -> Self {
        Self(StatusCode::BAD_REQUEST, format!("the order cannot be read: {error}"))
    }

    fn failed(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_GATEWAY, why.into())
    }

    fn conflict(why: &str) -> Self {
        Self(StatusCode::CONFLICT, why.to_owned())
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::malformed(&error))
}

fn write<T: Serialize>(value: &T) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Takes orders until it is dropped.
async fn serve(listener: TcpListener, desk: Arc<impl Desk>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(&*desk, request));
            // A connection that breaks is the peer's affair.
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn answer(desk: &impl Desk, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let taken = match Limited::new(body, ORDER_BYTES_MAX).collect().await {
        Ok(body) => desk.take(&head.method, head.uri.path(), &body.to_bytes()).await,
        Err(_) => Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, "the order is too long".to_owned())),
    };
    let (status, text) = match taken {
        Ok(text) => (StatusCode::OK, text),
        Err(Refusal(status, why)) => (status, why),
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(answer)
}
