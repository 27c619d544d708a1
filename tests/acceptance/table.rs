//! The whole table as one list of jobs: rows, curves at loads, capacities, cases and ablations.

use std::time::Duration;

use groupage_simulator::scenario::{self, Scenario};

use crate::capacity::{CapacityReport, capacity_upstreams, measure_capacity};
use crate::case::{Ablation, CaseKind, CaseReport};
use crate::criteria::CriterionResult;
use crate::no_harm::{self, HarmTask, NoHarmReport};
use crate::optimality_gap::{OptimalityGap, optimality_gap};
use crate::row::{RowReport, run_row};

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
const SMALL_ABLATIONS: usize = 4;
/// Duration of the small rows.
const SMALL: Duration = Duration::from_secs(20);

/// A job of the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job(JobKind);

#[derive(Debug, Clone, PartialEq)]
enum JobKind {
    Row(Scenario),
    Gap(Scenario),
    Capacity(usize),
    Case(CaseKind),
    Ablation(Ablation),
    Harm(Box<HarmTask>),
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JobResult {
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
    pub(crate) fn standard() -> Vec<Self> {
        [Self::rows(), Self::curves(), Self::capacities(), Self::cases(), Self::ablations()].concat()
    }

    /// Returns the jobs of the small table.
    pub(crate) fn small() -> Vec<Self> {
        let rows = SMALL_ROWS.iter().filter_map(|name| scenario::find(name));
        let mut some: Vec<Self> = rows.map(|row| Self(JobKind::Row(row.with_horizon(SMALL)))).collect();
        some.push(Self(JobKind::Case(CaseKind::Shift)));
        some.extend(Self::ablations().into_iter().take(SMALL_ABLATIONS));
        some
    }

    /// Returns the jobs of the named scenarios.
    pub(crate) fn rows() -> Vec<Self> {
        scenario::all().into_iter().map(|row| Self(JobKind::Row(row))).collect()
    }

    /// Returns the jobs of every curve at every load.
    pub(crate) fn curves() -> Vec<Self> {
        scenario::curve_loads().into_iter().map(|row| Self(JobKind::Gap(row))).collect()
    }

    /// Returns the jobs that measure the capacity of each upstream.
    pub(crate) fn capacities() -> Vec<Self> {
        (0..capacity_upstreams()).map(|place| Self(JobKind::Capacity(place))).collect()
    }

    /// Returns the jobs of the cases: presets, slow control loops, a warm start, SLOs near the time
    /// of a call, and late calls.
    pub(crate) fn cases() -> Vec<Self> {
        CaseKind::all().into_iter().map(|kind| Self(JobKind::Case(kind))).collect()
    }

    /// Returns the jobs of the ablations.
    pub(crate) fn ablations() -> Vec<Self> {
        Ablation::all().into_iter().map(|ablation| Self(JobKind::Ablation(ablation))).collect()
    }

    /// Returns the no-harm jobs, rows and changes, with all of these words in their names. Words
    /// are separated by commas, alternatives by `/`.
    pub(crate) fn no_harm(only: &str) -> Vec<Self> {
        Self::harm(no_harm::find_tasks(only))
    }

    /// Returns a sample of the no-harm jobs.
    pub(crate) fn no_harm_small() -> Vec<Self> {
        Self::harm(no_harm::sample())
    }

    fn harm(tasks: Vec<HarmTask>) -> Vec<Self> {
        tasks.into_iter().map(|task| Self(JobKind::Harm(Box::new(task)))).collect()
    }

    /// Runs the job. Returns `None` for a curve that has no optimum.
    pub(crate) fn run(&self, seeds: u64) -> Option<JobResult> {
        match &self.0 {
            JobKind::Row(scenario) => Some(JobResult::Row(Box::new(run_row(scenario, seeds)))),
            JobKind::Gap(scenario) => optimality_gap(scenario, seeds).map(JobResult::Gap),
            JobKind::Capacity(upstream) => measure_capacity(*upstream).map(JobResult::Capacity),
            JobKind::Case(kind) => Some(JobResult::Case(kind.run(seeds))),
            JobKind::Ablation(ablation) => Some(JobResult::Case(ablation.run(seeds))),
            JobKind::Harm(task) => Some(JobResult::Harm(task.run(seeds))),
        }
    }
}

// === impl JobResult ===

impl JobResult {
    /// Returns the name of the row, curve, upstream or case.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Row(row) => &row.scenario.name,
            Self::Gap(gap) => &gap.name,
            Self::Capacity(capacity) => &capacity.name,
            Self::Case(case) => &case.name,
            Self::Harm(harm) => &harm.name,
        }
    }

    /// Returns the evaluated criteria.
    pub(crate) fn verdicts(&self) -> &[CriterionResult] {
        match self {
            Self::Row(row) => &row.verdicts,
            Self::Gap(gap) => std::slice::from_ref(&gap.verdict),
            Self::Capacity(capacity) => std::slice::from_ref(&capacity.verdict),
            Self::Case(case) => &case.verdicts,
            Self::Harm(harm) => &harm.verdicts,
        }
    }
}
