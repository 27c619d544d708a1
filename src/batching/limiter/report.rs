//! Reports of a limiter, and its snapshot across restarts.

use super::ConcurrencyLimiter;
use super::curve::CELLS;
use crate::math::{round_to_u64, to_f64};
use crate::tick::Tick;

/// Number of answers after which an open limiter has measured the server's concurrency.
const LEARNED_CALLS: u64 = 100;

/// Reason for which calls are forwarded as they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenReason {
    /// No queue inside the server has been measured.
    #[default]
    Learning,
    /// A batch does not pay.
    NoGain {
        /// Cost of an item in a batch, in thousandths of an unbatched call.
        permille: u64,
    },
    /// More executions at once were answered sooner.
    RoomFound,
    /// Fewer executions at once were not answered sooner.
    NoQueue,
    /// Calls queue inside the server, or batches are refused, but none of the calls could be
    /// merged.
    NothingToMerge,
    /// The server reports that it batches by itself.
    ServerBatches,
}

impl OpenReason {
    /// Returns the label for reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::NoGain { .. } => "no_gain",
            Self::RoomFound => "room_found",
            Self::NoQueue => "no_queue",
            Self::NothingToMerge => "nothing_to_merge",
            Self::ServerBatches => "server_batches",
        }
    }
}

/// Mode of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowMode {
    /// Forwards each call at once.
    Open(OpenReason),
    /// Holds calls beyond this many executions in flight, and merges those that can be.
    Limited(u32),
}

/// A point of the load curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadPoint {
    /// Mean number of executions in flight, in thousandths.
    pub beside_milli: u64,
    /// Mean latency of an unbatched call, in nanoseconds.
    pub latency_nanos: u64,
    /// Number of samples in the mean.
    pub samples: u64,
}

/// State of a limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowReport {
    /// Mode of the limiter.
    pub mode: FlowMode,
    /// `true` if too little has been answered for a conclusion, or if sizes are still being tested
    /// after a jump.
    pub learning: bool,
    /// `true` while a trial of another limit is in progress.
    pub trying: bool,
    /// Executions in flight.
    pub flights: u32,
    /// Number in flight beyond which throughput does not grow, in thousandths; 0 before it was
    /// measured.
    pub knee_milli: u64,
    /// Latency of an unbatched call below that number, in nanoseconds.
    pub base_nanos: u64,
    /// Mean items of recent batches, in thousandths; 0 before the first one.
    pub batch_milli: u64,
    /// Mean latency of recent batches, in nanoseconds; 0 before the first one.
    pub batch_nanos: u64,
    /// The load curve, by executions in flight.
    pub curve: Vec<LoadPoint>,
}

/// State of a limiter that is kept across restarts and passed on to other processes that use the
/// same kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowSnapshot {
    /// Executions that may be in flight; 0: no limit is in force.
    pub limit: u32,
    /// Cost of an item in a batch, in thousandths of an unbatched call, if the limiter is open
    /// because a batch does not pay; otherwise 0.
    pub no_gain_permille: u64,
    /// Latency of an unbatched call below the limit, in nanoseconds; 0 before it was measured.
    pub base_nanos: u64,
}

// === impl ConcurrencyLimiter ===

impl ConcurrencyLimiter {
    /// Returns the state from which a later process may start.
    pub(in super::super) fn snapshot(&self) -> FlowSnapshot {
        let (limit, no_gain_permille) = match self.mode() {
            // A policy without an order has no use for the limit.
            FlowMode::Limited(_) if self.ordering.is_some() => (0, 0),
            FlowMode::Limited(limit) => (limit, 0),
            FlowMode::Open(OpenReason::NoGain { permille }) => (0, permille),
            FlowMode::Open(_) => (0, 0),
        };
        FlowSnapshot { limit, no_gain_permille, base_nanos: self.base_nanos() }
    }

    /// Creates a limiter from a snapshot, with low confidence: a limit is probed at once, and
    /// merging that did not pay is tried again after the shortest rest.
    pub(in super::super) fn restored(now: Tick, snapshot: FlowSnapshot) -> Self {
        if snapshot.limit > 0 {
            return Self::limited(snapshot.limit, snapshot.base_nanos);
        }
        let mut flow = Self::new();
        if snapshot.no_gain_permille > 0 {
            flow.level.unbatched = to_f64(snapshot.base_nanos);
            flow.reason = OpenReason::NoGain { permille: snapshot.no_gain_permille };
            flow.back_off_jumps(now);
        }
        flow
    }

    /// Returns the latency of an unbatched call below the limit, in nanoseconds; 0 before it was
    /// measured.
    pub(in super::super) fn base_nanos(&self) -> u64 {
        round_to_u64(self.knee.map_or(self.level.unbatched, |knee| knee.base))
    }

    /// Returns `true` while the limit is being found or tested. The waiting times of that phase are
    /// no evidence for later.
    pub(in super::super) fn is_settling(&self) -> bool {
        self.is_learning() || self.trial.is_some()
    }

    /// Returns `true` before the first conclusions about the server under the present limit.
    pub(in super::super) fn is_learning(&self) -> bool {
        if let Some(is_searching) = self.streams.is_searching() {
            return is_searching;
        }
        let few = self.limit.is_none() && self.answered_calls < LEARNED_CALLS;
        let sizes = match &self.ordering {
            Some(test) => !test.is_known(),
            None => self.limit.is_some() && self.growth.cap() <= 2,
        };
        few || self.draining.is_some() || sizes
    }

    /// Returns the current mode.
    pub(in super::super) fn mode(&self) -> FlowMode {
        match self.limit {
            Some(limit) => FlowMode::Limited(super::count(limit)),
            None => FlowMode::Open(self.reason),
        }
    }

    pub(in super::super) fn report(&self) -> FlowReport {
        let estimate = self.curve.estimate();
        let mut curve = Vec::with_capacity(CELLS);
        curve.extend(self.curve.cells().map(|cell| LoadPoint {
            beside_milli: round_to_u64(cell.in_flight * 1000.0),
            latency_nanos: round_to_u64(cell.latency),
            samples: round_to_u64(cell.samples),
        }));
        let base = estimate.map_or(self.level.unbatched, |knee| knee.base);
        FlowReport {
            mode: self.mode(),
            learning: self.is_learning(),
            trying: self.trial.is_some(),
            flights: self.flights,
            knee_milli: estimate.map_or(0, |knee| round_to_u64(knee.at * 1000.0)),
            base_nanos: round_to_u64(base),
            batch_milli: round_to_u64(self.level.batch_items * 1000.0),
            batch_nanos: round_to_u64(self.level.batch),
            curve,
        }
    }
}
