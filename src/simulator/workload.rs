//! Workloads: the calls of a run and their arrival times.
//!
//! A workload consists of one or more streams; each has an arrival process and a mix that defines
//! the properties of its calls. Open streams are drawn before the run, so that every policy meets
//! the same calls; the clients of closed loops draw during the run. Recorded calls are replayed
//! unchanged.

mod arrivals;

use std::time::Duration;

use crate::batching::{Call, CallId, Deadline, DeadlineSource, KeyId, PriorityId, TenantId, Tick, Weight};

pub use arrivals::{ArrivalProcess, ThinkTime};

use super::call::Arrival;
use super::random::{RandomStream, saturating_u32};

/// All calls of a scenario.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Streams of drawn calls.
    pub streams: Vec<CallStream>,
    /// Recorded calls, in any order.
    pub recorded: Vec<Arrival>,
}

/// A stream of similar calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallStream {
    /// Arrival process.
    pub arrivals: ArrivalProcess,
    /// Properties of the calls.
    pub mix: CallMix,
}

/// The distribution of the properties of calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallMix {
    /// Number of items in a call.
    pub items: ItemCount,
    /// Weight of an item.
    pub weights: WeightDistribution,
    /// Distribution over merge keys.
    pub keys: KeyDistribution,
    /// Distribution over tenants.
    pub tenants: KeyDistribution,
    /// Priority class of the calls.
    pub class: u8,
    /// Deadline of the calls.
    pub deadline: DeadlineRule,
    /// Share of the calls that their client cancels, at a uniform instant within the SLO.
    pub cancel_share: f64,
    /// Prevents the calls from sharing a batch, whatever their keys.
    pub unmergeable: bool,
}

/// The number of items in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemCount {
    /// One item.
    One,
    /// Log-uniform from 1 to `max`, so that each order of magnitude is equally likely: most calls
    /// are small, and some hold a whole document.
    UpTo {
        /// Maximum number of items.
        max: u32,
    },
}

/// The weight of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightDistribution {
    /// Weight 1.
    Unit,
    /// Log-normal, clamped at both ends: lengths of texts.
    LogNormal {
        /// Median weight.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Minimum weight.
        min: u32,
        /// Maximum weight.
        max: u32,
    },
}

/// The distribution of a stream over keys or tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyDistribution {
    /// All calls have this one.
    Constant(u32),
    /// Each call has its own.
    Distinct,
    /// Zipf distribution over 0 .. count: the share of the i-th is proportional to
    /// `1 ÷ (i + 1)^exponent`.
    Zipf {
        /// Number of keys or tenants.
        count: u32,
        /// Exponent. With 0 all shares are equal.
        exponent: f64,
    },
    /// Distribution over 0 .. count in which the first has this share and the others share the rest
    /// equally.
    Hot {
        /// Number of keys or tenants.
        count: u32,
        /// Share of the first.
        share: f64,
    },
}

/// The time within which an answer is useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineRule {
    /// The SLO of the policy.
    Slo,
    /// Unlimited: the call has no deadline.
    Unlimited,
    /// A deadline that the client sets, uniform between these.
    Caller {
        /// Minimum time.
        min: Duration,
        /// Maximum time.
        max: Duration,
    },
}

/// A drawn workload.
#[derive(Debug)]
pub(super) struct DrawnWorkload {
    pub(super) open: Vec<Arrival>,
    pub(super) clients: Vec<ClosedLoopClient>,
}

/// A client of a closed loop: it sends a call, waits for the answer, thinks, and sends the next.
#[derive(Debug)]
pub(super) struct ClosedLoopClient {
    think: ThinkTime,
    sampler: CallSampler,
    random: RandomStream,
}

/// A mix with its distributions prepared for drawing.
#[derive(Debug, Clone)]
struct CallSampler {
    mix: CallMix,
    slo: Duration,
    keys: DiscreteDistribution,
    tenants: DiscreteDistribution,
}

/// A discrete distribution, drawn by inversion.
#[derive(Debug, Clone)]
struct DiscreteDistribution {
    /// Value of the first share; the others follow it.
    first: u32,
    cumulative_shares: Vec<f64>,
    /// Each value is drawn once.
    is_distinct: bool,
}

// === impl Workload ===

impl Workload {
    /// Creates a workload of plain calls: one item of weight 1, one key, one tenant.
    #[must_use]
    pub fn plain(arrivals: ArrivalProcess) -> Self {
        Self::single_stream(arrivals, CallMix::default())
    }

    /// Creates a workload of one stream.
    #[must_use]
    pub fn single_stream(arrivals: ArrivalProcess, mix: CallMix) -> Self {
        Self { streams: vec![CallStream { arrivals, mix }], recorded: Vec::new() }
    }
}

impl Default for CallMix {
    fn default() -> Self {
        Self {
            items: ItemCount::One,
            weights: WeightDistribution::Unit,
            keys: KeyDistribution::Constant(0),
            tenants: KeyDistribution::Constant(0),
            class: 0,
            deadline: DeadlineRule::Slo,
            cancel_share: 0.0,
            unmergeable: false,
        }
    }
}

// === impl DrawnWorkload ===

