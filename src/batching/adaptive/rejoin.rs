//! Brings together callers who take turns and have no time for it.
//!
//! Callers who come back as soon as they are answered may fall into parts: one is served while the other waits, and what has waited has no time left
//! for a batch of all. Then each batch is as small as the deadlines left over allow, and whoever does not fit is refused, for ever, although all of them
//! together would be in time if they came at once. So, now and then, those who wait are kept until the part that is being answered is back, and
//! leave with it, late for once. From then on they come together.
//!
//! What it leaves out: callers who would have the time to wait (`gather`), several slots, and deadlines that callers set themselves: whoever
//! asked for an answer by then has no use for a later one.

use std::time::Duration;

use super::super::arrivals::EDGES;
use super::super::call::DeadlineSource;
use super::super::math::float;
use super::super::tick::{Tick, nanos};
use super::choose::fit;
use super::{Adaptive, Answer, Cause, Hold, Kind, Line, Next, Queued, slo_of};

/// Parts of a batch that is answered which must come back within a quarter of the SLO, in tenths.
const BACK: u64 = 8;
/// They are waited for until so many hundredths of those who come are there.
const ALMOST_ALL: u64 = 95;
/// All together must be served faster by this factor than those that fit now. The promise is a guess, and they are late for it.
const FASTER: f64 = 1.2;
/// A call that is late for it takes as many that were sent before.
const PRICE: u64 = 8;
/// What a start has: room for the default's largest batch.
const CREDIT_START: u64 = 128 * PRICE;
/// The most that can be saved up.
const CREDIT_MAX: u64 = 2 * CREDIT_START;
/// It grows up to so many times the price where nobody came: then one call in so many times 8 is late for nothing.
const DEARER_MAX: u64 = 64;

/// What a line may spend on it, and whether it does.
#[derive(Debug, Clone)]
pub(super) struct Rejoin {
    credit: u64,
    /// How many times the price.
    dearer: u64,
    open: Option<Open>,
}

/// They are waited for.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// So long after the answer that brings the others back.
    span: u64,
    /// Items that wait for them, as far as it was paid for.
    paid: u32,
    /// All of them.
    items: u32,
    /// The most that would be in time together, if they came at once: those who were refused may come back too.
    most: u32,
}

// === impl Rejoin ===

impl Default for Rejoin {
    fn default() -> Self {
        Self { credit: CREDIT_START, dearer: 1, open: None }
    }
}

impl Rejoin {
    /// Waits, if those who are there may be late for it.
    fn begin(&mut self, open: Open) -> bool {
        let price = self.price(open.paid);
        let may = price <= self.credit;
        if may {
            self.credit -= price;
            self.open = Some(open);
        }
        may
    }

    /// So many wait by now, before the others are answered.
    fn wait(&mut self, items: u32) {
        let Some(open) = &mut self.open else { return };
        let more = items.saturating_sub(open.paid);
        open.paid += more;
        self.credit = self.credit.saturating_sub(self.price(more));
    }

    /// Waits no more: too few came, or they cannot leave together any more.
    fn end(&mut self) {
        if self.open.take().is_some() {
            self.dearer = (self.dearer * 2).min(DEARER_MAX);
        }
    }

    /// A batch of the line leaves.
    pub(super) fn sent(&mut self, items: u32) {
        self.credit = (self.credit + u64::from(items)).min(CREDIT_MAX);
        if self.open.is_some_and(|open| open.came(items)) {
            self.open = None;
            self.dearer = 1;
        }
        self.end();
    }

    fn price(&self, late: u32) -> u64 {
        u64::from(late) * PRICE * self.dearer
    }
}

// === impl Open ===

impl Open {
    /// Whether these are nearly all of them.
    fn came(&self, items: u32) -> bool {
        u64::from(items) * 10 >= u64::from(self.items) * BACK
    }
}

// === impl Adaptive ===

impl Adaptive {
    /// What a line does that waits for others, or begins to; none where it does neither. `hold_max`: for how long it may still be held, `hold`: a
    /// hold up to then, within every bound.
    pub(super) fn rejoin(
        &mut self,
        line: &Line<'_>,
        leading: bool,
        hold_max: impl Fn() -> Duration,
        hold: impl Fn(Tick) -> Option<Answer>,
    ) -> Option<Answer> {
        let (key, items) = (line.key, line.items);
        if self.keys.get(&key)?.rejoin.open.is_none() {
            if line.late(&self.models.get(&line.head.call.cost_class)?.cost).is_some() {
                return None;
            }
            let open = self.apart(line, leading).filter(|open| Duration::from_nanos(open.span) <= hold_max())?;
            if !self.keys.get_mut(&key)?.rejoin.begin(open) {
                return None;
            }
        }
        let watched = self.keys.get_mut(&key)?;
        let open = watched.rejoin.open?;
        if leading {
            // Those who are to come back are not answered yet.
            watched.rejoin.wait(items);
            self.note_hold(key, Hold::Gather);
            return Some(Answer::NoSlot(None));
        }
        let now = line.ctx.now;
        let gone = watched.arrivals.returns().present(now).map_or(0, |(gone, _)| gone);
        let until = Tick(now.0.saturating_sub(gone).saturating_add(open.span));
        if items < open.most.min(line.cap)
            && let Some(held) = hold(until)
        {
            self.note_hold(key, Hold::Gather);
            return Some(held);
        }
        if !open.came(items) && items < line.cap {
            watched.rejoin.end();
            return None;
        }
        self.held.remove(&key);
        let next = Next::Send { key, items: items.min(line.cap), cause: Cause::Delay, kind: Kind::Batch };
        Some(Answer::Do(next))
    }

