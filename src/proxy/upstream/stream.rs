//! A batch whose members request streams: the events of the shared response are split as they
//! arrive, and written to the members.
//!
//! The slot of the batch is occupied up to the last byte of the response. No member delays another
//! one: the writes never wait, and a member that takes its bytes too slowly, or leaves, loses only
//! its own part. Once all of them have left, the response is dropped, which closes its connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, response};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Inner;
use super::exchange::PendingResponse;
use super::part_result::{
    PartResult, judge_error_status, judge_failure, judge_mismatch, outcome_without_retry, report_mismatch,
};
use crate::backend::{BatchOutputs, BatchRequest, StreamedAnswer};
use crate::batching::{BatchOutcome, MemberRange};
use crate::body::{Body, BodyWriter, body_channel};
use crate::error::FailureKind;
use crate::protocol::{Call, ResponseMismatch, SharedRequest, StreamSplit, StreamStep};

/// The execution of a part of a batch with a streamed response.
pub(super) struct StreamedBatch<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) request: &'a BatchRequest,
    pub(super) part: MemberRange,
    pub(super) outputs: &'a mut dyn BatchOutputs,
}

/// A streamed response that is being relayed to the members.
struct StreamRelay<'a> {
    batch: StreamedBatch<'a>,
    split: StreamSplit,
    responses: MemberResponses,
    /// The handle that every body will hold, until the heads are delivered.
    alive: Option<mpsc::Sender<()>>,
    status: StatusCode,
    outcome: BatchOutcome,
}

/// The responses of the members of a streamed batch.
struct MemberResponses {
    /// The heads, until they are delivered.
    heads: Vec<HeaderMap>,
    /// The writers of the responses that are not complete. Dropping one truncates its response.
    writers: Vec<Option<BodyWriter>>,
    /// Resolves once the bodies of all responses are dropped.
    gone: mpsc::Receiver<()>,
}

/// The open responses of members that are executed one by one after their batch failed. The next
/// member is sent before the stream of the last one has ended, so that a slow reader delays no
/// other member. The slot of the batch is occupied until all streams have ended.
#[derive(Debug, Default)]
pub(super) struct OpenStreams(Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>);

// === impl StreamedBatch ===

impl<'a> StreamedBatch<'a> {
    /// Relays the response to the shared call `sent`.
    pub(super) async fn run(self, sent: SharedRequest, pending: PendingResponse) -> PartResult {
        let PendingResponse { head, mut body, .. } = pending;
        self.inner.identity.on_response(&head.headers);
        let inner = self.inner;
        let mut relay = match self.begin(sent, &head) {
            Ok(relay) => relay,
            Err(result) => return result,
        };
        // The calls are charged by their callers only until the heads are delivered.
        let mut held = inner.buffers.empty_for_answer();
        loop {
            let is_awaited = relay.split.is_open() && !relay.split.is_over();
            let next = tokio::select! {
                biased;
                () = relay.responses.all_gone(), if is_awaited => {
                    return PartResult::Answered(BatchOutcome::Cancelled);
                }
                next = timeout(inner.config.body_idle_timeout, body.frame()) => next,
            };
            let frame = match next {
                Ok(Some(Ok(frame))) => frame,
                Ok(None | Some(Err(_))) => return relay.on_end(FailureKind::UpstreamBroken),
                Err(_) => return relay.on_end(FailureKind::UpstreamTimeout),
            };
            // Trailers belong to no member.
            if let Ok(data) = frame.into_data()
                && let Some(result) = relay.on_data(&data)
            {
                return result;
            }
            if relay.split.is_open() {
                held.set_bytes(relay.split.held_bytes());
            }
        }
    }

    /// Begins to split the response; on a mismatch, returns the result of the part.
    fn begin(self, sent: SharedRequest, head: &response::Parts) -> Result<StreamRelay<'a>, PartResult> {
        let calls = self.request.members.get(self.part.clone()).unwrap_or_default().to_vec();
        let parts = (head.status, &head.headers);
        match self.request.endpoint.begin_stream(calls, sent, parts, &self.inner.evidence) {
            Ok((split, heads)) => {
                let (responses, alive) = MemberResponses::new(heads);
                let status = head.status;
                Ok(StreamRelay { batch: self, split, responses, alive: Some(alive), status, outcome: BatchOutcome::Ok })
            }
            Err(mismatch) => Err(self.on_mismatch(&mismatch)),
        }
    }

    /// Returns the result of a response that cannot be split, and of which no member has received a
    /// byte.
    fn on_mismatch(&self, mismatch: &ResponseMismatch) -> PartResult {
        report_mismatch(self.inner, self.request, mismatch, self.part.len());
        judge_mismatch(&self.request.endpoint, mismatch)
    }
}

// === impl StreamRelay ===

