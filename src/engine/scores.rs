//! Functions from the logits of a classification head to scores.
//!
//! `/predict` and `/rerank` of common servers return scores by default and logits on request. The
//! function of a model is [`crate::HeadConfig::scores`].

use crate::config::ScoreFunction;

// === impl ScoreFunction ===

impl ScoreFunction {
    /// Replaces the logits of a sequence with scores.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Sigmoid => logits.iter_mut().for_each(|logit| *logit = sigmoid(*logit)),
            Self::Softmax => softmax(logits),
        }
    }
}

/// The logistic function.
#[must_use]
pub fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Replaces logits with their softmax. The maximum is subtracted first, so that no exponential
/// overflows.
pub fn softmax(logits: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - max).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|logit| *logit /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_large_logits_are_finite() {
        let mut logits = vec![1000.0, 1000.0, -1000.0];
        softmax(&mut logits);
        assert_eq!(logits, [0.5, 0.5, 0.0]);
        assert_eq!((sigmoid(-1000.0), sigmoid(0.0), sigmoid(1000.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn scores_keep_the_order_of_logits() {
        for function in [ScoreFunction::Identity, ScoreFunction::Sigmoid, ScoreFunction::Softmax] {
            let mut logits = [-1.0, 0.25, 2.0];
            function.apply(&mut logits);
            assert!(logits.is_sorted(), "{function:?}: {logits:?}");
        }
    }
}
