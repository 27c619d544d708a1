//! Every case, by topic. A case is a function that is given a namespace of its own, tells a story in it, and says in numbers what it saw.
//!
//! To add one: write the function in the file of its topic, named as a sentence that is true when it passes, and add a line to that file's `CASES`.

mod by_hand;
mod certificates;
mod cluster;
mod crd;
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

use super::Verdict;
use super::space::Space;

/// A case.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// `topic.sentence_that_is_true`.
    pub(crate) name: &'static str,
    /// What it cannot do without.
    pub(crate) needs: &'static [Need],
    story: for<'a> fn(&'a Space) -> Story<'a>,
}

type Story<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// What a run may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A node of ours: files of this machine, components and containers to kill.
    Node,
    /// The real helm.
    Helm,
    /// The virtual environment of `tests/servers`.
    Python,
    /// The virtual environment of `e2e/python/requirements` with this name, which is made at full length alone.
    Venv(&'static str),
}

/// `case!("topic", function, Need…)`
macro_rules! case {
    ($topic:literal, $story:ident $(, $need:ident)*) => {
        $crate::cases::Case::new(
            concat!($topic, ".", stringify!($story)),
            &[$($crate::cases::Need::$need),*],
            |space| Box::pin($story(space)),
        )
    };
}
use case;

/// All of them, in the order in which they are run.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    let topics = [
        cluster::CASES,
        stand_in::CASES,
        sidecar::CASES,
        install::CASES,
        injected::CASES,
        policies::CASES,
        observe::CASES,
        stream::CASES,
        tuning::CASES,
        no_harm::CASES,
        by_hand::CASES,
        rollout::CASES,
        ledger::CASES,
        kserve::CASES,
        servers::CASES,
        crd::CASES,
        webhook::CASES,
        certificates::CASES,
        // Before the API server is killed: one that has just started forbids everybody everything for a moment.
        install::CASES_AT_LAST,
        faults::CASES,
        guide::CASES,
    ];
    topics.into_iter().flatten().copied()
}

// === impl Case ===

impl Case {
    const fn new(name: &'static str, needs: &'static [Need], story: for<'a> fn(&'a Space) -> Story<'a>) -> Self {
        Self { name, needs, story }
    }

    /// Whether one of the parts of names that were asked for is in its name.
    pub(crate) fn is_wanted(&self, parts: &[String]) -> bool {
        parts.is_empty() || parts.iter().any(|part| self.name.contains(part.as_str()))
    }

    /// The namespace it gets: the end of its name, in which those of one topic differ.
    pub(crate) fn namespace(&self) -> String {
        let plain: String = self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let end = plain.get(plain.len().saturating_sub(50)..).unwrap_or(&plain);
        format!("e2e-{}", end.trim_matches('-'))
    }

    /// What it needs, in words.
    pub(crate) fn needs(&self) -> String {
        let words: Vec<_> = self.needs.iter().map(|need| format!("{need:?}").to_lowercase()).collect();
        if words.is_empty() { String::new() } else { format!("needs {}", words.join(", ")) }
    }

    /// Tells its story.
    pub(crate) async fn run(&self, space: &Space) -> Verdict {
        (self.story)(space).await
    }
}
