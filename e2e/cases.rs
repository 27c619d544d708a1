//! All test cases, by topic. A case is a function that receives a namespace of its own, runs a
//! scenario in it, and returns a line of measurements.
//!
//! To add one, write the function in the file of its topic, named as a sentence that is true when
//! it passes, and add a line to that file's `CASES`.

mod admission;
mod cli_injection;
mod certificates;
mod cluster;
mod crd;
mod engine;
mod faults;
mod guide;
mod injected;
mod install;
mod kserve;
mod ledger;
mod manifests;
mod no_harm;
mod observe;
mod policies;
mod rollout;
mod servers;
mod sidecar;
mod stand_in;
mod stream;
mod tuning;
mod webhook;

use std::pin::Pin;

use super::CaseResult;
use super::test_namespace::TestNamespace;

/// A test case.
#[derive(Clone, Copy)]
pub(crate) struct TestCase {
    /// `topic.sentence_that_is_true`.
    pub(crate) name: &'static str,
    /// Requirements without which the case is skipped.
    pub(crate) needs: &'static [Requirement],
    scenario: for<'a> fn(&'a TestNamespace) -> CaseFuture<'a>,
}

type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

/// Requirement of a case that a run may not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// A node started by this run, with access to its files, components and containers.
    Node,
    /// The helm program.
    Helm,
    /// The virtual environment of `tests/servers`.
    Python,
    /// The virtual environment of `e2e/python/requirements` with this name, which is only created
    /// at full length.
    Venv(&'static str),
    /// The image with CUDA support, which is only built at full length.
    CudaImage,
    /// A run at full length: another case covers the same path in every run.
    FullLength,
}

/// Declares a case: `case!("topic", function, Requirement…)`.
macro_rules! case {
    ($topic:literal, $scenario:ident $(, $need:ident)*) => {
        $crate::cases::TestCase::new(
            concat!($topic, ".", stringify!($scenario)),
            &[$($crate::cases::Requirement::$need),*],
            |space| Box::pin($scenario(space)),
        )
    };
}
use case;

/// Returns all cases in the order of execution.
pub(crate) fn all() -> impl Iterator<Item = TestCase> {
    let topics = [
        cluster::CASES,
        stand_in::CASES,
        sidecar::CASES,
        install::CASES,
        injected::CASES,
        engine::CASES,
        policies::CASES,
        observe::CASES,
        stream::CASES,
        tuning::CASES,
        no_harm::CASES,
        admission::CASES,
        cli_injection::CASES,
        rollout::CASES,
        ledger::CASES,
        kserve::CASES,
        servers::CASES,
        crd::CASES,
        webhook::CASES,
        certificates::CASES,
        // These run before the API server is killed: after a restart it rejects every request as
        // forbidden for a moment.
        install::FINAL_CASES,
        faults::CASES,
        guide::CASES,
    ];
    topics.into_iter().flatten().copied()
}

// === impl TestCase ===

impl TestCase {
    const fn new(
        name: &'static str,
        needs: &'static [Requirement],
        scenario: for<'a> fn(&'a TestNamespace) -> CaseFuture<'a>,
    ) -> Self {
        Self { name, needs, scenario }
    }

    /// Returns `true` if the name of the case contains one of these parts, or if there are none.
    pub(crate) fn is_wanted(&self, parts: &[String]) -> bool {
        parts.is_empty() || parts.iter().any(|part| self.name.contains(part.as_str()))
    }

    /// Returns the name of its namespace: the end of the case's name, which is unique within a
    /// topic.
    pub(crate) fn namespace(&self) -> String {
        let plain: String = self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let end = plain.get(plain.len().saturating_sub(50)..).unwrap_or(&plain);
        format!("e2e-{}", end.trim_matches('-'))
    }

    /// Returns its requirements as text.
    pub(crate) fn needs(&self) -> String {
        let words: Vec<_> = self.needs.iter().map(|need| format!("{need:?}").to_lowercase()).collect();
        if words.is_empty() { String::new() } else { format!("needs {}", words.join(", ")) }
    }

    /// Runs the scenario.
    pub(crate) async fn run(&self, space: &TestNamespace) -> CaseResult {
        (self.scenario)(space).await
    }
}
