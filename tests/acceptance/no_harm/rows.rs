//! The rows: servers × times of an unbatched call × loads × merge keys.

use std::time::Duration;

use groupage_simulator::scenario::Scenario;
use groupage_simulator::workload::{
    ArrivalProcess, CallMix, CallStream, DeadlineRule, KeyDistribution, ThinkTime, Workload,
};
use strum::{IntoStaticStr, VariantArray};

use super::HarmTask;
use super::criteria::HarmCriteria;
use super::servers::{self, NamedServer};

/// Times of an unbatched call, in milliseconds.
const CALL_TIMES_MS: [u32; 4] = [5, 50, 200, 2000];
/// Numbers of callers of a closed loop, and open loads in percent of the capacity for direct
/// callers.
const CALLERS: [u32; 4] = [1, 8, 48, 200];
const SHARES: [u32; 3] = [30, 80, 120];
/// Number of windows of a row.
const WINDOWS: usize = 8;
/// Minimum width of a window in milliseconds, in unbatched calls, and in sojourn times of direct
/// callers.
const WINDOW_MIN: f64 = 1000.0;
const WINDOW_SERVICES: f64 = 5.0;
const WINDOW_SOJOURNS: f64 = 2.0;
/// Rate that the best fixed limit and batch size reach where batching pays, relative to direct
/// calls, and the share of it that has to be reached. The limit of a server with processor sharing
/// is found by trials, one step after another, so less of it is required.
const REACH: [(&str, u32, f64); 7] = [
    ("k1", 48, 10.0 * REACHED),
    ("k1", 200, 14.0 * REACHED),
    ("k1half", 48, 1.9 * REACHED),
    ("k4", 48, 6.2 * REACHED),
    ("k8", 48, 3.0 * REACHED),
    ("k8", 200, 4.8 * REACHED),
    ("ps8", 48, 3.0 * REACHED_BY_TRIALS),
];
const REACHED: f64 = 0.8;
const REACHED_BY_TRIALS: f64 = 0.6;
/// Time of an unbatched call in the rows in which `REACH` is judged.
const REACH_TIME: u32 = 50;

/// Names of the sample: rows and changes that differ most, with few calls per second.
pub(super) const SAMPLE: [&str; 14] = [
    "k1 50ms 48 shared",
    "k4 50ms 48 shared",
    "k8 50ms 48 shared",
    "k8 50ms 8 own",
    "k8lin 200ms 48 shared",
    "k64 200ms 48 own",
    "k64 200ms 48 half",
    "inflin 200ms 48 shared",
    "ps8 200ms p80 shared",
    "ps8lin 200ms p120 half",
    "cont 200ms p120 shared",
    "inner 200ms 48 half",
    "change k1 k64 k1 200ms",
    "change k8 20ms 2000ms",
];

