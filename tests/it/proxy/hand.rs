//! A model server at the test's hands: every request waits, with its connection, until the test says what comes back.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::setup::within;
use super::support::upstream::{Request, chunk};
use super::support::wire::{self, End, Framing, Wire};

/// The server; dropping it closes everything.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) address: SocketAddr,
    turns: mpsc::Receiver<Turn>,
    open: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// One request that waits for its answer. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) request: Request,
    /// On which of the server's connections it came.
    pub(super) connection: usize,
    wire: Wire,
    back: oneshot::Sender<Wire>,
}

/// A port that nobody else gets: it refuses connections unless a server listens on it.
#[derive(Debug)]
pub(super) struct Port {
    reserved: TcpSocket,
}

/// Every request so far, answered without a test's help.
#[derive(Debug)]
pub(super) struct Auto {
    seen: mpsc::Receiver<Request>,
    serving: JoinHandle<()>,
}

struct Open(Arc<AtomicUsize>);

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Port ===

impl Port {
    pub(super) fn reserve() -> Self {
        Self { reserved: bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.reserved.local_addr().unwrap())
    }

    pub(super) fn listen(&self) -> Hand {
        Hand::on(bound(self.reserved.local_addr().unwrap()).listen(64).unwrap())
    }
}

/// Several may be bound to one port as long as none listens, and one of them may listen then.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

// === impl Hand ===

impl Hand {
    pub(super) async fn start() -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, turns) = mpsc::channel(1024);
        let open = Arc::new(AtomicUsize::new(0));
        let counted = open.clone();
        let accepting = tokio::spawn(async move {
            // In here, so that they end with the listener.
            let mut connections = JoinSet::new();
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                counted.fetch_add(1, Ordering::Relaxed);
                let open = Open(counted.clone());
                let turns = sender.clone();
                connections.spawn(async move {
                    let _open = open;
                    serve(Wire::new(stream).unwrap(), connection, &turns).await;
                });
            }
        });
        Self { address, turns, open, accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub(super) async fn turn(&mut self) -> Turn {
        within(self.turns.recv()).await.unwrap()
    }

    /// Whether a request waits that no test has taken.
    pub(super) fn waiting(&self) -> usize {
        self.turns.len()
    }

    /// Connections open now.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// From now on every request is answered by this, at once.
    pub(super) fn auto(mut self, answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Auto {
        let (seen, requests) = mpsc::channel(4096);
        let serving = tokio::spawn(async move {
            while let Some(turn) = self.turns.recv().await {
                seen.try_send(turn.request.clone()).unwrap();
                let text = answer(&turn.request);
                turn.raw(&text).await;
            }
        });
        Auto { seen: requests, serving }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl Auto ===

impl Auto {
    /// The requests that came since the last look.
    pub(super) fn seen(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }
}

impl Drop for Auto {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

// === impl Turn ===

impl Turn {
    /// These bytes, and the connection goes on.
    pub(super) async fn raw(mut self, text: &[u8]) {
        // It fails only where the proxy has gone away, which is what some tests are about.
        if self.wire.write(text).await.is_ok() {
            self.back.send(self.wire).ok();
        }
    }

    /// A JSON answer.
    pub(super) async fn answer(self, status: u16, body: &str) {
        self.raw(&reply(status, body)).await;
    }

    /// The answer of a server whose model gives every instance back.
    pub(super) async fn echo(self) {
        let text = echo(&self.request);
        self.raw(&text).await;
    }

    /// A part of an answer; the rest is up to the test.
    pub(super) async fn part(&mut self, text: &[u8]) {
        within(self.wire.write(text)).await.unwrap();
    }

    /// One chunk of a chunked answer.
    pub(super) async fn chunk(&mut self, text: &[u8]) {
        self.part(&chunk(text)).await;
    }

    /// The answer is over and the connection goes on.
    pub(super) fn done(self) {
        self.back.send(self.wire).ok();
    }

    /// Waits until the proxy closes the connection.
    pub(super) async fn closed(&mut self) {
        within(self.wire.closed()).await;
    }

    /// Closes with a reset instead of a FIN.
    pub(super) fn reset(mut self) {
        self.wire.stream().set_zero_linger().unwrap();
    }

    /// The connection, for what is not HTTP any more.
    pub(super) fn into_wire(self) -> Wire {
        self.wire
    }

    /// The items of a `:predict` call.
    pub(super) fn instances(&self) -> Vec<u64> {
        instances(&self.request)
    }
}

/// The items of a `:predict` call.
pub(super) fn instances(request: &Request) -> Vec<u64> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["instances"].as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect()
}

/// A JSON answer as bytes.
pub(super) fn reply(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// The answer of a server whose model gives every instance back.
pub(super) fn echo(request: &Request) -> Vec<u8> {
    reply(200, &super::setup::predictions(&instances(request)))
}

async fn serve(mut wire: Wire, connection: usize, turns: &mpsc::Sender<Turn>) {
    while let Ok(Some(request)) = read(&mut wire).await {
        let (back, given_back) = oneshot::channel();
        if turns.send(Turn { request, connection, wire, back }).await.is_err() {
            return;
        }
        match given_back.await {
            Ok(same) => wire = same,
            Err(_) => return,
        }
    }
}

async fn read(wire: &mut Wire) -> Result<Option<Request>, End> {
    let Some(head) = wire.head().await? else { return Ok(None) };
    let mut words = head.start.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        panic!("the proxy sent the request line {}", head.start.escape_debug());
    };
    let (method, target) = (method.to_owned(), target.to_owned());
    let framing = wire::framing(&head.headers, Framing::Empty).map_err(End::Garbled)?;
    let mut body = Vec::new();
    let trailers = wire.body(framing, &mut body).await?;
    Ok(Some(Request { method, target, headers: head.headers, body, trailers }))
}
