//! Scenario files in YAML: arrivals, upstream and latency objective of simulated rows.
//!
//! `examples/scenarios` contains a file with every key. Errors name the line where possible. Limits
//! of the batching core are command-line flags, not keys of a scenario.

mod schema;

use std::time::Duration;

use crate::batching::Tick;
use crate::simulator::scenario::{PolicyOverrides, Scenario};
use crate::simulator::upstream::{BatchingServer, ServerLimits, SlotServer, StallModel, UpstreamKind};
use crate::simulator::workload::{
    ArrivalProcess, CallMix, CallStream, DeadlineRule, ItemCount, KeyDistribution, ThinkTime, WeightDistribution,
    Workload,
};
use schema::{
    ArrivalsSpec, ClosedLoopSpec, DurationText, MmppSpec, RampSpec, ScenarioFile, ScenarioSpec, SpreadSpec,
    UpstreamSpec,
};

/// Maximum size of a file: a scenario file is about a page.
const BYTES_MAX: usize = 1 << 20;
/// Maximum calls per second. Together with the bounds on clients and seconds it limits the memory
/// and time of a run.
const RATE_MAX: f64 = 100_000.0;
const CLIENTS_MAX: u32 = 10_000;
const SECONDS_MAX: u64 = 86_400;

/// Parses a file. An error names line and column where possible.
pub(super) fn parse(text: &str) -> Result<Vec<Scenario>, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("it has {} bytes; the limit is {BYTES_MAX}", text.len()));
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let file: ScenarioFile = serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    if file.scenarios.is_empty() {
        return Err("`scenarios` is empty".to_owned());
    }
    file.scenarios
        .into_iter()
        .map(|row| {
            let name = row.name.clone();
            row.scenario().map_err(|error| format!("scenario {name:?}: {error}"))
        })
        .collect()
}

// === impl ScenarioSpec ===

impl ScenarioSpec {
    fn scenario(self) -> Result<Scenario, String> {
        check_range("seconds", self.seconds, 1, SECONDS_MAX)?;
        check_range("batchItemsMax", self.batch_items_max, 1, 512)?;
        if self.arrivals.is_empty() {
            return Err("`arrivals` is empty".to_owned());
        }
        let exact = self.upstream.is_exact() && self.arrivals.iter().all(ArrivalsSpec::is_plain);
        let curve = exact.then_some(self.upstream.curve);
        let streams = self.arrivals.into_iter().map(ArrivalsSpec::stream).collect::<Result<_, _>>()?;
        Ok(Scenario {
            name: self.name,
            upstream: self.upstream.kind()?,
            workload: Workload { streams, recorded: Vec::new() },
            slo: self.slo.0,
            cap: self.batch_items_max,
            horizon: Duration::from_secs(self.seconds),
            curve,
            tuning: PolicyOverrides::default(),
        })
    }
}

// === impl UpstreamSpec ===

impl UpstreamSpec {
    /// Returns `true` for an upstream of one slot, a curve and nothing else, whose curve is exact.
    fn is_exact(&self) -> bool {
        !self.batches_by_itself
            && self.slots == 1
            && self.slots_from.is_empty()
            && self.host_before.0.is_zero()
            && self.host_after.0.is_zero()
            && self.stalls.is_none()
            && self.slower.is_none()
            && self.cold.is_none()
            && self.refuses.items_above.is_none()
            && self.refuses.weight_above.is_none()
            && self.refuses.memory_above.is_none()
    }

    fn kind(self) -> Result<UpstreamKind, String> {
        check_range("slots", self.slots, 1, 64)?;
        if self.batches_by_itself {
            return Ok(UpstreamKind::Engine(BatchingServer::new(self.curve)));
        }
        let plain = SlotServer::new(self.curve);
        let at = |span: DurationText| Tick::default().after(span.0);
        Ok(UpstreamKind::Server(SlotServer {
            slots: self.slots,
            slot_changes: self.slots_from.iter().map(|from| (at(from.at), from.slots.clamp(1, 64))).collect(),
            host_before: self.host_before.0,
            host_after: self.host_after.0,
            round_trip: self.round_trip.map_or(plain.round_trip, |span| span.0),
            jitter: plain.jitter,
            sigma: check_number("noise", self.noise.unwrap_or(plain.sigma), 2.0)?,
            contention: check_number("contention", self.contention, 10.0)?,
            stalls: self.stalls.map(|stalls| StallModel { share: stalls.share.0, mean: stalls.mean.0 }),
            shift: match self.slower {
                Some(slower) => Some((at(slower.at), check_number("factor", slower.factor, 1000.0)?)),
                None => None,
            },
            cold: match self.cold {
                Some(cold) => Some((cold.executions, check_number("factor", cold.factor, 1000.0)?)),
                None => None,
            },
            ceilings: ServerLimits {
                items_max: self.refuses.items_above,
                weight_max: self.refuses.weight_above,
                memory_max: self.refuses.memory_above,
                named: self.refuses.names_limit,
                lifted_at: self.refuses.until.map(at),
            },
            ..plain
        }))
    }
}

