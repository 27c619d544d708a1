//! Who leaves together where the server pays for the heaviest (`scheduling.md` §2.4, "Group").
//!
//! Every candidate holds the most urgent call and takes others that are lighter than its heaviest, nearest first. While a plan of two batches gets
//! everybody done on time the least total delay decides, otherwise the most items net of the price of upstream time.
//!
//! Bounded: calls, weights and heads looked at. What it leaves out: limits, which cut the group afterwards.

use super::super::arrivals::Rate;
use super::super::call::{CallId, Weight};
use super::super::cost::Cost;
use super::super::math::float;
use super::Line;
use super::choose::PRICE;

/// Calls looked at: some batches' worth.
const LOOK_MAX: usize = 512;
/// Heads given up: 0, 1, 2, 3, then half more each time; so many steps (§2.4).
const HEAD_STEPS: usize = 12;
/// Weights are told apart in quarter octaves: at most so many heaviest members are tried (§2.4).
const WEIGHT_STEPS: usize = 64;
/// What giving up one more head costs, in items.
const HEAD: f64 = 0.05;

/// A call, as grouping sees it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    id: CallId,
    /// Its place by deadline.
    place: usize,
    items: u32,
    weight: Weight,
    slack: u64,
}

/// A possible batch: a run of calls by weight.
#[derive(Debug, Clone, Copy)]
struct Run {
    from: usize,
    to: usize,
    items: u32,
    time: u64,
}

/// The best so far.
#[derive(Debug, Default)]
struct Best {
    value: Option<f64>,
    calls: Vec<Seen>,
}

/// The calls to send together, the most urgent first; empty if there is nothing to choose.
pub(super) fn group(line: &Line<'_>, cost: &Cost, rate: Rate, mean_time: u64) -> Vec<CallId> {
    let mut calls: Vec<Seen> = Vec::with_capacity(LOOK_MAX.min(usize::try_from(line.items).unwrap_or(LOOK_MAX)));
    for (place, queued) in line.ctx.queue.line(line.key).take(LOOK_MAX).enumerate() {
        let slack = line.slack(queued).saturating_sub(line.wait);
        calls.push(Seen { id: queued.call.id, place, items: queued.call.items, weight: queued.call.weight, slack });
    }
    let shed = !line.infeasible(cost);
    let price = float(rate.over(mean_time)) / 1000.0;
    let (mut together, mut fewer) = (Best::default(), Vec::new());
    let (mut heads, mut step) = (0, 1);
    for _ in 0..HEAD_STEPS {
        let Some(head) = calls.get(heads).copied() else { break };
        let mut by_weight: Vec<Seen> = calls.iter().skip(heads).copied().collect();
        by_weight.sort_by_key(|seen| (seen.weight.max, seen.place));
        let sums = sums(&by_weight);
        for run in runs(line, cost, &by_weight, &sums, head, shed) {
            if heads == 0 {
                together.delay(cost, &by_weight, &sums, run, (price, line.cap, shed));
            }
            fewer.push((run, heads, chosen(&by_weight, run, head)));
        }
        if together.value.is_some() || !shed {
            break;
        }
        heads += step;
        step = if heads < 3 { 1 } else { heads / 2 };
    }
    let mut calls = together.calls;
    if calls.is_empty() {
        let per_time = |run: &Run| f64::from(run.items) / float(run.time.max(1));
        let price = PRICE * fewer.iter().map(|(run, ..)| per_time(run)).fold(0.0, f64::max);
        let value = |(run, heads, _): &(Run, usize, Vec<Seen>)| {
            f64::from(run.items) - price * float(run.time) - HEAD * float(u64::try_from(*heads).unwrap_or(u64::MAX))
        };
        let best = fewer.into_iter().reduce(|best, other| if value(&other) > value(&best) { other } else { best });
        calls = best.map(|(_, _, calls)| calls).unwrap_or_default();
    }
    calls.sort_by_key(|seen| seen.place);
    calls.into_iter().map(|seen| seen.id).collect()
}

/// Σ items and Σ weight before each place.
fn sums(calls: &[Seen]) -> Vec<(u32, u64)> {
    let mut sum = (0_u32, 0_u64);
    let mut out = vec![sum];
    for seen in calls {
        sum = (sum.0.saturating_add(seen.items), sum.1.saturating_add(seen.weight.sum));
        out.push(sum);
    }
    out
}

