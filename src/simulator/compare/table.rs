//! The whole table as one list of jobs: rows, curves at loads, capacities, cases and ablations.

use std::time::Duration;

use super::super::scenario::{self, Scenario};
use super::case::{Ablation, CaseKind};
use super::no_harm::{self, HarmTask, NoHarmReport};
use super::{
    CapacityReport, CaseReport, CriterionResult, OptimalityGap, RowReport, RunSettings, measure_capacity,
    optimality_gap, run_row,
};

/// Rows of the small table, and its number of ablations: those that differ most and are met on
/// every machine, for a run of a minute or two.
const SMALL_ROWS: [&str; 9] = [
    "mid",
    "bursty MMPP",
    "tile 8",
    "thrash",
    "k=4 slots",
    "padded over",
    "closed 32",
    "closed 32 think",
    "3% cancels",
];
const SMALL_PARTS: usize = 4;
/// Duration of the small rows.
const SMALL: Duration = Duration::from_secs(20);

/// A job of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Job(JobKind);

#[derive(Debug, Clone, PartialEq)]
enum JobKind {
    Row(Scenario),
    Gap(Scenario),
    Capacity(usize),
    Case(CaseKind),
    Parts(Ablation),
    Harm(Box<HarmTask>),
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum JobResult {
    /// Result of a row.
    Row(Box<RowReport>),
    /// Result of a curve at a load.
    Gap(OptimalityGap),
    /// Result of an upstream.
    Capacity(CapacityReport),
    /// Result of Groupage runs beside each other, or of an ablation.
    Case(CaseReport),
    /// Result of Groupage beside direct calls, by windows.
    Harm(NoHarmReport),
}

// === impl Job ===

impl Job {
    /// Returns all jobs except the no-harm table.
    #[must_use]
    pub fn standard() -> Vec<Self> {
        let mut all: Vec<Self> = scenario::all().into_iter().map(Self::row).collect();
        all.extend(Self::curves(None));
        all.extend(Self::capacities());
        all.extend(Self::cases());
        all.extend(Self::parts());
        all
    }

    /// Returns the jobs of the small table.
    #[must_use]
    pub fn small() -> Vec<Self> {
        let rows = SMALL_ROWS.iter().filter_map(|name| scenario::find(name));
        let mut some: Vec<Self> = rows.map(|row| Self::row(row.with_horizon(SMALL))).collect();
        some.push(Self(JobKind::Case(CaseKind::Shift)));
        some.extend(Self::parts().into_iter().take(SMALL_PARTS));
        some
    }

    /// Creates the job of a row.
    #[must_use]
    pub fn row(scenario: Scenario) -> Self {
        Self(JobKind::Row(scenario))
    }

    /// Returns the jobs of every curve at every load, optionally with another duration.
    #[must_use]
    pub fn curves(lasting: Option<Duration>) -> Vec<Self> {
        let lasting = |row: Scenario| match lasting {
            Some(horizon) => row.with_horizon(horizon),
            None => row,
        };
        scenario::curve_loads().into_iter().map(|row| Self(JobKind::Gap(lasting(row)))).collect()
    }

    /// Returns the jobs that measure the capacity of each upstream.
    #[must_use]
    pub fn capacities() -> Vec<Self> {
        (0..super::capacity_upstreams()).map(|place| Self(JobKind::Capacity(place))).collect()
    }

    /// Returns the jobs of the cases: presets, slow control loops, a warm start, SLOs near the time
    /// of a call, and late calls.
    #[must_use]
    pub fn cases() -> Vec<Self> {
        CaseKind::all().into_iter().map(|kind| Self(JobKind::Case(kind))).collect()
    }

    /// Returns the jobs of the ablations.
    #[must_use]
    pub fn parts() -> Vec<Self> {
        Ablation::all().into_iter().map(|parts| Self(JobKind::Parts(parts))).collect()
    }

    /// Returns the no-harm jobs, rows and changes, with all of these words in their names. Words
    /// are separated by commas, alternatives by `|`.
    #[must_use]
    pub fn no_harm(only: &str) -> Vec<Self> {
        Self::harm(no_harm::find_tasks(only))
    }

    /// Returns a sample of the no-harm jobs.
    #[must_use]
    pub fn no_harm_small() -> Vec<Self> {
        Self::harm(no_harm::sample())
    }

    fn harm(tasks: Vec<HarmTask>) -> Vec<Self> {
        tasks.into_iter().map(|task| Self(JobKind::Harm(Box::new(task)))).collect()
    }

    /// Runs the job. Returns `None` for a curve that has no optimum.
    #[must_use]
    pub fn run(&self, settings: RunSettings) -> Option<JobResult> {
        match &self.0 {
            JobKind::Row(scenario) => Some(JobResult::Row(Box::new(run_row(scenario, settings)))),
            JobKind::Gap(scenario) => optimality_gap(scenario, settings.seeds).map(JobResult::Gap),
            JobKind::Capacity(upstream) => measure_capacity(*upstream).map(JobResult::Capacity),
            JobKind::Case(kind) => Some(JobResult::Case(kind.run(settings.seeds))),
            JobKind::Parts(parts) => Some(JobResult::Case(parts.run(settings.seeds))),
            JobKind::Harm(task) => Some(JobResult::Harm(task.run(settings.seeds))),
        }
    }
}

// === impl JobResult ===

impl JobResult {
    /// Returns the name of the row, curve, upstream or case.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Row(row) => &row.scenario.name,
            Self::Gap(gap) => &gap.name,
            Self::Capacity(capacity) => &capacity.name,
            Self::Case(case) => &case.name,
            Self::Harm(harm) => &harm.name,
        }
    }

    /// Returns the evaluated criteria.
    #[must_use]
    pub fn verdicts(&self) -> &[CriterionResult] {
        match self {
            Self::Row(row) => &row.verdicts,
            Self::Gap(gap) => std::slice::from_ref(&gap.verdict),
            Self::Capacity(capacity) => std::slice::from_ref(&capacity.verdict),
            Self::Case(case) => &case.verdicts,
            Self::Harm(harm) => &harm.verdicts,
        }
    }
}
