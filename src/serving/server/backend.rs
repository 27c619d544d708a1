//! Execution of the batches of the scheduler.
//!
//! The bodies of the members are not merged: each is parsed on its own, and only the sequences of
//! all members are executed together. A member with an invalid request is answered with its own
//! error and is not executed. Nothing of a member can occur in the response of another one, and a
//! response is the same as that of the unbatched member.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use groupage_batching::{BatchOutcome, Observation};
use groupage_protocol::{Call, LimitsSource, PublishedLimits, error::FailureKind};
use groupage_proxy::backend::{Backend, BatchOutputs, BatchRequest, CallPreparation, LimitsLookUp};

use super::EngineInner;
use super::answer::execution_error;
use super::measures::CallResponse;
use super::ready_call::ReadyCall;
use super::stages::ReceivedRequest;
use crate::error::ErrorKind;
use crate::prepared::InputSequence;
use crate::route::RouteError;
use crate::worker::ExecutedJob;

/// The interface for batches.
#[derive(Debug)]
pub(super) struct EngineBackend(pub(super) Arc<EngineInner>);

/// A member with sequences in execution.
struct ExecutedMember {
    /// Index in the batch.
    member: usize,
    call: ReadyCall,
    /// Number of its sequences, by which the results are divided.
    sequences: usize,
}

impl Backend for EngineBackend {
    fn execute<'a>(&'a self, request: BatchRequest, outputs: &'a mut dyn BatchOutputs) -> BoxFuture<'a, Observation> {
        execute(&self.0, request, outputs).boxed()
    }

    /// Tokenises the call, so that it is queued with its number of tokens.
    fn prepare_call(&self, call: &Call) -> Option<BoxFuture<'static, CallPreparation>> {
        let (inner, request) = (self.0.clone(), received_request(call));
        Some(async move { inner.prepare_queued(request).await }.boxed())
    }

    /// A response has nothing that depends on other calls.
    fn is_merging_unsafe(&self, _: &Call) -> bool {
        false
    }

    /// Only the setting `verify` executes calls again, to compare the result of a call in a batch
    /// with that of the unbatched call. No batch is isolated, because a member cannot cause the
    /// failure of another one.
    fn take_replay(&self) -> bool {
        let now = self.0.parts.clock.now();
        self.0.budget.lock().is_ok_and(|mut budget| budget.try_take_replay(now))
    }

    /// The limits are known without a request. That on weight is the one of the executor, so that
    /// it has to divide no batch; it falls when the executor is created for fewer tokens, and after
    /// a shortage of memory. The kind of the model determines the format of calls to `/` and
    /// `/invocations`.
    fn published_limits(&self, _: &LimitsSource) -> LimitsLookUp {
        let weight_max = u64::try_from(self.0.batch_tokens_max()).ok();
        let model_kind = Some(self.0.model.kind());
        LimitsLookUp::Known(Some(PublishedLimits { weight_max, model_kind, ..PublishedLimits::default() }))
    }

    fn executes_members(&self) -> bool {
        true
    }

    fn batches_text(&self) -> Option<bool> {
        Some(false)
    }
}

/// Executes a batch within its timeout. After the timeout, members without an answer get an error.
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

/// Executes the members in one round, or in several if there is not enough memory for all
/// responses.
async fn execute_members(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    observe: &(impl Fn(BatchOutcome) -> Observation + Sync),
) -> Observation {
    let mut waiting = prepare_members(inner, request, outputs).await;
    let mut observed = None;
    while let Some((members, sequences)) = take_round(inner, request, outputs, &mut waiting) {
        match inner.execute(sequences).await {
            Ok(job) => {
                let executed = observe(BatchOutcome::Ok);
                if waiting.is_empty() {
                    // Nothing is left to execute for this batch, so the scheduler may dispatch the
                    // next one. Yield, so that it does so before the members are answered.
                    outputs.release_slot(executed);
                    tokio::task::yield_now().await;
                }
                deliver_results(inner, request, outputs, members, job).await;
                observed = Some(executed);
            }
            Err(failure) => {
                let error = execution_error(&failure);
                for ExecutedMember { member, .. } in members {
                    deliver(inner, request, outputs, member, Err(error.clone().into()));
                }
                observed = Some(observe(BatchOutcome::Failed));
            }
        }
    }
    // Nothing was executed. The scheduler learns execution times only from the outcome `Ok`.
    observed.unwrap_or_else(|| observe(BatchOutcome::Failed))
}

/// Returns the members that still wait for an answer, with their tokens. Those with an invalid
/// request are answered.
async fn prepare_members(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
) -> VecDeque<(usize, ReadyCall)> {
    let waiting: Vec<usize> = (0..request.members.len()).filter(|member| outputs.is_waiting(*member)).collect();
    let received =
        waiting.iter().filter_map(|member| request.members.get(*member)).map(|call| received_request(call)).collect();
    inner.record_calls(waiting.len());
    let mut ready = VecDeque::new();
    for (member, prepared) in waiting.into_iter().zip(inner.ready_calls(received).await) {
        match prepared {
            Ok(call) => ready.push_back((member, call)),
            Err(error) => deliver(inner, request, outputs, member, Err(error)),
        }
    }
    ready
}

/// Takes the members that are executed together: as many as there is memory for their responses.
/// The others are left for the next round. Most of the memory is free by then, because a response
/// is charged with its maximum size only until it is rendered. A member gets an error only if there
/// is no memory for its response although it would be the first of the round. `None` if no member
/// is left.
fn take_round(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    waiting: &mut VecDeque<(usize, ReadyCall)>,
) -> Option<(Vec<ExecutedMember>, Vec<InputSequence>)> {
    let (mut members, mut sequences) = (Vec::new(), Vec::new());
    while let Some((member, mut call)) = waiting.pop_front() {
        if !outputs.is_waiting(member) {
            continue;
        }
        match call.reserve_response(&inner.parts.buffers) {
            Ok(()) => {
                let own = call.take_sequences();
                members.push(ExecutedMember { member, call, sequences: own.len() });
                sequences.extend(own);
            }
            Err(error) if error.kind == ErrorKind::Overloaded && !members.is_empty() => {
                waiting.push_front((member, call));
                break;
            }
            Err(error) => deliver(inner, request, outputs, member, Err(error.into())),
        }
    }
    (!members.is_empty()).then_some((members, sequences))
}

/// Divides the results among the members, renders their responses, and answers them.
async fn deliver_results(
    inner: &EngineInner,
    request: &BatchRequest,
    outputs: &mut dyn BatchOutputs,
    members: Vec<ExecutedMember>,
    job: ExecutedJob,
) {
    let ExecutedJob { results, began, duration } = job;
    let mut results = results.into_iter();
    let divide = |ExecutedMember { member, mut call, sequences }| {
        call.on_executed(began, duration);
        (member, (call, results.by_ref().take(sequences).collect()))
    };
    let (members, calls): (Vec<usize>, Vec<_>) = members.into_iter().map(divide).unzip();
    for (member, rendered) in members.into_iter().zip(inner.render(calls).await) {
        deliver(inner, request, outputs, member, rendered.map_err(RouteError::from));
    }
}

/// Answers a member.
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

fn received_request(call: &Call) -> ReceivedRequest {
    ReceivedRequest {
        method: call.head.method.clone(),
        path: call.head.uri.path().to_owned(),
        headers: call.head.headers.clone(),
        body: call.body.clone(),
        attachment: call.attachment.clone(),
    }
}
