//! Adjusts a batch to deadlines: a smaller batch for an urgent head, or heads shed where that
//! serves more calls in time.

use super::super::arrivals::ArrivalRate;
use super::super::cost::CostModel;
use super::super::limits::CallOrder;
use super::super::math::to_f64;
use super::super::queue::QueuedCall;
use super::super::rng::SplitMix64;
use super::queue_view::QueueView;

/// Number of observations of batches at least as large that the curve needs before it rules a size
/// out. A single one may include time spent waiting upstream.
const DOUBT_UNTIL: u32 = 2;
/// Probability of trying a doubtful size, in thousandths, where no call has to be shed. Where one
/// has to be shed, the doubtful size is always tried.
const DOUBT_PERMILLE: u32 = 100;
/// Price of upstream time, as a fraction of the best throughput. A higher price sheds more calls
/// for larger batches.
pub(super) const PRICE: f64 = 0.6;
/// Cost of shedding one more head, in items, so that of equal choices the one that sheds the fewest
/// heads is preferred.
const HEAD: f64 = 0.02;
/// Minimum gain of shedding, in items.
const WIN: f64 = 0.5;
/// Maximum number of calls examined: more than a batch holds, and a bound on the decision time.
const LOOK_MAX: usize = 512;

/// Result of a choice.
pub(super) enum DeadlineChoice {
    /// Send this many items from the front of the key queue.
    First(u32),
    /// Shed this many calls from the front, then decide again.
    GiveUp(usize),
}

/// Reduces a batch of `want` items so that its head meets the deadline, or selects heads to shed.
pub(super) fn adjust_to_deadlines(
    view: &QueueView<'_>,
    cost: &CostModel,
    rate: ArrivalRate,
    want: u32,
    draw: &mut SplitMix64,
) -> DeadlineChoice {
    if cost.samples() == 0 || view.is_infeasible(cost) {
        return DeadlineChoice::First(want);
    }
    let in_time = items_in_time(view, cost, want);
    if in_time >= want {
        return DeadlineChoice::First(want);
    }
    // The size that the deadlines allow. Twice that size is doubtful if it was hardly observed, so
    // that the curve may rule it out by mistake. It is tried now and then.
    let urgent = in_time.max(1);
    let doubtful = want >= 2 * urgent && cost.sample_count_from(2 * urgent) < DOUBT_UNTIL;
    if doubtful && draw.next_bool(DOUBT_PERMILLE) {
        return DeadlineChoice::First(2 * urgent);
    }
    // Other key queues would pay for the additional execution, so a small batch is sent only from
    // the only key queue.
    if view.ctx.queue.heads().nth(1).is_some() {
        return DeadlineChoice::First(want);
    }
    // The small batch suffices if everything that is left, new arrivals included, fits the batch
    // after it.
    let rest = view.items.saturating_sub(urgent);
    let time = cost.time(urgent);
    let arriving = u32::try_from(rate.items_within(time) / 1000).unwrap_or(u32::MAX);
    let next = first_call_behind(view, urgent);
    let next_slack = next.map_or(u64::MAX, |queued| slack(view, queued).saturating_sub(time));
    let next_items = rest.saturating_add(arriving).min(view.cap);
    if rest == 0 || max_items_within(cost, next_slack, rest.min(view.cap)) >= next_items {
        return DeadlineChoice::First(urgent);
    }
    // Do not shed on an estimate: the curve rules the larger size out without enough observations,
    // and the calls that the smaller one leaves behind would be shed.
    if doubtful {
        return DeadlineChoice::First(2 * urgent);
    }
    // The first calls of a key queue that is in another order are not the urgent ones.
    if view.ctx.limits.order == CallOrder::ShortFirst {
        return DeadlineChoice::First(urgent);
    }
    match heads_to_shed(view, cost, urgent, want) {
        0 => DeadlineChoice::First(urgent),
        heads => DeadlineChoice::GiveUp(heads),
    }
}

/// Returns the number of heads to shed so that the batch of `want` items that the next head allows
/// is worth more than one of the `urgent` items that the first head allows. Returns 0 if none is.
fn heads_to_shed(view: &QueueView<'_>, cost: &CostModel, urgent: u32, want: u32) -> usize {
    // A batch is worth its items, less the price of its upstream time and of the heads that were
    // shed. The price is a part of the best throughput of some sizes, in items per millisecond.
    let per_ms = |items: u32| f64::from(items) / (to_f64(cost.time(items)) / 1e6);
    let price = PRICE * per_ms(want).max(per_ms((want / 2).max(1))).max(per_ms((want / 4).max(1)));
    let value = |items: u32| f64::from(items) - price * to_f64(cost.time(items)) / 1e6;
    let mut best = (value(urgent), 0);
    let mut left = view.items;
    let (mut heads, mut passed) = (0.0, 0);
    for queued in view.ctx.queue.calls_of(view.key).take(LOOK_MAX) {
        if passed > 0 {
            let most = want.min(left);
            let items = max_items_within(cost, slack(view, queued), most);
            if items > 0 && value(items) - HEAD * heads > best.0 + WIN {
                best = (value(items) - HEAD * heads, passed);
            }
            if items >= most {
                break;
            }
        }
        left = left.saturating_sub(queued.call.items);
        passed += 1;
        heads += 1.0;
    }
    best.1
}

/// Returns the most items from the front of the key queue, up to `want`, that are answered in time
/// together. In the order by length, a call that would be late even alone does not count.
fn items_in_time(view: &QueueView<'_>, cost: &CostModel, want: u32) -> u32 {
    if view.ctx.limits.order == CallOrder::Deadline {
        return max_items_within(cost, slack(view, view.head), want);
    }
    let lone = cost.tail_time(cost.time(1));
    let (mut items, mut least) = (0_u32, u64::MAX);
    for queued in view.ctx.queue.calls_of(view.key).take(LOOK_MAX) {
        let (own, more) = (slack(view, queued), items.saturating_add(queued.call.items));
        least = if own < lone { least } else { least.min(own) };
        if more > want || cost.tail_time(cost.time(more)) > least {
            break;
        }
        items = more;
    }
    // A call of several items may be larger than `want`, and nothing else limits the batch.
    if least == u64::MAX { want } else { items }
}

/// Returns the nanoseconds that the execution of a batch sent now may take for a call.
fn slack(view: &QueueView<'_>, queued: &QueuedCall) -> u64 {
    view.slack(queued).saturating_sub(view.wait)
}

/// Returns the most items up to `most` that are answered within `slack`, tail included, found by
/// bisection.
pub(super) fn max_items_within(cost: &CostModel, slack: u64, most: u32) -> u32 {
    if slack == u64::MAX {
        return most;
    }
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if cost.tail_time(cost.time(middle)) <= slack {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Returns the first call behind this many items.
fn first_call_behind<'a>(view: &QueueView<'a>, items: u32) -> Option<&'a QueuedCall> {
    let mut passed = 0;
    view.ctx.queue.calls_of(view.key).find(|queued| {
        let found = passed >= items;
        passed += queued.call.items;
        found
    })
}
