//! Which line is asked first while several flows are queued: the one whose first flow has the earliest turn (`scheduling.md` §2.5, `pick_key`).
//!
//! A line whose first call would be late behind that one's batch, and need not be, goes before it, if it is not ahead of its share by more than one batch: in an overload every first call is nearly late, and the others would never be asked.
//!
//! Bounded: lines looked at. What it leaves out: one flow alone, whose lines are asked by deadline, in the order in which they stand.

use super::super::call::{DeadlineSource, KeyId};
use super::super::priority::Rank;
use super::super::queue::Queued;
use super::super::tick::Tick;
use super::fair::{self, Turn};
use super::{Adaptive, Ctx};

/// Lines looked at for one decision; those of the earliest deadlines, if there are more.
const LINES_MAX: usize = 1024;

/// Lines in turn, the first one first.
pub(super) type Order = Vec<(Turn, KeyId)>;

/// What a line would do if it went now.
struct Would {
    /// How long its batch takes, its tail included.
    takes: u64,
    /// How long its first call takes alone.
    alone: u64,
    /// How far it may run ahead of its share.
    ahead: u64,
}

// === impl Adaptive ===

impl Adaptive {
    /// Puts lines in turn.
    pub(super) fn in_turn<'a>(
        &self,
        ctx: Ctx<'_>,
        lines: impl Iterator<Item = (KeyId, &'a Queued)>,
        order: &mut Order,
    ) {
        order.clear();
        let turns = lines.take(LINES_MAX).filter_map(|(key, _)| Some((self.clocks.first(ctx, key)?, key)));
        order.extend(turns);
        order.sort_unstable();
        if let Some(at) = self.urgent(ctx, order) {
            order[..=at].rotate_right(1);
        }
    }

    /// Takes out the lines that hold fillers only unless there are no others: fillers join others in their own lines, and wait while others are held, each as
    /// long as it may. Says when the first of them has waited enough, a slot being free.
    pub(super) fn without_fillers(&self, ctx: Ctx<'_>, order: &mut Order) -> Option<Tick> {
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
            let until = ctx.queue.get(turn.at.1).and_then(|queued| fair::filler_until(ctx, queued));
            let waits = until.filter(|until| *until > ctx.now);
            first = first.into_iter().chain(waits).min();
            waits.is_none()
        });
        first
    }

    /// The place of a line that goes before the first.
    fn urgent(&self, ctx: Ctx<'_>, order: &Order) -> Option<usize> {
        let (first, key) = *order.first()?;
        let takes = self.would(ctx, key, first)?.takes;
        let late = |(turn, key): &&(Turn, KeyId)| {
            let earlier = turn.rank == first.rank && turn.at < first.at;
            let useful = |queued: &Queued| queued.call.deadline.filter(|d| d.source != DeadlineSource::Timeout);
            let deadline = ctx.queue.get(turn.at.1).filter(|_| earlier).and_then(useful);
            let Some(deadline) = deadline else { return false };
            let Some(would) = self.would(ctx, *key, *turn) else { return false };
            let slack = deadline.at.0.saturating_sub(ctx.now.0);
            slack < takes.saturating_add(would.takes)
                && slack >= would.alone
                && turn.start <= first.start.saturating_add(would.ahead)
        };
        let others = order.iter().enumerate().skip(1).filter(|(_, other)| late(other));
        others.min_by_key(|(_, (turn, _))| turn.at).map(|(at, _)| at)
    }

    fn would(&self, ctx: Ctx<'_>, key: KeyId, turn: Turn) -> Option<Would> {
        let call = &ctx.queue.get(turn.at.1)?.call;
        let model = self.models.get(&call.cost_class).filter(|model| model.cost.samples() > 0)?;
        let cap = ctx.limits.scope(call.scope).batch_items_max.min(model.worked.saturating_mul(2)).max(1);
        let items = fair::counted(ctx, key).clamp(1, cap);
        let cost = &model.cost;
        Some(Would {
            takes: cost.late(cost.time(items)),
            alone: cost.late(cost.time(call.items)),
            ahead: self.clocks.largest().div_ceil(ctx.limits.share(call)),
        })
    }
}
