//! HTTP/2 endpoints: a client, and a model server that the test controls.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::setup::within_timeout;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A message that was read completely.
#[derive(Debug)]
pub(super) struct ReceivedMessage {
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

/// An HTTP/2 client connection.
#[derive(Debug, Clone)]
pub(super) struct H2Client(pub(super) SendRequest<Body>);

/// A server that speaks HTTP/2 and HTTP/1.
#[derive(Debug)]
pub(super) struct H2ScriptedServer {
    pub(super) address: SocketAddr,
    turns: mpsc::Receiver<H2PendingRequest>,
    accepting: JoinHandle<()>,
}

/// A request that waits for its response. Dropping it resets the stream.
#[derive(Debug)]
pub(super) struct H2PendingRequest {
    pub(super) head: http::request::Parts,
    pub(super) whole: ReceivedMessage,
    pub(super) connection: usize,
    back: oneshot::Sender<Response<Body>>,
}

pub(super) fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

pub(super) fn empty() -> Body {
    Empty::new().boxed_unsync()
}

pub(super) fn with_trailers(body: impl Into<Bytes>, trailers: HeaderMap) -> Body {
    // A stream, so that its length is not announced, as with gRPC.
    let frames = [Ok(Frame::data(body.into())), Ok(Frame::trailers(trailers))];
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

async fn read_message(body: Incoming) -> Result<ReceivedMessage, hyper::Error> {
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    Ok(ReceivedMessage { body: collected.to_bytes(), trailers })
}

// === impl H2Client ===

impl H2Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        let stream = within_timeout(TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (send, connection) = within_timeout(shaken).await.unwrap();
        tokio::spawn(connection);
        Self(send)
    }

    /// Sends a request and reads its response completely.
    pub(super) fn fetch(&self, request: Request<Body>) -> JoinHandle<(http::response::Parts, ReceivedMessage)> {
        let mut send = self.0.clone();
        tokio::spawn(async move {
            let (head, body) = send.send_request(request).await.unwrap().into_parts();
            (head, read_message(body).await.unwrap())
        })
    }
}

// === impl H2ScriptedServer ===

impl H2ScriptedServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, turns) = mpsc::channel(1024);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            let numbers = Arc::new(AtomicUsize::new(0));
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let (sender, number) = (sender.clone(), numbers.fetch_add(1, Ordering::Relaxed));
                let service = service_fn(move |request| serve(request, number, sender.clone()));
                let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                builder.http1().auto_date_header(false);
                builder.http2().auto_date_header(false);
                connections
                    .spawn(async move { builder.serve_connection(TokioIo::new(stream), service).await.map_err(drop) });
            }
        });
        Self { address, turns, accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) async fn turn(&mut self) -> H2PendingRequest {
        within_timeout(self.turns.recv()).await.unwrap()
    }

    pub(super) fn waiting(&self) -> usize {
        self.turns.len()
    }
}

impl Drop for H2ScriptedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    request: Request<Incoming>,
    connection: usize,
    turns: mpsc::Sender<H2PendingRequest>,
) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let whole = read_message(body).await?;
    let (back, answer) = oneshot::channel();
    turns.send(H2PendingRequest { head, whole, connection, back }).await?;
    Ok(answer.await?)
}

// === impl H2PendingRequest ===

impl H2PendingRequest {
    pub(super) fn answer(self, response: Response<Body>) {
        // Sending fails if the proxy has cancelled the request, which some tests cause.
        self.back.send(response).ok();
    }

    pub(super) fn ok(self, body: impl Into<Bytes>) {
        let json = Response::builder().header("content-type", "application/json");
        self.answer(json.body(full(body)).unwrap());
    }

    /// Waits until the proxy resets the stream.
    pub(super) async fn wait_reset(&mut self) {
        within_timeout(self.back.closed()).await;
    }
}
