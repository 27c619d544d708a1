//! The calls of one client connection: each is sorted by its head, answered, and keeps its
//! connection busy until its answer is taken.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;

use super::Proxy;
use super::merge::CallWay;
use super::pass::PassFuture;
use super::watch::{Activity, Busy};
use crate::backend::Lane;
use crate::body::Body;
use crate::error::BoxError;
use crate::protocol::Peer;

/// What an HTTP/2 client is given at once: what it takes in the write timeout, or it is not taking.
const PIECE: usize = 64 << 10;

/// What the calls of one connection share.
#[derive(Debug)]
struct CallContext {
    proxy: Arc<Proxy>,
    lane: Arc<dyn Lane>,
    activity: Arc<Activity>,
    peer: Option<Peer>,
}

/// Answers the calls of one connection.
pub(super) struct CallService(Arc<CallContext>);

/// A call that is being answered. Small: hyper moves it, and all that only some calls need is
/// boxed.
pub(super) struct CallFuture {
    session: Arc<CallContext>,
    work: CallWork,
    /// Taken with the answer.
    busy: Option<Busy>,
    /// The connection ends with it.
    last: bool,
    /// HTTP/2.
    pieces: bool,
}

enum CallWork {
    Pass(PassFuture),
    Other(BoxFuture<'static, Response<Body>>),
}

/// Keeps a connection busy for as long as a request's body is read.
#[derive(Debug, Clone)]
pub(super) struct Uploading(#[expect(dead_code, reason = "held for its drop")] Arc<Busy>);

// === impl CallService ===

impl CallService {
    /// Those of this connection; `peer` is whom it belongs to, if TLS said so.
    pub(super) fn new(proxy: &Arc<Proxy>, lane: &Arc<dyn Lane>, activity: &Arc<Activity>, peer: Option<Peer>) -> Self {
        Self(Arc::new(CallContext { proxy: proxy.clone(), lane: lane.clone(), activity: activity.clone(), peer }))
    }
}

impl Service<Request<Incoming>> for CallService {
    type Response = Response<Taken>;
    type Error = Infallible;
    type Future = CallFuture;

    fn call(&self, mut request: Request<Incoming>) -> CallFuture {
        let session = &self.0;
        let pieces = request.version() == Version::HTTP_2;
        let (busy, calls) = session.activity.begin(pieces);
        if pieces && calls == 1 {
            session.lane.client_speaks_http2();
        }
        if let Some(peer) = session.peer {
            request.extensions_mut().insert(peer);
        }
        // An upload may go on after its answer: until its end the connection is not idle.
        let uploading = (!request.body().is_end_stream()).then(|| session.activity.upload());
        let work = session.clone().begin(request, uploading, pieces);
        let last = calls >= session.proxy.config.client.requests_per_connection_max;
        CallFuture { session: session.clone(), work, busy: Some(busy), last, pieces }
    }
}

// === impl CallContext ===

impl CallContext {
    fn begin(self: Arc<Self>, mut request: Request<Incoming>, uploading: Option<Busy>, pieces: bool) -> CallWork {
        match self.proxy.sort(&mut request) {
            CallWay::Answered(response) => CallWork::Other(std::future::ready(response).boxed()),
            CallWay::Pass(reason, ending, dialect) => {
                let request = request.map(|body| match uploading {
                    Some(uploading) => Body::from(body).keeping(uploading),
                    None => Body::from(body),
                });
                let lane = self.lane.clone();
                if pieces {
                    // A task of its own, which the end of the drain has to wake.
                    return CallWork::Other(Box::pin(async move {
                        self.proxy.pass(lane, request, reason, ending, dialect).await
                    }));
                }
                CallWork::Pass(self.proxy.begin_pass(lane, request, reason, ending, dialect))
            }
            CallWay::Recognised(recognised) => {
                if let Some(uploading) = uploading {
                    request.extensions_mut().insert(Uploading(Arc::new(uploading)));
                }
                CallWork::Other(Box::pin(
                    async move { self.proxy.serve(self.lane.clone(), request, *recognised).await },
                ))
            }
        }
    }
}

impl Future for CallFuture {
    type Output = Result<Response<Taken>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut response = ready!(match &mut this.work {
            CallWork::Pass(passing) => Pin::new(passing).poll(cx),
            CallWork::Other(work) => work.as_mut().poll(cx),
        });
        let last = this.last || this.session.activity.is_leaving();
        if last && !this.pieces && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        let mut busy = this.busy.take();
        if let Some(busy) = &mut busy
            && !response.body().is_end_stream()
            && response.body().size_hint().exact().is_some()
        {
            busy.answered();
        }
        let pieces = this.pieces;
        Poll::Ready(Ok(response.map(|body| Taken { body, busy, pieces, rest: Bytes::new() })))
    }
}

/// An answer's body that says when it is taken.
///
/// A client of HTTP/1 that takes nothing blocks a write. One of HTTP/2 gives no window, which no
/// write shows: nobody comes for the next piece.
#[derive(Debug)]
pub(super) struct Taken {
    body: Body,
    busy: Option<Busy>,
    /// HTTP/2: small pieces, so that whoever takes slowly is seen to take.
    pieces: bool,
    rest: Bytes,
}

impl HttpBody for Taken {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(busy) = &mut this.busy {
            busy.taken();
        }
        if !this.pieces {
            return Pin::new(&mut this.body).poll_frame(cx);
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        if let Some(busy) = &mut this.busy {
            busy.answered();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
