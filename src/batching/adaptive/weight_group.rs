//! Groups calls by weight, for a server that spends as much on each item as on the heaviest one of
//! its batch.
//!
//! Every candidate batch holds the head, which is the most urgent call, and takes others that are
//! lighter than its heaviest member, nearest in weight first. While this batch and one batch of all
//! others meet every deadline, the least total delay decides. Otherwise the most items, net of the
//! price of upstream time, decide, and heads are shed (passed over, so that they will be late) if
//! the calls behind them are worth more. The calls, weights and heads examined are bounded. Limits
//! cut the group afterwards.

use super::super::arrivals::ArrivalRate;
use super::super::call::{CallId, Weight};
use super::super::cost::CostModel;
use super::super::math::to_f64;
use super::super::order::quarter_octave;
use super::super::queue::QueuedCall;
use super::super::select::BatchCaps;
use super::deadline::PRICE;
use super::queue_view::QueueView;

/// Maximum number of calls examined: several batches' worth.
const LOOK_MAX: usize = 512;
/// Maximum number of values tried for the number of shed heads: 0, 1, 2, 3, then half as many again
/// each time.
const HEAD_STEPS: usize = 12;
/// Maximum number of runs compared for one head. There is one for each quarter octave that the
/// heaviest member may have.
const WEIGHT_STEPS: usize = 64;
/// Cost of shedding one more head, in items, so that of runs of almost equal value the one that
/// sheds the fewest is chosen.
const SHED_COST: f64 = 0.05;

/// A queued call, with the values that grouping needs.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: CallId,
    /// Position among the candidates: by deadline, or in fair order.
    place: usize,
    items: u32,
    weight: Weight,
    /// Quarter octave of the heaviest item.
    class: u64,
    /// Nanoseconds that the execution of a batch sent now may take for this call.
    slack: u64,
}

/// A candidate batch: the calls `from..to` in order of weight.
#[derive(Debug, Clone, Copy)]
struct WeightRun {
    from: usize,
    to: usize,
    items: u32,
    /// Predicted execution time in nanoseconds.
    time: u64,
}

/// All candidate calls, and the values by which runs are compared.
#[derive(Debug, Clone, Copy)]
struct CandidateSet<'a> {
    calls: &'a [Candidate],
    /// Positions of the calls in order of weight.
    by_weight: &'a [usize],
    /// Prefix sums of items and weight in that order.
    sums: &'a [(u32, u64)],
    bounds: GroupBounds,
}

/// Bounds and prices that apply to every candidate batch of a key queue.
#[derive(Debug, Clone, Copy)]
struct GroupBounds {
    /// Slack of the second most urgent call: the earliest deadline that the batch of all other
    /// calls may have to meet.
    second_slack: u64,
    /// Items that arrive during a batch of mean duration. Each of them is delayed by as much as the
    /// candidate batches take longer.
    arriving_items: f64,
    /// Maximum number of items in a batch.
    cap: u32,
    /// Limits of a batch on weight.
    caps: BatchCaps,
    /// `true` if calls that would be late are shed.
    shed: bool,
}

