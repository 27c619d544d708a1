//! Forwarded calls: those that cannot be merged, those of other routes, and all calls where the
//! policy turns batching off.

use std::io;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use groupage_protocol::error::{Failure, FailureKind};
use groupage_protocol::{BatchResponse, Call, CallAttachment, Endpoint, Reply};
use groupage_proxy::backend::{BufferedReply, ByteStream, Forwarder, Lane};
use groupage_proxy::body::Body;
use groupage_proxy::bounded_body::{ReadLimits, ReadResult, StopReason, read_bounded};
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use super::answer::{check_media_type, execution_error, panic_error};
use super::measures::CallResponse;
use super::stages::ReceivedRequest;
use super::{EngineInner, available_cores};
use crate::error::{CallError, ErrorKind};
use crate::route::{ModelRoute, RouteError};
use crate::routes::views;
use crate::worker::ExecutedJob;

/// Maximum size of a body in bytes: the default `--payload-limit` of TEI.
const BODY_BYTES_MAX: usize = 2_000_000;

/// The interface for calls that are not merged.
#[derive(Debug)]
pub(super) struct EngineForwarder(pub(super) Arc<EngineInner>);

/// A lane. The engine has no connections, so lanes have no state.
#[derive(Debug)]
struct EngineLane(Arc<EngineInner>);

impl Forwarder for EngineForwarder {
    fn lane(&self) -> Arc<dyn Lane> {
        Arc::new(EngineLane(self.0.clone()))
    }

    fn open_connection(&self) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let refused = io::Error::new(io::ErrorKind::Unsupported, "the engine serves HTTP only");
        async move { Err(refused) }.boxed()
    }

    fn forward_once(&self, request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        answer(self.0.clone(), request).boxed()
    }

    fn observe_answer(&self, _: &HeaderMap) {}

    fn observe_unbatched(&self, _: &Endpoint, _: &Call, _: BatchResponse<'_>) {}
}

impl Lane for EngineLane {
    fn send(self: Arc<Self>, request: Request<Body>) -> BoxFuture<'static, Result<Response<Body>, Failure>> {
        answer(self.0.clone(), request).boxed()
    }

    fn was_reused(&self) -> bool {
        false
    }

    fn client_speaks_http2(&self) {}

    fn poll_drive(&self, _: &mut Context<'_>) {}
}

async fn answer(inner: Arc<EngineInner>, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (mut head, body) = request.into_parts();
    let (method, path, version) = (head.method, head.uri.path().to_owned(), head.version);
    let result = match ModelRoute::find(&method, &path, &inner.model.root_route()) {
        Err(error) => Err(error),
        Ok(route) if !route.has_body() => inner.read_view(&route).map(CallResponse::from).map_err(RouteError::from),
        Ok(_) => {
            let attachment = head.extensions.remove::<CallAttachment>();
            let (path, headers) = (path.clone(), head.headers);
            let call = ReceivedRequest { method, path, headers, body: Bytes::new(), attachment };
            inner.answer_body(call, body).await?
        }
    };
    let BufferedReply { reply: Reply { status, headers, body, .. }, held } = inner.reply(&path, result);
    let mut response = Response::new(Body::full(body).with_charge(held));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    *response.version_mut() = version;
    Ok(response)
}

// === impl EngineInner ===

impl EngineInner {
    /// Returns the body of a route that is read.
    fn read_view(&self, route: &ModelRoute) -> Result<Bytes, CallError> {
        let json = |value: &Value| Bytes::from(value.to_string());
        match route {
            ModelRoute::Info => {
                let (number_type, tokens_max) = (self.number_type(), self.batch_tokens_max());
                Ok(json(&views::info(&self.model, number_type, tokens_max, available_cores())))
            }
            ModelRoute::Models => Ok(json(&views::models(&self.model))),
            ModelRoute::Model(id) => views::one_model(&self.model, id).map(|model| json(&model)),
            _ if self.is_ready() => Ok(Bytes::new()),
            _ => Err(CallError::new(ErrorKind::Unhealthy, "unhealthy")),
        }
    }

    /// Reads the body of a call and answers it.
    ///
    /// # Errors
    /// The body cannot be held in memory, or arrives too slowly.
    async fn answer_body(
        &self,
        mut call: ReceivedRequest,
        mut body: Body,
    ) -> Result<Result<CallResponse, RouteError>, Failure> {
        if let Err(error) = check_media_type(&call.headers) {
            return Ok(Err(error.into()));
        }
        let Ok(_permit) = self.permits.try_acquire() else {
            let message = format!("more than {} calls are in progress: retry later", views::CONCURRENT_CALLS_MAX);
            return Ok(Err(CallError::new(ErrorKind::Overloaded, message).into()));
        };
        let limits = ReadLimits {
            max: BODY_BYTES_MAX,
            idle: self.parts.body_idle_timeout,
            until: None,
            floor: None,
            evictable: true,
            is_copied: false,
        };
        let _held = match read_bounded(&mut body, limits, self.parts.buffers.empty()).await {
            ReadResult::Whole { bytes, held, .. } => {
                call.body = bytes;
                held
            }
            ReadResult::Stopped { reason, .. } => return stopped(reason).map(|error| Err(error.into())),
        };
        Ok(self.answer_call(call).await)
    }

    /// Prepares, executes and renders a call.
    async fn answer_call(&self, call: ReceivedRequest) -> Result<CallResponse, RouteError> {
        self.record_calls(1);
        let mut call = self.ready_calls(vec![call]).await.pop().unwrap_or_else(|| Err(panic_error().into()))?;
        call.reserve_response(&self.parts.buffers)?;
        let sequences = call.take_sequences();
        let executed = self.execute(sequences).await.map_err(|failure| execution_error(&failure))?;
        let ExecutedJob { results, began, duration } = executed;
        call.on_executed(began, duration);
        let rendered = self.render(vec![(call, results)]).await.pop();
        Ok(rendered.unwrap_or_else(|| Err(panic_error()))?)
    }
}

/// Converts the reason for which a body was not read completely.
fn stopped(reason: StopReason) -> Result<CallError, Failure> {
    match reason {
        StopReason::TooLarge => {
            let message = format!("the body has more than {BODY_BYTES_MAX} bytes: send several calls");
            Ok(CallError::new(ErrorKind::TooLarge, message))
        }
        StopReason::BuffersFull => Err(FailureKind::BytesFull.into()),
        StopReason::Slow | StopReason::BelowFloor => Err(FailureKind::SlowBody.into()),
        // The connection failed together with its body, so this answer is never sent.
        StopReason::Broken => Ok(CallError::new(ErrorKind::Malformed, "the body broke off")),
    }
}
