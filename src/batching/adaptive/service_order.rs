//! Order in which key queues are considered while several flows are queued: by the turns of their
//! first flows.
//!
//! If the first call of a key queue would be late behind the batch of the first key queue, and can
//! still be in time, that key queue goes before it, provided it is not ahead of its share by more
//! than one batch. In an overload every first call is nearly late, and without this condition the
//! other key queues would never be served. The number of key queues examined is bounded. Key queues
//! of a single flow are not handled here: they are considered by deadline, in the order of the
//! queue.

use super::super::call::{DeadlineSource, KeyId};
use super::super::priority::Rank;
use super::super::queue::QueuedCall;
use super::super::tick::Tick;
use super::decision::DecisionContext;
use super::fair_queueing::{self, FlowTurn, ServiceOrder};
use super::state::Adaptive;

/// Maximum number of key queues examined for one decision: as many as items are queued by default,
/// since calls that cannot be merged have key queues of their own. If there are more, those with
/// the earliest deadlines are examined.
const KEY_QUEUES_MAX: usize = 2048;

/// Estimate for the batch that a key queue would send now.
struct BatchEstimate {
    /// Execution time of the batch, tail included.
    takes: u64,
    /// Execution time of its first call alone, tail included.
    first_call: u64,
    /// Maximum virtual time by which the flow may be ahead of its share.
    ahead: u64,
}

// === impl Adaptive ===

impl Adaptive {
    pub(super) fn sort_by_turn<'a>(
        &self,
        ctx: DecisionContext<'_>,
        heads: impl Iterator<Item = (KeyId, &'a QueuedCall)>,
        order: &mut ServiceOrder,
    ) {
        order.clear();
        let turns = heads.take(KEY_QUEUES_MAX).filter_map(|(key, _)| Some((self.clocks.first_turn(ctx, key)?, key)));
        order.extend(turns);
        order.sort_unstable();
        if let Some(at) = self.find_urgent(ctx, order) {
            order[..=at].rotate_right(1);
        }
    }

    /// Removes key queues that hold only fillers while other key queues exist. Fillers join other
    /// calls in their own key queues, and wait while others are held, each as long as it may.
    /// Returns the instant at which the first of them has waited long enough, if a slot is free.
    pub(super) fn remove_fillers(&self, ctx: DecisionContext<'_>, order: &mut ServiceOrder) -> Option<Tick> {
        let fillers = order.partition_point(|(turn, _)| turn.rank != Rank::Filler);
        if fillers == 0 || fillers == order.len() {
            return None;
        }
        if !self.has_room() || self.in_flight() >= ctx.limits.slots {
            order.truncate(fillers);
            return None;
        }
        let mut first = None::<Tick>;
        order.retain(|(turn, _)| {
            if turn.rank != Rank::Filler {
                return true;
            }
            let until = ctx.queue.get(turn.position.1).and_then(|queued| fair_queueing::filler_until(ctx, queued));
            let waits = until.filter(|until| *until > ctx.now);
            first = first.into_iter().chain(waits).min();
            waits.is_none()
        });
        first
    }

    /// Returns the position of a key queue that must go before the first one.
    fn find_urgent(&self, ctx: DecisionContext<'_>, order: &ServiceOrder) -> Option<usize> {
        let (first, key) = *order.first()?;
        let takes = self.estimate(ctx, key, first)?.takes;
        let late = |(turn, key): &&(FlowTurn, KeyId)| {
            let earlier = turn.rank == first.rank && turn.position < first.position;
            let useful = |queued: &QueuedCall| queued.call.deadline.filter(|d| d.source != DeadlineSource::Timeout);
            let deadline = ctx.queue.get(turn.position.1).filter(|_| earlier).and_then(useful);
            let Some(deadline) = deadline else { return false };
            let Some(would) = self.estimate(ctx, *key, *turn) else { return false };
            let slack = deadline.at.0.saturating_sub(ctx.now.0);
            // Late behind the first key queue's batch, in time alone, and near its share.
            slack < takes.saturating_add(would.takes)
                && slack >= would.first_call
                && turn.start <= first.start.saturating_add(would.ahead)
        };
        let others = order.iter().enumerate().skip(1).filter(|(_, other)| late(other));
        others.min_by_key(|(_, (turn, _))| turn.position).map(|(at, _)| at)
    }

    fn estimate(&self, ctx: DecisionContext<'_>, key: KeyId, turn: FlowTurn) -> Option<BatchEstimate> {
        let call = &ctx.queue.get(turn.position.1)?.call;
        let model = self.measured_model(call.cost_class)?;
        let cap = ctx.limits.scope(call.scope).batch_items_max.min(model.largest_answered.saturating_mul(2)).max(1);
        let items = fair_queueing::sizing_items(ctx, key).clamp(1, cap);
        let cost = &model.cost;
        Some(BatchEstimate {
            takes: cost.tail_time(cost.time(items)),
            first_call: cost.tail_time(cost.time(call.items)),
            ahead: self.clocks.largest_batch().div_ceil(ctx.limits.fair_weight(call)),
        })
    }
}
