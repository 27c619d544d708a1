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
    /// Accumulated calls and bad calls of each arm, in this order.
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
        let (new_a, new_b) = (to_f64_pair(a), to_f64_pair(b));
        let design_effect = self.design_effect(cluster);
        // The bet is made on the shares observed before this evaluation. The new counts are added
        // only afterwards; otherwise the product would not be an e-value.
        let (expected_a, expected_b) = (posterior_mean(self.a), posterior_mean(self.b));
        if expected_b > expected_a + margin {
            let (null_a, null_b) = nearest_null((new_a.0, expected_a), (new_b.0, expected_b), margin);
            let log = log_likelihood_ratio(new_a, expected_a, null_a) + log_likelihood_ratio(new_b, expected_b, null_b);
            self.log += (log / design_effect).clamp(-LOOK_MAX, LOOK_MAX);
        }
        self.update_variance(new_a, new_b);
        self.a = (self.a.0 + new_a.0, self.a.1 + new_a.1);
        self.b = (self.b.0 + new_b.0, self.b.1 + new_b.1);
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

    /// Returns the number of calls that count as one independent call: the design effect of cluster
    /// sampling (Kish 1965). It is the variance of the difference between the arms over the
    /// evaluations, relative to that of independent calls, and at least `cluster`.
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
        let is_valid = numbers.iter().all(|number| number.is_finite()) && counts.iter().all(|count| *count >= 0.0);
        if !is_valid || a_bad > a || b_bad > b {
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
fn to_f64_pair(counts: BernoulliCounts) -> (f64, f64) {
    (counts.calls as f64, counts.bad.min(counts.calls) as f64)
}

#[cfg(test)]
mod tests;
