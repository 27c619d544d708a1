//! Isolation of the failing members of a batch: the parts of an [`IsolationPlan`] are sent one
//! after the other, in the slot of the batch, until each member is answered.
//!
//! If the response to a single member has begun and is not complete after [`SLOW_AFTER`], it is
//! read concurrently with the next parts, so that a slow response delays no other member. Each
//! member is answered like any unbatched call.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use super::Inner;
use super::exchange::UnbatchedResponse;
use super::part::{begin_unbatched, deliver_all, deliver_unbatched, fail_part, try_part};
use super::part_result::PartResult;
use super::stream::OpenStreams;
use crate::backend::{BatchOutputs, BatchRequest, BufferedReply, StreamedAnswer};
use crate::batching::{BatchOutcome, IsolationPlan, MemberRange, Observation, PartOutcome};
use crate::error::{Failure, FailureKind};

/// Time from the head of a response to a single member after which the next part is sent. Servers
/// send the body of a result that is computed at once.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of slow responses at a time. Each occupies one of the connections for batches,
/// of which a process with 256 file descriptors has about 19.
const SLOW_MAX: usize = 8;

/// The isolation of one batch.
pub(super) struct Isolation<'a> {
    inner: &'a Arc<Inner>,
    request: &'a BatchRequest,
    outputs: &'a mut dyn BatchOutputs,
    streams: &'a mut OpenStreams,
    plan: IsolationPlan,
    evidence: IsolationEvidence,
    /// Slow responses to single members, which are read concurrently with the next parts.
    slow: FuturesUnordered<BoxFuture<'a, MemberResponse>>,
}

type MemberResponse = (usize, Result<UnbatchedResponse, FailureKind>);

/// The replies to the members of a smaller batch, collected until its call has ended, because slow
/// responses are delivered meanwhile through the same outputs. A smaller batch is never a stream.
#[derive(Debug, Default)]
struct CollectedReplies(Vec<(usize, Result<BufferedReply, Failure>)>);

/// Observations about the server during isolation.
#[derive(Debug, Default)]
pub(super) struct IsolationEvidence {
    /// Indices of the members that were answered successfully alone.
    answered: Vec<usize>,
    /// Parts with several members that failed.
    failed: Vec<MemberRange>,
    /// `true` if the server answered a part with several members, so that it accepts batches.
    merged: bool,
}

// === impl IsolationEvidence ===

impl IsolationEvidence {
    /// Returns `true` if all members of a failed part succeeded one by one, and no part with
    /// several members was accepted.
    pub(super) fn is_refusing_batches(&self) -> bool {
        let answered_unbatched = |part: &MemberRange| part.clone().all(|member| self.answered.contains(&member));
        !self.merged && self.failed.iter().any(answered_unbatched)
    }
}

// === impl CollectedReplies ===

impl BatchOutputs for CollectedReplies {
    fn deliver(&mut self, member: usize, result: Result<BufferedReply, Failure>) {
        self.0.push((member, result));
    }

    fn deliver_streamed(&mut self, member: usize, _response: StreamedAnswer) {
        debug_assert!(false, "members that request streams are sent alone");
        self.deliver(member, Err(FailureKind::Internal.into()));
    }

    fn on_isolation(&mut self) {}

    fn release_slot(&mut self, _observed: Observation) {}

    fn is_waiting(&self, _member: usize) -> bool {
        true
    }
}

// === impl Isolation ===

impl<'a> Isolation<'a> {
    /// Creates the isolation of a batch that failed with this outcome.
    pub(super) fn new(
        (inner, request): (&'a Arc<Inner>, &'a BatchRequest),
        outcome: PartOutcome,
        outputs: &'a mut dyn BatchOutputs,
        streams: &'a mut OpenStreams,
    ) -> Self {
        tracing::debug!(batch = request.id.0, members = request.members.len(), ?outcome, "isolating a failed batch");
        let items = request.members.iter().map(|call| call.items).collect();
        let plan = IsolationPlan::new(items, inner.isolate_above.load(Ordering::Relaxed), outcome);
        let mut evidence = IsolationEvidence::default();
        evidence.failed.push(0..request.members.len());
        Self { inner, request, outputs, streams, plan, evidence, slow: FuturesUnordered::new() }
    }

