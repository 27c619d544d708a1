//! Batch-size plans, solved in advance: a table from load and queue length to the size to dispatch,
//! or to waiting for the next arrival.
//!
//! The most efficient size is not always the best one. A server that pays for the next power of two
//! is better given 8 items now than 16 a little later at one load, and the other way round at
//! another. The problem is an average-cost semi-Markov decision process (SMDP) on the queue length,
//! with the learned execution times and Poisson arrivals; its optimum minimises the mean latency.
//! Relative value iteration (Puterman 1994; Tijms 2003) solves it for seven loads. Only round sizes
//! and "all that is queued" are tried, which costs a third to a seventh of trying all sizes and
//! yields the same plan.
//!
//! [`solve`] is pure and takes up to a quarter of a second of CPU time: it belongs on a thread that
//! may block, never on the one that decides.
//!
//! Left out: deadlines, several slots (the caller divides the load), weights, and queues longer
//! than the plan, for which the caller uses [`Plan::best`].

mod smdp;

use smdp::LoadProcess;

use super::arrivals::ArrivalRate;
use super::math::{round_to_u64, to_f64};

/// Batch sizes tried in addition to "all that is queued".
const MENU: [usize; 18] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Maximum batch size in a plan.
pub(super) const SIZES_MAX: usize = 128;
/// [`SIZES_MAX`] as a number of items.
pub(super) const SIZES_MAX_ITEMS: u32 = 128;
/// Maximum queue length in a plan.
const QUEUE_MAX: usize = 280;
/// Loads that plans are solved for, in thousandths of the maximum throughput of one slot.
const LOADS: [u64; 7] = [80, 200, 350, 500, 650, 800, 920];
/// A load is far below the lowest one of a plan if it is less than this fraction of it, inverted.
/// The lowest loads of a plan differ by about this factor.
const FAR: u64 = 2;
/// Execution time assumed for an empty table (1 ms).
const TIME_UNKNOWN: u64 = 1_000_000;
/// Shorter executions are planned with this duration: no upstream answers sooner, and the iteration
/// stays well conditioned.
const TIME_MIN: u64 = 1000;

/// Number of batches after which the first plan is made.
const FIRST: u64 = 20;
/// Number of batches after a change of the upstream until the next plan.
const AFTER_CHANGE: u64 = 10;
/// Number of batches from which on plans are made at a constant interval, and that interval.
/// Before, the interval grows by half.
const STEADY: u64 = 4000;
/// Minimum change of an execution time, in thousandths, that makes a new plan necessary.
const MOVED_PERMILLE: u64 = 30;

/// Input of the solver.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInput {
    /// Execution times of 1, 2, … items, in nanoseconds.
    times: Vec<u64>,
    /// Values of an earlier plan, from which the iteration starts.
    start: Option<StateValues>,
}

/// Values of the solver for each load, used as the initial guess of the next solve.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StateValues(Vec<Vec<f64>>);

/// The decision of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanDecision {
    /// Dispatch this many items.
    Send(u32),
    /// Wait for the next arrival.
    Wait {
        /// Number of items to dispatch if no arrival follows soon.
        otherwise: u32,
    },
}

/// A table from load and queue length to a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Rows by load, ascending.
    rows: Vec<PlanRow>,
    /// The largest batch size in the plan.
    sizes: u32,
    /// The batch size with the highest throughput.
    best: u32,
    values: StateValues,
}

/// The decisions at one load.
#[derive(Debug, Clone, PartialEq)]
struct PlanRow {
    /// Arrival rate per slot.
    rate: ArrivalRate,
    /// Decisions by queue length, starting at zero.
    sizes: Vec<PlanDecision>,
}

/// The schedule of plan updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanSchedule {
    /// Number of answered batches at which the execution times are checked next.
    next: u64,
    /// Execution times of the current plan, in nanoseconds.
    planned: Vec<u64>,
}

/// Solves for a plan. The result depends on the input only.
#[must_use]
pub fn solve(input: &PlanInput) -> Plan {
    let times = rising_millis(&input.times);
    let (best, throughput) = most_efficient(&times);
    let queue = (2 * times.len() + 16).min(QUEUE_MAX);
    let mut values = vec![0.0; queue + 1];
    let mut plan =
        Plan { rows: Vec::new(), sizes: to_u32(times.len()), best: to_u32(best), values: StateValues(Vec::new()) };
    for (index, load) in LOADS.into_iter().enumerate() {
        // Warm start: the values of the same load in the earlier plan, else of the previous load.
        if let Some(previous) = input.start.as_ref().and_then(|start| start.0.get(index)) {
            values = resize_values(previous, queue + 1);
        }
        let rate = to_f64(load) / 1000.0 * throughput;
        let sizes = LoadProcess::new(&times, rate, &MENU).solve(&mut values);
        // Converts items per millisecond to thousandths of an item per second.
        plan.rows.push(PlanRow { rate: ArrivalRate(round_to_u64(rate * 1e6)), sizes });
        plan.values.0.push(values.clone());
    }
    plan
}

// === impl PlanInput ===

