//! The webhook's server: TLS, HTTP/1.1 and HTTP/2, with limits on all resources that a peer can
//! use.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::bodies::{BodyBounds, BodyBudget, BodyRefusal};
use super::decide::{ReviewContext, ReviewResponse, answer};
use super::review::decode;
use super::{PATH, REVIEW_BYTES_MAX};
use crate::clock::Clock;
use crate::events::EventNotice;
use crate::injector::InjectionContext;
use crate::permits::{ConnectionLimiter, ConnectionLimits, ConnectionPermit};
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::{AdmissionResult, EventResult};
use crate::watch::SharedState;

/// Maximum number of connections, in total and per peer. API servers hold a few each; the rest is a
/// margin for unexpected clients.
const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { total: 256, per_peer: 16 };
/// Limits on the bytes of reviews held at once: 32 of the largest in total, and 4 per peer.
const BODY_LIMITS: BodyBounds = BodyBounds { total: 32 * REVIEW_BYTES_MAX, per_peer: 4 * REVIEW_BYTES_MAX };
/// Maximum number of concurrent reviews: each takes a few milliseconds of a core.
const REVIEWS_MAX: usize = 32;
/// Timeout from the connection to the end of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Timeout for reading a review. The API server waits for the response for at most 30 s, and for
/// 5 s as installed.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is closed; the API server opens another.
const IDLE: Duration = Duration::from_secs(60);
/// Delay after a failed accept. Exhausted file descriptors are a short or a lasting condition: it
/// must neither cause a busy loop nor end the loop.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Maximum time that a review waits for a permit; then it gets 503, and the API server applies its
/// failure policy or retries.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Parameters of the webhook.
#[derive(Clone)]
pub struct WebhookConfig {
    /// The cluster state.
    pub shared: SharedState,
    /// Builds the injection context common to all pods. It is called for each review, since the CA
    /// bundle changes.
    pub build_context: Arc<dyn Fn() -> InjectionContext + Send + Sync>,
    /// The controller's own namespace.
    pub own_namespace: String,
    /// The clock of the process.
    pub clock: Clock,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// Queue of Events on workloads; notices that do not fit are dropped and counted.
    pub notices: mpsc::Sender<EventNotice>,
    /// Overrides the sidecar form: `Some` forces the native or the classic form.
    pub native: Option<bool>,
}

/// A listening webhook.
#[derive(Debug)]
pub struct WebhookHandle {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

/// Starts the webhook, which serves until the returned handle is drained.
#[must_use]
pub fn serve(listener: TcpListener, tls: rustls::ServerConfig, config: WebhookConfig) -> WebhookHandle {
    let (stop, stopped) = watch::channel(false);
    let webhook = Webhook { config, room: Semaphore::new(REVIEWS_MAX), held: BodyBudget::new(BODY_LIMITS) };
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let task = tokio::spawn(accept(listener, acceptor, Arc::new(webhook), stopped));
    WebhookHandle { stop, task }
}

// === impl WebhookConfig ===

impl std::fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookConfig").field("own_namespace", &self.own_namespace).finish_non_exhaustive()
    }
}

// === impl WebhookHandle ===

impl WebhookHandle {
    /// Stops accepting and completes the reviews in progress, for at most `limit`.
    pub async fn drain(self, limit: Duration) {
        // An error means that the task has ended already.
        self.stop.send(true).ok();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(limit, self.task).await.is_err() {
            abort.abort();
        }
    }
}

