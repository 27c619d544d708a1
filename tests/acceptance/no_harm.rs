//! The no-harm table: Groupage beside calls that are forwarded at once, window by window from a
//! cold start, on the same arrivals.
//!
//! `rows` holds the combinations of servers, loads and merge keys, `change` servers that change
//! during a run, `windows` the measurements in a window, `criteria` the criteria. Callers that wait
//! for their answers send and receive in waves. A window is long enough to measure a rate in spite
//! of them: at least a second, five service times and two sojourn times of direct callers.
//!
//! Left out: the overhead of the proxy itself, for which 0.3 ms are allowed, and holding, SLOs and
//! several cost classes, which other rows cover.

mod change;
mod criteria;
mod rows;
mod servers;
mod windows;

use std::time::Duration;

use change::ServerChange;
use criteria::HarmCriteria;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::groupage_policy::GroupagePolicy;
use groupage_simulator::scenario::Scenario;
use groupage_simulator::{RunResult, run};
use windows::AnswerWindow;

use crate::criteria::CriterionResult;

pub(crate) use criteria::HarmTotals;

/// A run with its scenario and criteria.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HarmTask {
    name: String,
    scenario: Scenario,
    /// Width of a window.
    window: Duration,
    /// Number of windows.
    windows: usize,
    criteria: HarmCriteria,
}

/// The result of a row or change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NoHarmReport {
    /// Server, time of an unbatched call, load and merge keys.
    pub(crate) name: String,
    /// Groupage relative to direct calls, by window.
    pub(crate) windows: Vec<WindowRatio>,
    /// Evaluated criteria.
    pub(crate) verdicts: Vec<CriterionResult>,
    /// `true` for the rows that are counted in the totals, `false` for changes.
    pub(crate) is_counted: bool,
}

/// A window of Groupage divided by the same window of direct calls. The times are reduced by the
/// allowed overhead of a proxy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WindowRatio {
    /// Number of answers of direct calls, in all seeds together.
    pub(crate) direct: u32,
    /// Ratio of the answers.
    pub(crate) rate: f64,
    /// Ratio of the mean latencies.
    pub(crate) mean: f64,
    /// Ratio of the 99th percentiles of the latency.
    pub(crate) p99: f64,
    /// `true` if something was tested in the window.
    pub(crate) tested: bool,
}

/// Returns the rows and changes with all of these words in their names. Words are separated by
/// commas, alternatives by `/`.
pub(super) fn find_tasks(only: &str) -> Vec<HarmTask> {
    let all = rows::all().into_iter().chain(ServerChange::all().iter().map(ServerChange::task));
    let has_words = |task: &HarmTask| {
        let words: Vec<&str> = task.name.split(' ').collect();
        only.split(',').filter(|part| !part.is_empty()).all(|part| part.split('/').any(|word| words.contains(&word)))
    };
    all.filter(has_words).collect()
}

/// Returns a sample that runs in seconds.
pub(super) fn sample() -> Vec<HarmTask> {
    find_tasks("").into_iter().filter(|task| rows::SAMPLE.contains(&task.name.as_str())).collect()
}

// === impl HarmTask ===

impl HarmTask {
    /// Runs the scenario with each seed, under Groupage and with direct calls, and compares them.
    pub(super) fn run(&self, seeds: u64) -> NoHarmReport {
        let seed_runs = (0..seeds).map(|seed| {
            let mut ours = GroupagePolicy::for_scenario(&self.scenario, seed).with_test_record();
            let run = run(&self.scenario, &mut ours, seed);
            (run, ours.test_instants().to_vec())
        });
        let (runs, tests): (Vec<RunResult>, Vec<_>) = seed_runs.unzip();
        let ours = AnswerWindow::of(&runs, self.window, self.windows);
        // Frees the runs of Groupage, with all of their calls, before the others begin.
        drop(runs);
        let runs: Vec<RunResult> =
            (0..seeds).map(|seed| run(&self.scenario, Baseline::Direct.build().as_mut(), seed)).collect();
        let direct = AnswerWindow::of(&runs, self.window, self.windows);
        let tested = windows::mark_tested_windows(&tests, &direct, self.window);
        let windows: Vec<WindowRatio> = direct
            .iter()
            .zip(&ours)
            .zip(tested)
            .map(|((direct, ours), tested)| direct.compare(ours, tested, seeds, self.window))
            .collect();
        let verdicts = self.criteria.judge(&windows, self.window);
        NoHarmReport {
            name: self.name.clone(),
            windows,
            verdicts,
            is_counted: matches!(self.criteria, HarmCriteria::Row { .. }),
        }
    }
}

// === impl NoHarmReport ===

impl NoHarmReport {
    /// Returns the windows that have enough answers to be judged.
    pub(crate) fn judged(&self) -> impl Iterator<Item = &WindowRatio> {
        self.windows.iter().filter(|ratio| ratio.is_judged())
    }

    /// Returns the lowest rate of a window, and the highest mean and p99.
    pub(crate) fn worst(&self) -> (f64, f64, f64) {
        let start = (f64::INFINITY, 0.0, 0.0);
        self.judged().fold(start, |(rate, mean, p99): (f64, f64, f64), ratio| {
            (rate.min(ratio.rate), mean.max(ratio.mean), p99.max(ratio.p99))
        })
    }
}
