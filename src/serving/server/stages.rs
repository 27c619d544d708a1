//! The stages of calls outside the worker, on threads that may block.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use groupage_engine::SequenceResult;
use groupage_protocol::CallAttachment;
use groupage_proxy::backend::CallPreparation;
use groupage_runtime::memory::BufferBudget;
use http::{HeaderMap, Method};

use super::EngineInner;
use super::answer::{check_media_type, panic_error};
use super::measures::CallResponse;
use super::ready_call::{ReadyCall, attach_ready, take_ready};
use crate::error::CallError;
use crate::model::ServedModel;
use crate::prepared::PreparedCall;
use crate::route::{ModelRoute, RouteError};
use crate::routes::prepare_call;

/// Number of calls that one thread prepares: tokenising a text of the usual length takes about 0.1 ms,
/// so a large batch is prepared by several threads.
const CALLS_PER_TASK: usize = 16;

/// A request that was read completely.
#[derive(Debug, Clone)]
pub(super) struct ReceivedRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The result of an earlier preparation.
    pub(super) attachment: Option<CallAttachment>,
}

// === impl ReceivedRequest ===

impl ReceivedRequest {
    fn prepare(&self, model: &Arc<ServedModel>, buffers: &BufferBudget) -> Result<PreparedCall, RouteError> {
        let route = ModelRoute::find(&self.method, &self.path, &model.root_route())?;
        check_media_type(&self.headers)?;
        Ok(prepare_call(model, &route, &self.body, buffers)?)
    }
}

// === impl EngineInner ===

impl EngineInner {
    /// Prepares a call before it is queued. If the budget of buffers has no room for its tokens, they
    /// are dropped, and the call is tokenised again when it is executed.
    pub(super) async fn prepare_queued(&self, request: ReceivedRequest) -> CallPreparation {
        let bytes = request.body.len();
        let Some(prepared) = self.prepare(vec![request]).await.pop() else { return CallPreparation::default() };
        let weight = prepared.as_ref().ok().map(ReadyCall::weight);
        let charged = match prepared {
            Ok(ready) => ready.charge(bytes, &self.parts.buffers).ok().map(Ok),
            Err(error) => Some(Err(error)),
        };
        CallPreparation { weight, attachment: charged.map(attach_ready) }
    }

    /// Returns calls with their tokens, one result for each, in their order: those that were prepared
    /// before they were queued, and the others prepared.
    pub(super) async fn ready_calls(&self, requests: Vec<ReceivedRequest>) -> Vec<Result<ReadyCall, RouteError>> {
        let (ready, unprepared): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|request| match take_ready(request.attachment.as_ref()) {
                Some(ready) => (Some(ready), None),
                None => (None, Some(request)),
            })
            .unzip();
        let unprepared: Vec<ReceivedRequest> = unprepared.into_iter().flatten().collect();
        let mut prepared = self.prepare(unprepared).await.into_iter();
        let fill = |ready: Option<Result<ReadyCall, RouteError>>| -> Result<ReadyCall, RouteError> {
            ready.or_else(|| prepared.next()).unwrap_or_else(|| Err(panic_error().into()))
        };
        ready.into_iter().map(fill).collect()
    }

    /// Parses and tokenises calls. Returns one result for each, in their order. If one panics, those
    /// that the same thread prepares fail with it.
    ///
    /// As many threads do it as there are cores: more would only take turns. Tasks beyond wait, in
    /// the order in which they came.
    pub(super) async fn prepare(&self, requests: Vec<ReceivedRequest>) -> Vec<Result<ReadyCall, RouteError>> {
        let received = self.parts.clock.now();
        let tasks = requests.chunks(CALLS_PER_TASK).map(|requests| {
            let (requests, count) = (requests.to_vec(), requests.len());
            let (model, parts, permits) = (self.model.clone(), self.parts.clone(), self.tokenizing.clone());
            async move {
                // The permits are never closed. The task has its permit until its end, also after its
                // caller has gone.
                let permit = permits.acquire_owned().await;
                let task = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    let began = parts.clock.now();
                    let prepare = |request: &ReceivedRequest| {
                        let call = request.prepare(&model, &parts.buffers)?;
                        let tokenization = parts.clock.now().since(received);
                        Ok(ReadyCall::new(call, (received, tokenization), parts.buffers.empty()))
                    };
                    let prepared: Vec<_> = requests.iter().map(prepare).collect();
                    parts.metrics.engine_tokenized(parts.clock.now().since(began));
                    prepared
                });
                task.await.unwrap_or_else(|_| (0..count).map(|_| Err(panic_error().into())).collect())
            }
        });
        join_all(tasks).await.into_iter().flatten().collect()
    }

    /// Renders the responses of calls from the results of their sequences. Returns one response for
    /// each, in their order. If one panics, all fail.
    pub(super) async fn render(
        &self,
        calls: Vec<(ReadyCall, Vec<SequenceResult>)>,
    ) -> Vec<Result<CallResponse, CallError>> {
        let (count, metrics, clock) = (calls.len(), self.parts.metrics.clone(), self.parts.clock);
        let task = tokio::task::spawn_blocking(move || {
            let began = clock.now();
            let rendered: Vec<_> = calls.into_iter().map(|(call, results)| call.render(results)).collect();
            metrics.engine_rendered(clock.now().since(began));
            rendered
        });
        task.await.unwrap_or_else(|_| (0..count).map(|_| Err(panic_error())).collect())
    }
}
