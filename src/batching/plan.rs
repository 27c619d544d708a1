//! How many to send at once, solved ahead: load × queue length → a size, or wait for the next arrival.
//!
//! The most efficient size is not always the best: a server that pays for the next power of two is better asked for 8 now than for 16 a little later at
//! one load, and the other way round at another. That is an average-cost semi-Markov decision process on the queue's length, with the learned times and
//! Poisson arrivals; its optimum minimises mean latency. Relative value iteration solves it for seven loads; only round sizes and "all that is queued" are
//! tried, which costs a third to a seventh of trying all and gives the same (`scheduling.md` §0, 5).
//!
//! [`solve`] is pure and takes up to a quarter of a second of a core: it belongs on a thread that may block, never on the one that decides.
//!
//! What it leaves out: deadlines, several slots (the caller divides the load), weights, and queues longer than the plan: there the caller takes
//! [`Plan::best`].

mod process;

use process::Process;

use super::arrivals::Rate;
use super::math::{float, whole};

/// Sizes tried beside "all that is queued" (`scheduling.md` §3; also the size buckets of the cost table).
const MENU: [usize; 18] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// The largest size that is planned for (`scheduling.md` §3).
pub(super) const SIZES_MAX: usize = 128;
/// The same, as items.
pub(super) const SIZES_MAX_ITEMS: u32 = 128;
/// The longest queue that is planned for.
const QUEUE_MAX: usize = 280;
/// Loads, in thousandths of the best throughput of one slot (`scheduling.md` §3).
const LOADS: [u64; 7] = [80, 200, 350, 500, 650, 800, 920];
/// A load is far below the lowest where it is less than one part in so many of it: about as far as the loads that are planned for lie from each other.
const FAR: u64 = 2;
/// Used for a table without an entry (`scheduling.md` §2.8: 1 ms until the first sample).
const TIME_UNKNOWN: u64 = 1_000_000;
/// Shorter executions are planned as this long: no upstream answers sooner, and the iteration stays well conditioned.
const TIME_MIN: u64 = 1000;

/// The first plan is made after this many batches (`scheduling.md` §3, "plan").
const FIRST: u64 = 20;
/// After a change of the upstream, so many later.
const AFTER_CHANGE: u64 = 10;
/// From here on, every so many batches.
const STEADY: u64 = 4000;
/// A plan is made again if some time moved by this many thousandths.
const MOVED_PERMILLE: u64 = 30;

/// What a plan is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInput {
    times: Vec<u64>,
    start: Option<Values>,
}

/// The solver's own state, for the next solve to start from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Values(Vec<Vec<f64>>);

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// This many.
    Send(u32),
    /// Nothing before the next arrival; if it does not come soon, this many.
    Wait {
        /// The best size that is not waiting.
        otherwise: u32,
    },
}

/// Load × queue length → a size, or to wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    rows: Vec<Row>,
    sizes: u32,
    best: u32,
    values: Values,
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    rate: Rate,
    /// By queue length, from none.
    sizes: Vec<Size>,
}

/// When the next plan is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    next: u64,
    planned: Vec<u64>,
}

/// Solves for the plan: the same input, the same plan.
#[must_use]
pub fn solve(input: &PlanInput) -> Plan {
    let times = rising_millis(&input.times);
    let (best, throughput) = most_efficient(&times);
    let queue = (2 * times.len() + 16).min(QUEUE_MAX);
    let mut values = vec![0.0; queue + 1];
    let mut plan =
        Plan { rows: Vec::new(), sizes: number(times.len()), best: number(best), values: Values(Vec::new()) };
    for (index, load) in LOADS.into_iter().enumerate() {
        if let Some(kept) = input.start.as_ref().and_then(|start| start.0.get(index)) {
            values = stretched(kept, queue + 1);
        }
        let rate = float(load) / 1000.0 * throughput;
        let sizes = Process::new(&times, rate, &MENU).solve(&mut values);
        // Items a millisecond, in thousandths of an item a second.
        plan.rows.push(Row { rate: Rate(whole(rate * 1e6)), sizes });
        plan.values.0.push(values.clone());
    }
    plan
}

// === impl PlanInput ===

impl PlanInput {
    /// For an upstream that takes `times[n - 1]` nanoseconds for n items. Times past the 128th are left out.
    #[must_use]
    pub fn new(mut times: Vec<u64>) -> Self {
        times.truncate(SIZES_MAX);
        if times.is_empty() {
            times.push(TIME_UNKNOWN);
        }
        Self { times, start: None }
    }