    /// Sends the parts until each member is answered.
    pub(super) async fn run(mut self) -> IsolationEvidence {
        self.outputs.on_isolation();
        while let Some(part) = self.plan.next_part() {
            // No retry is needed if the clients of all members have disconnected.
            if !part.clone().any(|member| self.outputs.is_waiting(member)) {
                continue;
            }
            // A smaller batch of streams would end with its longest one, and delay all that follow.
            if self.request.is_stream() && part.len() > 1 {
                self.plan.split(part);
                continue;
            }
            if !take_replay(self.inner, &part) {
                tracing::debug!(batch = self.request.id.0, "replay budget empty: each member is sent alone");
                self.plan.split(part);
                continue;
            }
            self.inner.metrics.record_isolation_execution();
            if part.len() == 1 {
                self.send_member(part.start).await;
            } else {
                self.send_part(part).await;
            }
        }
        while let Some((member, answer)) = self.slow.next().await {
            self.deliver(member, answer);
        }
        self.evidence
    }

    /// Sends a smaller batch.
    async fn send_part(&mut self, part: MemberRange) {
        // A retry gets the time of an unbatched call; the time that the batch has used is not
        // deducted.
        let (mut replies, mut streams, mut first_byte) = (CollectedReplies::default(), OpenStreams::default(), None);
        let sending = try_part(self.inner, self.request, part.clone(), &mut replies, &mut first_byte, &mut streams);
        let result = self.alongside(sending).await;
        for (member, reply) in replies.0 {
            self.outputs.deliver(member, reply);
        }
        match result {
            PartResult::Answered(_) => {}
            PartResult::Split(replies) => {
                self.evidence.merged = true;
                deliver_all(self.outputs, part.clone(), replies);
            }
            PartResult::Retry { outcome, or, observed, allowed, .. } => {
                // A response that must not be delivered shows that the server accepts batches.
                self.evidence.merged |= observed == BatchOutcome::Withheld;
                if allowed {
                    self.evidence.failed.push(part.clone());
                    self.plan.record_outcome(part, outcome);
                    return;
                }
                fail_part(self.outputs, part.clone(), or);
            }
        }
        self.count_items(part);
    }

    /// Sends a member alone, and waits for its response unless that is slow.
    async fn send_member(&mut self, member: usize) {
        let (inner, request) = (self.inner, self.request);
        let Some(call) = request.members.get(member) else { return };
        while self.slow.len() >= SLOW_MAX
            && let Some((member, answer)) = self.slow.next().await
        {
            self.deliver(member, answer);
        }
        let pending = match self.alongside(begin_unbatched(inner, call, request.timeout)).await {
            Ok(pending) => pending,
            Err(kind) => return self.deliver(member, Err(kind)),
        };
        let streams = call.is_mergeable_stream();
        let mut reading = async move { (member, inner.read_unbatched(pending, streams).await) }.boxed();
        match self.alongside(timeout(SLOW_AFTER, &mut reading)).await {
            Ok((_, answer)) => self.deliver(member, answer),
            Err(_) => self.slow.push(reading),
        }
    }

    /// Awaits `work`, and delivers the slow responses that end meanwhile.
    async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some((member, answer)) = self.slow.next(), if !self.slow.is_empty() => self.deliver(member, answer),
            }
        }
    }

    /// Answers a member with its own response.
    fn deliver(&mut self, member: usize, answer: Result<UnbatchedResponse, FailureKind>) {
        let outcome = deliver_unbatched((self.inner, self.request), member, answer, self.outputs, self.streams);
        if outcome == BatchOutcome::Ok {
            self.evidence.answered.push(member);
        }
        self.count_items(member..member + 1);
    }

    /// Counts the items of a part that was answered.
    fn count_items(&self, part: MemberRange) {
        let items = part.map(|member| self.request.members.get(member).map_or(0, |call| call.items)).sum();
        self.inner.metrics.record_isolated_items(items);
    }
}

/// Takes a replay from the budget, and returns `true` if the part may be sent. An unbatched retry
/// is recorded but never refused. A smaller batch is made only if the budget allows it.
fn take_replay(inner: &Inner, part: &MemberRange) -> bool {
    let now = inner.clock.now();
    let is_single = part.len() == 1;
    match inner.budget.lock() {
        Ok(mut budget) if is_single => {
            budget.record_replay(now);
            true
        }
        Ok(mut budget) => budget.try_take_replay(now),
        Err(_) => is_single,
    }
}
