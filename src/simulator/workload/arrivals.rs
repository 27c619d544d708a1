//! Arrival processes.

use std::f64::consts::TAU;
use std::time::Duration;

use crate::batching::Tick;

use super::super::random::RandomStream;

/// An arrival process. Rates are in calls per second.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrivalProcess {
    /// A Poisson process.
    Poisson {
        /// Mean rate.
        rate: f64,
    },
    /// A Markov-modulated Poisson process: two alternating states of exponential length, Poisson in
    /// each. It models bursts; a rate of 0 gives an on-off process.
    Mmpp {
        /// Rate in each state.
        rates: [f64; 2],
        /// Mean length of each state.
        stays: [Duration; 2],
    },
    /// A Poisson process with a sinusoidal rate: the load of a day, compressed to seconds.
    Ramp {
        /// Minimum rate.
        low: f64,
        /// Maximum rate.
        high: f64,
        /// Time between two minima.
        period: Duration,
    },
    /// A Poisson process with a rate that changes at one instant, permanently or until another
    /// instant.
    Step {
        /// Rate before the change.
        rate: f64,
        /// Rate after the change.
        then: f64,
        /// Instant of the change.
        from: Duration,
        /// Instant at which the first rate applies again.
        until: Option<Duration>,
    },
    /// Bursts of calls that arrive almost together, such as a client that embeds one document.
    Fanout {
        /// Mean rate of calls, not of bursts.
        rate: f64,
        /// Number of calls in a burst.
        size: u32,
        /// Time within which the calls of a burst arrive.
        spread: Duration,
    },
    /// A closed loop: clients that wait for their answer, think, and send the next call.
    Closed {
        /// Number of clients.
        clients: u32,
        /// Think time of a client.
        think: ThinkTime,
    },
}

/// The think time of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkTime {
    /// Uniform between these.
    Uniform(Duration, Duration),
    /// Exponential with this mean.
    Exponential(Duration),
}

// === impl ArrivalProcess ===

impl ArrivalProcess {
    /// Returns the arrival times before the horizon, in order. A closed loop has none, since its
    /// arrivals depend on the answers.
    pub(super) fn sample_times(&self, horizon: Duration, draw: &mut RandomStream) -> Vec<Tick> {
        let end = horizon.as_secs_f64();
        let mut times = match *self {
            Self::Poisson { rate } => poisson(rate, 0.0, end, draw),
            Self::Mmpp { rates, stays } => mmpp(rates, stays, end, draw),
            Self::Ramp { low, high, period } => {
                // Thinning (Lewis and Shedler, 1979): arrivals at the maximum rate, each kept with
                // probability rate ÷ maximum.
                let mut times = poisson(high, 0.0, end, draw);
                let period = period.as_secs_f64();
                let rate = |at: f64| low + (high - low) * 0.5 * (1.0 - (TAU * at / period).cos());
                times.retain(|at| draw.next_f64() * high < rate(*at));
                times
            }
            Self::Step { rate, then, from, until } => {
                let from = from.as_secs_f64().min(end);
                let until = until.map_or(end, |until| until.as_secs_f64().clamp(from, end));
                let mut times = poisson(rate, 0.0, from, draw);
                times.extend(poisson(then, from, until, draw));
                times.extend(poisson(rate, until, end, draw));
                times
            }
            Self::Fanout { rate, size, spread } => {
                let bursts = poisson(rate / f64::from(size.max(1)), 0.0, end, draw);
                let spread = spread.as_secs_f64();
                let each = |at: f64| (0..size).map(move |_| at);
                bursts.into_iter().flat_map(each).map(|at| at + spread * draw.next_f64()).collect()
            }
            Self::Closed { .. } => Vec::new(),
        };
        times.sort_by(f64::total_cmp);
        times.into_iter().map(|at| Tick::default().after(Duration::from_secs_f64(at))).collect()
    }
}

// === impl ThinkTime ===

impl ThinkTime {
    pub(super) fn draw(self, draw: &mut RandomStream) -> Duration {
        match self {
            Self::Uniform(low, high) => low + high.saturating_sub(low).mul_f64(draw.next_f64()),
            Self::Exponential(mean) => Duration::from_secs_f64(draw.exponential(mean.as_secs_f64())),
        }
    }
}

fn poisson(rate: f64, from: f64, to: f64, draw: &mut RandomStream) -> Vec<f64> {
    let mut times = Vec::new();
    if rate <= 0.0 {
        return times;
    }
    let mut at = from;
    loop {
        at += draw.exponential(1.0 / rate);
        if at >= to {
            return times;
        }
        times.push(at);
    }
}

fn mmpp(rates: [f64; 2], stays: [Duration; 2], end: f64, draw: &mut RandomStream) -> Vec<f64> {
    let mut times = Vec::new();
    let mut at = 0.0;
    for (rate, stay) in rates.into_iter().zip(stays).cycle() {
        if at >= end {
            break;
        }
        // A state of length zero would make the loop endless.
        let next = at + draw.exponential(stay.as_secs_f64().max(1e-6));
        times.extend(poisson(rate, at, next.min(end), draw));
        at = next;
    }
    times
}
