//! How large a batch should be, deadlines aside (`scheduling.md` §2.3).

use super::super::cost::Cost;
use super::super::plan::Size;
use super::super::skill::Skill;
use super::super::tick::Tick;
use super::explore::in_time;
use super::{Adaptive, Line, fair};

/// Sizes that hardware likes: tried now and then, and never passed over for a dearer one.
const ROUND: [u32; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// The curve is trusted with the choice of size from so many samples on. §2.8 says 8; past a knee each of them is dear (thrash at 90 % load: 8 to 6 samples
/// take 4 to 5 points off the mean), while shapes of powers of two are misread from fewer (at 90 % load: 6 to 5 samples add 3 to 4 points; `--curves`).
const SAMPLES_MIN: u32 = 6;
/// A round size is tried this often, in thousandths, until it was seen so often.
const TRY_PERMILLE: u32 = 100;
const TRY_UNTIL: u32 = 3;
/// A larger size that was never seen is tried this often, in thousandths: a third of it leaves compiled shapes unfound for seconds.
const ABOVE_PERMILLE: u32 = 150;
/// In backlog, a round size that was never seen is tried this often, down to one part in so many of what is wanted.
const BELOW_PERMILLE: u32 = 100;
const BELOW_PARTS: u32 = 8;

/// What a line wants.
pub(super) enum Want {
    /// Send so many items.
    Send(u32),
    /// Wait for the next arrival until then, else send so many.
    Hold { until: Tick, otherwise: u32 },
}

// === impl Adaptive ===

impl Adaptive {
    /// How large, or how long to wait for the next arrival.
    pub(super) fn want(&mut self, line: &Line<'_>) -> Want {
        let most = line.items.min(line.cap).max(1);
        if line.ctx.missing.has(Skill::Cost) {
            return Want::Send(most);
        }
        let rate = self.rate(line.key, line.ctx.now);

        let Some(model) = self.models.get(&line.head.call.cost_class) else { return Want::Send(most) };
        let per_slot = rate.per_slot(model.slots.in_use());
        let cost = &model.cost;
        let mut until = None;
        let size = match &model.plan {
            Some(plan) if line.items >= plan.sizes().saturating_mul(2) => {
                // A deep backlog: the most efficient size, or all if larger may be better still.
                if plan.best().saturating_mul(10) >= plan.sizes().saturating_mul(9) { most } else { plan.best() }
            }
            Some(plan) => match plan.at(per_slot, line.items) {
                Size::Send(size) => size,
                Size::Wait { otherwise } => {
                    let newest = fair::newest(line.ctx, line.key).unwrap_or(line.head.arrived);
                    let patience = (cost.time(line.items) / 2).min(rate.gap().saturating_mul(2)).max(1000);
                    let end = Tick(newest.0.saturating_add(patience));
                    let next = cost.late(cost.time((line.items + 1).min(line.cap)));
                    if line.ctx.now < end && line.slack(line.head) > next.saturating_mul(3) {
                        until = Some(end);
                    }
                    otherwise
                }
            },
            None if cost.samples() > SAMPLES_MIN => most_efficient(cost, most),
            None => most,
        };
        let size = size.clamp(1, most);
        if let Some(until) = until {
            return Want::Hold { until, otherwise: size };
        }
        if cost.samples() <= SAMPLES_MIN || size <= 4 {
            return Want::Send(size);
        }
        let starts = self.exploration.starts();
        let later = !model.backlog && self.exploration.may(line.ctx.now);
        let may = |round: &u32| starts || later && in_time(line, cost, *round);
        let untried = |round: &u32| *round <= size && *round > size / 2 && cost.seen(*round) < TRY_UNTIL;
        if let Some(round) = ROUND.iter().rev().find(|round| untried(round) && may(round))
            && self.draw.chance(TRY_PERMILLE)
        {
            self.trial = *round < size;
            return Want::Send(*round);
        }
        // A backlog asks for large sizes only, so one before a knee that would end it may never be seen: then it never drains.
        let below = |round: &u32| *round <= size / 2 && *round > size / BELOW_PARTS && cost.seen(*round) == 0;
        if line.items / 2 >= size
            && let Some(round) = ROUND.iter().rev().find(|round| below(round))
            && self.draw.chance(BELOW_PERMILLE)
        {
            self.trial = true;
            return Want::Send(*round);
        }
        // Between two sizes that were seen the guess may be far off: a size priced like a larger neighbour would never be wanted, and so never seen.
        let above = |round: &u32| *round > size && *round <= most.min(2 * size) && cost.seen(*round) == 0;
        if let Some(round) = ROUND.iter().rev().find(|round| above(round) && may(round))
            && self.draw.chance(ABOVE_PERMILLE)
        {
            self.trial = true;
            return Want::Send(*round);
        }
        // Past a knee: never pay more per item than a smaller batch would.
        let seen = ROUND.iter().copied().filter(|round| *round < size && cost.seen(*round) > 0);
        let better = seen.reduce(|best, round| if cheaper(cost, round, best) { round } else { best });
        match better {
            Some(round) if scaled(cost, size, round) > 11 * scaled(cost, round, size) / 10 => Want::Send(round),
            _ => Want::Send(size),
        }
    }
}

/// The size up to `most` with the most items per time, a little in favour of larger ones.
pub(super) fn most_efficient(cost: &Cost, most: u32) -> u32 {
    let worth = |items: u32| u128::from(items) * u128::from(2000 + items);
    let better =
        |one: u32, other: u32| worth(one) * u128::from(cost.time(other)) > worth(other) * u128::from(cost.time(one));
    (1..=most).reduce(|best, items| if better(items, best) { items } else { best }).unwrap_or(most)
}

/// Whether `one` costs less per item than `other`.
fn cheaper(cost: &Cost, one: u32, other: u32) -> bool {
    scaled(cost, one, other) < scaled(cost, other, one)
}

/// t(one) · other: two sizes compare by it as by time per item.
fn scaled(cost: &Cost, one: u32, other: u32) -> u128 {
    u128::from(cost.time(one)) * u128::from(other)
}
