//! No harm: ours beside calls that are forwarded at once, window by window from a cold start, on
//! the same arrivals.
//!
//! `rows` has servers, loads and merge keys in all combinations, `change` servers that become
//! others under way, `windows` what is counted, `judge` the bars. A window is long enough that it
//! counts a rate and not waves: a second, five services, two sojourns of direct callers.
//!
//! It leaves out the proxy's own cost, for which 0.3 ms are allowed, and gathering, SLOs and
//! several cost classes, which other rows have.

mod change;
mod judge;
mod rows;
mod servers;
mod windows;

use std::time::Duration;

use super::super::baseline::Baseline;
use super::super::ours::Ours;
use super::super::scenario::Scenario;
use super::super::{Run, run};
use super::Verdict;
use change::Change;
use judge::Criteria;
use windows::Window;

pub use judge::Totals;

/// A run: a name, a scenario, and its criteria.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    name: String,
    scenario: Scenario,
    window: Duration,
    windows: usize,
    criteria: Criteria,
}

/// A row, run.
#[derive(Debug, Clone, PartialEq)]
pub struct Harm {
    /// Server, time of a lone call, load, merge keys.
    pub name: String,
    /// Ours ÷ direct, by window.
    pub windows: Vec<Ratio>,
    /// The criteria and what came of them.
    pub verdicts: Vec<Verdict>,
    /// It is one of the rows that are counted together; the others are changes.
    pub counted: bool,
}

/// A window of ours ÷ the same window of direct. The times are less what a proxy may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Answers of direct, in all seeds together.
    pub direct: u32,
    /// Answers.
    pub rate: f64,
    /// Mean latency.
    pub mean: f64,
    /// 99 of 100 are below.
    pub p99: f64,
    /// Something was tested in it.
    pub tested: bool,
}

/// All rows whose names have the words, which are joined by commas, alternatives by `|`; the
/// changes too.
pub(super) fn tasks(only: &str) -> Vec<Task> {
    let all = rows::all().into_iter().chain(Change::all().iter().map(Change::task));
    let named = |task: &Task| {
        let words: Vec<&str> = task.name.split(' ').collect();
        only.split(',').filter(|part| !part.is_empty()).all(|part| part.split('|').any(|word| words.contains(&word)))
    };
    all.filter(named).collect()
}

/// A sample that is over in seconds.
pub(super) fn sample() -> Vec<Task> {
    tasks("").into_iter().filter(|task| rows::SAMPLE.contains(&task.name.as_str())).collect()
}

// === impl Task ===

impl Task {
    pub(super) fn run(&self, seeds: u64) -> Harm {
        let seed_runs = (0..seeds).map(|seed| {
            let mut ours = Ours::of(&self.scenario, seed).watched();
            let run = run(&self.scenario, &mut ours, seed);
            (run, ours.tests().to_vec())
        });
        let (runs, tests): (Vec<Run>, Vec<_>) = seed_runs.unzip();
        let ours = Window::of(&runs, self.window, self.windows);
        drop(runs);
        let runs: Vec<Run> =
            (0..seeds).map(|seed| run(&self.scenario, Baseline::Direct.build().as_mut(), seed)).collect();
        let direct = Window::of(&runs, self.window, self.windows);
        let tested = windows::tested(&tests, &direct, self.window);
        let windows: Vec<Ratio> = direct
            .iter()
            .zip(&ours)
            .zip(tested)
            .map(|((direct, ours), tested)| direct.compare(ours, tested, seeds, self.window))
            .collect();
        let verdicts = self.criteria.judge(&windows, self.window);
        Harm { name: self.name.clone(), windows, verdicts, counted: matches!(self.criteria, Criteria::Row { .. }) }
    }
}

// === impl Harm ===

impl Harm {
    /// The windows that have answers enough to be judged.
    pub fn judged(&self) -> impl Iterator<Item = &Ratio> {
        self.windows.iter().filter(|ratio| ratio.is_judged())
    }

    /// The least rate of a window, and the largest mean and p99.
    #[must_use]
    pub fn worst(&self) -> (f64, f64, f64) {
        let start = (f64::INFINITY, 0.0, 0.0);
        self.judged().fold(start, |(rate, mean, p99): (f64, f64, f64), ratio| {
            (rate.min(ratio.rate), mean.max(ratio.mean), p99.max(ratio.p99))
        })
    }
}
