//! What every sidecar said last, and what it counted since somebody asked: plain data. Pure.
//!
//! A sidecar stays in here while its stream is open, and after its end until what it counted was taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batching::Tick;
use crate::control::server::Identity;
use crate::control::wire::{self, EXPERIMENT, Hello, InForce, Learned, LearnedClass, Report, RouteReport, START};
use crate::rollout::{Counts, Epoch};
use crate::tuner::{Observation, Settings};

/// Every sidecar, by the UID of its pod.
#[derive(Debug, Default)]
pub(super) struct Book(BTreeMap<String, Sidecar>);

/// What is known of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sidecar {
    /// Its stream is open.
    pub(super) here: bool,
    /// It understands arms that end by themselves.
    pub(super) takes_arms: bool,
    /// It understands what others learned.
    pub(super) takes_starts: bool,
    /// What it says is in force.
    pub(super) in_force: Option<InForce>,
    /// What it refused, by hash, and why.
    pub(super) refused: Option<(String, String)>,
    /// What was given to this stream last, by hash, and when.
    pub(super) given: Option<(String, Tick)>,
    /// What it counted since the last look.
    pub(super) fresh: Fresh,
    /// What it counted since the slow loop looked.
    pub(super) window: Fresh,
    /// The 99th percentile of its calls with an SLO, when there were some last.
    pub(super) slo_p99: Option<Duration>,
    /// What it learned, of each model server.
    pub(super) learned: Vec<Learned>,
    /// By how much its deadlines come earlier, in thousandths of the SLO.
    pub(super) shift_permille: u32,
    /// What batching would have done since the last look, and the most items of which a time was measured.
    pub(super) predicted: Option<(RouteReport, u32)>,
}

/// Counts of one profile in one stretch of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fresh {
    /// The profile that was in force.
    pub(super) profile: Option<String>,
    /// Since when, as far as its reports say.
    pub(super) since: Epoch,
    /// The time that is covered.
    pub(super) from: Epoch,
    /// Its end.
    pub(super) to: Epoch,
    /// The same, as the sidecar's clock has it.
    pub(super) over: Duration,
    /// All routes together.
    pub(super) counts: RouteReport,
}

// === impl Book ===

impl Book {
    /// A stream is open.
    pub(super) fn opened(&mut self, pod: &Identity, hello: &Hello) {
        let sidecar = self.0.entry(pod.uid.clone()).or_default();
        sidecar.here = true;
        sidecar.takes_arms = hello.has(EXPERIMENT);
        sidecar.takes_starts = hello.has(START);
        sidecar.in_force.clone_from(&hello.config);
        sidecar.given = None;
        sidecar.refused = None;
    }

    /// A report came, at this time of the wall; whether other settings are in force since the last.
    pub(super) fn report(&mut self, pod: &Arc<Identity>, report: Report, at: Epoch) -> bool {
        let Some(sidecar) = self.0.get_mut(&pod.uid) else { return false };
        let changed = report.config.is_some() && report.config != sidecar.in_force;
        sidecar.report(report, at);
        changed
    }

    /// It refused what it was told.
    pub(super) fn refused(&mut self, pod: &Identity, hash: &str, why: &str) {
        if let Some(sidecar) = self.0.get_mut(&pod.uid) {
            sidecar.refused = Some((hash.to_owned(), why.to_owned()));
        }
    }

