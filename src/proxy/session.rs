//! The calls of one client connection. Each is routed by its head and answered, and keeps the
//! connection busy until hyper has taken the whole response.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
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
use super::activity::{ActiveCall, ConnectionActivity};
use super::memory_accounting::ConnectionMemory;
use super::pass_through::PassthroughFuture;
use super::service::{CallRouting, PendingRouting};
use super::upload::{StreamCharge, UploadGuard};
use crate::backend::Lane;
use crate::body::{Body, add_to_hint};
use crate::error::BoxError;
use crate::memory::{BufferGuard, BuffersFull, HoldPhase, STREAM};
use crate::protocol::PeerIdentity;
use crate::telemetry::names::FloodReason;

/// Size of the pieces of an HTTP/2 response: a client that does not take one piece within the write
/// timeout counts as stalled.
const PIECE_BYTES: usize = 16 << 10;

/// Size of an HTTP/1 head that is covered by the fixed share of its connection (`memory`).
const FREE_HEAD_BYTES: usize = 4 << 10;
/// An HTTP/2 head with more than this multiple of the allowed lines closes its connection.
const LINES_FACTOR: usize = 10;
/// Memory per entry of a header map in addition to its bytes: buckets and indices of `http`.
const HEADER_BYTES: usize = 100;

/// State shared by the calls of one connection.
#[derive(Debug)]
struct CallContext {
    proxy: Arc<Proxy>,
    lane: Arc<dyn Lane>,
    activity: Arc<ConnectionActivity>,
    memory: Arc<ConnectionMemory>,
    client: IpAddr,
    peer: Option<PeerIdentity>,
}

/// The guards of an admitted call.
struct Admission {
    /// Charge of its head and its stream.
    charge: Option<Box<BufferGuard>>,
    /// Guards of the upload, if the request body has not arrived yet.
    upload: Option<Box<UploadGuard>>,
}

/// The hyper service that answers the calls of one connection.
pub(super) struct CallService(Arc<CallContext>);

/// A call that is being answered. It is small because hyper moves it: state that only some calls
/// need is boxed.
pub(super) struct CallFuture {
    context: Arc<CallContext>,
    work: CallFutureKind,
    /// Keeps the connection busy. It is moved into the response body.
    busy: Option<ActiveCall>,
    /// The connection closes after this call.
    closes_connection: bool,
    /// The call uses HTTP/2, so its response is sent in pieces.
    is_http2: bool,
    /// Charge of its head and its stream.
    charge: Option<Box<BufferGuard>>,
}

enum CallFutureKind {
    /// A pass-through call of an HTTP/1 client.
    Pass(PassthroughFuture),
    /// Any other call, and a response that is available at once.
    Other(BoxFuture<'static, Response<Body>>),
}

// === impl CallService ===

impl CallService {
    /// Creates the service of a connection of `client`. `peer` is the identity from its client
    /// certificate, if any.
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        lane: &Arc<dyn Lane>,
        (activity, memory): (&Arc<ConnectionActivity>, &Arc<ConnectionMemory>),
        (client, peer): (IpAddr, Option<PeerIdentity>),
    ) -> Self {
        let (proxy, lane, activity, memory) = (proxy.clone(), lane.clone(), activity.clone(), memory.clone());
        Self(Arc::new(CallContext { proxy, lane, activity, memory, client, peer }))
    }
}

impl Service<Request<Incoming>> for CallService {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = CallFuture;

    fn call(&self, mut request: Request<Incoming>) -> CallFuture {
        let context = &self.0;
        let is_http2 = request.version() == Version::HTTP_2;
        let (busy, head_bytes, calls) = context.activity.on_call_start(is_http2);
        if is_http2 && calls == 1 {
            context.lane.client_speaks_http2();
        }
        if let Some(peer) = context.peer {
            request.extensions_mut().insert(peer);
        }
        // No client library writes such a head: references to a single table entry, repeated
        // thousands of times, which cost far more to decode than to send.
        if is_http2 && request.headers().len() / LINES_FACTOR > context.proxy.config.client.headers_max {
            context.activity.shut_down_flooded(FloodReason::HeaderLines);
        }
        let last = calls >= context.proxy.config.client.requests_per_connection_max;
        let (work, charge) = context.clone().begin(request, (!is_http2).then_some(head_bytes));
        CallFuture { context: context.clone(), work, busy: Some(busy), closes_connection: last, is_http2, charge }
    }
}

// === impl CallContext ===

impl CallContext {
    /// Routes a call and starts to answer it. `head_bytes` is the size of an HTTP/1 head, with the
    /// bytes of the body that arrived together with it, and `None` on HTTP/2.
    fn begin(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        head_bytes: Option<usize>,
    ) -> (CallFutureKind, Option<Box<BufferGuard>>) {
        let answered = |response| (CallFutureKind::Other(std::future::ready(response).boxed()), None);
        let routing = match self.proxy.route_call(self.client, &mut request) {
            CallRouting::Answered(response) => return answered(response),
            CallRouting::Open(routing) => routing,
        };
        match self.admit(&request, head_bytes) {
            Ok(Admission { charge, upload }) => {
                (self.call_future(request, upload, routing, head_bytes.is_none()), charge)
            }
            Err(BuffersFull) => answered(self.proxy.reject_buffers_full(routing)),
        }
    }

