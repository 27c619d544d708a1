//! Estimator of tokens for each code point: robust least squares with exponential forgetting.
//!
//! Tokens are a linear function of the size of a text, with one coefficient for each script and one
//! for each text. Every response adds an equation, scaled to a relative error so that long texts do
//! not outweigh short ones. An equation that the rates miss by far has less weight (Huber), because
//! a server may truncate a text or count something else. The normal equations decay, so that the
//! rates follow a change of the server within about a hundred responses. A ridge towards the
//! default rates decides what the responses do not show. The solution is found by projected
//! coordinate descent (Gauss-Seidel), which keeps each rate within its bounds, from the previous
//! solution.

use super::size::TextSize;
use crate::batching::{round_to_u64, to_f64};

/// Numbers of texts and of code points by script.
const TERMS: usize = 4;
/// Typical tokens of a text (a beginning and an end) and of a code point of each script: the scale
/// of the coefficients.
const UNITS: [f64; TERMS] = [2.0, 0.25, 0.75, 0.5];
/// Coefficients without evidence, in these units: the default rates, which add nothing for a text.
const PRIOR: [f64; TERMS] = [0.0, 1.0, 1.0, 1.0];
/// Maximum of a coefficient. A tokenizer of bytes needs 8 units for a code point of 4 bytes.
const RATE_MAX: f64 = 16.0;
/// Weight of the default rates, in responses.
const RIDGE: f64 = 0.02;
/// Part of the evidence that each response leaves: a memory of 128 responses.
const KEPT: f64 = 1.0 - 1.0 / 128.0;
/// Relative error above which a response has less weight: larger than the spread of natural texts.
const ERROR_MAX: f64 = 0.25;
/// Number of responses before large errors reduce the weight: the first ones determine the rates.
const TRUSTED_AFTER: u32 = 8;
/// Number of responses before the rates are used. Of one or two, each may be an exception.
const USED_AFTER: u32 = 3;
/// Maximum of a scaled term, far above that of any text, so that a wrong count keeps the equations
/// finite.
const TERM_MAX: f64 = 64.0;
/// Rounds of the solver for each response. It starts close to the solution.
const ROUNDS: usize = 32;

/// Learned rates of one model.
#[derive(Debug, Clone)]
pub(super) struct TokenRates {
    /// Normal equations.
    gram: [[f64; TERMS]; TERMS],
    target: [f64; TERMS],
    rates: [f64; TERMS],
    responses: u32,
}

// === impl TokenRates ===

impl Default for TokenRates {
    fn default() -> Self {
        Self { gram: [[0.0; TERMS]; TERMS], target: [0.0; TERMS], rates: PRIOR, responses: 0 }
    }
}

impl TokenRates {
    /// Returns the number of responses from which the rates were learned.
    pub(super) fn responses(&self) -> u32 {
        self.responses
    }

    /// Returns the estimated number of tokens, or `None` while too little is known.
    pub(super) fn estimate(&self, size: &TextSize) -> Option<u64> {
        let tokens = round_to_u64(self.predict(size)).saturating_add(size.tokens);
        (self.responses >= USED_AFTER).then_some(tokens)
    }

    /// Learns from a response that reported this many tokens for texts of this size.
    pub(super) fn observe(&mut self, size: &TextSize, tokens: u64) {
        // Token ids are known, and give no information about text.
        let tokens = to_f64(tokens.saturating_sub(size.tokens));
        let points = size.latin.saturating_add(size.cjk).saturating_add(size.other);
        if points == 0 || tokens < 1.0 {
            return;
        }
        let predicted = self.predict(size);
        let scale = tokens.max(predicted);
        let error = (tokens - predicted).abs() / scale;
        let weight = if self.responses < TRUSTED_AFTER { 1.0 } else { (ERROR_MAX / error.max(ERROR_MAX)).min(1.0) };
        let row = terms(size).map(|term| (term / scale).min(TERM_MAX));
        for (one, (equation, target)) in self.gram.iter_mut().zip(&mut self.target).enumerate() {
            for (other, factor) in equation.iter_mut().enumerate() {
                *factor = *factor * KEPT + weight * row[one] * row[other];
            }
            *target = *target * KEPT + weight * row[one] * tokens / scale;
        }
        self.responses = self.responses.saturating_add(1);
        self.solve();
    }

    fn predict(&self, size: &TextSize) -> f64 {
        terms(size).iter().zip(&self.rates).map(|(term, rate)| term * rate).sum()
    }