    /// Its stream has ended.
    pub(super) fn closed(&mut self, pod: &Identity) {
        if let Some(sidecar) = self.0.get_mut(&pod.uid) {
            sidecar.here = false;
            sidecar.given = None;
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Sidecar> {
        self.0.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut Sidecar> {
        self.0.get_mut(uid)
    }

    /// Those whose stream is open.
    pub(super) fn here(&self) -> impl Iterator<Item = (&String, &Sidecar)> {
        self.0.iter().filter(|(_, sidecar)| sidecar.here)
    }

    /// Forgets those that have gone; call it once all that was counted was taken.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|_, sidecar| sidecar.here);
    }
}

// === impl Sidecar ===

impl Sidecar {
    fn report(&mut self, report: Report, at: Epoch) {
        let Report { over_ms, config, upstreams, .. } = report;
        if config.is_some() {
            self.in_force = config;
        }
        let profile = self.in_force.as_ref().map(|now| now.profile.clone()).filter(|profile| !profile.is_empty());
        let over = Duration::from_millis(over_ms);
        let mut counts = RouteReport::default();
        self.learned.clear();
        self.shift_permille = 0;
        for upstream in upstreams {
            upstream.routes.iter().for_each(|route| counts.merge(route));
            self.learned.extend(upstream.learned);
            if let Some(predicted) = upstream.predicted {
                let (all, items) = self.predicted.get_or_insert_default();
                all.merge(&predicted.counts);
                *items = predicted.measured_items.max(*items);
            }
            self.shift_permille = self.shift_permille.max(upstream.shift_permille);
        }
        let kept = &mut self.fresh;
        if kept.profile != profile {
            // Somewhere within this report another one came in force, so it is nobody's.
            *kept = Fresh { profile, since: at, from: at, to: at, ..Fresh::default() };
            return;
        }
        if kept.over.is_zero() {
            kept.from = Epoch(at.0.saturating_sub(over.as_secs()));
        }
        kept.to = at;
        kept.over += over;
        kept.counts.merge(&counts);
    }

    /// What was counted since the last look; the slow loop gets it too.
    pub(super) fn take_fresh(&mut self) -> Fresh {
        let fresh = self.fresh.take();
        if self.window.profile == fresh.profile {
            self.window.over += fresh.over;
            self.window.counts.merge(&fresh.counts);
        } else {
            self.window = fresh.clone();
        }
        let p99 = fresh.counts.slo_latency.quantile(990).map(Duration::from_micros);
        self.slo_p99 = p99.or(self.slo_p99);
        fresh
    }

    /// Whether it goes by what it is told: settings are in force, and it has not refused those that it was given last.
    pub(super) fn follows(&self) -> bool {
        let given = self.given.as_ref().map(|(hash, _)| hash);
        self.in_force.is_some() && self.refused.as_ref().is_none_or(|(hash, _)| Some(hash) != given)
    }

    /// What the slow loop looks at, since it looked last. `node_class` is the kind of machine; `frozen`: others are compared with it.
    pub(super) fn take_observation(&mut self, uid: &str, node_class: &str, frozen: bool) -> Observation {
        let Fresh { profile, over, counts, .. } = self.window.take();
        let classes = || self.learned.iter().flat_map(|learned| learned.classes.first());
        Observation {
            pod: uid.to_owned(),
            node_class: node_class.to_owned(),
            profile: profile.unwrap_or_default(),
            frozen,
            over,
            latency: counts.slo_latency,
            late: counts.late,
            lost: counts.lost,
            in_force: self.in_force.as_ref().map(|now| settings(&now.settings)),
            shift_permille: self.shift_permille,
            slots: self.learned.iter().map(|learned| learned.slots).max().unwrap_or(0),
            lone_late: classes()
                .map(|class| class.lone_late_us)
                .filter(|micros| *micros > 0)
                .max()
                .map(Duration::from_micros),
            weight_ceiling: self.learned.iter().filter_map(|learned| learned.weight_ceiling).min(),
            changes: self.learned.iter().map(|learned| learned.changes).fold(0, u64::saturating_add),
            learning: self.learned.iter().any(|learned| learned.concurrency.learning || learned.concurrency.trying),
        }
    }

    /// What it learned of the model server that it knows best, and of the cost class with most batches there.
    pub(super) fn knows(&self) -> Option<(&Learned, &LearnedClass)> {
        let all = self.learned.iter().filter_map(|learned| Some((learned, learned.classes.first()?)));
        all.max_by_key(|(_, class)| class.samples)
    }
}

// === impl Fresh ===

impl Fresh {
    /// What there is, and begins anew under the same profile.
    fn take(&mut self) -> Self {
        let next =
            Self { profile: self.profile.clone(), since: self.since, from: self.to, to: self.to, ..Self::default() };
        std::mem::replace(self, next)
    }

    /// As a rollout compares it. Calls that pass through count like others, each as a batch of its own, as the summary of a status has it: a policy under
    /// which nothing is batched has a latency too, and without them what fails would be all that ends.
    pub(super) fn compared(&self) -> Counts {
        let RouteReport { calls, server_errors, .. } = &self.counts;
        let mut latency = self.counts.latency.clone();
        latency.merge(&self.counts.passed_latency);
        Counts {
            latency,
            errors: [calls.rejected, calls.expired, calls.failed, *server_errors]
                .into_iter()
                .fold(0, u64::saturating_add),
            batches: self.counts.executions.saturating_add(self.counts.passed_latency.count()),
        }
    }
}

/// What of the tuner's is said on the wire.
pub(super) fn settings(said: &wire::Settings) -> Settings {
    Settings { shift_permille: said.shift_permille, slots_max: said.slots_max, batch_weight_max: said.batch_weight_max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::{Outcomes, UpstreamReport};

    fn pod() -> Arc<Identity> {
        Arc::new(Identity { uid: "u".into(), name: "n".into(), namespace: "a".into() })
    }

    fn report(profile: &str, served: u64) -> Report {
        let mut route =
            RouteReport { calls: Outcomes { served, rejected: 1, ..Outcomes::default() }, ..RouteReport::default() };
        route.latency.add_many(900, served);
        route.slo_latency.add_many(900, served);
        Report {
            over_ms: 5000,
            config: Some(InForce { profile: profile.to_owned(), ..InForce::default() }),
            upstreams: vec![UpstreamReport { routes: vec![route.clone(), route], ..UpstreamReport::default() }],
            ..Report::default()
        }
    }

    #[test]
    fn counts_are_added_up_until_they_are_taken_and_by_each_who_takes() {
        let mut book = Book::default();
        book.opened(&pod(), &Hello { config: report("p", 0).config, ..Hello::default() });
        // The first report tells since when the profile is known to be in force.
        for at in [100, 105, 110] {
            book.report(&pod(), report("p", 10), Epoch(at));
        }
        let sidecar = book.get_mut("u").unwrap();
        let fresh = sidecar.take_fresh();
        assert_eq!((fresh.since, fresh.from, fresh.to), (Epoch(100), Epoch(100), Epoch(110)));
        assert_eq!((fresh.compared().calls(), fresh.compared().errors), (44, 4));
        assert_eq!(sidecar.take_fresh().compared().calls(), 0);
        let seen = sidecar.take_observation("u", "l4", false);
        assert_eq!((seen.latency.count(), seen.over, seen.profile.as_str()), (40, Duration::from_secs(10), "p"));
    }

    #[test]
    fn what_the_server_answers_with_an_error_is_an_error() {
        let mut fresh = Fresh::default();
        fresh.counts.calls = Outcomes { served: 7, passed: 3, ..Outcomes::default() };
        fresh.counts.server_errors = 4;
        fresh.counts.latency.add_many(900, 4);
        fresh.counts.passed_latency.add_many(900, 2);
        assert_eq!((fresh.compared().calls(), fresh.compared().errors), (10, 4));
    }

    #[test]
    fn calls_that_pass_through_are_compared_like_others() {
        let mut book = Book::default();
        book.opened(&pod(), &Hello { config: report("p", 0).config, ..Hello::default() });
        let mut passing = report("p", 10);
        for route in &mut passing.upstreams[0].routes {
            (route.executions, route.calls.passed) = (2, 30);
            route.passed_latency.add_many(5000, 30);
        }
        book.report(&pod(), report("p", 0), Epoch(100));
        book.report(&pod(), passing, Epoch(105));
        let counts = book.get_mut("u").unwrap().take_fresh().compared();
        assert_eq!((counts.latency.count(), counts.errors, counts.batches), (2 * 40, 2, 2 * 32));
    }

    #[test]
    fn a_report_in_which_the_profile_changed_is_nobodys() {
        let mut book = Book::default();
        book.opened(&pod(), &Hello::default());
        for (at, profile) in [(100, "p"), (105, "p"), (110, "q"), (115, "q")] {
            book.report(&pod(), report(profile, 10), Epoch(at));
        }
        let fresh = book.get_mut("u").unwrap().take_fresh();
        assert_eq!((fresh.profile.as_deref(), fresh.since, fresh.compared().calls()), (Some("q"), Epoch(110), 22));
    }

    #[test]
    fn who_has_gone_is_forgotten_once_it_was_looked_at() {
        let mut book = Book::default();
        book.opened(&pod(), &Hello::default());
        book.closed(&pod());
        assert!(book.get("u").is_some() && book.here().next().is_none());
        book.tidy();
        assert!(book.get("u").is_none());
    }
}