/// Returns the calls to send together, the most urgent first; empty if there are none to choose
/// from. `mean_time`: the mean execution time in nanoseconds. `in_turn`: the calls of several flows
/// in fair order, the first of which has its turn whatever its weight; empty if the key queue has a
/// single flow.
pub(super) fn choose_group(
    view: &QueueView<'_>,
    cost: &CostModel,
    rate: ArrivalRate,
    mean_time: u64,
    in_turn: &[CallId],
) -> Vec<CallId> {
    let calls = candidates(view, in_turn);
    let bounds = GroupBounds {
        second_slack: calls.get(1).map_or(u64::MAX, |second| second.slack),
        // `items_within` returns thousandths of an item.
        arriving_items: to_f64(rate.items_within(mean_time)) / 1000.0,
        cap: view.cap,
        caps: view.caps,
        shed: !view.is_infeasible(cost),
    };
    let mut by_weight: Vec<usize> = (0..calls.len()).collect();
    by_weight.sort_unstable_by_key(|place| (calls[*place].weight.max, *place));
    let all_by_weight = by_weight.clone();
    let (mut sums, mut head_runs) = (Vec::with_capacity(by_weight.len() + 1), Vec::with_capacity(WEIGHT_STEPS));
    // Runs are compared without their calls, since there are hundreds of them. Only the best is
    // expanded.
    let mut runs = Vec::with_capacity(WEIGHT_STEPS);
    let (mut heads, mut step) = (0, 1);
    for _ in 0..HEAD_STEPS {
        let Some(head) = calls.get(heads).copied() else { break };
        by_weight.retain(|place| *place >= heads);
        prefix_sums(&calls, &by_weight, &mut sums);
        let all = CandidateSet { calls: &calls, by_weight: &by_weight, sums: &sums, bounds };
        all.collect_runs(cost, head, &mut head_runs);
        // While two batches meet every deadline, the least delay decides and no head is shed.
        if heads == 0
            && let Some(run) = all.quickest(cost, &head_runs)
        {
            return calls_of_run(&calls, &by_weight, run, head);
        }
        runs.extend(head_runs.iter().map(|run| (*run, heads)));
        if !bounds.shed || !in_turn.is_empty() {
            break;
        }
        heads += step;
        step = if heads < 3 { 1 } else { heads / 2 };
    }
    let Some((run, heads)) = most_valuable(&runs) else { return Vec::new() };
    let Some(head) = calls.get(heads).copied() else { return Vec::new() };
    // The positions of a run count from the first of the calls that were left when it was found.
    let mut by_weight = all_by_weight;
    by_weight.retain(|place| *place >= heads);
    calls_of_run(&calls, &by_weight, run, head)
}

/// Returns the run with the most items, less the price of upstream time and of the heads that are
/// shed for it, and the number of these heads.
fn most_valuable(runs: &[(WeightRun, usize)]) -> Option<(WeightRun, usize)> {
    let per_time = |run: &WeightRun| f64::from(run.items) / to_f64(run.time.max(1));
    let price = PRICE * runs.iter().map(|(run, _)| per_time(run)).fold(0.0, f64::max);
    let value = |(run, heads): &(WeightRun, usize)| {
        f64::from(run.items) - price * to_f64(run.time) - SHED_COST * to_f64(u64::try_from(*heads).unwrap_or(u64::MAX))
    };
    runs.iter().copied().reduce(|best, other| if value(&other) > value(&best) { other } else { best })
}

/// Returns the calls to choose from: those in fair order, or the key queue by deadline.
fn candidates(view: &QueueView<'_>, in_turn: &[CallId]) -> Vec<Candidate> {
    let queue = view.ctx.queue;
    let to_candidate = |(place, queued): (usize, &QueuedCall)| {
        let slack = view.slack(queued).saturating_sub(view.wait);
        let (id, items, weight) = (queued.call.id, queued.call.items, queued.call.weight);
        Candidate { id, place, items, weight, class: quarter_octave(weight.max), slack }
    };
    if in_turn.is_empty() {
        queue.calls_of(view.key).take(LOOK_MAX).enumerate().map(to_candidate).collect()
    } else {
        in_turn.iter().filter_map(|id| queue.get(*id)).take(LOOK_MAX).enumerate().map(to_candidate).collect()
    }
}

fn prefix_sums(calls: &[Candidate], by_weight: &[usize], out: &mut Vec<(u32, u64)>) {
    let mut sum = (0_u32, 0_u64);
    out.clear();
    out.push(sum);
    for call in by_weight.iter().map(|place| &calls[*place]) {
        sum = (sum.0.saturating_add(call.items), sum.1.saturating_add(call.weight.sum));
        out.push(sum);
    }
}

/// Returns the calls of a run, the most urgent first. The head replaces the lightest one if it is
/// not among them.
fn calls_of_run(calls: &[Candidate], by_weight: &[usize], run: WeightRun, head: Candidate) -> Vec<CallId> {
    let mut places = by_weight[run.from..run.to].to_vec();
    if !places.contains(&head.place)
        && let Some(lightest) = places.first_mut()
    {
        *lightest = head.place;
    }
    places.sort_unstable();
    places.into_iter().map(|place| calls[place].id).collect()
}