/// The distribution of merge keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
enum KeyPattern {
    /// All calls have the same key.
    Shared,
    /// Each call has one of four keys.
    Four,
    /// Each caller has its own key.
    Own,
    /// Half of the calls have the same key. The others cannot be merged by their kind, as streams.
    Half,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowLoad {
    Callers(u32),
    Share(u32),
}

/// Returns every row.
pub(super) fn all() -> Vec<HarmTask> {
    let mut all = Vec::new();
    let loads = || CALLERS.map(RowLoad::Callers).into_iter().chain(SHARES.map(RowLoad::Share));
    for server in &servers::ALL {
        for time in CALL_TIMES_MS {
            for load in loads() {
                for &keys in KeyPattern::VARIANTS {
                    // 40,000 calls per second with four keys show nothing beyond those with the
                    // same key.
                    let many = time == 5 && server.is_unlimited() && load == RowLoad::Callers(200);
                    if !(many && keys == KeyPattern::Four) {
                        all.push(row(server, time, load, keys));
                    }
                }
            }
        }
    }
    all
}

/// Creates a closed loop with 0.1 to 0.3 ms between an answer and the next call.
pub(super) fn callers(count: u32) -> ArrivalProcess {
    ArrivalProcess::Closed {
        clients: count,
        think: ThinkTime::Uniform(Duration::from_micros(100), Duration::from_micros(300)),
    }
}

/// Returns the width of a window for this number of callers of a server that answers `capacity`
/// calls per millisecond, each in `time` or more.
pub(super) fn window(time: f64, callers: u32, capacity: f64) -> Duration {
    let sojourns = WINDOW_SOJOURNS * f64::from(callers) / capacity;
    Duration::from_secs_f64(WINDOW_MIN.max(WINDOW_SERVICES * time).max(sojourns) / 1e3)
}

/// Returns the mix of calls of one key without a deadline.
pub(super) fn shared() -> CallMix {
    CallMix { deadline: DeadlineRule::Unlimited, ..CallMix::default() }
}

fn row(server: &NamedServer, time: u32, load: RowLoad, keys: KeyPattern) -> HarmTask {
    let t1 = f64::from(time);
    let capacity = server.capacity(t1);
    let (label, in_loop) = match load {
        RowLoad::Callers(count) => (count.to_string(), count),
        RowLoad::Share(share) => (format!("p{share}"), 0),
    };
    let name = format!("{} {time}ms {label} {}", server.name, keys.as_str());
    let window = window(t1, in_loop, capacity);
    let streams = match load {
        RowLoad::Callers(count) => keys.callers(count),
        RowLoad::Share(share) => keys.poisson(f64::from(share) / 100.0 * capacity * 1e3),
    };
    let scenario = Scenario {
        upstream: server.upstream(t1),
        workload: Workload { streams, recorded: Vec::new() },
        horizon: window * u32::try_from(WINDOWS).expect("a few windows"),
        ..Scenario::new(name.clone(), ArrivalProcess::Poisson { rate: 0.0 })
    };
    let reach = REACH
        .iter()
        .find(|(name, count, _)| {
            (*name, load, keys, time) == (server.name, RowLoad::Callers(*count), KeyPattern::Shared, REACH_TIME)
        })
        .map(|(.., gain)| *gain);
    HarmTask {
        name,
        scenario,
        window,
        windows: WINDOWS,
        criteria: HarmCriteria::Row { pair: server.pair_cost(), reach },
    }
}

// === impl KeyPattern ===

impl KeyPattern {
    fn as_str(self) -> &'static str {
        self.into()
    }

    fn callers(self, count: u32) -> Vec<CallStream> {
        let stream = |clients, mix| CallStream { arrivals: callers(clients), mix };
        let of = |key| CallMix { keys: KeyDistribution::Constant(key), ..shared() };
        match self {
            Self::Shared => vec![stream(count, shared())],
            Self::Four => (0..4).map(|key| stream((count + 3 - key) / 4, of(key))).collect(),
            Self::Own => (0..count).map(|key| stream(1, of(key))).collect(),
            Self::Half => vec![stream(count.div_ceil(2), shared()), stream(count / 2, unmergeable())],
        }
    }

    fn poisson(self, rate: f64) -> Vec<CallStream> {
        let stream = |rate, mix| CallStream { arrivals: ArrivalProcess::Poisson { rate }, mix };
        let keys = |keys| CallMix { keys, ..shared() };
        match self {
            Self::Shared => vec![stream(rate, shared())],
            Self::Four => vec![stream(rate, keys(KeyDistribution::Zipf { count: 4, exponent: 0.0 }))],
            Self::Own => vec![stream(rate, keys(KeyDistribution::Distinct))],
            Self::Half => vec![stream(rate / 2.0, shared()), stream(rate / 2.0, unmergeable())],
        }
    }
}

fn unmergeable() -> CallMix {
    CallMix { keys: KeyDistribution::Distinct, unmergeable: true, ..shared() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_1788_combinations_have_unique_names() {
        let mut names: Vec<String> = all().into_iter().map(|task| task.name).collect();
        assert_eq!(names.len(), 1788);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1788);
    }

    #[test]
    fn every_name_of_the_sample_is_a_row() {
        assert_eq!(super::super::sample().len(), SAMPLE.len());
    }

    #[test]
    fn a_load_matches_its_name() {
        let k8 = servers::ALL.iter().find(|server| server.name == "k8").unwrap();
        let task = row(k8, 50, RowLoad::Share(80), KeyPattern::Half);
        assert!((task.scenario.mean_rate().unwrap() - 0.8 * 8.0 / 0.05).abs() < 1e-6);
        for count in CALLERS {
            for &keys in KeyPattern::VARIANTS {
                let clients = keys.callers(count).into_iter().map(|stream| match stream.arrivals {
                    ArrivalProcess::Closed { clients, .. } => clients,
                    _ => 0,
                });
                assert_eq!(clients.sum::<u32>(), count, "{keys:?}");
            }
        }
    }
}
