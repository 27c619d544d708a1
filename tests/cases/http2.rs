//! The upstream and the clients of gRPC cases: HTTP/2 with prior knowledge, by hyper. Cases judge
//! messages, headers and trailers, which hyper neither repairs nor hides.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::support::client::{Answer, Outgoing};
use crate::support::upstream::{Content, Reply, Request, Script, Upstream, now};
use crate::support::wire::{End, Headers};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Headers of an answer that are sent as trailers if it has a message.
const TRAILERS: [&str; 2] = ["grpc-status", "grpc-message"];

/// Starts a server of HTTP/2.
pub(crate) async fn start(script: Arc<dyn Script>) -> io::Result<Upstream> {
    Upstream::listen(move |stream| {
        let script = Arc::clone(&script);
        let service = service_fn(move |request| serve(request, Arc::clone(&script)));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service);
        async move { connection.await.map_err(drop) }
    })
    .await
}

async fn serve(request: http::Request<Incoming>, script: Arc<dyn Script>) -> Result<Response<Body>, io::Error> {
    let (head, body) = request.into_parts();
    let collected = body.collect().await.map_err(io::Error::other)?;
    let arrival = now();
    let mut headers = lines(&head.headers);
    if let Some(host) = head.uri.authority() {
        headers.insert(0, ("host".to_owned(), host.as_str().as_bytes().to_vec()));
    }
    let trailers = collected.trailers().map(lines).unwrap_or_default();
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let body = collected.to_bytes().to_vec();
    let reply = script.reply(Request { method: head.method.to_string(), target, headers, body, trailers });
    tokio::time::sleep_until(arrival + reply.delay).await;
    match reply.content.clone() {
        Content::Whole(body) => response(&reply, body).ok_or_else(|| io::Error::other("no HTTP")),
        // Never answered; the stream ends with the connection.
        Content::Hang => std::future::pending().await,
        Content::Cut(..) | Content::Reset | Content::Events(..) => Err(io::Error::other("reset")),
    }
}

fn response(reply: &Reply, body: Vec<u8>) -> Option<Response<Body>> {
    let mut head = HeaderMap::new();
    let mut trailers = HeaderMap::new();
    for (name, value) in &reply.headers {
        let is_trailer = !body.is_empty() && TRAILERS.contains(&name.as_str());
        let map = if is_trailer { &mut trailers } else { &mut head };
        map.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    let body = if body.is_empty() {
        Empty::new().boxed_unsync()
    } else {
        // A stream, so that its length is not announced, as with gRPC.
        let frames = [Ok(Frame::data(Bytes::from(body))), Ok(Frame::trailers(trailers))];
        StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
    };
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(reply.status).ok()?;
    *response.headers_mut() = head;
    Some(response)
}

fn lines(map: &HeaderMap) -> Headers {
    map.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

/// A connection to the proxy. Dropping it closes it.
pub(crate) type Http2Client = SendRequest<Full<Bytes>>;

/// Opens a connection. Clients connect before the first of them sends, because the window of a case
/// is shorter than a few handshakes on a busy machine.
pub(crate) async fn connect(proxy: SocketAddr) -> Result<Http2Client, String> {
    let stream = TcpStream::connect(proxy).await.map_err(|e| format!("connect: {e}"))?;
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (send, connection) = shaken.map_err(|e| format!("connect: {e}"))?;
    tokio::spawn(connection);
    Ok(send)
}

/// Sends a request and reads its response. `sent_signal` is notified once the request is on
/// its way.
pub(crate) async fn fetch(
    mut send: Http2Client,
    proxy: SocketAddr,
    outgoing: &Outgoing,
    sent_signal: oneshot::Sender<()>,
) -> Result<Answer, String> {
    let mut request = http::Request::builder()
        .method(outgoing.method.as_str())
        .uri(format!("http://{proxy}{}", outgoing.target))
        .header("te", "trailers");
    for (name, value) in outgoing.headers.iter().filter(|(name, _)| name != "host") {
        request = request.header(name, value.as_slice());
    }
    let request = request.body(Full::new(Bytes::from(outgoing.body.clone()))).map_err(|e| e.to_string())?;
    let mut answer = Answer { sent: Some(now()), ..Answer::default() };
    let answered = send.send_request(request);
    // The receiver of the last client is dropped already.
    sent_signal.send(()).ok();
    let (head, body) = answered.await.map_err(|e| format!("no response: {e}"))?.into_parts();
    (answer.status, answer.headers) = (Some(head.status.as_u16()), lines(&head.headers));
    answer.end = Some(match body.collect().await {
        Ok(collected) => {
            answer.trailers = collected.trailers().map(lines).unwrap_or_default();
            answer.body = collected.to_bytes().to_vec();
            End::Proper
        }
        Err(_) => End::Reset,
    });
    answer.done = Some(now());
    Ok(answer)
}
