//! What deadlines allow: a smaller batch for an urgent head, or heads given up for more served (`scheduling.md` §2.4).

use super::super::arrivals::Rate;
use super::super::cost::Cost;
use super::super::draw::Draw;
use super::super::math::float;
use super::Line;

/// A size is doubted although the curve rules it out until batches as large were seen so often: one that was measured while it waited says nothing.
const DOUBT_UNTIL: u32 = 2;
/// How often it is tried then where nobody is left behind for long, in thousandths.
const DOUBT_PERMILLE: u32 = 100;
/// The price of upstream time, as a part of the best rate: higher gives more up for larger batches (`scheduling.md` §3, constants).
pub(super) const PRICE: f64 = 0.6;
/// What giving up one more head costs, in items, so that ties go to the fewest.
const HEAD: f64 = 0.02;
/// Giving up must serve so many items more.
const WIN: f64 = 0.5;
/// Calls looked at: more than a batch holds, and a bound for a decision.
const LOOK_MAX: usize = 512;

/// What to send.
pub(super) enum Chosen {
    /// So many items from the front.
    First(u32),
    /// Give up so many calls from the front, then decide again.
    GiveUp(usize),
}

/// Has deadlines have their say about a batch of `want` items.
pub(super) fn choose(line: &Line<'_>, cost: &Cost, rate: Rate, want: u32, draw: &mut Draw) -> Chosen {
    if cost.samples() == 0 || line.infeasible(cost) {
        return Chosen::First(want);
    }
    let slack = |queued| line.slack(queued).saturating_sub(line.wait);
    let fits = fit(cost, slack(line.head), want);
    if fits >= want {
        return Chosen::First(want);
    }
    let urgent = fits.max(1);
    let doubtful = want >= 2 * urgent && cost.seen_from(2 * urgent) < DOUBT_UNTIL;
    if doubtful && draw.chance(DOUBT_PERMILLE) {
        return Chosen::First(2 * urgent);
    }
    // Other lines would pay for one execution more: a small batch is for a line that is alone.
    if line.ctx.queue.lines().nth(1).is_some() {
        return Chosen::First(want);
    }
    let rest = line.items.saturating_sub(urgent);
    let time = cost.time(urgent);
    let more = u32::try_from(rate.over(time) / 1000).unwrap_or(u32::MAX);
    let next = after(line, urgent);
    let next_slack = next.map_or(u64::MAX, |queued| slack(queued).saturating_sub(time));
    if rest == 0 || fit(cost, next_slack, rest.min(line.cap)) >= rest.saturating_add(more).min(line.cap) {
        return Chosen::First(urgent);
    }
    // Nobody is shed on a guess: who is left behind by it would be.
    if doubtful {
        return Chosen::First(2 * urgent);
    }
    let per_ms = |items: u32| f64::from(items) / (float(cost.time(items)) / 1e6);
    let price = PRICE * per_ms(want).max(per_ms((want / 2).max(1))).max(per_ms((want / 4).max(1)));
    let value = |items: u32| f64::from(items) - price * float(cost.time(items)) / 1e6;
    let mut best = (value(urgent), 0);
    let mut left = line.items;
    let (mut heads, mut passed) = (0.0, 0);
    for queued in line.ctx.queue.line(line.key).take(LOOK_MAX) {
        if passed > 0 {
            let most = want.min(left);
            let items = fit(cost, slack(queued), most);
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
    if best.1 > 0 { Chosen::GiveUp(best.1) } else { Chosen::First(urgent) }
}

/// The most items up to `most` that are answered within `slack`, as far as the tail is known.
pub(super) fn fit(cost: &Cost, slack: u64, most: u32) -> u32 {
    if slack == u64::MAX {
        return most;
    }
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if cost.late(cost.time(middle)) <= slack {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The first call behind so many items.
fn after<'a>(line: &Line<'a>, items: u32) -> Option<&'a super::Queued> {
    let mut passed = 0;
    line.ctx.queue.line(line.key).find(|queued| {
        let found = passed >= items;
        passed += queued.call.items;
        found
    })
}
