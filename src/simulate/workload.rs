//! Who sends what, and when.
//!
//! A workload is one or more streams; each has arrivals and a mix that says what its calls are. Open streams are drawn before the run, so every
//! policy meets the same calls; the clients of closed ones draw as they go. Recorded calls are taken as they are.

mod arrivals;

use std::time::Duration;

use crate::batching::{Call, CallId, Deadline, DeadlineSource, KeyId, PriorityId, TenantId, Tick, Weight};

pub use arrivals::{Arrivals, Think};

use super::call::Arrival;
use super::draw::{Draw, whole};

/// All that comes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// What is drawn.
    pub streams: Vec<Stream>,
    /// What was written down before, in any order.
    pub recorded: Vec<Arrival>,
}

/// Arrivals of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// When.
    pub arrivals: Arrivals,
    /// What.
    pub mix: Mix,
}

/// What the calls of a stream are.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Items in a call.
    pub items: Items,
    /// Weight of an item.
    pub weights: Weights,
    /// Merge keys.
    pub keys: Spread,
    /// Tenants.
    pub tenants: Spread,
    /// Their priority class.
    pub class: u8,
    /// How long an answer is of use.
    pub budget: Budget,
    /// Share of the callers that leave, at a moment within the SLO.
    pub cancels: f64,
    /// Its calls share no batch, whatever their keys.
    pub alone: bool,
}

/// Items in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Items {
    /// One.
    One,
    /// From 1 to `max`, each order of magnitude as often as another: mostly small, now and then a whole document.
    UpTo {
        /// Most items.
        max: u32,
    },
}

/// Weight of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weights {
    /// 1.
    Unit,
    /// Log-normal, cut at both ends: lengths of texts.
    LogNormal {
        /// Half of them are below.
        median: f64,
        /// Deviation of the logarithm.
        sigma: f64,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
}

/// How a stream spreads over keys or tenants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// All of it is this one's.
    Only(u32),
    /// Each call has its own.
    Unlike,
    /// Over 0 .. count, the i-th with share 1 ÷ (i + 1)^exponent.
    Zipf {
        /// How many.
        count: u32,
        /// 0 gives each the same.
        exponent: f64,
    },
    /// Over 0 .. count: the first has this share, the others share the rest alike.
    Hot {
        /// How many.
        count: u32,
        /// Of the first.
        share: f64,
    },
}

/// How long an answer is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The policy's SLO.
    Slo,
    /// Forever.
    Unlimited,
    /// The caller says so, uniformly between these.
    Caller {
        /// Least.
        min: Duration,
        /// Most.
        max: Duration,
    },
}

/// A workload, drawn.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) open: Vec<Arrival>,
    pub(super) clients: Vec<Client>,
}

/// A client of a closed loop: it sends, waits, thinks, and sends again.
#[derive(Debug)]
pub(super) struct Client {
    think: Think,
    maker: Maker,
    draw: Draw,
}

/// A mix, ready to draw from.
#[derive(Debug, Clone)]
struct Maker {
    mix: Mix,
    slo: Duration,
    keys: Picker,
    tenants: Picker,
}

/// Upper ends of each one's part of [0, 1).
#[derive(Debug, Clone)]
struct Picker {
    first: u32,
    ends: Vec<f64>,
    unlike: bool,
}

// === impl Workload ===

impl Workload {
    /// Plain calls: one item of weight 1, one key, one tenant.
    #[must_use]
    pub fn plain(arrivals: Arrivals) -> Self {
        Self::of(arrivals, Mix::default())
    }

    /// One stream.
    #[must_use]
    pub fn of(arrivals: Arrivals, mix: Mix) -> Self {
        Self { streams: vec![Stream { arrivals, mix }], recorded: Vec::new() }
    }
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            items: Items::One,
            weights: Weights::Unit,
            keys: Spread::Only(0),
            tenants: Spread::Only(0),
            class: 0,
            budget: Budget::Slo,
            cancels: 0.0,
            alone: false,
        }
    }
}

// === impl Source ===

impl Source {
    pub(super) fn new(workload: &Workload, slo: Duration, horizon: Duration, draw: &mut Draw) -> Self {
        let mut this = Self { open: workload.recorded.clone(), clients: Vec::new() };
        for stream in &workload.streams {
            let maker = Maker::new(&stream.mix, slo);
            if let Arrivals::Closed { clients, think } = stream.arrivals {
                for _ in 0..clients {
                    let draw = Draw::new(draw.bits(), 0);
                    this.clients.push(Client { think, maker: maker.clone(), draw });
                }
            } else {
                let times = stream.arrivals.times(horizon, draw);
                this.open.extend(times.into_iter().map(|at| maker.call(at, draw)));
            }
        }
        // Stable: calls of one instant stay in the order of their streams.
        this.open.sort_by_key(|arrival| arrival.at);
        this
    }
}

