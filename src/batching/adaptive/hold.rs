//! Decides whether to hold a batch for arrivals that the profiles predict: clients that return
//! after an answer, or the rest of a burst.
//!
//! A hold pays where the delay it saves exceeds the delay it adds. Where no arrivals above the mean
//! rate were learned, nothing is held.
//!
//! The number of closed-loop clients is constant, so by Little's law their mean delay is least
//! where throughput is highest, and the number of clients that are away is known. In a closed loop
//! a hold therefore pays as long as it raises the throughput.

use std::time::Duration;

use super::super::arrivals::{ArrivalProfile, ArrivalRate, EDGES};
use super::super::cost::CostModel;
use super::super::math::{round_to_u64, to_f64};
use super::super::tick::{Tick, nanos};
use super::deadline::max_items_within;
use super::models::{KeyModel, items_in_flight};
use super::queue_view::QueueView;
use super::state::Adaptive;

/// Minimum number of cost samples for a hold.
const SAMPLES_MIN: u32 = 4;
/// Minimum room for a hold: 50 us, the timer precision that holds need. Less is not worth a timer.
const ROOM_MIN: u64 = 50_000;
/// Holds of up to 20 us are not considered, because calls that arrive so soon join the batch
/// without one.
const SOON: u64 = 20_000;
/// Minimum gain of a hold, as a fraction of the delay that the queued items have anyway.
const GAIN_MIN: f64 = 0.05;
/// Delay charged for an item that misses this batch and would be late in the next one, as a
/// multiple of the time from an arrival to its deadline. Meeting deadlines has priority over low
/// latency.
const LOST: f64 = 4.0;
/// Minimum number of predicted items for a hold.
const PROMISED_MIN: f64 = 0.5;
/// Minimum relative rise in throughput for a hold in a closed loop.
const RATE_MIN: f64 = 0.01;

/// A key queue, and the values by which holds of it are compared.
#[derive(Debug, Clone, Copy)]
struct HoldComparison<'a> {
    cost: &'a CostModel,
    /// Mean arrival rate of the key queue.
    rate: ArrivalRate,
    /// Delay that is saved by each millisecond of upstream time that is saved, in items ×
    /// milliseconds: the number of items that arrive during a mean execution.
    price: f64,
    /// Items queued.
    queued: u32,
    /// Maximum number of items in a batch now.
    cap: u32,
    /// Execution time of the queued items, in nanoseconds.
    execution: u64,
    /// Nanoseconds until the head's deadline.
    slack: u64,
    /// Nanoseconds from the head's arrival to its deadline.
    budget: Option<u64>,
}

// === impl Adaptive ===

impl Adaptive {
    /// Returns the duration of the hold that pays most, in nanoseconds; 0 if none pays. `leading`:
    /// no slot is free, and the batch would leave shortly before the next completion. `hold_max`
    /// returns the time for which the key queue may still be held.
    pub(super) fn hold_duration(&self, view: &QueueView<'_>, leading: bool, hold_max: impl Fn() -> Duration) -> u64 {
        let (Some(model), Some(key_model)) = (self.models.get(&view.head.call.cost_class), self.keys.get(&view.key))
        else {
            return 0;
        };
        let cost = &model.cost;
        let (queued, cap) = (view.items, view.cap);
        if cost.samples() < SAMPLES_MIN || queued >= cap || queued == 0 {
            return 0;
        }
        let now = view.ctx.now;
        let execution = cost.time(queued);
        let slack = view.first_slack();
        // A hold is no longer than the execution, a quarter of the budget, and what the head's
        // slack leaves.
        let room = execution
            .min(view.time_budget().unwrap_or(u64::MAX) / 4)
            .min(slack.saturating_sub(cost.tail_time(execution)));
        if room <= ROOM_MIN {
            return 0;
        }
        let room = room.min(nanos(hold_max()));
        if let Some(hold) = self.closed_loop_hold(view, key_model, leading, room) {
            return hold;
        }
        let rate = key_model.arrivals.rate(now, self.mean_time);
        let comparison = HoldComparison {
            cost,
            rate,
            price: to_f64(rate.items_within(self.mean_time)) / 1000.0,
            queued,
            cap,
            execution,
            slack,
            budget: view.time_budget(),
        };
        self.most_gainful_hold(&comparison, key_model, now, leading, room)
    }

