//! Comparison of a candidate with the control arm.
//!
//! Each evaluation tests three hypotheses. *Errors*: the candidate's share of calls that are not
//! served is larger, by more than `errorRateRegression`. *Latency*: more than one in a hundred of
//! its calls exceed the control arm's 99th percentile by more than `latencyP99Regression`. Both are
//! sequential tests that stay valid however often they are evaluated (`evidence`), with a combined
//! false-alarm rate of at most one rollout in twenty. The percentile is that of the control arm's
//! calls *before* the evaluation, so both arms are compared with the same threshold, which follows
//! the load. *Jump*: errors or slow calls increase abruptly. A jump is detected in a single
//! evaluation, without a minimum number of evaluations, and has to be large enough that chance
//! practically never causes it.
//!
//! The verdict *better* is the latency test with the arms exchanged and no margin, provided that
//! errors are not worse. If the evidence is inconclusive, there is no verdict.

use super::evidence::{BernoulliCounts, SequentialTest};
use super::{ArmCounts, RegressionThresholds};
use crate::control::histogram::Histogram;
use crate::tuner::{format_rounded, format_share};
use std::time::Duration;
use strum::IntoStaticStr;

/// Probability of a false alarm in one comparison of any length, shared by the tests.
const ALPHA: f64 = 0.05;
/// Number of calls of the control arm before a threshold exists: ten of them exceed the 99th
/// percentile.
pub(super) const THRESHOLD_CALLS_MIN: u64 = 1000;
/// Minimum number of recent evaluations that the threshold is computed from.
const THRESHOLD_EVALUATIONS: u32 = 10;
/// Conditions for a jump: at least this many calls of each arm in one evaluation...
const JUMP_CALLS: u64 = 20;
/// ...an increase of the share of bad calls by at least this much...
const JUMP_SHARE: f64 = 0.1;
/// ...and by this many standard deviations. Chance exceeds them once in a hundred thousand
/// evaluations, and a rollout has some hundred. If whole batches fail, each counts once.
const JUMP_Z: f64 = 4.3;
/// Multiple of the threshold beyond which a call is slow, for the detection of a jump.
const JUMP_FACTOR: u64 = 2;
/// In a switchback experiment this many times as many calls count as one...
const SWITCHBACK_DESIGN_EFFECT: f64 = 4.0;
/// ...and a verdict needs at least this many evaluations, each with calls of both arms, to show the
/// variation over time.
pub(super) const SWITCHBACK_EVALUATIONS_MIN: u32 = 6;

/// Comparison of one candidate with the control arm, accumulated over all evaluations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Comparison {
    errors: SequentialTest,
    latency: SequentialTest,
    better: SequentialTest,
    /// The threshold of slow calls, with the calls that it is computed from. A status contains only
    /// its value.
    threshold: LatencyThreshold,
}

/// The 99th percentile of the control arm's recent calls, in microseconds.
#[derive(Debug, Clone, PartialEq, Default)]
struct LatencyThreshold {
    /// The previous threshold, or the one that another controller stored in the status. It is used
    /// until enough calls were measured since.
    previous: Option<u64>,
    /// Calls of the control arm in recent evaluations.
    latency: Histogram,
    /// Number of evaluations in `latency`.
    looks: u32,
    /// Calls of the last evaluation, with which the next threshold starts once this one is
    /// complete.
    last: Histogram,
}

/// Design of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparisonDesign {
    /// Number of candidates compared with the same control arm. Each adds a chance of a false
    /// alarm.
    pub candidates: usize,
    /// `true` if pods alternate between the arms (switchback), `false` if the arms run side by
    /// side.
    pub turns: bool,
}

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComparisonResult {
    /// No verdict yet.
    Nothing,
    /// The candidate is worse.
    Worse {
        /// Category.
        word: Regression,
        /// One-sentence explanation.
        detail: String,
    },
    /// The candidate is better.
    Better {
        /// One-sentence explanation.
        detail: String,
    },
}

/// Category of a regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum Regression {
    /// An abrupt increase of errors.
    ErrorsJumped,
    /// An abrupt increase of slow calls.
    LatencyJumped,
    /// A larger share of errors.
    #[strum(serialize = "ErrorRateRegression")]
    ErrorRate,
    /// A higher 99th percentile.
    #[strum(serialize = "LatencyP99Regression")]
    LatencyP99,
}

