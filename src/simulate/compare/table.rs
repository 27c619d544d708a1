//! All that the design asks for, as one list of work: rows, curves at loads, capacities, cases, parts taken out.

use std::time::Duration;

use super::super::scenario::{self, Scenario};
use super::case::{Kind, Parts};
use super::no_harm::{self, Harm, Task};
use super::{Capacity, Case, Gap, Row, Settings, Verdict, capacity, gap, row};

/// The rows and cases of the small table: what differs most, and is met on every machine. For a run that must be over in a minute or two.
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
/// How long the small rows last.
const SMALL: Duration = Duration::from_secs(20);

/// One piece of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job(Work);

#[derive(Debug, Clone, PartialEq)]
enum Work {
    Row(Scenario),
    Gap(Scenario),
    Capacity(usize),
    Case(Kind),
    Parts(Parts),
    Harm(Box<Task>),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// Of a row.
    Row(Box<Row>),
    /// Of a curve at a load.
    Gap(Gap),
    /// Of an upstream.
    Capacity(Capacity),
    /// Of runs of ours beside each other.
    Case(Case),
    /// Of ours beside direct, by windows.
    Harm(Harm),
}

// === impl Job ===

impl Job {
    /// Everything.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = scenario::all().into_iter().map(Self::row).collect();
        all.extend(Self::curves(None));
        all.extend(Self::capacities());
        all.extend(Self::cases());
        all.extend(Self::parts());
        all
    }

    /// A small part of it.
    #[must_use]
    pub fn small() -> Vec<Self> {
        let rows = SMALL_ROWS.iter().filter_map(|name| scenario::named(name));
        let mut some: Vec<Self> = rows.map(|row| Self::row(row.lasting(SMALL))).collect();
        some.push(Self(Work::Case(Kind::Shift)));
        some.extend(Self::parts().into_iter().take(SMALL_PARTS));
        some
    }

    /// A row.
    #[must_use]
    pub fn row(scenario: Scenario) -> Self {
        Self(Work::Row(scenario))
    }

    /// Every curve at every load.
    #[must_use]
    pub fn curves(lasting: Option<Duration>) -> Vec<Self> {
        let lasting = |row: Scenario| match lasting {
            Some(horizon) => row.lasting(horizon),
            None => row,
        };
        scenario::curve_loads().into_iter().map(|row| Self(Work::Gap(lasting(row)))).collect()
    }

    /// Every upstream whose capacity is measured.
    #[must_use]
    pub fn capacities() -> Vec<Self> {
        (0..super::capacity_upstreams()).map(|place| Self(Work::Capacity(place))).collect()
    }

    /// Presets, slow loops, a warm start, near SLOs.
    #[must_use]
    pub fn cases() -> Vec<Self> {
        Kind::all().into_iter().map(|kind| Self(Work::Case(kind))).collect()
    }

    /// Parts taken out.
    #[must_use]
    pub fn parts() -> Vec<Self> {
        Parts::all().into_iter().map(|parts| Self(Work::Parts(parts))).collect()
    }

    /// Rows in which ours may do no harm, and servers that change; those whose names have all the
    /// words that are joined by commas.
    #[must_use]
    pub fn no_harm(only: &str) -> Vec<Self> {
        Self::harm(no_harm::tasks(only))
    }

    /// A small part of them.
    #[must_use]
    pub fn no_harm_small() -> Vec<Self> {
        Self::harm(no_harm::sample())
    }

    fn harm(tasks: Vec<Task>) -> Vec<Self> {
        tasks.into_iter().map(|task| Self(Work::Harm(Box::new(task)))).collect()
    }

    /// Does it. Nothing comes of a curve that has no optimum.
    #[must_use]
    pub fn run(&self, settings: Settings) -> Option<Told> {
        match &self.0 {
            Work::Row(scenario) => Some(Told::Row(Box::new(row(scenario, settings)))),
            Work::Gap(scenario) => gap(scenario, settings.seeds).map(Told::Gap),
            Work::Capacity(upstream) => capacity(*upstream).map(Told::Capacity),
            Work::Case(kind) => Some(Told::Case(kind.run(settings.seeds))),
            Work::Parts(parts) => Some(Told::Case(parts.run(settings.seeds))),
            Work::Harm(task) => Some(Told::Harm(task.run(settings.seeds))),
        }
    }
}

// === impl Told ===

impl Told {
    /// What it is about.
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

    /// What was asked and what came.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        match self {
            Self::Row(row) => &row.verdicts,
            Self::Gap(gap) => std::slice::from_ref(&gap.verdict),
            Self::Capacity(capacity) => std::slice::from_ref(&capacity.verdict),
            Self::Case(case) => &case.verdicts,
            Self::Harm(harm) => &harm.verdicts,
        }
    }
}