    /// Returns the hold of at most `room` nanoseconds that saves most delay; 0 if none saves
    /// enough.
    fn most_gainful_hold(
        &self,
        comparison: &HoldComparison<'_>,
        key_model: &KeyModel,
        now: Tick,
        leading: bool,
        room: u64,
    ) -> u64 {
        let arrivals = &key_model.arrivals;
        let mut best = (comparison.least_gain(), 0);
        // If the batch leads, arrivals follow the next completion, so the time since that event is
        // negative. Otherwise they follow the last completion, and the last arrival at an idle
        // upstream.
        let next_completion = self.flights.values().filter(|_| leading).min_by_key(|sent| sent.due);
        let sources = match next_completion {
            Some(sent) => {
                [Some((arrivals.returns(), -to_signed(sent.due.0.saturating_sub(now.0)), sent.batch.items)), None]
            }
            None => [arrivals.returns(), arrivals.fan_outs()]
                .map(|profile| profile.current_event(now).map(|(elapsed, items)| (profile, to_signed(elapsed), items))),
        };
        // Holds end where a bin of a profile ends: within a bin, arrivals are taken to be even.
        for (profile, elapsed, items) in sources.into_iter().flatten() {
            for edge in EDGES.iter().skip(1) {
                let Ok(hold) = u64::try_from(to_signed(*edge) - elapsed) else { continue };
                if hold > room {
                    break;
                }
                if hold <= SOON {
                    continue;
                }
                let Some(gain) = comparison.gain(profile, elapsed, items, hold) else { continue };
                if gain > best.0 {
                    best = (gain, hold);
                }
            }
        }
        best.1
    }

    /// Returns the hold that maximizes throughput in a closed loop. Returns `None` if the key queue
    /// is not a closed loop, or if the items left for the next batch would be late, since meeting
    /// deadlines has priority over low latency.
    fn closed_loop_hold(&self, view: &QueueView<'_>, key_model: &KeyModel, leading: bool, room: u64) -> Option<u64> {
        let cost = &self.models.get(&view.head.call.cost_class)?.cost;
        let (now, slack, arrivals) = (view.ctx.now, view.first_slack(), &key_model.arrivals);
        let here = u64::from(view.items).saturating_add(items_in_flight(&self.flights, view.key));
        let away = arrivals.absent_items(here, self.mean_time)?;
        // An item that misses this batch leaves in the next one, with the clients that return after
        // this one. It has to be in time after both.
        let next = u32::try_from(away).unwrap_or(view.cap).saturating_add(view.items).min(view.cap);
        let both = cost.time(view.items).saturating_add(cost.tail_time(cost.time(next)));
        if view.time_budget().is_some_and(|budget| both > budget) {
            return None;
        }
        let away = to_f64(away);
        let (elapsed, _) = arrivals.returns().current_event(now)?;
        // Nanoseconds until the batch in flight ends, and the items it brings back.
        let own = self.flights.values().filter(|sent| leading && sent.batch.key == view.key);
        let ahead = own.min_by_key(|sent| sent.due);
        let ahead = ahead.map(|sent| (sent.due.0.saturating_sub(now.0), f64::from(sent.batch.items)));
        let returns = arrivals.returns();
        // Throughput in items per nanosecond, if a batch of `items` leaves after the hold. Its
        // cycle begins with the end of the previous batch: a part of it has passed, or that end is
        // still to come.
        let throughput = |hold: u64, items: f64| {
            let before = ahead.map_or(elapsed.saturating_add(hold), |(ahead, _)| hold.saturating_sub(ahead));
            let items = items.min(f64::from(max_items_within(cost, slack.saturating_sub(hold), view.cap)));
            items / to_f64(before.saturating_add(cost.time(round_to_u64(items).try_into().unwrap_or(view.cap))))
        };
        let count = f64::from(view.items);
        let mut best = (throughput(0, count) * (1.0 + RATE_MIN), 0);
        // Holds end where a bin of the profile ends.
        let ends = EDGES.iter().filter_map(|edge| match ahead {
            Some((ahead, _)) => Some(ahead.saturating_add(*edge)),
            None => edge.checked_sub(elapsed),
        });
        for hold in ends.filter(|hold| (SOON + 1..=room).contains(hold)) {
            // Clients that are away return after the last answer, and those of the batch in flight
            // after its own.
            let stragglers = away * returns.return_probability(elapsed, elapsed.saturating_add(hold));
            let returning =
                ahead.map_or(0.0, |(ahead, items)| items * returns.return_probability(0, hold.saturating_sub(ahead)));
            if stragglers + returning < PROMISED_MIN {
                continue;
            }
            let rate = throughput(hold, count + stragglers + returning);
            if rate > best.0 {
                best = (rate, hold);
            }
        }
        Some(best.1)
    }
}

