//! Summary of a policy's last minute over all its sidecars, for its status. Pure.
//!
//! A status is read by people and watched by programs. A summary is updated only if a number
//! changes by a tenth, and the condition `SLOMet` has hysteresis.

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::v1alpha1::{BatchingSummary, Quantiles};
use crate::batching::Tick;
use crate::control::histogram::Histogram;
use crate::control::wire::RouteReport;
use crate::rollout::status::{to_duration_text, to_share_text};
use crate::status::{ConditionState, ConditionStatus};
use crate::tuner::{format_rounded, format_share, has_moved};

/// Length of the window.
const WINDOW: Duration = Duration::from_secs(60);
/// Minimum number of calls for a statement about a 99th percentile, as in the tuner.
const CALLS_MIN: u64 = 200;
/// Upper threshold of the hysteresis: a larger share of late or lost calls, in thousandths, misses
/// the SLO.
const MISSED_PERMILLE: u64 = 15;
/// Lower threshold of the hysteresis: a missed SLO is met again at no more than this share.
const MET_PERMILLE: u64 = 10;

/// Counts of the last minute.
#[derive(Debug, Clone, Default)]
pub(super) struct SummaryWindow {
    /// Counts from round to round, the oldest first.
    parts: VecDeque<(Tick, RouteReport)>,
    summary: Option<(SummaryNumbers, BatchingSummary)>,
    /// The last statement about the SLO, with its p99 in microseconds and the tuner's explanation.
    last_state: Option<(ConditionState, u64, String)>,
}

/// The numbers of a summary for comparison: p10, p50 and p90 of items per batch, p99 of the queue
/// delay and of the latency in microseconds, items per second, thousandths of executions saved.
type SummaryNumbers = [u64; 7];

// === impl SummaryWindow ===

impl SummaryWindow {
    /// Adds the counts of all sidecars of the policy since the last round.
    pub(super) fn add(&mut self, now: Tick, counts: RouteReport) {
        self.parts.retain(|(at, _)| now.since(*at) < WINDOW);
        self.parts.push_back((now, counts));
    }

    /// Returns the summary; `None` if there were no calls.
    pub(super) fn summary(&mut self) -> Option<BatchingSummary> {
        let all = self.all();
        if all.calls.served + all.calls.passed == 0 {
            self.summary = None;
            return None;
        }
        let at = |sketch: &Histogram, permille| sketch.quantile(permille).unwrap_or(0);
        let items = u32::try_from;
        let micros = |sketch: &Histogram| sketch.quantile(990).map(Duration::from_micros);
        let over = self.covered_time().as_secs().max(1);
        let each = all.items.served.saturating_add(all.items.passed) / over;
        let saved = all.carried.saturating_sub(all.executions);
        let mut latency = all.latency.clone();
        latency.merge(&all.passed_latency);
        let quantiles = Quantiles {
            p10: items(at(&all.batch_items, 100)).unwrap_or(u32::MAX),
            p50: items(at(&all.batch_items, 500)).unwrap_or(u32::MAX),
            p90: items(at(&all.batch_items, 900)).unwrap_or(u32::MAX),
        };
        let numbers = [
            quantiles.p10.into(),
            quantiles.p50.into(),
            quantiles.p90.into(),
            at(&all.queue_delay, 990),
            at(&latency, 990),
            each,
            saved.saturating_mul(1000) / all.carried.max(1),
        ];
        let fresh = BatchingSummary {
            batch_items: (!all.batch_items.is_empty()).then_some(quantiles),
            queue_delay: micros(&all.queue_delay).map(to_duration_text),
            latency_p99: micros(&latency).map(to_duration_text),
            throughput: Some(each),
            // Rounded to a tenth of a percent for readability.
            saved: to_share_text(saved.saturating_mul(1000) / all.carried.max(1), u64::from(all.carried > 0) * 1000),
            measured_items: None,
        };
        let moved = |old: &SummaryNumbers| old.iter().zip(&numbers).any(|(old, new)| has_moved(*old, *new));
        match &self.summary {
            Some((old, reported)) if !moved(old) => Some(reported.clone()),
            _ => {
                self.summary = Some((numbers, fresh.clone()));
                Some(fresh)
            }
        }
    }