impl DrawnWorkload {
    pub(super) fn new(workload: &Workload, slo: Duration, horizon: Duration, random: &mut RandomStream) -> Self {
        let mut drawn = Self { open: workload.recorded.clone(), clients: Vec::new() };
        for stream in &workload.streams {
            let sampler = CallSampler::new(&stream.mix, slo);
            if let ArrivalProcess::Closed { clients, think } = stream.arrivals {
                for _ in 0..clients {
                    let client_random = RandomStream::new(random.next_u64(), 0);
                    drawn.clients.push(ClosedLoopClient { think, sampler: sampler.clone(), random: client_random });
                }
            } else {
                let times = stream.arrivals.sample_times(horizon, random);
                drawn.open.extend(times.into_iter().map(|at| sampler.sample_call(at, random)));
            }
        }
        // The sort is stable: calls of one instant stay in the order of their streams.
        drawn.open.sort_by_key(|arrival| arrival.at);
        drawn
    }
}

// === impl ClosedLoopClient ===

impl ClosedLoopClient {
    /// Returns the time before the first call: the think time plus up to one millisecond, so that
    /// clients do not all start at once.
    pub(super) fn first_delay(&mut self) -> Duration {
        let offset = Duration::from_millis(1).mul_f64(self.random.next_f64());
        self.think() + offset
    }

    pub(super) fn think(&mut self) -> Duration {
        self.think.draw(&mut self.random)
    }

    pub(super) fn sample_call(&mut self, now: Tick) -> Arrival {
        self.sampler.sample_call(now, &mut self.random)
    }
}

// === impl CallSampler ===

impl CallSampler {
    fn new(mix: &CallMix, slo: Duration) -> Self {
        Self {
            keys: DiscreteDistribution::new(mix.keys),
            tenants: DiscreteDistribution::new(mix.tenants),
            mix: mix.clone(),
            slo,
        }
    }

    fn sample_call(&self, at: Tick, random: &mut RandomStream) -> Arrival {
        let items = self.mix.items.draw(random);
        let mut weight = Weight { sum: 0, max: 0 };
        for _ in 0..items {
            let item = self.mix.weights.draw(random);
            weight = Weight { sum: weight.sum + item, max: weight.max.max(item) };
        }
        let deadline_after = |source, time| Some(Deadline { at: at.after(time), source });
        let deadline = match self.mix.deadline {
            DeadlineRule::Slo => deadline_after(DeadlineSource::Slo, self.slo),
            DeadlineRule::Caller { min, max } => {
                deadline_after(DeadlineSource::Caller, min + (max - min).mul_f64(random.next_f64()))
            }
            DeadlineRule::Unlimited => None,
        };
        let call = Call {
            key: KeyId(self.keys.draw(random)),
            tenant: TenantId(self.tenants.draw(random)),
            priority: PriorityId(self.mix.class),
            unmergeable: self.mix.unmergeable,
            deadline,
            items,
            weight,
            ..Call::new(CallId(0))
        };
        let is_cancelled = random.bernoulli(self.mix.cancel_share);
        let cancel_at = is_cancelled.then(|| at.after(self.slo.mul_f64(random.next_f64())));
        Arrival { at, call, class: self.mix.class, cancel_at }
    }
}

// === impl ItemCount ===

impl ItemCount {
    fn draw(self, random: &mut RandomStream) -> u32 {
        match self {
            Self::One => 1,
            Self::UpTo { max } => {
                saturating_u32(f64::from(max.saturating_add(1)).powf(random.next_f64())).clamp(1, max.max(1))
            }
        }
    }
}

// === impl WeightDistribution ===

impl WeightDistribution {
    /// Lengths of texts in the named scenarios.
    pub const TEXTS: Self = Self::LogNormal { median: 60.0, sigma: 0.9, min: 4, max: 512 };

    fn draw(self, random: &mut RandomStream) -> u64 {
        match self {
            Self::Unit => 1,
            Self::LogNormal { median, sigma, min, max } => {
                u64::from(saturating_u32(median * (random.normal() * sigma).exp()).clamp(min, max.max(min)))
            }
        }
    }
}

// === impl DiscreteDistribution ===

impl DiscreteDistribution {
    fn new(distribution: KeyDistribution) -> Self {
        let (first, shares): (u32, Vec<f64>) = match distribution {
            KeyDistribution::Constant(value) => (value, vec![1.0]),
            KeyDistribution::Distinct => (0, vec![1.0]),
            KeyDistribution::Zipf { count, exponent } => {
                (0, (1..=count.max(1)).map(|i| f64::from(i).powf(-exponent)).collect())
            }
            KeyDistribution::Hot { count, share } => {
                let rest = (1.0 - share) / f64::from(count.max(2) - 1);
                (0, (0..count.max(1)).map(|i| if i == 0 { share } else { rest }).collect())
            }
        };
        let total: f64 = shares.iter().sum();
        let mut sum = 0.0;
        let cumulative_shares = shares.into_iter().map(|share| {
            sum += share / total;
            sum
        });
        Self {
            first,
            cumulative_shares: cumulative_shares.collect(),
            is_distinct: distribution == KeyDistribution::Distinct,
        }
    }

    fn draw(&self, random: &mut RandomStream) -> u64 {
        if self.is_distinct {
            return random.next_u64();
        }
        if self.cumulative_shares.len() < 2 {
            return u64::from(self.first);
        }
        let quantile = random.next_f64();
        let index =
            self.cumulative_shares.partition_point(|share| *share <= quantile).min(self.cumulative_shares.len() - 1);
        u64::from(self.first) + index as u64
    }
}

#[cfg(test)]
mod tests;
