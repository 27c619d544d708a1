//! Sequential test of the hypothesis that one arm has a larger share of bad calls than another.
//!
//! At each evaluation the new counts of both arms are turned into an *e-value*: the ratio of their
//! likelihood under the previously observed shares to that under the nearest case without a
//! difference. E-values are multiplied over all evaluations. They are those for two Bernoulli
//! streams of Turner, Ly and Grünwald 2024, "Generic E-variables for exact sequential k-sample
//! tests that allow for optional stopping", arXiv 2106.02693, with a margin. Without a difference
//! the expectation of the product never exceeds 1, so it ever exceeds 1/α with a probability of at
//! most α, however often it is evaluated (Ville 1939). A fixed-sample test at 5 % that is evaluated
//! repeatedly is eventually wrong. The share of bad calls may change over time, provided that it
//! changes for both arms.
//!
//! Calls are not independent, since those of one batch succeed or fail together. The logarithm of
//! each e-value is therefore divided by the number of calls that count as one: the calls in a
//! batch, or more if the difference between the arms varies more than that explains. A power of an
//! e-value with an exponent below 1 is an e-value again (Jensen's inequality), so this only makes
//! the test more conservative.

use std::fmt::Write as _;

/// Prior for the share of bad calls: one in a hundred, with the weight of fifty calls.
const PRIOR_CALLS: f64 = 50.0;
const PRIOR_BAD: f64 = 0.5;
/// Weight of the prior for the dependence between calls, in evaluations.
const PRIOR_LOOKS: f64 = 4.0;
/// Number of calls that count as one if the batch size is unknown.
const CLUSTER_DEFAULT: f64 = 16.0;
/// Its maximum: the size of the largest common batches.
const CLUSTER_MAX: f64 = 128.0;
/// Minimum distance of a share from 0 and 1.
const SHARE_MIN: f64 = 1e-6;
/// Maximum absolute logarithm of one evaluation's e-value. It bounds the effect of a single
/// evaluation, and the numbers in a status.
const LOOK_MAX: f64 = 50.0;
/// Number of bisection steps that find the nearest case, to a precision of 1e-15.
const HALVINGS: u32 = 50;

/// Number of calls, and of bad calls among them, at one evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BernoulliCounts {
    pub(super) calls: u64,
    pub(super) bad: u64,
}

/// Accumulated evidence that arm `b` has a larger share of bad calls than arm `a`, by more than the
/// margin.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct SequentialTest {
    /// Natural logarithm of the e-value.
    log: f64,
    /// Accumulated calls and bad calls of each arm.
    a: (f64, f64),
    b: (f64, f64),
    /// Statistics of the difference between the arms at each evaluation, in standard deviations of
    /// independent calls: count, mean, and sum of squared deviations from the mean.
    looks: u32,
    mean: f64,
    squares: f64,
}

// === impl SequentialTest ===

impl SequentialTest {
    /// Adds one evaluation. `cluster` is the number of calls in a batch, if known.
    pub(super) fn add_counts(&mut self, a: BernoulliCounts, b: BernoulliCounts, margin: f64, cluster: Option<f64>) {
        if a.calls == 0 || b.calls == 0 {
            return;
        }
        let (a_seen, b_seen) = (to_f64_pair(a), to_f64_pair(b));
        let dependent = self.design_effect(cluster);
        // The bet is made on the shares observed before this evaluation. The new counts are added
        // only afterwards; otherwise the product would not be an e-value.
        let (expected_a, expected_b) = (posterior_mean(self.a), posterior_mean(self.b));
        if expected_b > expected_a + margin {
            let (near_a, near_b) = nearest_null((a_seen.0, expected_a), (b_seen.0, expected_b), margin);
            let log =
                log_likelihood_ratio(a_seen, expected_a, near_a) + log_likelihood_ratio(b_seen, expected_b, near_b);
            self.log += (log / dependent).clamp(-LOOK_MAX, LOOK_MAX);
        }
        self.update_variance(a_seen, b_seen);
        self.a = (self.a.0 + a_seen.0, self.a.1 + a_seen.1);
        self.b = (self.b.0 + b_seen.0, self.b.1 + b_seen.1);
    }

    /// Returns `true` if evidence as strong as this occurs without a difference with a probability
    /// of at most `alpha`.
    pub(super) fn exceeds(&self, alpha: f64) -> bool {
        self.log >= -alpha.max(f64::MIN_POSITIVE).ln()
    }

    /// Returns the decimal logarithm of the e-value, for messages.
    pub(super) fn log10_e_value(&self) -> f64 {
        self.log / std::f64::consts::LN_10
    }

    /// Returns the number of evaluations at which both arms had calls.
    pub(super) const fn looks(&self) -> u32 {
        self.looks
    }