    /// The same, starting from what an earlier plan ended with: far fewer rounds while the times have moved little.
    #[must_use]
    pub fn after(self, earlier: &Plan) -> Self {
        Self { start: Some(earlier.values.clone()), ..self }
    }
}

// === impl Plan ===

impl Plan {
    /// What to send with this many items queued and this rate on each slot. A queue longer than the plan counts as its longest one. At a load far below the
    /// lowest that was planned for nobody waits for a next arrival that is far away.
    pub(super) fn at(&self, rate_per_slot: Rate, queued: u32) -> Size {
        let row = self.row(rate_per_slot);
        let queued = usize::try_from(queued).unwrap_or(usize::MAX).clamp(1, row.sizes.len() - 1);
        match row.sizes[queued] {
            Size::Wait { otherwise } if rate_per_slot.0.saturating_mul(FAR) < row.rate.0 => Size::Send(otherwise),
            size => size,
        }
    }

    /// The largest size that it knows.
    #[must_use]
    pub const fn sizes(&self) -> u32 {
        self.sizes
    }

    /// The most efficient size: most items per time.
    #[must_use]
    pub const fn best(&self) -> u32 {
        self.best
    }

    /// The load nearest on a logarithmic scale: the border between two loads is where their product is the square.
    fn row(&self, rate: Rate) -> &Row {
        let square = u128::from(rate.0) * u128::from(rate.0);
        let above = self
            .rows
            .windows(2)
            .take_while(|pair| square > u128::from(pair[0].rate.0) * u128::from(pair[1].rate.0))
            .count();
        &self.rows[above]
    }
}

// === impl Due ===

impl Due {
    pub(super) const fn new() -> Self {
        Self { next: FIRST, planned: Vec::new() }
    }

    /// Whether it is time to look at the times again: cheap, asked after every batch.
    pub(super) const fn reached(&self, batches: u64) -> bool {
        batches >= self.next
    }

    /// Whether a plan is to be made from these times now. If it is time but none has moved, the plan at hand stays until the next time.
    pub(super) fn due(&mut self, batches: u64, times: &[u64]) -> bool {
        if !self.reached(batches) {
            return false;
        }
        self.next = if batches < STEADY { batches + batches / 2 + FIRST } else { batches + STEADY };
        let same =
            self.planned.len() == times.len() && self.planned.iter().zip(times).all(|(old, new)| !moved(*old, *new));
        if !same {
            self.planned = times.to_vec();
        }
        !same
    }

    /// The plan no longer reaches as far as what has worked: the next one is due now.
    pub(super) fn outgrown(&mut self, batches: u64) {
        self.next = self.next.min(batches);
    }

    /// The upstream has changed: what was planned is void, and the next plan comes soon.
    pub(super) fn changed(&mut self, batches: u64) {
        self.next = batches + AFTER_CHANGE;
        self.planned.clear();
    }
}

fn moved(old: u64, new: u64) -> bool {
    u128::from(old.abs_diff(new)) * 1000 >= u128::from(old) * u128::from(MOVED_PERMILLE) && old != new
}

/// In milliseconds, never falling: more items cannot take less, whatever the estimate says.
fn rising_millis(times: &[u64]) -> Vec<f64> {
    let mut longest = TIME_MIN;
    times
        .iter()
        .map(|time| {
            longest = longest.max(*time);
            float(longest) / 1e6
        })
        .collect()
}

/// The size with the most items per millisecond, the smallest of them, and that throughput.
fn most_efficient(times: &[f64]) -> (usize, f64) {
    let mut best = (1, 0.0);
    for (index, time) in times.iter().enumerate() {
        let throughput = float(u64::from(number(index + 1))) / time;
        if throughput > best.1 {
            best = (index + 1, throughput);
        }
    }
    best
}

/// Values for another longest queue: cut, or carried on with the last slope. Only a start, so any guess is allowed.
fn stretched(kept: &[f64], len: usize) -> Vec<f64> {
    let mut values: Vec<f64> = kept.iter().take(len).copied().collect();
    let slope = match values.as_slice() {
        [.., before, last] => last - before,
        _ => 0.0,
    };
    while values.len() < len {
        values.push(values.last().copied().unwrap_or(0.0) + slope);
    }
    values
}

fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