    /// Charges the memory that a call holds in addition to its bodies, and creates the guards of
    /// its upload.
    fn admit(&self, request: &Request<Incoming>, head_bytes: Option<usize>) -> Result<Admission, BuffersFull> {
        // An upload may continue after its response; the connection is not idle until it ends.
        let busy = (!request.body().is_end_stream()).then(|| self.activity.on_upload_start());
        let bytes = match head_bytes {
            None => STREAM + head_size(request),
            Some(bytes) if bytes > FREE_HEAD_BYTES => head_size(request),
            Some(_) => 0,
        };
        let mut charge = None;
        // A call over HTTP/2, without `head_bytes`, is always charged, for its stream.
        if head_bytes.is_none() || bytes > FREE_HEAD_BYTES {
            charge.insert(Box::new(self.proxy.buffers.empty())).grow(bytes)?;
        }
        let upload = busy.map(|busy| {
            // An HTTP/2 stream can be evicted while the client uploads its body.
            let stream = charge.as_deref_mut().filter(|_| head_bytes.is_none()).and_then(BufferGuard::watch);
            Box::new(UploadGuard::new(busy, self.proxy.buffers.empty(), stream.map(StreamCharge)))
        });
        Ok(Admission { charge, upload })
    }

    fn call_future(
        self: Arc<Self>,
        request: Request<Incoming>,
        upload: Option<Box<UploadGuard>>,
        routing: PendingRouting,
        is_http2: bool,
    ) -> CallFutureKind {
        match routing {
            PendingRouting::Pass(reason, recorder, dialect) => {
                let request =
                    request.map(|body| Body::stream(body).with_upload_watch(upload.map(UploadGuard::into_watch)));
                let lane = self.lane.clone();
                if is_http2 {
                    // Runs in a task of its own, which the end of the drain must wake.
                    return CallFutureKind::Other(Box::pin(async move {
                        self.proxy.pass(lane, request, reason, recorder, dialect).await
                    }));
                }
                CallFutureKind::Pass(self.proxy.start_passthrough(lane, request, reason, recorder, dialect))
            }
            PendingRouting::Recognised(recognised) => CallFutureKind::Other(Box::pin(async move {
                self.proxy.serve(self.lane.clone(), request, upload, *recognised).await
            })),
        }
    }
}

impl Future for CallFuture {
    type Output = Result<Response<TrackedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut response = ready!(match &mut this.work {
            CallFutureKind::Pass(passing) => Pin::new(passing).poll(cx),
            CallFutureKind::Other(work) => work.as_mut().poll(cx),
        });
        let last = this.closes_connection || this.context.activity.is_draining();
        if last && !this.is_http2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        let mut busy = this.busy.take();
        if let Some(busy) = &mut busy {
            busy.on_response_start();
        }
        if let Some(busy) = &mut busy
            && !response.body().is_end_stream()
            && response.body().size_hint().exact().is_some()
        {
            busy.on_bytes_available();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            this.context.activity.set_relayed();
        }
        let (is_http2, memory, mut charge) = (this.is_http2, this.context.memory.clone(), this.charge.take());
        // From here on the call waits for the client.
        for held in charge.as_deref_mut().into_iter().chain(response.body_mut().charge_mut()) {
            memory.register_for_eviction(held);
        }
        Poll::Ready(Ok(response.map(|body| TrackedBody {
            body,
            busy,
            is_http2,
            rest: Bytes::new(),
            memory,
            charge,
            last_piece_bytes: 0,
        })))
    }
}

/// A response body that reports when it is taken.
///
/// An HTTP/1 client that takes nothing blocks a write. An HTTP/2 client grants no window instead,
/// which is not visible in any write: the next piece is not polled.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    busy: Option<ActiveCall>,
    /// The call uses HTTP/2: small pieces, so that progress of a slow client is noticed.
    is_http2: bool,
    /// Bytes of the last frame that are not passed to hyper yet. Empty on HTTP/1.
    rest: Bytes,
    memory: Arc<ConnectionMemory>,
    /// Charge of the call's head and stream, and of the piece that was passed to hyper last.
    charge: Option<Box<BufferGuard>>,
    last_piece_bytes: usize,
}

impl TrackedBody {
    /// Records that the client has taken the previous piece, and that `next` bytes are passed to
    /// hyper now. If `next` is zero, the call waits for the model server.
    fn on_take(&mut self, next: usize) {
        let phase = if next > 0 { HoldPhase::Client } else { HoldPhase::Server };
        if let Some(charge) = &mut self.charge {
            charge.set_bytes((charge.bytes() + next).saturating_sub(self.last_piece_bytes));
            charge.set_phase(phase);
            self.last_piece_bytes = next;
        }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        // hyper holds the last piece until it is written.
        if self.last_piece_bytes > 0 && self.is_end_stream() {
            self.memory.on_passed_to_hyper(self.last_piece_bytes);
        }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(busy) = &mut this.busy {
            busy.on_bytes_taken();
        }
        if !this.is_http2 {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            if let Some(Ok(frame)) = &frame {
                this.memory.on_passed_to_hyper(frame.data_ref().map_or(0, Bytes::len));
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
        let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES));
        this.on_take(piece.len());
        if let Some(busy) = &mut this.busy {
            busy.on_bytes_available();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        add_to_hint(self.body.size_hint(), self.rest.len())
    }
}

/// Returns the approximate memory that a head occupies.
fn head_size(request: &Request<Incoming>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len());
    line + fields.sum::<usize>()
}