// === impl Regression ===

impl Regression {
    /// Returns the name used in Events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl Comparison ===

impl Comparison {
    /// Evaluates the calls that both arms served since the last evaluation.
    pub fn evaluate(
        &mut self,
        control: &ArmCounts,
        candidate: &ArmCounts,
        analysis: &RegressionThresholds,
        design: ComparisonDesign,
    ) -> ComparisonResult {
        let threshold = self.threshold.p99();
        let finding = detect_jump(control, candidate, threshold);
        // Arms that are served one after the other also differ by the time of day, so each call
        // carries less information.
        let design_effect = if design.turns { SWITCHBACK_DESIGN_EFFECT } else { 1.0 };
        let cluster = mean_batch_calls(control, candidate).map(|calls| calls * design_effect);
        let margin = f64::from(analysis.errors_ppm) / 1e6;
        self.errors.add_counts(error_counts(control), error_counts(candidate), margin, cluster);
        if let Some(threshold) = threshold {
            let beyond = threshold + threshold * u64::from(analysis.p99_permille) / 1000;
            self.latency.add_counts(slow_counts(control, threshold), slow_counts(candidate, beyond), 0.0, cluster);
            self.better.add_counts(slow_counts(candidate, threshold), slow_counts(control, threshold), 0.0, cluster);
        }
        // The new calls raise the threshold only from the next evaluation on.
        self.threshold.add(&control.latency);
        if let Some(finding) = finding {
            return finding;
        }
        if design.turns && self.errors.looks() < SWITCHBACK_EVALUATIONS_MIN {
            return ComparisonResult::Nothing;
        }
        self.conclude(analysis, design.candidates, threshold)
    }

    /// Returns the number of evaluations at which both arms had calls.
    #[must_use]
    pub fn looks(&self) -> u32 {
        self.errors.looks()
    }

    /// Returns the number of these evaluations at which a latency threshold existed.
    #[must_use]
    pub fn latency_looks(&self) -> u32 {
        self.latency.looks()
    }

    /// Checks the calls since the last evaluation for a jump, without evaluating the sequential
    /// tests.
    #[must_use]
    pub fn check_jump(&self, control: &ArmCounts, candidate: &ArmCounts) -> ComparisonResult {
        detect_jump(control, candidate, self.threshold.p99()).unwrap_or(ComparisonResult::Nothing)
    }

    /// Concludes from the accumulated evidence, regressions first.
    fn conclude(&self, analysis: &RegressionThresholds, candidates: usize, threshold: Option<u64>) -> ComparisonResult {
        let alpha = ALPHA / 2.0 / f64::from(u32::try_from(candidates.max(1)).unwrap_or(u32::MAX));
        if self.errors.exceeds(alpha) {
            let (control, candidate) = self.errors.shares();
            let detail = format!(
                "error rate {}, control {}: worse by more than {} (e-value {})",
                percent(candidate),
                percent(control),
                percent(f64::from(analysis.errors_ppm) / 1e6),
                e_value(&self.errors)
            );
            return ComparisonResult::Worse { word: Regression::ErrorRate, detail };
        }
        let threshold = threshold.map_or(String::new(), format_micros);
        if self.latency.exceeds(alpha) {
            let (_, candidate) = self.latency.shares();
            let detail = format!(
                "{} of the calls are slower than the control's p99 of {threshold} plus {}, where 1% is expected (e-value {})",
                percent(candidate),
                format_share(u64::from(analysis.p99_permille), 1000),
                e_value(&self.latency)
            );
            return ComparisonResult::Worse { word: Regression::LatencyP99, detail };
        }
        if self.better.exceeds(alpha) {
            let (candidate, control) = self.better.shares();
            let detail = format!(
                "{} of the calls are slower than {threshold}, {} in the control (e-value {})",
                percent(candidate),
                percent(control),
                e_value(&self.better)
            );
            return ComparisonResult::Better { detail };
        }
        ComparisonResult::Nothing
    }

    /// Serializes the comparison for a status.
    #[must_use]
    pub fn write(&self) -> String {
        let evidence = [&self.errors, &self.latency, &self.better].map(SequentialTest::write).join("; ");
        self.threshold.p99().map_or(evidence.clone(), |threshold| format!("{evidence}; {threshold}"))
    }