impl StreamRelay<'_> {
    /// Relays bytes of the response. Returns the result if the batch ends with them.
    fn on_data(&mut self, data: &[u8]) -> Option<PartResult> {
        self.split.push(data);
        loop {
            let inner = self.batch.inner;
            match self.split.next_step((inner.clock.now(), &inner.evidence)) {
                Ok(None) => break,
                Ok(Some(step)) => {
                    if let Some(result) = self.on_step(step) {
                        return Some(result);
                    }
                }
                Err(mismatch) if self.split.is_open() => return Some(self.on_late_mismatch(&mismatch)),
                Err(mismatch) => return Some(self.batch.on_mismatch(&mismatch)),
            }
        }
        // The members with an incomplete response have left, or were too slow.
        let is_abandoned = self.split.is_open() && !self.split.is_over() && self.responses.are_ended();
        is_abandoned.then_some(PartResult::Answered(BatchOutcome::Cancelled))
    }

    fn on_step(&mut self, step: StreamStep) -> Option<PartResult> {
        if self.split.is_open()
            && let Some(alive) = self.alive.take()
        {
            self.deliver_heads(&alive);
        }
        match step {
            StreamStep::Member { member, bytes, is_last } => self.responses.write(member, &bytes, is_last),
            StreamStep::Comment(bytes) => self.responses.write_comment(&bytes),
            // Nothing was delivered, so the batch is isolated as after an error status.
            StreamStep::Error(_) if !self.split.is_open() => {
                let (status, body) = (StatusCode::INTERNAL_SERVER_ERROR, Bytes::new());
                return Some(judge_error_status(&self.batch.request.endpoint, status, &body, false));
            }
            StreamStep::Error(ends) => {
                self.outcome = BatchOutcome::Failed;
                self.responses.end(ends);
            }
            // The slot is occupied until the body ends.
            StreamStep::End if self.split.is_over() => {}
            StreamStep::End => return Some(self.on_end(FailureKind::UpstreamBroken)),
        }
        None
    }

    /// Delivers the heads, with bodies that follow, to the members that still wait.
    fn deliver_heads(&mut self, alive: &mpsc::Sender<()>) {
        let heads = std::mem::take(&mut self.responses.heads);
        let StreamedBatch { inner, part, outputs, .. } = &mut self.batch;
        for (place, (member, headers)) in part.clone().zip(heads).enumerate() {
            if !outputs.is_waiting(member) {
                continue;
            }
            let (writer, body) = body_channel(inner.buffers.empty_for_answer(), alive.clone());
            let mut response = Response::new(body);
            *response.status_mut() = self.status;
            *response.headers_mut() = headers;
            if let Some(slot) = self.responses.writers.get_mut(place) {
                *slot = Some(writer);
            }
            outputs.deliver_streamed(member, response);
        }
    }

    /// Ends the batch because the response ended, broke or paused for too long. Complete responses
    /// are not affected, and the others are truncated when their writers are dropped.
    fn on_end(&self, kind: FailureKind) -> PartResult {
        let StreamedBatch { request, .. } = &self.batch;
        if !self.split.is_open() {
            return judge_failure(&request.endpoint, kind);
        }
        if self.split.is_over() {
            return PartResult::Answered(self.outcome);
        }
        tracing::debug!(batch = request.id.0, reason = kind.reason(), "a shared stream was cut off");
        PartResult::Answered(match kind {
            FailureKind::UpstreamTimeout => BatchOutcome::TimedOut,
            _ => BatchOutcome::Failed,
        })
    }

    /// Ends the streams of all members with an error, because the rest of the response cannot be
    /// split and nothing is sent again after a byte.
    fn on_late_mismatch(&mut self, mismatch: &ResponseMismatch) -> PartResult {
        let StreamedBatch { inner, request, part, .. } = &self.batch;
        report_mismatch(inner, request, mismatch, part.len());
        self.responses.end(self.split.fail(FailureKind::Mismatch));
        match judge_mismatch(&request.endpoint, mismatch) {
            PartResult::Retry { observed, refusal, .. } => {
                PartResult::Answered(outcome_without_retry(observed, refusal))
            }
            judged => judged,
        }
    }
}

// === impl MemberResponses ===

impl MemberResponses {
    /// Also returns the handle that every body holds.
    fn new(heads: Vec<HeaderMap>) -> (Self, mpsc::Sender<()>) {
        let (alive, gone) = mpsc::channel(1);
        let writers = heads.iter().map(|_| None).collect();
        (Self { heads, writers, gone }, alive)
    }

    /// Writes bytes to a member. A member that takes no more bytes loses its response.
    fn write(&mut self, member: usize, bytes: &[u8], is_last: bool) {
        let Some(slot) = self.writers.get_mut(member) else { return };
        let Some(writer) = slot.take() else { return };
        match writer.write(bytes) {
            Ok(()) if is_last => writer.finish(),
            Ok(()) => *slot = Some(writer),
            Err(closed) => tracing::debug!(%closed, "a member of a shared stream is dropped"),
        }
    }

    fn write_comment(&mut self, bytes: &[u8]) {
        for member in 0..self.writers.len() {
            self.write(member, bytes, false);
        }
    }

    /// Writes the last bytes to members.
    fn end(&mut self, ends: Vec<(usize, Bytes)>) {
        for (member, bytes) in ends {
            self.write(member, &bytes, true);
        }
    }

    /// Returns `true` if no member receives more bytes.
    fn are_ended(&self) -> bool {
        self.writers.iter().all(Option::is_none)
    }

    /// Resolves once the bodies of all members are dropped.
    async fn all_gone(&mut self) {
        // No value is ever sent.
        while self.gone.recv().await.is_some() {}
    }
}

// === impl OpenStreams ===

impl OpenStreams {
    /// Marks a response as open until its body is dropped, if its call requests a stream.
    pub(super) fn hold(&mut self, call: &Call, response: StreamedAnswer) -> StreamedAnswer {
        if !call.is_mergeable_stream() {
            return response;
        }
        let (alive, _) = self.0.get_or_insert_with(|| mpsc::channel(1));
        let alive = alive.clone();
        response.map(|body: Body| body.with_guard(alive))
    }

    /// Resolves once the bodies of all open responses are dropped.
    pub(super) async fn wait_end(self) {
        let Some((alive, mut ended)) = self.0 else { return };
        drop(alive);
        // No value is ever sent.
        while ended.recv().await.is_some() {}
    }
}