// === impl ArrivalsSpec ===

impl ArrivalsSpec {
    /// Returns `true` for single items of weight 1 with one merge key and the policy's SLO.
    fn is_plain(&self) -> bool {
        self.clients.is_none()
            && self.items_max.is_none_or(|most| most <= 1)
            && self.weights.is_none()
            && self.keys.count.is_none()
            && self.deadlines.is_none()
            && self.cancels.0 <= 0.0
    }

    fn stream(self) -> Result<CallStream, String> {
        let arrivals = self.arrivals()?;
        let items = self
            .items_max
            .filter(|most| *most > 1)
            .map_or(ItemCount::One, |max| ItemCount::UpTo { max: max.min(10_000) });
        let weights = self.weights.map_or(WeightDistribution::Unit, |of| WeightDistribution::LogNormal {
            median: of.median.clamp(1.0, 1e6),
            sigma: of.sigma.clamp(0.0, 5.0),
            min: of.min.max(1),
            max: of.max.max(1),
        });
        let deadline = self.deadlines.map_or(DeadlineRule::Slo, |between| DeadlineRule::Caller {
            min: between.min.0,
            max: between.max.0.max(between.min.0),
        });
        let mix = CallMix {
            items,
            weights,
            keys: self.keys.spread(),
            tenants: self.tenants.spread(),
            class: u8::from(self.bulk),
            deadline,
            cancel_share: self.cancels.0,
            unmergeable: false,
        };
        Ok(CallStream { arrivals, mix })
    }

    fn arrivals(&self) -> Result<ArrivalProcess, String> {
        let rate = |rate: f64| check_number("a rate", rate, RATE_MAX);
        let mut kinds = Vec::new();
        if let Some(poisson) = self.poisson {
            kinds.push(ArrivalProcess::Poisson { rate: rate(poisson)? });
        }
        if let Some(MmppSpec { rates: [one, other], stays }) = &self.bursts {
            kinds.push(ArrivalProcess::Mmpp { rates: [rate(*one)?, rate(*other)?], stays: stays.map(|stay| stay.0) });
        }
        if let Some(RampSpec { low, high, period }) = &self.swings {
            kinds.push(ArrivalProcess::Ramp { low: rate(*low)?, high: rate(*high)?, period: period.0 });
        }
        if let Some(step) = &self.step {
            let until = step.until.map(|until| until.0);
            kinds.push(ArrivalProcess::Step {
                rate: rate(step.rate)?,
                then: rate(step.then)?,
                from: step.from.0,
                until,
            });
        }
        if let Some(of) = &self.fan_out {
            check_range("size", of.size, 1, 10_000)?;
            kinds.push(ArrivalProcess::Fanout { rate: rate(of.rate)?, size: of.size, spread: of.within.0 });
        }
        if let Some(ClosedLoopSpec { count, think }) = &self.clients {
            check_range("count", *count, 1, CLIENTS_MAX)?;
            kinds.push(ArrivalProcess::Closed { clients: *count, think: ThinkTime::Exponential(think.0) });
        }
        match kinds.len() {
            1 => Ok(kinds.swap_remove(0)),
            count => Err(format!(
                "each entry of `arrivals` must be one of poisson, bursts, swings, step, fanOut and clients, but one has {count} of them"
            )),
        }
    }
}

// === impl SpreadSpec ===

impl SpreadSpec {
    fn spread(&self) -> KeyDistribution {
        match (self.count.filter(|count| *count > 1).map(|count| count.min(100_000)), self.first) {
            (None, _) => KeyDistribution::Constant(self.only.unwrap_or(0)),
            (Some(count), Some(first)) => KeyDistribution::Hot { count, share: first.0 },
            (Some(count), None) => KeyDistribution::Zipf { count, exponent: self.zipf.unwrap_or(0.0).clamp(0.0, 10.0) },
        }
    }
}

fn check_range<T: PartialOrd + Copy + std::fmt::Display>(name: &str, value: T, low: T, high: T) -> Result<(), String> {
    if (low.partial_cmp(&value)).is_some_and(std::cmp::Ordering::is_le) && value <= high {
        Ok(())
    } else {
        Err(format!("`{name}` is {value}; it must be from {low} to {high}"))
    }
}

fn check_number(name: &str, value: f64, most: f64) -> Result<f64, String> {
    check_range(name, value, 0.0, most).map(|()| value)
}

#[cfg(test)]
mod tests;
