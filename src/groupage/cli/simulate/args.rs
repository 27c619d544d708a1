//! Command-line arguments of `groupage simulate`, and the jobs that they select from scenarios,
//! logs and profiles.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::traffic::{self, RecordedOutcome};
use super::{profile, scenario_file};
use crate::batching::LateTreatment;
use crate::config::parse_duration;
use crate::simulator::curve::CostCurve;
use crate::simulator::scenario::{self, Scenario};
use crate::simulator::upstream::{BatchingServer, SharedServer, SlotServer, UpstreamKind};

/// Factors of the arrival rate that are accepted. Within them a run fits in memory.
const RATE_FACTORS: std::ops::RangeInclusive<f64> = 0.001..=20.0;
/// Maximum number of calls in one run: a day at 50 calls per second, which takes about 2 GB.
const CALLS_MAX: f64 = 5_000_000.0;
/// Access log for the replay in the table, written in the proxy's format from a simulated morning.
const LOG: &str = include_str!("../../../../examples/scenarios/access-log.jsonl");
const LOG_NAME: &str = "access log";

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Tables for people
    Table,
    /// JSON for programs
    Json,
}

/// Trade-off between latency and batch size (`scheduling.preset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Preset {
    Latency,
    Balanced,
    Throughput,
}

/// Treatment of late calls (`slo.late`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum LateCalls {
    Serve,
    Refuse,
}

/// Change of the arrival rate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RateChange {
    /// Multiple of the original rate.
    Times(f64),
    /// Calls per second.
    PerSecond(f64),
}

/// Arguments of `groupage simulate`.
#[derive(Debug, Clone, ClapArgs)]
pub(in crate::cli) struct Args {
    /// Scenario by name, or `all`; may be repeated [default: the reference scenarios]
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Read scenarios from a file (see examples/scenarios)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenarios", "access_log"])]
    file: Option<PathBuf>,
    /// Replay the calls of an access log against the upstream of --profile or --curve
    #[arg(long, value_name = "FILE", conflicts_with = "scenarios")]
    access_log: Option<PathBuf>,
    /// Use an upstream learned by a proxy: the JSON of /api/scheduler
    #[arg(long, value_name = "FILE", conflicts_with = "curve")]
    profile: Option<PathBuf>,
    /// List the scenarios and stop
    #[arg(long)]
    pub(super) list: bool,
    /// Run the rules of KServe, Triton, Clipper, BentoML and others on the same arrivals too
    #[arg(long)]
    pub(super) compare: bool,
    /// Number of seeds, starting at 0
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: u64,
    /// Virtual seconds during which calls arrive; a day has 86400 [default: 20]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Override the SLO: 50 (milliseconds) or 50ms
    #[arg(long, value_name = "TIME", value_parser = slo)]
    slo: Option<Duration>,
    /// Override the maximum number of items in a batch
    #[arg(long, visible_alias = "batch-items-max", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    cap: Option<u32>,
    /// Override the arrival rate: a multiple (2, x2) or calls per second (500/s)
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<RateChange>,
    /// Override the latency curve of the upstream: affine:4ms+0.25ms, pow2:3ms+0.4ms, tile8:…,
    /// knee16:…, padded:…, ragged:…
    #[arg(long, value_name = "CURVE")]
    curve: Option<CostCurve>,
    /// Override the server's concurrency: the number of batches that it executes at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: Option<u32>,
    /// Override the proxy's limit on batches in flight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slots_max: Option<u32>,
    /// Override the maximum time that a call is held beside a free slot
    #[arg(long, value_name = "TIME", value_parser = duration)]
    queue_delay_max: Option<Duration>,
    /// Override the maximum number of items in the queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    queue_items_max: Option<u32>,
    /// Override the preset
    #[arg(long, value_enum, ignore_case = true)]
    preset: Option<Preset>,
    /// Override the treatment of calls that cannot be in time; scenarios use Refuse
    #[arg(long, value_enum, ignore_case = true)]
    late: Option<LateCalls>,
    /// Write a chart of the rows to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "table")]
    pub(super) output: Output,
}