// === impl CandidateSet ===

impl CandidateSet<'_> {
    /// Returns the call at a position in order of weight.
    fn call_at(&self, index: usize) -> &Candidate {
        &self.calls[self.by_weight[index]]
    }

    /// Collects the candidate batches that hold the head: one for each heaviest member, with as
    /// many members as the cap and the head's slack allow.
    fn collect_runs(&self, cost: &CostModel, head: Candidate, out: &mut Vec<WeightRun>) {
        let first = self.by_weight.partition_point(|place| self.calls[*place].weight.max < head.weight.max);
        let count = self.by_weight.len();
        out.clear();
        // `run.time * tail >= slack` is `cost.tail_time(run.time) > head.slack` without a division
        // for each candidate; both sides are in thousandths of a nanosecond.
        let tail = u128::from(cost.tail_permille());
        let slack = (u128::from(head.slack) + 1) * 1000;
        for last in first..count {
            let to = last + 1;
            if to < count && self.call_at(to).class == self.call_at(last).class {
                continue;
            }
            // The run with the most items within the cap starts at the first prefix sum that is at
            // least this.
            let sum_min = self.sums[to].0.saturating_sub(self.bounds.cap);
            let mut from = self.sums.partition_point(|sum| sum.0 < sum_min).min(last);
            let heaviest = self.call_at(last).weight.max;
            let within = |from: usize| {
                let (items, weight) = (self.sums[to].0 - self.sums[from].0, self.sums[to].1 - self.sums[from].1);
                self.bounds.caps.admits_weight(weight, items, heaviest)
            };
            while from < last && !within(from) {
                from += 1;
            }
            loop {
                let run = self.run(cost, from, to);
                let late = self.bounds.shed && u128::from(run.time) * tail >= slack;
                if !late {
                    out.push(run);
                }
                if !late || to - from <= 1 {
                    break;
                }
                // Too slow for the head: keep the heaviest 85 %, so that the number of predictions
                // is logarithmic in the length of the run.
                from = (from + 1).max(to - (to - from) * 85 / 100);
            }
            if out.len() >= WEIGHT_STEPS {
                break;
            }
        }
    }

    fn run(&self, cost: &CostModel, from: usize, to: usize) -> WeightRun {
        let items = self.sums[to].0 - self.sums[from].0;
        let weight = Weight { sum: self.sums[to].1 - self.sums[from].1, max: self.call_at(to - 1).weight.max };
        WeightRun { from, to, items, time: cost.predict_weighted(items, weight) }
    }

    /// Returns the run of least total delay among those that meet every deadline together with one
    /// batch of all other calls.
    fn quickest(&self, cost: &CostModel, runs: &[WeightRun]) -> Option<WeightRun> {
        let values = runs.iter().filter_map(|run| self.two_batch_value(cost, *run).map(|value| (*run, value)));
        values.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(run, _)| run)
    }

    /// Returns the value of a run, its negated total delay, if the run and one batch of all other
    /// calls meet every deadline.
    fn two_batch_value(&self, cost: &CostModel, run: WeightRun) -> Option<f64> {
        let (items, weight) = self.sums.last().copied()?;
        let rest = items - run.items;
        let heaviest = if run.to < self.by_weight.len() {
            self.by_weight.last()
        } else {
            self.by_weight.get(run.from.wrapping_sub(1))
        };
        let rest_sum = weight - (self.sums[run.to].1 - self.sums[run.from].1);
        let after = match heaviest {
            Some(heaviest) if rest > 0 => {
                cost.predict_weighted(rest, Weight { sum: rest_sum, max: self.calls[*heaviest].weight.max })
            }
            _ => 0,
        };
        let GroupBounds { second_slack, cap, shed, arriving_items, .. } = self.bounds;
        if shed && rest > 0 && (rest > cap || run.time.saturating_add(cost.tail_time(after)) > second_slack) {
            return None;
        }
        let ms = |nanos: u64| to_f64(nanos) / 1e6;
        let delay = f64::from(items) * ms(run.time) + f64::from(rest) * ms(after);
        Some(-(delay + arriving_items * ms(run.time.saturating_add(after))))
    }
}
