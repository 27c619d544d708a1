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
use super::flow::ClientFlow;
use super::merge::{CallWay, OpenWay};
use super::pass::PassFuture;
use super::upload::{Upload, UploadStream};
use super::watch::{Activity, Busy};
use crate::backend::Lane;
use crate::body::Body;
use crate::error::BoxError;
use crate::memory::{BuffersFull, Held, HoldPhase, STREAM};
use crate::protocol::Peer;

/// What an HTTP/2 client is given at once: what it takes in the write timeout, or it is not taking.
const PIECE: usize = 16 << 10;

/// A head of HTTP/1 that the share of its connection covers (`memory`).
const HEAD_FREE: usize = 4 << 10;
/// A head of HTTP/2 with this multiple of the lines that are allowed ends its connection.
const LINES_FACTOR: usize = 10;
/// An entry of a header map beside its bytes: `http`'s buckets and indices.
const HEADER: usize = 100;

/// What the calls of one connection share.
#[derive(Debug)]
struct CallContext {
    proxy: Arc<Proxy>,
    lane: Arc<dyn Lane>,
    activity: Arc<Activity>,
    flow: Arc<ClientFlow>,
    peer: Option<Peer>,
}

/// The guards of an admitted call.
struct Admission {
    /// Its head, and its stream.
    charge: Option<Box<Held>>,
    /// Of a call whose body has not come yet.
    upload: Option<Box<Upload>>,
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
    /// Its head, and its stream.
    charge: Option<Box<Held>>,
}

enum CallWork {
    Pass(PassFuture),
    Other(BoxFuture<'static, Response<Body>>),
}

// === impl CallService ===

impl CallService {
    /// Those of this connection; `peer` is whom it belongs to, if TLS said so.
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        lane: &Arc<dyn Lane>,
        (activity, flow): (&Arc<Activity>, &Arc<ClientFlow>),
        peer: Option<Peer>,
    ) -> Self {
        let (proxy, lane, activity, flow) = (proxy.clone(), lane.clone(), activity.clone(), flow.clone());
        Self(Arc::new(CallContext { proxy, lane, activity, flow, peer }))
    }
}

impl Service<Request<Incoming>> for CallService {
    type Response = Response<Taken>;
    type Error = Infallible;
    type Future = CallFuture;

    fn call(&self, mut request: Request<Incoming>) -> CallFuture {
        let session = &self.0;
        let pieces = request.version() == Version::HTTP_2;
        let (busy, head_bytes, calls) = session.activity.begin(pieces);
        if pieces && calls == 1 {
            session.lane.client_speaks_http2();
        }
        if let Some(peer) = session.peer {
            request.extensions_mut().insert(peer);
        }
        // No library writes such a head: what refers to one entry a thousand times costs more than
        // it is.
        if pieces && request.headers().len() / LINES_FACTOR > session.proxy.config.client.headers_max {
            session.activity.end_flood();
        }
        let last = calls >= session.proxy.config.client.requests_per_connection_max;
        let (work, charge) = session.clone().begin(request, (!pieces).then_some(head_bytes));
        CallFuture { session: session.clone(), work, busy: Some(busy), last, pieces, charge }
    }
}

// === impl CallContext ===

impl CallContext {
    /// Sorts a call and begins to answer it; `head_bytes` is known of HTTP/1, with what came of the
    /// body.
    fn begin(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        head_bytes: Option<usize>,
    ) -> (CallWork, Option<Box<Held>>) {
        let answered = |response| (CallWork::Other(std::future::ready(response).boxed()), None);
        let way = match self.proxy.sort(&mut request) {
            CallWay::Answered(response) => return answered(response),
            CallWay::Open(way) => way,
        };
        match self.admit(&request, head_bytes) {
            Ok(Admission { charge, upload }) => (self.work(request, upload, way, head_bytes.is_none()), charge),
            Err(BuffersFull) => answered(self.proxy.refuse_full(way)),
        }
    }