    /// Returns the share of bad calls of each arm.
    pub(super) fn shares(&self) -> (f64, f64) {
        let share = |(calls, bad): (f64, f64)| if calls > 0.0 { bad / calls } else { 0.0 };
        (share(self.a), share(self.b))
    }

    /// Returns the number of calls that count as one independent call.
    fn design_effect(&self, cluster: Option<f64>) -> f64 {
        let cluster = cluster.unwrap_or(CLUSTER_DEFAULT).clamp(1.0, CLUSTER_MAX);
        let looks = f64::from(self.looks.saturating_sub(1));
        ((PRIOR_LOOKS * cluster + self.squares) / (PRIOR_LOOKS + looks)).max(cluster)
    }

    /// Updates the variance of the difference by the online algorithm of Welford (1962). A constant
    /// difference does not increase the variance.
    fn update_variance(&mut self, a: (f64, f64), b: (f64, f64)) {
        let pooled = share((a.0 + b.0, a.1 + b.1));
        let deviation = (pooled * (1.0 - pooled) * (1.0 / a.0 + 1.0 / b.0)).sqrt();
        let difference = (b.1 / b.0 - a.1 / a.0) / deviation;
        self.looks = self.looks.saturating_add(1);
        let before = difference - self.mean;
        self.mean += before / f64::from(self.looks);
        self.squares += before * (difference - self.mean);
    }

    /// Serializes the evidence for a status: the number of evaluations, then the other numbers in
    /// the order of the fields.
    pub(super) fn write(&self) -> String {
        let mut text = self.looks.to_string();
        for number in self.numbers() {
            // Writing to a String cannot fail.
            write!(text, " {number:.5e}").ok();
        }
        text
    }

    /// Parses serialized evidence. Returns empty evidence if the text is invalid, in which case the
    /// test starts over and only takes longer.
    pub(super) fn read(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let looks = words.next().and_then(|word| word.parse().ok());
        let numbers: Vec<f64> = words.map_while(|number| number.parse().ok()).collect();
        let (Some(looks), [log, a, a_bad, b, b_bad, mean, squares]) = (looks, &numbers[..]) else {
            return Self::default();
        };
        let counts = [*a, *a_bad, *b, *b_bad, *squares];
        let sane = numbers.iter().all(|number| number.is_finite()) && counts.iter().all(|count| *count >= 0.0);
        if !sane || a_bad > a || b_bad > b {
            return Self::default();
        }
        Self { log: *log, a: (*a, *a_bad), b: (*b, *b_bad), looks, mean: *mean, squares: *squares }
    }

    const fn numbers(&self) -> [f64; 7] {
        [self.log, self.a.0, self.a.1, self.b.0, self.b.1, self.mean, self.squares]
    }
}

/// Returns the case without a difference (`b` ≤ `a` + margin) that is nearest to the expected
/// shares: the one with the smallest Kullback–Leibler divergence, weighted by calls. It is found by
/// bisection. For a margin of zero it is the pooled share.
fn nearest_null(a: (f64, f64), b: (f64, f64), margin: f64) -> (f64, f64) {
    let slope = |calls: f64, expected: f64, at: f64| calls * (at - expected) / (at * (1.0 - at));
    let (mut low, mut high) = (SHARE_MIN, (1.0 - SHARE_MIN - margin).max(2.0 * SHARE_MIN));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if slope(a.0, a.1, middle) + slope(b.0, b.1, middle + margin) > 0.0 {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low, low + margin)
}

/// Returns the log-likelihood ratio of the counts between two shares.
fn log_likelihood_ratio((calls, bad): (f64, f64), under: f64, than: f64) -> f64 {
    bad * (under / than).ln() + (calls - bad) * ((1.0 - under) / (1.0 - than)).ln()
}

/// Returns the posterior mean of the share of bad calls.
fn posterior_mean((calls, bad): (f64, f64)) -> f64 {
    share((calls + PRIOR_CALLS, bad + PRIOR_BAD))
}

