//! An HTTP/1.1 client on one connection. It sends a request exactly as given and reads any
//! response, valid or not.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::upstream::{chunk, now};
use super::wire::{self, End, Framing, Headers, RawConnection};

/// Maximum time to wait for the 100 response to `expect: 100-continue`.
const CONTINUE_MAX: Duration = Duration::from_secs(1);

/// A request to send.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    /// Method, sent unchanged.
    pub(crate) method: String,
    /// Path with query.
    pub(crate) target: String,
    /// Header lines, including `host` and framing.
    pub(crate) headers: Headers,
    /// Body, sent in two chunks if the headers contain `transfer-encoding`.
    pub(crate) body: Vec<u8>,
}

/// A response, as far as it has arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// 1xx statuses before the final one.
    pub(crate) interim: Vec<u16>,
    /// Final status, or `None` until its head has arrived.
    pub(crate) status: Option<u16>,
    /// Header lines of the final response.
    pub(crate) headers: Headers,
    /// Body without framing.
    pub(crate) body: Vec<u8>,
    /// Trailers of a chunked response.
    pub(crate) trailers: Headers,
    /// End of the response, or `None` if it did not end in time.
    pub(crate) end: Option<End>,
    /// Instant at which the request was sent completely.
    pub(crate) sent: Option<Instant>,
    /// Instant at which the response ended.
    pub(crate) done: Option<Instant>,
}

/// A connection to the proxy.
#[derive(Debug)]
pub(crate) struct Client {
    wire: RawConnection,
}

// === impl Outgoing ===

impl Outgoing {
    /// Creates a request and adds the headers that a client is responsible for: `host` as the first
    /// one, and the length of a body that is not chunked.
    pub(crate) fn new(method: &str, target: &str, host: SocketAddr, own: &Headers, body: Option<&[u8]>) -> Self {
        let has = |name| !wire::values(own, name).is_empty();
        let mut headers = Headers::new();
        if !has("host") {
            headers.push(("host".to_owned(), host.to_string().into_bytes()));
        }
        headers.extend(own.iter().cloned());
        // Without a body, only methods that expect one send `content-length: 0`.
        let counted = body.is_some() || !matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "DELETE" | "CONNECT");
        if counted && !has("transfer-encoding") && !has("content-length") {
            let length = body.map_or(0, <[u8]>::len);
            headers.push(("content-length".to_owned(), length.to_string().into_bytes()));
        }
        Self { method: method.to_owned(), target: target.to_owned(), headers, body: body.unwrap_or_default().to_vec() }
    }

    fn head(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text
    }

    fn waits_for_continue(&self) -> bool {
        wire::values(&self.headers, "expect").iter().any(|v| v.eq_ignore_ascii_case(b"100-continue"))
    }
}

// === impl Client ===

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { wire: RawConnection::new(TcpStream::connect(address).await?)? })
    }

    /// Connects with a receive buffer of about this size, so that a response that is not read fills it
    /// soon on every machine.
    pub(crate) async fn connect_with_buffer(address: SocketAddr, bytes: u32) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_recv_buffer_size(bytes)?;
        Ok(Self { wire: RawConnection::new(socket.connect(address).await?)? })
    }

    /// Sends a complete request, and waits for the 100 response between head and body if the
    /// request expects it. It is not an error if the proxy closes the connection meanwhile: the
    /// answer shows it.
    pub(crate) async fn send(&mut self, request: &Outgoing, answer: &mut Answer) {
        self.write(request, answer).await.ok();
        answer.sent = Some(now());
    }

    async fn write(&mut self, request: &Outgoing, answer: &mut Answer) -> io::Result<()> {
        let mut text = request.head();
        if request.waits_for_continue() {
            self.wire.write(&text).await?;
            text.clear();
            let waited = tokio::time::timeout(CONTINUE_MAX, self.head(answer)).await;
            if matches!(waited, Ok(Err(_))) || answer.status.is_some() {
                return Ok(());
            }
        }
        if !wire::values(&request.headers, "transfer-encoding").is_empty() {
            let (first, second) = request.body.split_at(request.body.len() / 2);
            for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
                text.extend(chunk(part));
                self.wire.write(&text).await?;
                text.clear();
            }
            text.extend_from_slice(b"0\r\n\r\n");
        } else {
            text.extend_from_slice(&request.body);
        }
        self.wire.write(&text).await
    }

    /// Reads the next response head, interim or final, into `answer`.
    async fn head(&mut self, answer: &mut Answer) -> Result<(), End> {
        let (status, headers) = self.wire.response().await?;
        if (100..200).contains(&status) && status != 101 {
            answer.interim.push(status);
        } else {
            answer.status = Some(status);
            answer.headers = headers;
        }
        Ok(())
    }

    /// Reads the response to its end. Bytes are stored in `answer` as they arrive, so that they are
    /// not lost if the caller gives up.
    pub(crate) async fn receive(&mut self, method: &str, answer: &mut Answer) {
        let end = self.read(method, answer).await.err().unwrap_or(End::Proper);
        answer.end = Some(end);
        answer.done = Some(now());
    }

    async fn read(&mut self, method: &str, answer: &mut Answer) -> Result<(), End> {
        let status = self.read_heads(answer).await?;
        let framing = wire::response_framing(method, status, &answer.headers)?;
        answer.trailers = self.wire.body(framing, &mut answer.body).await?;
        // A body that ends with the connection is indistinguishable from a truncated one. A proxy
        // that supports HTTP/1.1 never sends it to an HTTP/1.1 client.
        if framing == Framing::UntilClose { Err(End::Closed) } else { Ok(()) }
    }

    /// Reads response heads up to the final one, unless it has arrived already.
    async fn read_heads(&mut self, answer: &mut Answer) -> Result<u16, End> {
        loop {
            match answer.status {
                Some(status) => return Ok(status),
                None => self.head(answer).await?,
            }
        }
    }

    /// Reads the response up to its final head, for a caller that reads the body later. If there is
    /// no head, [`Client::receive`] reports why.
    pub(crate) async fn receive_head(&mut self, answer: &mut Answer) {
        self.read_heads(answer).await.ok();
    }

    /// Sends a request and reads its response on the same connection.
    pub(crate) async fn fetch(&mut self, request: &Outgoing) -> Answer {
        let mut answer = Answer::default();
        self.send(request, &mut answer).await;
        self.receive(&request.method, &mut answer).await;
        answer
    }

    /// Writes raw bytes.
    pub(crate) async fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write(bytes).await
    }

    /// Returns the bytes that arrived after the response, without waiting.
    pub(crate) fn stray(&mut self) -> Vec<u8> {
        self.wire.stray()
    }
}