    /// Parses a serialized comparison. Returns an empty one if the text is invalid.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut parts = text.split(';');
        let mut next = || parts.next().map(SequentialTest::read).unwrap_or_default();
        let (errors, latency, better) = (next(), next(), next());
        let previous = parts.next().and_then(|threshold| threshold.trim().parse().ok());
        Self { errors, latency, better, threshold: LatencyThreshold { previous, ..LatencyThreshold::default() } }
    }
}

// === impl LatencyThreshold ===

impl LatencyThreshold {
    /// Returns the 99th percentile in microseconds, or `None` until enough calls were measured.
    fn p99(&self) -> Option<u64> {
        (self.latency.count() >= THRESHOLD_CALLS_MIN).then(|| self.latency.quantile(990)).flatten().or(self.previous)
    }

    fn add(&mut self, latency: &Histogram) {
        // If calls are few, the threshold is computed from more evaluations, and the previous one
        // applies until the next has enough calls.
        if self.looks >= THRESHOLD_EVALUATIONS && self.latency.count() >= THRESHOLD_CALLS_MIN {
            self.previous = self.p99();
            self.latency = std::mem::take(&mut self.last);
            self.looks = 1;
        }
        self.latency.merge(latency);
        self.looks += 1;
        self.last = latency.clone();
    }
}

/// Returns a finding if errors or slow calls increased more than chance explains in one evaluation.
fn detect_jump(control: &ArmCounts, candidate: &ArmCounts, threshold: Option<u64>) -> Option<ComparisonResult> {
    let batch = mean_batch_calls(control, candidate).unwrap_or(1.0).max(1.0);
    let jumped = |control: BernoulliCounts, candidate: BernoulliCounts| {
        let (n, m) = (float(control.calls), float(candidate.calls));
        if control.calls < JUMP_CALLS || candidate.calls < JUMP_CALLS {
            return None;
        }
        let (before, now) = (float(control.bad) / n, float(candidate.bad) / m);
        let pooled = (float(control.bad) + float(candidate.bad)) / (n + m);
        let deviation = (pooled * (1.0 - pooled) * (1.0 / n + 1.0 / m) * batch).sqrt();
        (now - before >= JUMP_SHARE && now - before > JUMP_Z * deviation).then_some((before, now))
    };
    if let Some((before, now)) = jumped(error_counts(control), error_counts(candidate)) {
        let detail = format!("error rate {}, control {}", percent(now), percent(before));
        return Some(ComparisonResult::Worse { word: Regression::ErrorsJumped, detail });
    }
    let threshold = threshold?.saturating_mul(JUMP_FACTOR);
    let (before, now) = jumped(slow_counts(control, threshold), slow_counts(candidate, threshold))?;
    let detail = format!(
        "{} of the calls are slower than {}, {} in the control",
        percent(now),
        format_micros(threshold),
        percent(before)
    );
    Some(ComparisonResult::Worse { word: Regression::LatencyJumped, detail })
}

fn error_counts(counts: &ArmCounts) -> BernoulliCounts {
    BernoulliCounts { calls: counts.calls(), bad: counts.errors }
}

fn slow_counts(counts: &ArmCounts, threshold: u64) -> BernoulliCounts {
    BernoulliCounts { calls: counts.latency.count(), bad: counts.latency.count_above(threshold) }
}

/// Returns the mean number of calls in a batch, of the arm with the larger batches; `None` if it is
/// unknown for both.
fn mean_batch_calls(control: &ArmCounts, candidate: &ArmCounts) -> Option<f64> {
    let of = |counts: &ArmCounts| (counts.batches > 0).then(|| float(counts.calls()) / float(counts.batches));
    of(control).into_iter().chain(of(candidate)).reduce(f64::max)
}

fn format_micros(micros: u64) -> String {
    format_rounded(Duration::from_micros(micros))
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 { format!("{:.2}%", share * 100.0) } else { format!("{:.1}%", share * 100.0) }
}

/// Formats an e-value for messages, up to one million.
fn e_value(evidence: &SequentialTest) -> String {
    match evidence.log10_e_value() {
        decades if decades > 6.0 => "over a million".to_owned(),
        decades => format!("{:.0}", 10_f64.powf(decades)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls stay below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds that are drawn, positive and small"
)]
#[cfg(test)]
mod tests;