impl PlanInput {
    /// Creates the input for an upstream that takes `times[n - 1]` nanoseconds for n items. Times
    /// past the 128th are ignored.
    #[must_use]
    pub fn new(mut times: Vec<u64>) -> Self {
        times.truncate(SIZES_MAX);
        if times.is_empty() {
            times.push(TIME_UNKNOWN);
        }
        Self { times, start: None }
    }

    /// Starts the iteration from the values of an earlier plan, which takes far fewer sweeps if the
    /// times have moved little.
    #[must_use]
    pub fn with_initial_values(self, earlier: &Plan) -> Self {
        Self { start: Some(earlier.values.clone()), ..self }
    }
}

// === impl Plan ===

impl Plan {
    /// Returns the decision for this many queued items at this rate per slot. A queue longer than
    /// the plan uses the longest length of the plan. At a load far below the lowest one of the
    /// plan, nothing waits for an arrival that is far away.
    pub(super) fn at(&self, rate_per_slot: ArrivalRate, queued: u32) -> PlanDecision {
        let row = self.row(rate_per_slot);
        let queued = usize::try_from(queued).unwrap_or(usize::MAX).clamp(1, row.sizes.len() - 1);
        match row.sizes[queued] {
            PlanDecision::Wait { otherwise } if rate_per_slot.0.saturating_mul(FAR) < row.rate.0 => {
                PlanDecision::Send(otherwise)
            }
            size => size,
        }
    }

    /// Returns the largest batch size in the plan.
    #[must_use]
    pub const fn largest_size(&self) -> u32 {
        self.sizes
    }

    /// Returns the batch size with the highest throughput.
    #[must_use]
    pub const fn most_efficient_size(&self) -> u32 {
        self.best
    }

    /// Returns the row of the nearest load on a logarithmic scale: two loads are separated where
    /// the square of the rate equals their product.
    fn row(&self, rate: ArrivalRate) -> &PlanRow {
        let square = u128::from(rate.0) * u128::from(rate.0);
        let above = self
            .rows
            .windows(2)
            .take_while(|pair| square > u128::from(pair[0].rate.0) * u128::from(pair[1].rate.0))
            .count();
        &self.rows[above]
    }
}

// === impl PlanSchedule ===

impl PlanSchedule {
    pub(super) const fn new() -> Self {
        Self { next: FIRST, planned: Vec::new() }
    }

    /// Returns `true` if the execution times are to be checked again. Cheap, because it is called
    /// after every batch.
    pub(super) const fn is_check_due(&self, batches: u64) -> bool {
        batches >= self.next
    }

    /// Decides whether to make a plan from these times now. If the check is due but no time has
    /// moved, the current plan is kept until the next check.
    pub(super) fn due(&mut self, batches: u64, times: &[u64]) -> bool {
        if !self.is_check_due(batches) {
            return false;
        }
        self.next = if batches < STEADY { batches + batches / 2 + FIRST } else { batches + STEADY };
        let same = self.planned.len() == times.len()
            && self.planned.iter().zip(times).all(|(old, new)| !has_moved(*old, *new));
        if !same {
            self.planned = times.to_vec();
        }
        !same
    }

    /// Makes the next plan due now, because the current one does not cover all sizes that have
    /// worked.
    pub(super) fn on_outgrown(&mut self, batches: u64) {
        self.next = self.next.min(batches);
    }

    /// Discards the planned times after a change of the upstream, and schedules the next plan soon.
    pub(super) fn on_server_change(&mut self, batches: u64) {
        self.next = batches + AFTER_CHANGE;
        self.planned.clear();
    }
}

/// Returns `true` if an execution time has changed enough for a new plan.
fn has_moved(old: u64, new: u64) -> bool {
    u128::from(old.abs_diff(new)) * 1000 >= u128::from(old) * u128::from(MOVED_PERMILLE) && old != new
}

/// Converts to milliseconds and makes the sequence non-decreasing: more items cannot take less
/// time, whatever the estimate is.
fn rising_millis(times: &[u64]) -> Vec<f64> {
    let mut longest = TIME_MIN;
    times
        .iter()
        .map(|time| {
            longest = longest.max(*time);
            to_f64(longest) / 1e6
        })
        .collect()
}

/// Returns the smallest size with the highest throughput, and that throughput in items per
/// millisecond.
fn most_efficient(times: &[f64]) -> (usize, f64) {
    let mut best = (1, 0.0);
    for (index, time) in times.iter().enumerate() {
        let throughput = to_f64(u64::from(to_u32(index + 1))) / time;
        if throughput > best.1 {
            best = (index + 1, throughput);
        }
    }
    best
}

/// Adapts values to another queue length: truncated, or extrapolated with the last slope. They are
/// only an initial guess, so any extrapolation is allowed.
fn resize_values(previous: &[f64], len: usize) -> Vec<f64> {
    let mut values: Vec<f64> = previous.iter().take(len).copied().collect();
    let slope = match values.as_slice() {
        [.., before, last] => last - before,
        _ => 0.0,
    };
    while values.len() < len {
        values.push(values.last().copied().unwrap_or(0.0) + slope);
    }
    values
}

fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