struct Webhook {
    config: WebhookConfig,
    room: Semaphore,
    held: BodyBudget,
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    webhook: Arc<Webhook>,
    mut stopped: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let limiter = ConnectionLimiter::new(CONNECTION_LIMITS);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = crate::wait_for_shutdown(&mut stopped) => break,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection on the webhook port");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        // If every connection is busy, an additional one is closed: the API server applies its
        // failure policy or retries.
        let Some(permit) = limiter.take(peer) else { continue };
        let (acceptor, webhook, watcher) = (acceptor.clone(), webhook.clone(), graceful.watcher());
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE, handshake(acceptor, stream));
            let stream = tokio::select! {
                stream = handshake => stream,
                () = permit.wait_for_end(IDLE) => return,
            };
            if let Ok(Ok(stream)) = stream {
                connection(webhook, stream, (permit, peer), watcher).await;
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Serves a connection until its end, or until it is evicted for another.
async fn connection(
    webhook: Arc<Webhook>,
    stream: TlsStream<TcpStream>,
    (permit, peer): (ConnectionPermit, IpAddr),
    watcher: Watcher,
) {
    let permit = Arc::new(permit);
    let answering = permit.clone();
    let service = service_fn(move |request| {
        let (webhook, permit) = (webhook.clone(), answering.clone());
        async move { Ok::<_, Infallible>(webhook.respond(request, (&permit, peer)).await) }
    });
    let builder = connection_builder();
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    tokio::select! {
        // Errors are caused by the peer, such as an invalid head or a reset.
        _ = watcher.watch(connection) => {}
        // The connection is idle.
        () = permit.wait_for_end(IDLE) => {}
    }
}

async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    acceptor.accept(stream).await
}

fn connection_builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_headers(100).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(64)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_pending_accept_reset_streams(64)
        .max_local_error_reset_streams(64);
    builder
}

// === impl Webhook ===

impl Webhook {
    async fn respond(
        &self,
        request: Request<Incoming>,
        (permit, peer): (&ConnectionPermit, IpAddr),
    ) -> Response<Full<Bytes>> {
        if request.uri().path() != PATH {
            return text_response(StatusCode::NOT_FOUND, "not found: only the webhook is served here\n");
        }
        if request.method() != Method::POST {
            return text_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use POST\n");
        }
        let json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        if !json {
            return text_response(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported content type: use application/json\n",
            );
        }
        let read = self.held.read(request.into_body(), peer, REVIEW_BYTES_MAX);
        let (body, _held) = match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(BodyRefusal::Full)) => {
                return text_response(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent reviews\n");
            }
            Ok(Err(refusal)) => {
                self.config.metrics.record_admission(AdmissionResult::Malformed, Duration::ZERO);
                let large = refusal == BodyRefusal::TooLarge;
                let status = if large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
                return text_response(status, "the review is larger than 3 MiB or incomplete\n");
            }
            Err(_) => return text_response(StatusCode::REQUEST_TIMEOUT, "the review was not received in time\n"),
        };
        // A slowly arriving review holds its bytes but no permit, and its connection can be
        // evicted.
        let _busy = permit.mark_busy();
        let Ok(Ok(_room)) = tokio::time::timeout(PERMIT_TIMEOUT, self.room.acquire()).await else {
            return text_response(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent reviews\n");
        };
        self.answer(&body)
    }

    /// Computes the response without waiting.
    fn answer(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let began = self.config.clock.now();
        let took = || self.config.clock.now().since(began);
        let question = match decode(body) {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(%error, "cannot decode an admission review");
                self.config.metrics.record_admission(AdmissionResult::Malformed, took());
                return text_response(StatusCode::BAD_REQUEST, &format!("{error}\n"));
            }
        };
        let (cluster, base) = (self.config.shared.cluster(), (self.config.build_context)());
        // 128 random bits, in the format of the drain hook's path.
        let token = format!("{:032x}", rand::random::<u128>());
        let known = ReviewContext {
            cluster: &cluster,
            base: &base,
            own_namespace: &self.config.own_namespace,
            token: &token,
            native: self.config.native,
        };
        match answer(&question, known) {
            Ok(ReviewResponse { body, admission, skipped, event }) => {
                self.config.metrics.record_admission(admission, took());
                if let Some(reason) = skipped {
                    self.config.metrics.record_skip(reason);
                }
                if event.is_some_and(|notice| self.config.notices.try_send(notice).is_err()) {
                    self.config.metrics.record_event(EventResult::Dropped);
                }
                let mut response = Response::new(Full::new(Bytes::from(body)));
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
                response
            }
            Err(error) => {
                tracing::error!(%error, "cannot encode an admission response");
                text_response(StatusCode::INTERNAL_SERVER_ERROR, "internal error: see the log of the controller\n")
            }
        }
    }
}

fn text_response(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *response.status_mut() = status;
    response
}
