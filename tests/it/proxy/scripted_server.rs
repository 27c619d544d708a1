//! A model server that the test controls: every request waits, with its connection, until the test
//! sends the response.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::setup::within_timeout;
use super::support::upstream::{Request, chunk, read_request};
use super::support::wire::{End, RawConnection};

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub(super) struct ScriptedServer {
    pub(super) address: SocketAddr,
    turns: mpsc::Receiver<PendingRequest>,
    open: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// A request that waits for its response. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) request: Request,
    /// Number of the server connection on which it arrived.
    pub(super) connection: usize,
    wire: RawConnection,
    back: oneshot::Sender<RawConnection>,
}

/// A reserved port. It refuses connections unless a server listens on it.
#[derive(Debug)]
pub(super) struct ReservedPort {
    reserved: TcpSocket,
}

/// A server that answers every request automatically and records it.
#[derive(Debug)]
pub(super) struct AutoResponder {
    seen: mpsc::Receiver<Request>,
    serving: JoinHandle<()>,
}

struct OpenConnectionGuard(Arc<AtomicUsize>);

// === impl OpenConnectionGuard ===

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ReservedPort ===

impl ReservedPort {
    pub(super) fn reserve() -> Self {
        Self { reserved: bind_reserved(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.reserved.local_addr().unwrap())
    }

    pub(super) fn listen(&self) -> ScriptedServer {
        ScriptedServer::on(bind_reserved(self.reserved.local_addr().unwrap()).listen(64).unwrap())
    }
}

/// Several sockets may be bound to one port as long as none of them listens. One of them may listen
/// afterwards.
fn bind_reserved(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

// === impl ScriptedServer ===

impl ScriptedServer {
    pub(super) async fn start() -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, turns) = mpsc::channel(1024);
        let open = Arc::new(AtomicUsize::new(0));
        let counted = open.clone();
        let accepting = tokio::spawn(async move {
            // Owned by this task, so that the connections end with the listener.
            let mut connections = JoinSet::new();
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                counted.fetch_add(1, Ordering::Relaxed);
                let open = OpenConnectionGuard(counted.clone());
                let turns = sender.clone();
                connections.spawn(async move {
                    let _open = open;
                    serve(RawConnection::new(stream).unwrap(), connection, &turns).await;
                });
            }
        });
        Self { address, turns, open, accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits for the next request.
    pub(super) async fn next_request(&mut self) -> PendingRequest {
        within_timeout(self.turns.recv()).await.unwrap()
    }

    /// Returns the number of requests that no test has taken.
    pub(super) fn pending_requests(&self) -> usize {
        self.turns.len()
    }

    /// Returns the number of open connections.
    pub(super) fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Answers every request from now on with this function, without delay.
    pub(super) fn into_auto_responder(
        mut self,
        answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
    ) -> AutoResponder {
        let (seen, requests) = mpsc::channel(4096);
        let serving = tokio::spawn(async move {
            while let Some(turn) = self.turns.recv().await {
                seen.try_send(turn.request.clone()).unwrap();
                let text = answer(&turn.request);
                turn.send_raw(&text).await;
            }
        });
        AutoResponder { seen: requests, serving }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl AutoResponder ===

impl AutoResponder {
    /// Returns the requests received since the last call.
    pub(super) fn seen(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }
}

impl Drop for AutoResponder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

// === impl PendingRequest ===

impl PendingRequest {
    /// Sends these bytes and keeps the connection open.
    pub(super) async fn send_raw(mut self, text: &[u8]) {
        // The write fails only if the proxy has closed the connection, which some tests cause.
        if self.wire.write(text).await.is_ok() {
            self.back.send(self.wire).ok();
        }
    }

    /// Sends a JSON response.
    pub(super) async fn answer(self, status: u16, body: &str) {
        self.send_raw(&reply(status, body)).await;
    }

    /// Sends the response of a server with a model that returns every instance.
    pub(super) async fn echo(self) {
        let text = echo(&self.request);
        self.send_raw(&text).await;
    }

    /// Sends a part of a response. The test sends the rest.
    pub(super) async fn send_part(&mut self, text: &[u8]) {
        within_timeout(self.wire.write(text)).await.unwrap();
    }

    /// Sends one chunk of a chunked response.
    pub(super) async fn chunk(&mut self, text: &[u8]) {
        self.send_part(&chunk(text)).await;
    }

    /// Ends the response and keeps the connection open.
    pub(super) fn finish_response(self) {
        self.back.send(self.wire).ok();
    }

    /// Waits until the proxy closes the connection.
    pub(super) async fn wait_closed(&mut self) {
        within_timeout(self.wire.closed()).await;
    }

    /// Closes the connection with a reset instead of a FIN.
    pub(super) fn reset(mut self) {
        self.wire.stream().set_zero_linger().unwrap();
    }

    /// Returns the connection, for data that is not HTTP.
    pub(super) fn into_wire(self) -> RawConnection {
        self.wire
    }

    /// Returns the items of a `:predict` call.
    pub(super) fn instances(&self) -> Vec<u64> {
        instances(&self.request)
    }
}

/// Returns the items of a `:predict` call.
pub(super) fn instances(request: &Request) -> Vec<u64> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["instances"].as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect()
}

/// Returns a JSON response as bytes.
pub(super) fn reply(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Returns the response of a server with a model that returns every instance.
pub(super) fn echo(request: &Request) -> Vec<u8> {
    reply(200, &super::setup::predictions(&instances(request)))
}

async fn serve(mut wire: RawConnection, connection: usize, turns: &mpsc::Sender<PendingRequest>) {
    loop {
        let request = match read_request(&mut wire).await {
            Ok(Some(request)) => request,
            Err(End::Garbled(why)) => panic!("the proxy sent a request that is not HTTP/1.1: {why}"),
            Ok(None) | Err(End::Closed | End::Reset | End::Proper) => return,
        };
        let (back, given_back) = oneshot::channel();
        if turns.send(PendingRequest { request, connection, wire, back }).await.is_err() {
            return;
        }
        match given_back.await {
            Ok(same) => wire = same,
            Err(_) => return,
        }
    }
}