    /// Charges what a call holds beside its bodies, and what its upload needs to be watched.
    fn admit(&self, request: &Request<Incoming>, head_bytes: Option<usize>) -> Result<Admission, BuffersFull> {
        // An upload may go on after its answer: until its end the connection is not idle.
        let busy = (!request.body().is_end_stream()).then(|| self.activity.upload());
        let bytes = match head_bytes {
            None => STREAM + head_size(request),
            Some(bytes) if bytes > HEAD_FREE => head_size(request),
            Some(_) => 0,
        };
        let mut charge = None;
        if head_bytes.is_none() || bytes > HEAD_FREE {
            charge.insert(Box::new(self.proxy.buffers.empty())).grow(bytes)?;
        }
        let upload = busy.map(|busy| {
            let stream = charge.as_deref_mut().filter(|_| head_bytes.is_none()).and_then(Held::watch);
            Box::new(Upload::new(busy, self.proxy.buffers.empty(), stream.map(UploadStream::new)))
        });
        Ok(Admission { charge, upload })
    }

    fn work(
        self: Arc<Self>,
        request: Request<Incoming>,
        upload: Option<Box<Upload>>,
        way: OpenWay,
        pieces: bool,
    ) -> CallWork {
        match way {
            OpenWay::Pass(reason, ending, dialect) => {
                let request = request.map(|body| Body::from(body).watched(upload.map(Upload::passing)));
                let lane = self.lane.clone();
                if pieces {
                    // A task of its own, which the end of the drain has to wake.
                    return CallWork::Other(Box::pin(async move {
                        self.proxy.pass(lane, request, reason, ending, dialect).await
                    }));
                }
                CallWork::Pass(self.proxy.begin_pass(lane, request, reason, ending, dialect))
            }
            OpenWay::Recognised(recognised) => CallWork::Other(Box::pin(async move {
                self.proxy.serve(self.lane.clone(), request, upload, *recognised).await
            })),
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
        if let Some(busy) = &mut busy {
            busy.answer();
        }
        if let Some(busy) = &mut busy
            && !response.body().is_end_stream()
            && response.body().size_hint().exact().is_some()
        {
            busy.answered();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            this.session.activity.relay();
        }
        let (pieces, flow, mut charge) = (this.pieces, this.session.flow.clone(), this.charge.take());
        // From here on the client is waited for.
        for held in charge.as_deref_mut().into_iter().chain(response.body_mut().charge_mut()) {
            flow.list(held);
        }
        Poll::Ready(Ok(response.map(|body| Taken { body, busy, pieces, rest: Bytes::new(), flow, charge, given: 0 })))
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
    /// HTTP/2: small pieces, so that a client that takes slowly is seen to take.
    pieces: bool,
    rest: Bytes,
    flow: Arc<ClientFlow>,
    /// The head of its call, and its stream with the piece that was given last.
    charge: Option<Box<Held>>,
    /// That piece's bytes.
    given: usize,
}

impl Taken {
    /// The client has taken what was given before; `next` bytes are given to it now. Without one
    /// the model server is waited for.
    fn on_take(&mut self, next: usize) {
        let phase = if next > 0 { HoldPhase::Client } else { HoldPhase::Server };
        if let Some(charge) = &mut self.charge {
            charge.set_bytes((charge.bytes() + next).saturating_sub(self.given));
            charge.set_phase(phase);
            self.given = next;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // What was given last is hyper's until it is written.
        if self.given > 0 && self.is_end_stream() {
            self.flow.on_given(self.given);
        }
    }
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
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            if let Some(Ok(frame)) = &frame {
                this.flow.on_given(frame.data_ref().map_or(0, Bytes::len));
            }
            return Poll::Ready(frame);
        }
        this.on_take(0);
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
        this.on_take(piece.len());
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

/// The bytes that a head holds, about.
fn head_size(request: &Request<Incoming>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| HEADER + name.as_str().len() + value.len());
    line + fields.sum::<usize>()
}