/// The possible batches that hold the head: one for each heaviest member, as many as cap and the head's slack allow.
fn runs(line: &Line<'_>, cost: &Cost, calls: &[Seen], sums: &[(u32, u64)], head: Seen, shed: bool) -> Vec<Run> {
    let first = calls.partition_point(|seen| seen.weight.max < head.weight.max);
    let mut out = Vec::with_capacity(WEIGHT_STEPS);
    for last in first..calls.len() {
        let class = quarter_octave(calls[last].weight.max);
        if calls.get(last + 1).is_some_and(|next| quarter_octave(next.weight.max) == class) {
            continue;
        }
        let to = last + 1;
        let mut from = to - 1;
        let within = |from: usize| {
            let items = sums[to].0 - sums[from].0;
            items <= line.cap && line.walls.hold_weight(sums[to].1 - sums[from].1, items, calls[last].weight.max)
        };
        while from > 0 && within(from - 1) {
            from -= 1;
        }
        loop {
            let run = run(cost, calls, sums, from, to);
            let late = shed && cost.late(run.time) > head.slack;
            if !late {
                out.push(run);
            }
            if !late || to - from <= 1 {
                break;
            }
            // Too slow for the head: fewer, and the heaviest are kept.
            from = (from + 1).max(to - (to - from) * 85 / 100);
        }
        if out.len() >= WEIGHT_STEPS {
            break;
        }
    }
    out
}

fn run(cost: &Cost, calls: &[Seen], sums: &[(u32, u64)], from: usize, to: usize) -> Run {
    let items = sums[to].0 - sums[from].0;
    let weight = Weight { sum: sums[to].1 - sums[from].1, max: calls[to - 1].weight.max };
    Run { from, to, items, time: cost.time_of(items, weight) }
}

/// The calls of a run, the head among them.
fn chosen(calls: &[Seen], run: Run, head: Seen) -> Vec<Seen> {
    let mut chosen = calls[run.from..run.to].to_vec();
    if !chosen.iter().any(|seen| seen.id == head.id)
        && let Some(lightest) = chosen.first_mut()
    {
        *lightest = head;
    }
    chosen
}

/// 4 steps from one power of two to the next.
fn quarter_octave(weight: u64) -> u64 {
    let weight = weight.max(1);
    let octave = u64::from(weight.ilog2());
    octave * 4 + ((weight << 2) >> octave.min(61)) % 4
}

// === impl Best ===

impl Best {
    /// Takes a run if it and one batch of all others get everybody done on time, with less delay than the best so far.
    fn delay(&mut self, cost: &Cost, calls: &[Seen], sums: &[(u32, u64)], run: Run, with: (f64, u32, bool)) {
        let (price, cap, shed) = with;
        let all = sums[calls.len()];
        let rest = all.0 - run.items;
        let heaviest = if run.to < calls.len() {
            calls.last()
        } else {
            run.from.checked_sub(1).and_then(|before| calls.get(before))
        };
        let rest_sum = all.1 - (sums[run.to].1 - sums[run.from].1);
        let after = match heaviest {
            Some(heaviest) if rest > 0 => cost.time_of(rest, Weight { sum: rest_sum, max: heaviest.weight.max }),
            _ => 0,
        };
        let by_deadline = |seen: &&Seen| seen.place;
        let second =
            calls.iter().filter(|seen| seen.place > 0).min_by_key(by_deadline).map_or(u64::MAX, |seen| seen.slack);
        if shed && rest > 0 && (rest > cap || run.time.saturating_add(cost.late(after)) > second) {
            return;
        }
        let ms = |nanos: u64| float(nanos) / 1e6;
        let value = -(f64::from(all.0) * ms(run.time) + f64::from(rest) * ms(after) + price * ms(run.time + after));
        if self.value.is_none_or(|best| value > best) {
            self.value = Some(value);
            let head = calls.iter().min_by_key(by_deadline).copied();
            self.calls = head.map(|head| chosen(calls, run, head)).unwrap_or_default();
        }
    }
}
