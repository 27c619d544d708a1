//! Chooses the size of a batch without regard to deadlines.

use super::super::arrivals::ArrivalRate;
use super::super::cost::CostModel;
use super::super::plan::PlanDecision;
use super::super::rng::SplitMix64;
use super::super::tick::Tick;
use super::exploration::{ExplorationBudget, fits_slack};
use super::fair_queueing;
use super::models::ClassModel;
use super::queue_view::QueueView;
use super::state::Adaptive;

/// Round sizes that hardware favours. They are tried now and then, and never passed over for a size
/// that costs more per item.
const ROUND: [u32; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Minimum number of samples before the curve determines the size. Past a knee each sample is
/// expensive (thrash at 90 % load: 6 instead of 8 lower the mean by 4 to 5 points), while curves
/// with steps at powers of two are misread from fewer (at 90 % load: 5 instead of 6 raise it by 3
/// to 4 points). Measured with `just sim-table 3 curves`.
const SAMPLES_MIN: u32 = 6;
/// Probability of trying a round size that was rarely observed, in thousandths.
const TRY_PERMILLE: u32 = 100;
/// Number of observations from which on a round size is no longer tried.
const TRY_UNTIL: u32 = 3;
/// Probability of trying a larger size that was never observed, in thousandths. With a third of it,
/// compiled shapes stay undiscovered for seconds.
const ABOVE_PERMILLE: u32 = 150;
/// In backlog, probability of trying a smaller round size that was never observed, in thousandths.
const BELOW_PERMILLE: u32 = 100;
/// Inverse of the smallest such size, as a part of the size that is wanted.
const BELOW_PARTS: u32 = 8;

/// Size decision for a key queue.
pub(super) enum SizeDecision {
    /// Send this many items.
    Send(u32),
    /// Wait for the next arrival until an instant, then send `otherwise` items.
    Hold { until: Tick, otherwise: u32 },
}

// === impl Adaptive ===

impl Adaptive {
    /// Returns the size of the batch, or how long to wait for the next arrival.
    pub(super) fn decide_size(&mut self, view: &QueueView<'_>) -> SizeDecision {
        let most = view.items.min(view.cap).max(1);
        let rate = self.rate(view.key, view.ctx.now);
        let Some(model) = self.models.get(&view.head.call.cost_class) else { return SizeDecision::Send(most) };
        let size = match best_known(view, model, rate, most) {
            SizeDecision::Send(size) => size,
            hold @ SizeDecision::Hold { .. } => return hold,
        };
        if model.cost.samples() <= SAMPLES_MIN || size <= 4 {
            return SizeDecision::Send(size);
        }
        if let Some(round) = draw_explored_size(view, model, &self.exploration, (size, most), &mut self.draw) {
            self.explores_size = round != size;
            return SizeDecision::Send(round);
        }
        SizeDecision::Send(best_seen(&model.cost, size))
    }
}

/// Returns the size that the plan or the curve selects, at most `most`, or how long to wait for the
/// next arrival.
fn best_known(view: &QueueView<'_>, model: &ClassModel, rate: ArrivalRate, most: u32) -> SizeDecision {
    let cost = &model.cost;
    let mut until = None;
    let size = match &model.plan {
        Some(plan) if view.items >= plan.largest_size().saturating_mul(2) => {
            // A deep backlog: send the most efficient size, or everything if a larger size may be
            // better still.
            if plan.most_efficient_size().saturating_mul(10) >= plan.largest_size().saturating_mul(9) {
                most
            } else {
                plan.most_efficient_size()
            }
        }
        Some(plan) => match plan.at(rate.per_slot(model.slots.in_use()), view.items) {
            PlanDecision::Send(size) => size,
            PlanDecision::Wait { otherwise } => {
                // Waits for the next arrival at most twice the mean interval and half of an
                // execution, and only if the head has time for several executions.
                let newest = fair_queueing::newest_arrival(view.ctx, view.key).unwrap_or(view.head.arrived);
                let patience = (cost.time(view.items) / 2).min(rate.mean_interval().saturating_mul(2)).max(1000);
                let end = Tick(newest.0.saturating_add(patience));
                let next = cost.tail_time(cost.time((view.items + 1).min(view.cap)));
                if view.ctx.now < end && view.first_slack() > next.saturating_mul(3) {
                    until = Some(end);
                }
                otherwise
            }
        },
        None if cost.samples() > SAMPLES_MIN => most_efficient_size(cost, most),
        None => most,
    };
    let size = size.clamp(1, most);
    match until {
        Some(until) => SizeDecision::Hold { until, otherwise: size },
        None => SizeDecision::Send(size),
    }
}

/// Draws whether to try a round size, and returns it. `size` is the best known size, and `most` the
/// number of items available.
///
/// The candidates are, in this order, a size above half of `size` and up to it that was rarely
/// observed; in backlog a smaller one that was never observed; and a larger one that was never
/// observed.
fn draw_explored_size(
    view: &QueueView<'_>,
    model: &ClassModel,
    exploration: &ExplorationBudget,
    (size, most): (u32, u32),
    draw: &mut SplitMix64,
) -> Option<u32> {
    let cost = &model.cost;
    // Exploration is free at the start. Later it needs credit, and must not make the head late.
    let is_starting = exploration.is_starting();
    let has_credit = !model.backlog && exploration.has_credit(view.ctx.now);
    let is_allowed = |round: &u32| is_starting || has_credit && fits_slack(view, cost, *round);
    let is_rare = |round: &u32| *round <= size && *round > size / 2 && cost.sample_count(*round) < TRY_UNTIL;
    if let Some(round) = ROUND.iter().rev().find(|round| is_rare(round) && is_allowed(round))
        && draw.next_bool(TRY_PERMILLE)
    {
        return Some(*round);
    }
    // A backlog requests large sizes only, so a size below a knee that would end it might never be
    // observed, and the backlog would never drain.
    let is_below = |round: &u32| *round <= size / 2 && *round > size / BELOW_PARTS && cost.sample_count(*round) == 0;
    if view.items / 2 >= size
        && let Some(round) = ROUND.iter().rev().find(|round| is_below(round))
        && draw.next_bool(BELOW_PERMILLE)
    {
        return Some(*round);
    }
    // Between two observed sizes the estimate may be far off: a size that is priced like a larger
    // neighbour would never be chosen, and so never observed.
    let is_above = |round: &u32| *round > size && *round <= most.min(2 * size) && cost.sample_count(*round) == 0;
    let round = ROUND.iter().rev().find(|round| is_above(round) && is_allowed(round))?;
    draw.next_bool(ABOVE_PERMILLE).then_some(*round)
}

/// Returns `size`, or past a knee a smaller observed size. The price per item is never much higher
/// than at that size.
fn best_seen(cost: &CostModel, size: u32) -> u32 {
    let measured = ROUND.iter().copied().filter(|round| *round < size && cost.sample_count(*round) > 0);
    let better = measured.reduce(|best, round| if is_cheaper(cost, round, best) { round } else { best });
    better.filter(|round| time_times(cost, size, *round) > 11 * time_times(cost, *round, size) / 10).unwrap_or(size)
}

/// Returns the size up to `most` with the highest throughput, with a slight preference for larger
/// ones.
pub(super) fn most_efficient_size(cost: &CostModel, most: u32) -> u32 {
    let score = |items: u32| u128::from(items) * u128::from(2000 + items);
    let better =
        |one: u32, other: u32| score(one) * u128::from(cost.time(other)) > score(other) * u128::from(cost.time(one));
    (1..=most).reduce(|best, items| if better(items, best) { items } else { best }).unwrap_or(most)
}

/// Returns `true` if `one` costs less per item than `other`.
fn is_cheaper(cost: &CostModel, one: u32, other: u32) -> bool {
    time_times(cost, one, other) < time_times(cost, other, one)
}

/// Returns t(one) · other. Comparing two sizes by it is comparing their time per item.
fn time_times(cost: &CostModel, one: u32, other: u32) -> u128 {
    u128::from(cost.time(one)) * u128::from(other)
}