    fn solve(&mut self) {
        for _ in 0..ROUNDS {
            for (term, prior) in PRIOR.iter().enumerate() {
                let factors = &self.gram[term];
                let of_others = |other: &usize| *other != term;
                let others: f64 = (0..TERMS).filter(of_others).map(|other| factors[other] * self.rates[other]).sum();
                let best = (self.target[term] + RIDGE * prior - others) / (factors[term] + RIDGE);
                self.rates[term] = best.clamp(0.0, RATE_MAX);
            }
        }
    }
}

/// Returns the terms of the linear function, in units.
fn terms(size: &TextSize) -> [f64; TERMS] {
    let [texts, latin, cjk, other] = UNITS;
    [to_f64(size.texts) * texts, to_f64(size.latin) * latin, to_f64(size.cjk) * cjk, to_f64(size.other) * other]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(texts: u64, latin: u64, cjk: u64, other: u64) -> TextSize {
        TextSize { texts, latin, cjk, other, tokens: 0 }
    }

    /// A server that adds two tokens to each text.
    fn true_tokens(size: &TextSize, rates: [u64; 3]) -> u64 {
        (size.latin * rates[0] + size.cjk * rates[1] + size.other * rates[2]).div_ceil(100) + 2 * size.texts
    }

    /// Draws texts of one script each, 20 to 2000 code points long.
    fn texts(count: u64) -> impl Iterator<Item = TextSize> {
        let mut random = 9_u64;
        (0..count).map(move |index| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let points = 20 + (random >> 33) % 1980;
            match index % 3 {
                0 => size(1, points, 0, 0),
                1 => size(1, points / 10, points, 0),
                _ => size(1, points / 10, 0, points),
            }
        })
    }

    fn assert_close(rates: &TokenRates, size: &TextSize, expected: u64, percent: u64) {
        let found = rates.estimate(size).unwrap();
        assert!(found.abs_diff(expected) * 100 <= expected * percent + 100, "{found} and {expected} for {size:?}");
    }

    #[test]
    fn rates_of_every_script_are_learned_from_totals() {
        let (mut rates, server) = (TokenRates::default(), [31, 120, 45]);
        texts(60).for_each(|size| rates.observe(&size, true_tokens(&size, server)));
        for size in
            [size(1, 400, 0, 0), size(1, 0, 400, 0), size(1, 0, 0, 400), size(8, 900, 300, 100), size(1, 8, 0, 0)]
        {
            assert_close(&rates, &size, true_tokens(&size, server), 8);
        }
    }

    #[test]
    fn nothing_is_estimated_before_three_responses() {
        let mut rates = TokenRates::default();
        let text = size(1, 100, 0, 0);
        for _ in 0..2 {
            rates.observe(&text, 90);
            assert_eq!(rates.estimate(&text), None);
        }
        rates.observe(&text, 90);
        assert_close(&rates, &text, 90, 5);
        assert_eq!(rates.estimate(&TextSize { tokens: 7, ..size(0, 0, 0, 0) }), Some(7), "token ids are exact");
    }

    #[test]
    fn outliers_do_not_shift_the_rates() {
        let (mut rates, server) = (TokenRates::default(), [25, 100, 50]);
        for (index, size) in texts(300).enumerate() {
            let tokens = true_tokens(&size, server);
            // A server that truncates long texts, or repeats a count of something else.
            rates.observe(&size, if index > 10 && index.is_multiple_of(10) { 3 } else { tokens });
        }
        for size in [size(1, 1000, 0, 0), size(1, 0, 1000, 0)] {
            assert_close(&rates, &size, true_tokens(&size, server), 12);
        }
    }

    #[test]
    fn rates_follow_another_tokenizer() {
        let (mut rates, before, after) = (TokenRates::default(), [25, 100, 50], [60, 60, 60]);
        texts(600).for_each(|size| rates.observe(&size, true_tokens(&size, before)));
        texts(600).for_each(|size| rates.observe(&size, true_tokens(&size, after)));
        let text = size(1, 500, 500, 0);
        assert_close(&rates, &text, true_tokens(&text, after), 10);
    }

    #[test]
    fn extreme_counts_stay_within_bounds() {
        let mut rates = TokenRates::default();
        for size in texts(50) {
            rates.observe(&size, u64::MAX);
        }
        assert!(rates.rates.iter().all(|rate| (0.0..=RATE_MAX).contains(rate)));
        rates.observe(&TextSize { latin: u64::MAX, ..size(1, 0, 0, 0) }, 1);
        assert!(rates.rates.iter().all(|rate| rate.is_finite()));
    }
}
