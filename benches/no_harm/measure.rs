//! Load on one path to a server, and the comparison of two paths.

use std::net::SocketAddr;
use std::time::Duration;

use groupage::testkit::load::{CallForm, ClosedConfig, PreparedCalls, Report, SLICE_INTERVAL, run_closed_loop};
use groupage::testkit::{Route, ServerAddr};
use tokio::task::JoinSet;

use super::process::SLOW;
use super::row::{ApiKeys, ClientGroup, SlowReason};

/// Allowed excess over the direct 99th percentile: a tenth of it and one millisecond.
const P99_MORE: f64 = 0.1;
const P99_MORE_MS: f64 = 1.0;

/// Number of limits met and missed.
#[derive(Default)]
pub(crate) struct Tally {
    /// `false` for tiny runs, which are too short to be judged.
    pub(crate) judging: bool,
    pub(crate) met: u32,
    pub(crate) missed: u32,
}

/// Runs the loads of all groups concurrently and returns a report of each.
pub(crate) async fn loads(
    to: SocketAddr,
    route: Route,
    groups: &[ClientGroup],
    time: (Duration, Duration),
) -> Vec<Report> {
    let mut running = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        // No two groups have a key in common.
        running.push(tokio::spawn(load(to, route, *group, at * 1000, time)));
    }
    let mut reports = Vec::new();
    for run in running {
        reports.push(run.await.expect("a load"));
    }
    reports
}

/// Runs the load of one group, with a closed loop for each API key.
async fn load(
    to: SocketAddr,
    route: Route,
    group: ClientGroup,
    first_key: usize,
    (warm_up, duration): (Duration, Duration),
) -> Report {
    let keys = match group.keys {
        ApiKeys::One => 1,
        ApiKeys::Four => 4,
        ApiKeys::Own => group.clients,
    };
    let mut running = JoinSet::new();
    for key in 0..keys {
        let clients = group.clients / keys + usize::from(key < group.clients % keys);
        let form = CallForm {
            seed: 1 + key as u64,
            model: if group.slow == SlowReason::Model { SLOW } else { "stand-in" },
            prefix: if group.slow == SlowReason::Items { SLOW } else { "parcel" },
            key: (group.keys != ApiKeys::One).then_some(first_key + key),
            stream: group.stream,
            ..CallForm::new(route)
        };
        let calls = PreparedCalls::from_form(&form);
        let target = ServerAddr::Tcp(to);
        running.spawn(run_closed_loop(ClosedConfig {
            target,
            calls,
            clients,
            duration,
            warm_up,
            fresh: false,
            think: None,
        }));
    }
    let mut reports = running.join_all().await.into_iter();
    let first = reports.next().expect("a group has clients");
    reports.fold(first, |all, one| all.merge(&one))
}

/// Combines the reports of two consecutive runs.
pub(crate) fn after(first: Option<Report>, second: Report) -> Report {
    match first {
        Some(first) => {
            let elapsed = first.elapsed + second.elapsed;
            Report { elapsed, ..first.merge(&second) }
        }
        None => second,
    }
}

pub(crate) fn share(proxied: &Report, direct: &Report) -> f64 {
    proxied.calls_per_second() / direct.calls_per_second().max(f64::MIN_POSITIVE)
}

/// Returns the number of calls without a correct answer.
pub(crate) fn lost(report: &Report) -> u64 {
    report.refused + report.wrong + report.failed
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Formats rate, median and 99th percentile.
pub(crate) fn figures(report: &Report) -> String {
    let (rate, p50, p99) = (report.calls_per_second(), millis(report.p50()), millis(report.p99()));
    format!("{rate:>7.1}/s p50 {p50:>7.1} p99 {p99:>7.1}")
}

/// Formats the share of the direct rate in each second.
pub(crate) fn seconds(proxied: &Report, direct: &Report) -> String {
    let each = usize::try_from(Duration::from_secs(1).as_nanos() / SLICE_INTERVAL.as_nanos()).unwrap_or(1);
    let sums = |report: &Report| -> Vec<u64> { report.slices.chunks(each).map(|part| part.iter().sum()).collect() };
    let shares = sums(proxied).into_iter().zip(sums(direct));
    let shares: Vec<String> = shares.map(|(own, theirs)| format!("{:.2}", own as f64 / theirs.max(1) as f64)).collect();
    shares.join(" ")
}

// === impl Tally ===

impl Tally {
    /// Judges rate, latency and answers of a proxied load. Returns `true` if all limits are met.
    pub(crate) fn judge(&mut self, proxied: &Report, against: &Report, share_min: f64) -> bool {
        let share = share(proxied, against);
        let p99 = millis(against.p99()) * (1.0 + P99_MORE) + P99_MORE_MS;
        let lost = lost(proxied);
        let mut all = self.count(share >= share_min, &format!("rate {share:.3} of direct, at least {share_min}"));
        all &=
            self.count(millis(proxied.p99()) <= p99, &format!("p99 {:.1} ms, at most {p99:.1}", millis(proxied.p99())));
        all & self.count(lost == 0, &format!("{lost} calls not answered as directly"))
    }

    pub(crate) fn count(&mut self, met: bool, line: &str) -> bool {
        if !self.judging {
            return true;
        }
        if met {
            self.met += 1;
        } else {
            self.missed += 1;
            println!("    MISSED {line}");
        }
        met
    }
}