fn share((calls, bad): (f64, f64)) -> f64 {
    (bad / calls).clamp(SHARE_MIN, 1.0 - SHARE_MIN)
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls stay below 2^53")]
fn to_f64_pair(tally: BernoulliCounts) -> (f64, f64) {
    (tally.calls as f64, tally.bad.min(tally.calls) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use groupage_simulator::random::RandomStream;

    const ALPHA: f64 = 0.05;

    /// Returns the share of runs in which the evidence exceeds 5 % at any evaluation. `share(draw,
    /// look)` returns the true shares of bad calls of both arms. The calls of a cluster succeed or
    /// fail together.
    fn alarms(
        runs: u64,
        looks: usize,
        (calls, cluster): ((u64, u64), u64),
        known: Option<f64>,
        margin: f64,
        share: impl Fn(&mut RandomStream, usize) -> (f64, f64),
    ) -> f64 {
        let mut alarms = 0;
        for run in 0..runs {
            let mut draw = RandomStream::new(run, 7);
            let mut evidence = SequentialTest::default();
            for look in 0..looks {
                let (a, b) = share(&mut draw, look);
                let mut tally = |calls: u64, share: f64| {
                    let bad = (0..calls / cluster).filter(|_| draw.bernoulli(share)).count() as u64 * cluster;
                    BernoulliCounts { calls, bad }
                };
                let (a, b) = (tally(calls.0, a), tally(calls.1, b));
                evidence.add_counts(a, b, margin, known);
                if evidence.exceeds(ALPHA) {
                    alarms += 1;
                    break;
                }
            }
        }
        f64::from(u32::try_from(alarms).unwrap()) / runs as f64
    }

    #[test]
    fn false_alarms_stay_below_alpha_under_repeated_evaluation() {
        let same = |share: f64| move |_: &mut RandomStream, _: usize| (share, share);
        for (calls, share) in [((300, 300), 0.01), ((900, 100), 0.01), ((300, 300), 0.2), ((50, 50), 0.001)] {
            let wrong = alarms(1000, 200, (calls, 1), Some(1.0), 0.0, same(share));
            assert!(wrong <= ALPHA, "{calls:?} {share}: {wrong}");
        }
    }

    #[test]
    fn no_false_alarms_under_changing_load() {
        let moving = |draw: &mut RandomStream, look: usize| {
            let share = if look % 40 < 20 { 0.01 } else { 0.01 + 0.2 * draw.next_f64() };
            (share, share)
        };
        let wrong = alarms(1000, 200, ((450, 50), 1), Some(1.0), 0.0, moving);
        assert!(wrong <= ALPHA, "{wrong}");
    }

    #[test]
    fn no_false_alarms_with_dependent_calls() {
        for (cluster, known) in [(8, Some(8.0)), (32, Some(32.0)), (8, None), (16, None)] {
            let wrong = alarms(500, 200, ((320, 320), cluster), known, 0.0, |_, _| (0.02, 0.02));
            assert!(wrong <= ALPHA, "{cluster} {known:?}: {wrong}");
        }
    }

    #[test]
    fn no_false_alarms_at_the_margin() {
        let wrong = alarms(1000, 200, ((500, 500), 1), Some(1.0), 0.005, |_, _| (0.01, 0.015));
        assert!(wrong <= ALPHA, "{wrong}");
    }

    #[test]
    fn a_difference_is_found_and_sooner_the_larger_it_is() {
        let found = |looks, share: f64| alarms(300, looks, ((300, 300), 1), Some(1.0), 0.0, move |_, _| (0.01, share));
        assert!(found(3, 0.4) > 0.99, "{}", found(3, 0.4));
        assert!(found(10, 0.05) > 0.95, "{}", found(10, 0.05));
        assert!(found(60, 0.025) > 0.9, "{}", found(60, 0.025));
    }

    #[test]
    fn the_nearest_null_is_the_pooled_share_or_lies_on_the_margin() {
        let (a, b) = nearest_null((300.0, 0.01), (100.0, 0.05), 0.0);
        assert!((a - 0.02).abs() < 1e-9 && (b - 0.02).abs() < 1e-9, "{a} {b}");
        let (a, b) = nearest_null((300.0, 0.01), (100.0, 0.05), 0.01);
        assert!(a > 0.01 && b < 0.05 && (b - a - 0.01).abs() < 1e-12, "{a} {b}");
        // The gradient there shows that no other case without a difference is nearer.
        let divergence = |x: f64| 300.0 * kl(0.01, x) + 100.0 * kl(0.05, x + 0.01);
        assert!(divergence(a) <= divergence(a * 1.01) && divergence(a) <= divergence(a * 0.99));
    }

    fn kl(p: f64, q: f64) -> f64 {
        p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln()
    }

    #[test]
    fn a_sequential_test_round_trips_and_invalid_text_starts_a_new_one() {
        let mut evidence = SequentialTest::default();
        for look in 1..20 {
            evidence.add_counts(
                BernoulliCounts { calls: 500, bad: 5 },
                BernoulliCounts { calls: 100 + look, bad: 4 },
                0.0,
                None,
            );
        }
        let read = SequentialTest::read(&evidence.write());
        for (read, own) in read.numbers().into_iter().zip(evidence.numbers()) {
            assert!((read - own).abs() <= 1e-5 * own.abs(), "{read} {own}");
        }
        for wrong in ["", "x", "1 2 3", "1 2 9 4 9 4 7 -8", "1 2 9 4 9 4 7 NaN", "1 1 1 9 4 2 1 1", "1.5 1 9 1 9 1 1 1"]
        {
            assert_eq!(SequentialTest::read(wrong), SequentialTest::default(), "{wrong}");
        }
        assert_eq!(read.looks, evidence.looks);
        assert!(evidence.write().len() < 120, "{}", evidence.write());
    }
}
