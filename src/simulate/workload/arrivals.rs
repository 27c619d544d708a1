//! Arrival processes.

use std::f64::consts::TAU;
use std::time::Duration;

use crate::batching::Tick;

use super::super::draw::Draw;

/// When calls come; rates are calls a second.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// Each on its own.
    Poisson {
        /// Mean rate.
        rate: f64,
    },
    /// Two states in turn, Poisson in each, of exponential length: bursts. A rate of 0 makes it on and off.
    Mmpp {
        /// Of each state.
        rates: [f64; 2],
        /// Mean length of each.
        stays: [Duration; 2],
    },
    /// Poisson with a rate that swings as a sine: a day in seconds.
    Ramp {
        /// Least rate.
        low: f64,
        /// Most.
        high: f64,
        /// From low to low.
        period: Duration,
    },
    /// Poisson, with another rate from an instant on: once, or until another instant.
    Step {
        /// At first.
        rate: f64,
        /// Then.
        then: f64,
        /// From here.
        from: Duration,
        /// To here; the rate is the first one again.
        until: Option<Duration>,
    },
    /// Bursts of calls that come almost together: one client that embeds one document.
    Fanout {
        /// Mean rate of calls, not of bursts.
        rate: f64,
        /// Calls in a burst.
        size: u32,
        /// A burst comes within this.
        spread: Duration,
    },
    /// Clients that wait for their answer, think, and send again.
    Closed {
        /// How many.
        clients: u32,
        /// How long they think.
        think: Think,
    },
}

/// How long a client thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    /// Uniformly between these.
    Uniform(Duration, Duration),
    /// Exponentially with this mean.
    Exponential(Duration),
}

// === impl Arrivals ===

impl Arrivals {
    /// The instants before the horizon, in order. A closed loop has none: its clients come when they will.
    pub(super) fn times(&self, horizon: Duration, draw: &mut Draw) -> Vec<Tick> {
        let end = horizon.as_secs_f64();
        let mut times = match *self {
            Self::Poisson { rate } => poisson(rate, 0.0, end, draw),
            Self::Mmpp { rates, stays } => mmpp(rates, stays, end, draw),
            Self::Ramp { low, high, period } => {
                let mut times = poisson(high, 0.0, end, draw);
                let period = period.as_secs_f64();
                let rate = |at: f64| low + (high - low) * 0.5 * (1.0 - (TAU * at / period).cos());
                times.retain(|at| draw.unit() * high < rate(*at));
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
                bursts.into_iter().flat_map(each).map(|at| at + spread * draw.unit()).collect()
            }
            Self::Closed { .. } => Vec::new(),
        };
        times.sort_by(f64::total_cmp);
        times.into_iter().map(|at| Tick::default().after(Duration::from_secs_f64(at))).collect()
    }
}

// === impl Think ===

impl Think {
    pub(super) fn draw(self, draw: &mut Draw) -> Duration {
        match self {
            Self::Uniform(low, high) => low + high.saturating_sub(low).mul_f64(draw.unit()),
            Self::Exponential(mean) => Duration::from_secs_f64(draw.exponential(mean.as_secs_f64())),
        }
    }
}

fn poisson(rate: f64, from: f64, to: f64, draw: &mut Draw) -> Vec<f64> {
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

fn mmpp(rates: [f64; 2], stays: [Duration; 2], end: f64, draw: &mut Draw) -> Vec<f64> {
    let mut times = Vec::new();
    let mut at = 0.0;
    for (rate, stay) in rates.into_iter().zip(stays).cycle() {
        if at >= end {
            break;
        }
        // A stay of nothing would never end.
        let next = at + draw.exponential(stay.as_secs_f64().max(1e-6));
        times.extend(poisson(rate, at, next.min(end), draw));
        at = next;
    }
    times
}