// === impl HoldComparison ===

impl HoldComparison<'_> {
    /// Returns the gain that a hold has to exceed.
    fn least_gain(&self) -> f64 {
        GAIN_MIN * f64::from(self.queued) * ms(self.execution)
    }

    /// Returns the execution time of a batch of this many items, in milliseconds.
    fn time(&self, items: f64) -> f64 {
        if items < 0.5 {
            0.0
        } else {
            ms(self.cost.time(round_to_u64(items).min(u64::from(self.cap)).max(1).try_into().unwrap_or(self.cap)))
        }
    }

    /// Returns the delay that a hold of `hold` nanoseconds saves, in items × milliseconds, or
    /// `None` if too few arrivals are predicted. `profile` predicts the arrivals that follow an
    /// event of `items` items, which was `elapsed` nanoseconds ago.
    fn gain(&self, profile: &ArrivalProfile, elapsed: i64, items: u32, hold: u64) -> Option<f64> {
        // The arrivals during the hold: those that the event causes, and those at the mean rate.
        let from = u64::try_from(elapsed).unwrap_or(0);
        let to = u64::try_from(elapsed.saturating_add(to_signed(hold))).unwrap_or(0);
        let caused = to_f64(profile.caused_arrivals(items, from, to)) / 1000.0;
        let usual = to_f64(self.rate.items_within(hold)) / 1000.0;
        if caused < PROMISED_MIN.max(2.0 * usual) {
            return None;
        }
        // A call is never held past the start time that its batch needs to meet the deadline, so
        // `company`, the arrivals that join the batch, is bounded by the slack that is left.
        let most = max_items_within(self.cost, self.slack.saturating_sub(hold), self.cap);
        let company = (caused + usual).min(f64::from(most.saturating_sub(self.queued)));
        if company < PROMISED_MIN {
            return None;
        }
        let (count, execution_ms) = (f64::from(self.queued), ms(self.execution));
        // Execution times in milliseconds, with `during` as the number of arrivals during the batch
        // after the hold: `together` of that batch, and `later` of the one that follows it. Without
        // a hold, `split` is that of the batch that follows the queued items.
        let together = self.time(count + company);
        let during =
            to_f64(profile.expected_arrivals(self.rate, to, to.saturating_add(round_to_u64(together * 1e6)))) / 1000.0;
        let (split, later) = (self.time(company + during), self.time(during));
        let apart = self.execution.saturating_add(self.cost.tail_time(round_to_u64(split * 1e6)));
        // Without a hold, the arrivals of the hold wait for two executions.
        let lost = self.budget.filter(|budget| apart > *budget).map_or(0.0, |budget| LOST * company * ms(budget));
        let hold_ms = ms(hold);
        // Delay if the queued items leave now and the others in a batch of their own, less the
        // delay if all leave together after the hold, plus the value of the upstream time that is
        // saved.
        let gain = lost + count * execution_ms + (company + during) * (execution_ms + split)
            - (count + company) * (hold_ms + together)
            - during * (hold_ms + together + later)
            + self.price * (execution_ms + split - hold_ms - together - later);
        Some(gain)
    }
}

fn ms(nanos: u64) -> f64 {
    to_f64(nanos) / 1e6
}

fn to_signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
