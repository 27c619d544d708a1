//! Execution of the batches of the scheduler.
//!
//! The bodies of the members are not merged: each is parsed on its own, and only the sequences of
//! all members are executed together. A member that is not accepted is answered with its own error
//! and takes no part. Nothing of a member can occur in the response of another one, and a response is
//! the same as that of the member alone.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use groupage_batching::{BatchOutcome, Observation};
use groupage_engine::SequenceResult;
use groupage_protocol::{Call, LimitsSource, PublishedLimits, error::FailureKind};
use groupage_proxy::backend::{Backend, BatchOutputs, BatchRequest, CallPreparation, LimitsLookUp};

use super::EngineInner;
use super::answer::execution_error;
use super::measures::CallResponse;
use super::ready_call::ReadyCall;
use super::stages::ReceivedRequest;
use crate::prepared::InputSequence;
use crate::route::RouteError;
use crate::worker::ExecutedJob;

/// The interface for batches.
#[derive(Debug)]
pub(super) struct EngineBackend(pub(super) Arc<EngineInner>);

/// A member with the number of its sequences.
struct ExecutedMember {
    member: usize,
    call: ReadyCall,
    sequences: usize,
}

impl Backend for EngineBackend {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn BatchOutputs) -> BoxFuture<'a, Observation> {
        execute(&self.0, request, outputs).boxed()
    }

    /// Tokenises the call, so that it is queued with its number of tokens.
    fn prepare_call(&self, call: &Call) -> Option<BoxFuture<'static, CallPreparation>> {
        let (inner, request) = (self.0.clone(), received(call));
        Some(async move { inner.prepare_queued(request).await }.boxed())
    }

    /// A response has nothing that depends on other calls.
    fn is_merging_unsafe(&self, _: &Call) -> bool {
        false
    }

    /// Only `verify` executes calls again: it compares what the kernels compute in a batch with what
    /// they compute alone. Members of a batch cannot fail each other.
    fn take_replay(&self) -> bool {
        let now = self.0.parts.clock.now();
        self.0.budget.lock().is_ok_and(|mut budget| budget.try_take_replay(now))
    }

    /// The kind of the model decides the format of calls to `/` and `/invocations`.
    fn published_limits(&self, _: &LimitsSource) -> LimitsLookUp {
        let (weight_max, model_kind) = (u64::try_from(self.0.model.batch_tokens_max()).ok(), Some(self.0.model.kind()));
        LimitsLookUp::Known(Some(PublishedLimits { weight_max, model_kind, ..PublishedLimits::default() }))
    }

    fn executes_members(&self) -> bool {
        true
    }

    fn batches_text(&self) -> Option<bool> {
        Some(false)
    }
}

async fn execute(inner: &EngineInner, request: BatchRequest, outputs: &mut dyn BatchOutputs) -> Observation {
    let started = inner.parts.clock.now();
    let observe = |outcome| {
        let duration = inner.parts.clock.now().since(started);
        Observation { duration, first_byte: Some(duration), outcome }
    };
    let executing = execute_members(inner, &request, outputs, &observe);
    let Some(limit) = request.timeout else { return executing.await };
    if let Ok(observed) = tokio::time::timeout(limit, executing).await {
        return observed;
    }
    for member in 0..request.members.len() {
        outputs.deliver(member, Err(FailureKind::UpstreamTimeout.into()));
    }
    observe(BatchOutcome::TimedOut)
}

async fn execute_members(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    observe: &(impl Fn(BatchOutcome) -> Observation + Sync),
) -> Observation {
    let waiting: Vec<usize> = (0..request.members.len()).filter(|member| outputs.is_waiting(*member)).collect();
    let received =
        waiting.iter().filter_map(|member| request.members.get(*member)).map(|call| received(call)).collect();
    inner.record_calls(waiting.len());
    let prepared = inner.ready_calls(received).await;
    let mut members = Vec::new();
    let mut sequences: Vec<InputSequence> = Vec::new();
    for (member, prepared) in waiting.into_iter().zip(prepared) {
        match prepared {
            Ok(mut call) => {
                let own = call.take_sequences();
                members.push(ExecutedMember { member, call, sequences: own.len() });
                sequences.extend(own);
            }
            Err(error) => deliver(inner, request, outputs, member, Err(error)),
        }
    }
    if members.is_empty() {
        return observe(BatchOutcome::Failed);
    }
    match inner.execute(sequences).await {
        Ok(ExecutedJob { results, began, duration }) => {
            members.iter_mut().for_each(|member| member.call.on_executed(began, duration));
            let observed = observe(BatchOutcome::Ok);
            outputs.release_slot(observed);
            // Yield first, so that the next batch is dispatched before the members are answered.
            tokio::task::yield_now().await;
            deliver_results(inner, request, outputs, members, results).await;
            observed
        }
        Err(failure) => {
            let error = execution_error(&failure);
            for ExecutedMember { member, .. } in members {
                deliver(inner, request, outputs, member, Err(error.clone().into()));
            }
            observe(BatchOutcome::Failed)
        }
    }
}

/// Divides the results among the members, renders their responses, and answers them.
async fn deliver_results(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    members: Vec<ExecutedMember>,
    results: Vec<SequenceResult>,
) {
    let mut results = results.into_iter();
    let (members, calls): (Vec<usize>, Vec<_>) = members
        .into_iter()
        .map(|ExecutedMember { member, call, sequences }| (member, (call, results.by_ref().take(sequences).collect())))
        .unzip();
    for (member, rendered) in members.into_iter().zip(inner.render(calls).await) {
        deliver(inner, request, outputs, member, rendered.map_err(RouteError::from));
    }
}

fn deliver(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    member: usize,
    result: Result<CallResponse, RouteError>,
) {
    let Some(call) = request.members.get(member) else { return };
    outputs.deliver(member, Ok(inner.reply(call.head.uri.path(), result)));
}

fn received(call: &Call) -> ReceivedRequest {
    ReceivedRequest {
        method: call.head.method.clone(),
        path: call.head.uri.path().to_owned(),
        headers: call.head.headers.clone(),
        body: call.body.clone(),
        attachment: call.attachment.clone(),
    }
}