/// Work selected by the command line.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) scenarios: Vec<Scenario>,
    /// Outcomes of the calls according to the access log.
    pub(super) recorded: Option<RecordedOutcome>,
}

// === impl Args ===

impl Args {
    /// Returns the selected scenarios, in the order of the list.
    ///
    /// # Errors
    /// An argument is invalid, or a file cannot be read.
    pub(super) fn to_work(&self) -> Result<Work, String> {
        let horizon = self.seconds.map_or(scenario::HORIZON, Duration::from_secs);
        let (rows, recorded) = if let Some(path) = &self.access_log {
            let (row, recorded) = self.replay_scenario(path)?;
            (vec![row], Some(recorded))
        } else if let Some(path) = &self.file {
            let rows = scenario_file::parse(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
            let lasting = |row: Scenario| match self.seconds {
                Some(seconds) => row.with_horizon(Duration::from_secs(seconds)),
                None => row,
            };
            (rows.into_iter().map(lasting).collect(), None)
        } else {
            (self.named(horizon)?, None)
        };
        let rows = rows.into_iter().map(|row| self.apply_overrides(row)).collect::<Result<Vec<_>, _>>()?;
        if let Some(row) =
            rows.iter().find(|row| row.mean_rate().is_some_and(|rate| rate * row.horizon.as_secs_f64() > CALLS_MAX))
        {
            return Err(format!("{:?} would have more than {CALLS_MAX} calls: reduce --seconds or --rate", row.name));
        }
        Ok(Work { scenarios: rows, recorded })
    }

    fn named(&self, horizon: Duration) -> Result<Vec<Scenario>, String> {
        let mut rows = scenario::base_rows(horizon);
        if self.scenarios.is_empty() {
            return Ok(rows);
        }
        rows.extend(scenario::extended_rows(horizon));
        rows.extend(embedded_log_scenario());
        let is = |name: &str, row: &Scenario| name == "all" || row.name.eq_ignore_ascii_case(name);
        if let Some(name) = self.scenarios.iter().find(|name| !rows.iter().any(|row| is(name.as_str(), row))) {
            return Err(format!("unknown scenario {name:?}; `groupage simulate --list` lists all scenarios"));
        }
        rows.retain(|row| self.scenarios.iter().any(|name| is(name, row)));
        Ok(rows)
    }

    fn replay_scenario(&self, path: &Path) -> Result<(Scenario, RecordedOutcome), String> {
        if self.curve.is_none() && self.profile.is_none() {
            return Err("--access-log needs a model of the upstream: add --profile FILE or --curve CURVE".to_owned());
        }
        let traffic = traffic::parse(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        let recorded = traffic.recorded;
        let name = path.file_name().map_or_else(|| LOG_NAME.to_owned(), |name| name.to_string_lossy().into_owned());
        Ok((replay(name, traffic), recorded))
    }

    fn apply_overrides(&self, row: Scenario) -> Result<Scenario, String> {
        let mut row = self.override_upstream(row)?;
        if let Some(slo) = self.slo {
            for arrival in &mut row.workload.recorded {
                if let Some(deadline) = &mut arrival.call.deadline {
                    deadline.at = arrival.at.after(slo);
                }
            }
            row.slo = slo;
        }
        self.override_limits(&mut row);
        self.override_rate(row)
    }

    fn override_upstream(&self, mut row: Scenario) -> Result<Scenario, String> {
        if let Some(path) = &self.profile {
            let profile::UpstreamProfile { curve, slots } =
                profile::parse(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
            row = with_curve(row, curve);
            set_slots(&mut row, slots);
        }
        if let Some(curve) = self.curve {
            row = with_curve(row, curve);
        }
        if let Some(slots) = self.slots {
            set_slots(&mut row, slots);
        }
        Ok(row)
    }

    fn override_limits(&self, row: &mut Scenario) {
        row.cap = self.cap.unwrap_or(row.cap);
        row.tuning.slots_max = self.slots_max;
        row.tuning.queue_delay_max = self.queue_delay_max;
        row.tuning.queue_items_max = self.queue_items_max;
        row.tuning.late = self.late.map(|late| match late {
            LateCalls::Serve => LateTreatment::Serve,
            LateCalls::Refuse => LateTreatment::Refuse,
        });
        row.tuning.hold_permille = match self.preset {
            None | Some(Preset::Latency) => 0,
            Some(Preset::Balanced) => 100,
            Some(Preset::Throughput) => 400,
        };
    }

    fn override_rate(&self, row: Scenario) -> Result<Scenario, String> {
        let factor = match self.rate {
            None => return Ok(row),
            Some(RateChange::Times(factor)) => factor,
            Some(RateChange::PerSecond(rate)) => {
                let own = row.mean_rate().ok_or_else(|| {
                    format!("{:?} has closed-loop clients and no fixed rate: use a factor, such as --rate x2", row.name)
                })?;
                rate / own
            }
        };
        if RATE_FACTORS.contains(&factor) {
            Ok(row.scale_rate(factor))
        } else {
            Err(format!(
                "{factor:.4} times the rate of {:?} is outside the allowed factors {:?}",
                row.name, RATE_FACTORS
            ))
        }
    }
}

/// Returns the scenarios that extend the reference scenarios.
pub(super) fn extended_scenarios() -> Vec<Scenario> {
    scenario::extended_rows(scenario::HORIZON).into_iter().chain(embedded_log_scenario()).collect()
}

/// Returns the access log embedded in the binary as a scenario. A test verifies that it can be
/// parsed.
fn embedded_log_scenario() -> Option<Scenario> {
    traffic::parse(LOG).ok().map(|traffic| replay(LOG_NAME.to_owned(), traffic))
}

fn replay(name: String, traffic: traffic::RecordedTraffic) -> Scenario {
    let server = UpstreamKind::Server(SlotServer::new(scenario::AFFINE));
    let row = Scenario::recorded(name, traffic.calls, server, traffic.horizon);
    Scenario { slo: traffic.slo.unwrap_or(row.slo), cap: row.cap.max(traffic.batch_items).min(512), ..row }
}

/// Replaces the latency curve of the upstream.
fn with_curve(row: Scenario, curve: CostCurve) -> Scenario {
    let upstream = match row.upstream {
        UpstreamKind::Server(server) => UpstreamKind::Server(SlotServer { curve, ..server }),
        UpstreamKind::Engine(engine) => UpstreamKind::Engine(BatchingServer { curve, ..engine }),
        UpstreamKind::Shared(shared) => UpstreamKind::Shared(SharedServer { curve, ..shared }),
    };
    Scenario { upstream, curve: row.curve.map(|_| curve), ..row }
}

fn set_slots(row: &mut Scenario, slots: u32) {
    if let UpstreamKind::Server(server) = &mut row.upstream {
        // An exact curve is that of one slot.
        row.curve = row.curve.filter(|_| slots == 1);
        server.slots = slots;
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} is not a duration, such as 50ms"))
}

fn slo(text: &str) -> Result<Duration, String> {
    let slo = match text.parse() {
        Ok(millis) => Duration::from_millis(millis),
        Err(_) => duration(text)?,
    };
    let allowed = Duration::from_millis(1)..=Duration::from_secs(600);
    if allowed.contains(&slo) { Ok(slo) } else { Err("must be from 1ms to 10m".to_owned()) }
}

fn rate(text: &str) -> Result<RateChange, String> {
    let number = |text: &str| {
        let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
        if number.is_finite() && number > 0.0 { Ok(number) } else { Err(format!("{text:?} is not a rate")) }
    };
    if let Some(per_second) = text.strip_suffix("/s") {
        return number(per_second).map(RateChange::PerSecond);
    }
    let factor = number(text.strip_prefix(['x', '×']).unwrap_or(text))?;
    if RATE_FACTORS.contains(&factor) {
        Ok(RateChange::Times(factor))
    } else {
        Err(format!("must be from {} to {}", RATE_FACTORS.start(), RATE_FACTORS.end()))
    }
}

#[cfg(test)]
mod tests;