// === impl Client ===

impl Client {
    /// Clients do not all start at once: thinking time and up to a millisecond more.
    pub(super) fn first(&mut self) -> Duration {
        let spread = Duration::from_millis(1).mul_f64(self.draw.unit());
        self.think() + spread
    }

    pub(super) fn think(&mut self) -> Duration {
        self.think.draw(&mut self.draw)
    }

    pub(super) fn call(&mut self, now: Tick) -> Arrival {
        self.maker.call(now, &mut self.draw)
    }
}

// === impl Maker ===

impl Maker {
    fn new(mix: &Mix, slo: Duration) -> Self {
        Self { keys: Picker::new(mix.keys), tenants: Picker::new(mix.tenants), mix: mix.clone(), slo }
    }

    fn call(&self, at: Tick, draw: &mut Draw) -> Arrival {
        let items = self.mix.items.draw(draw);
        let mut weight = Weight { sum: 0, max: 0 };
        for _ in 0..items {
            let item = self.mix.weights.draw(draw);
            weight = Weight { sum: weight.sum + item, max: weight.max.max(item) };
        }
        let within = |source, budget| Some(Deadline { at: at.after(budget), source });
        let deadline = match self.mix.budget {
            Budget::Slo => within(DeadlineSource::Slo, self.slo),
            Budget::Caller { min, max } => within(DeadlineSource::Caller, min + (max - min).mul_f64(draw.unit())),
            Budget::Unlimited => None,
        };
        let call = Call {
            key: KeyId(self.keys.draw(draw)),
            tenant: TenantId(self.tenants.draw(draw)),
            priority: PriorityId(self.mix.class),
            alone: self.mix.alone,
            deadline,
            items,
            weight,
            ..Call::new(CallId(0))
        };
        let leaves = draw.chance(self.mix.cancels);
        let cancel_at = leaves.then(|| at.after(self.slo.mul_f64(draw.unit())));
        Arrival { at, call, class: self.mix.class, cancel_at }
    }
}

// === impl Items ===

impl Items {
    fn draw(self, draw: &mut Draw) -> u32 {
        match self {
            Self::One => 1,
            Self::UpTo { max } => whole(f64::from(max.saturating_add(1)).powf(draw.unit())).clamp(1, max.max(1)),
        }
    }
}

// === impl Weights ===

impl Weights {
    /// The lengths of `scheduling.md` §5.1.
    pub const TEXTS: Self = Self::LogNormal { median: 60.0, sigma: 0.9, min: 4, max: 512 };

    fn draw(self, draw: &mut Draw) -> u64 {
        match self {
            Self::Unit => 1,
            Self::LogNormal { median, sigma, min, max } => {
                u64::from(whole(median * (draw.normal() * sigma).exp()).clamp(min, max.max(min)))
            }
        }
    }
}

// === impl Picker ===

impl Picker {
    fn new(spread: Spread) -> Self {
        let (first, shares): (u32, Vec<f64>) = match spread {
            Spread::Only(one) => (one, vec![1.0]),
            Spread::Unlike => (0, vec![1.0]),
            Spread::Zipf { count, exponent } => (0, (1..=count.max(1)).map(|i| f64::from(i).powf(-exponent)).collect()),
            Spread::Hot { count, share } => {
                let rest = (1.0 - share) / f64::from(count.max(2) - 1);
                (0, (0..count.max(1)).map(|i| if i == 0 { share } else { rest }).collect())
            }
        };
        let total: f64 = shares.iter().sum();
        let mut end = 0.0;
        let ends = shares.into_iter().map(|share| {
            end += share / total;
            end
        });
        Self { first, ends: ends.collect(), unlike: spread == Spread::Unlike }
    }

    fn draw(&self, draw: &mut Draw) -> u64 {
        if self.unlike {
            return draw.bits();
        }
        if self.ends.len() < 2 {
            return u64::from(self.first);
        }
        let x = draw.unit();
        let place = self.ends.partition_point(|end| *end <= x).min(self.ends.len() - 1);
        u64::from(self.first) + place as u64
    }
}

#[cfg(test)]
mod tests;