    /// Evaluates the SLO. `slo` is the policy's SLO for all routes, if it has one; `explanation` is
    /// the tuner's, if it has one. The statement is unchanged until the result, the explanation or,
    /// noticeably, the p99 changes.
    pub(super) fn evaluate_slo(&mut self, slo: Option<Duration>, explanation: Option<&str>) -> ConditionState {
        let all = self.all();
        let calls = all.slo_latency.count().saturating_add(all.lost);
        let bad = all.late.saturating_add(all.lost);
        let micros = all.slo_latency.quantile(990).unwrap_or(0);
        let was_missed = self.last_state.as_ref().is_some_and(|(state, ..)| state.holds == ConditionStatus::False);
        let bound = if was_missed { MET_PERMILLE } else { MISSED_PERMILLE };
        let (holds, reason) = if calls < CALLS_MIN {
            (ConditionStatus::Unknown, "FewCalls")
        } else if u128::from(bad) * 1000 > u128::from(calls) * u128::from(bound) {
            (ConditionStatus::False, "Missed")
        } else {
            (ConditionStatus::True, "Met")
        };
        let explanation = explanation.filter(|_| holds == ConditionStatus::False).unwrap_or_default();
        if let Some((state, before, because)) = &self.last_state
            && state.reason == reason
            && because == explanation
            && (holds == ConditionStatus::Unknown || !has_moved(*before, micros))
        {
            return state.clone();
        }
        let message = if holds == ConditionStatus::Unknown {
            format!("too few calls to evaluate the SLO: fewer than {CALLS_MIN} calls with an SLO in the last minute")
        } else {
            let promised = slo.map_or_else(String::new, |slo| format!(" (slo {})", format_rounded(slo)));
            let explanation = if explanation.is_empty() { String::new() } else { format!("; tuner: {explanation}") };
            let (p99, part) = (format_rounded(Duration::from_micros(micros)), format_share(bad, calls));
            format!("p99 {p99}{promised}, {part} of the calls late or unanswered{explanation}")
        };
        let state = ConditionState { holds, reason: reason.to_owned(), message };
        self.last_state = Some((state.clone(), micros, explanation.to_owned()));
        state
    }

    fn all(&self) -> RouteReport {
        let mut all = RouteReport::default();
        self.parts.iter().for_each(|(_, counts)| all.merge(counts));
        all
    }

    /// Returns the time covered. Each entry is assumed to cover as much time as the average gap
    /// between entries.
    fn covered_time(&self) -> Duration {
        let (Some((first, _)), Some((last, _))) = (self.parts.front(), self.parts.back()) else { return WINDOW };
        let between = u32::try_from(self.parts.len().saturating_sub(1)).unwrap_or(1).max(1);
        let long = last.since(*first);
        (long + long / between).clamp(Duration::from_secs(1), WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::OutcomeCounts;

    fn counts(served: u64, micros: u64, late: u64) -> RouteReport {
        let mut counts = RouteReport {
            calls: OutcomeCounts { served, ..OutcomeCounts::default() },
            items: OutcomeCounts { served: 2 * served, ..OutcomeCounts::default() },
            late,
            executions: served / 4,
            carried: served,
            ..RouteReport::default()
        };
        for sketch in [&mut counts.latency, &mut counts.slo_latency] {
            sketch.record_n(micros, served);
        }
        counts.batch_items.record_n(4, served / 4);
        counts
    }

    #[test]
    fn a_summary_covers_the_last_minute_and_ignores_small_changes() {
        let mut recent = SummaryWindow::default();
        for at in 0..20 {
            recent.add(Tick::from_millis(at * 5000), counts(500, 10_000, 0));
        }
        let first = recent.summary().unwrap();
        assert_eq!((first.throughput, first.saved.clone().unwrap().0.as_str()), (Some(200), "75%"));
        assert_eq!(first.batch_items, Some(Quantiles { p10: 4, p50: 4, p90: 4 }));
        recent.add(Tick::from_millis(100_000), counts(520, 10_100, 0));
        assert_eq!(recent.summary(), Some(first), "nothing worth a write");
        recent.add(Tick::from_millis(105_000), counts(5000, 10_000, 0));
        assert!(recent.summary().unwrap().throughput > Some(300));
        assert_eq!(SummaryWindow::default().summary(), None);
    }

    #[test]
    fn the_slo_is_missed_by_many_late_calls_and_met_again_after_a_delay() {
        let mut recent = SummaryWindow::default();
        let slo = Some(Duration::from_millis(150));
        recent.add(Tick::from_millis(0), counts(100, 10_000, 0));
        assert_eq!(recent.evaluate_slo(slo, None).reason, "FewCalls");
        recent.add(Tick::from_millis(5000), counts(1000, 10_000, 13));
        assert_eq!(recent.evaluate_slo(slo, None).reason, "Met", "a little more than one in a hundred may be chance");
        recent.add(Tick::from_millis(10_000), counts(1000, 200_000, 900));
        let state = recent.evaluate_slo(slo, Some("the deadline shift is raised"));
        assert_eq!((state.holds, state.reason.as_str()), (ConditionStatus::False, "Missed"));
        assert!(state.message.contains("slo 150ms") && state.message.ends_with("tuner: the deadline shift is raised"));
        recent.add(Tick::from_millis(66_000), counts(1000, 10_000, 13));
        recent.add(Tick::from_millis(71_000), counts(10, 10_000, 0));
        assert_eq!(recent.evaluate_slo(slo, None).reason, "Missed", "not at once");
        recent.add(Tick::from_millis(76_000), counts(1000, 10_000, 0));
        assert_eq!(recent.evaluate_slo(slo, None).reason, "Met");
    }
}
