//! Functions from the logits of a classification head to scores.
//!
//! `/predict` and `/rerank` of common servers return scores by default and logits on request. The
//! scores are those of Text Embeddings Inference (`core/src/infer.rs` of
//! <https://github.com/huggingface/text-embeddings-inference>): the number of labels decides, and a
//! function that the files of a model name (`activation_fn`, `problem_type`) does not.

/// Replaces the logits of a sequence with scores from 0 to 1: the logistic function of a single
/// logit, or the softmax of several.
pub fn score_logits(logits: &mut [f32]) {
    match logits {
        [one] => *one = sigmoid(*one),
        several => softmax(several),
    }
}

/// The logistic function.
#[must_use]
pub fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Replaces logits with their softmax. The maximum is subtracted first, so that no exponential
/// overflows.
fn softmax(logits: &mut [f32]) {
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
        score_logits(&mut logits);
        assert_eq!(logits, [0.5, 0.5, 0.0]);
        assert_eq!((sigmoid(-1000.0), sigmoid(0.0), sigmoid(1000.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn scores_keep_the_order_of_logits() {
        let mut logits = [-1.0, 0.25, 2.0];
        score_logits(&mut logits);
        assert!(logits.is_sorted(), "{logits:?}");
    }

    #[test]
    fn a_single_logit_has_the_logistic_function() {
        let mut logits = vec![0.0];
        score_logits(&mut logits);
        assert_eq!(logits, [0.5]);
    }
}