    /// Whom to wait for, if that serves more in time from then on.
    fn apart(&self, line: &Line<'_>, leading: bool) -> Option<Open> {
        let cost = &self.models.get(&line.head.call.cost_class)?.cost;
        let slo = nanos(slo_of(line.head)?);
        if self.slots() > 1 || line.ctx.queue.lines().nth(1).is_some() {
            return None;
        }
        let now = line.ctx.now;
        let returns = self.keys.get(&line.key)?.arrivals.returns();
        let (answered, items) = if leading {
            let own = self.flights.values().filter(|sent| sent.batch.key == line.key && sent.batch.kind == Kind::Batch);
            let ahead = own.min_by_key(|sent| sent.due)?;
            (ahead.due, ahead.batch.items)
        } else {
            let (gone, items) = returns.present(now)?;
            (Tick(now.0.saturating_sub(gone)), items)
        };
        let back = |edge: u64| returns.caused(items, 0, edge);
        let edges = || EDGES.into_iter().take_while(|edge| *edge <= slo / 4);
        let come = edges().map(back).max().filter(|come| *come >= u64::from(items) * BACK * 100)?;
        let span = edges().find(|edge| back(*edge) * 100 >= come * ALMOST_ALL)?;
        let until = answered.0.saturating_add(span);
        let most = fit(cost, slo.saturating_sub(span), line.cap);
        let all = line.items.saturating_add(items).min(most);
        let together = cost.time(all);
        let hold = until.saturating_sub(now.0);
        // A hold ends half-way to the head's deadline: who is to leave with the others must still be there.
        if hold == 0
            || line.slack(line.head) / 2 <= hold
            || all <= line.items
            || line.slack(line.head) >= hold.saturating_add(cost.late(together))
        {
            return None;
        }
        // Otherwise: those who fit now, and then of the others who fit by then.
        let first = fit(cost, line.slack(line.head).saturating_sub(line.wait), line.items);
        let alone = cost.time(first.max(1));
        let second = fit(cost, slo.saturating_sub(alone), all.saturating_sub(first));
        let lost = (line.items - first) + all.saturating_sub(first + second);
        let worth = u64::from(lost) * PRICE >= u64::from(line.items);
        let rate = |items: u32, nanos: u64| f64::from(items) / float(nanos.max(1));
        let in_turns = rate(first + second, alone.saturating_add(cost.time(second.max(1))));
        let faster = rate(all, together.saturating_add(span)) > FASTER * in_turns;
        let own = |queued: &Queued| queued.call.deadline.is_some_and(|deadline| deadline.source != DeadlineSource::Slo);
        if line.ctx.queue.line(line.key).any(own) {
            return None;
        }
        (worth && faster).then_some(Open { span, paid: line.items, items: all, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: u32, late: u32) -> Open {
        Open { span: 1, paid: late, items, most: items }
    }

    #[test]
    fn who_came_makes_the_next_one_cheap_and_who_did_not_makes_it_dear() {
        let mut rejoin = Rejoin::default();
        assert!(rejoin.begin(open(32, 16)) && rejoin.open.is_some());
        rejoin.sent(26);
        assert!(rejoin.open.is_none() && rejoin.dearer == 1, "eight tenths came");
        for dearer in [2, 4, 8] {
            (0..100).for_each(|_| rejoin.sent(32));
            assert!(rejoin.begin(open(32, 1)));
            rejoin.sent(16);
            assert_eq!(rejoin.dearer, dearer);
        }
    }

    #[test]
    fn one_call_in_eight_may_be_late_for_it_at_most() {
        let mut rejoin = Rejoin::default();
        let (mut late, mut sent) = (0_u64, 0_u64);
        for _ in 0..100_000 {
            if rejoin.begin(open(20, 4)) {
                late += 4;
            }
            rejoin.sent(20);
            sent += 20;
        }
        assert!(late * PRICE <= sent + CREDIT_START, "{late} of {sent}");
    }
}
