//! The stages of calls outside the worker, on threads that may block.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use groupage_engine::SequenceResult;
use http::{HeaderMap, Method};

use super::EngineInner;
use super::answer::{check_media_type, panic_error};
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
}

// === impl ReceivedRequest ===

impl ReceivedRequest {
    fn prepare(&self, model: &Arc<ServedModel>) -> Result<PreparedCall, RouteError> {
        let route = ModelRoute::find(&self.method, &self.path, &model.root_route())?;
        check_media_type(&self.headers)?;
        Ok(prepare_call(model, &route, &self.body)?)
    }
}

// === impl EngineInner ===

impl EngineInner {
    /// Parses and tokenises calls. Returns one result for each, in their order. If one panics, those
    /// that the same thread prepares fail with it.
    pub(super) async fn prepare(&self, requests: Vec<ReceivedRequest>) -> Vec<Result<PreparedCall, RouteError>> {
        let tasks = requests.chunks(CALLS_PER_TASK).map(|requests| {
            let (requests, count) = (requests.to_vec(), requests.len());
            let (model, metrics, clock) = (self.model.clone(), self.parts.metrics.clone(), self.parts.clock);
            let task = tokio::task::spawn_blocking(move || {
                let began = clock.now();
                let prepared: Vec<_> = requests.iter().map(|request| request.prepare(&model)).collect();
                metrics.engine_tokenized(clock.now().since(began));
                prepared
            });
            async move { task.await.unwrap_or_else(|_| (0..count).map(|_| Err(panic_error().into())).collect()) }
        });
        join_all(tasks).await.into_iter().flatten().collect()
    }

    /// Renders the responses of calls from the results of their sequences. Returns one response for
    /// each, in their order. If one panics, all fail.
    pub(super) async fn render(
        &self,
        calls: Vec<(PreparedCall, Vec<SequenceResult>)>,
    ) -> Vec<Result<Bytes, CallError>> {
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
