//! Pooling of hidden states to one vector, and the final steps of an embedding.

/// Pooling of the hidden states of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean,
    /// The first token, `[CLS]` of BERT.
    First,
    /// The last token.
    Last,
    /// Maximum of all tokens, by element.
    Max,
}

/// Smallest norm that a vector is divided by, as in `torch.nn.functional.normalize`.
const NORM_MIN: f32 = 1e-12;

// === impl Pooling ===

impl Pooling {
    /// Pools rows of hidden states, `pooled.len()` elements each, into `pooled`.
    pub(crate) fn pool(self, rows: &[f32], pooled: &mut [f32]) {
        let mut rows = rows.chunks_exact(pooled.len());
        let (first, count) = (rows.next(), rows.len() + 1);
        let Some(first) = first else { return };
        pooled.copy_from_slice(first);
        match self {
            Self::First => {}
            Self::Last => rows.next_back().into_iter().for_each(|last| pooled.copy_from_slice(last)),
            Self::Max => {
                // A number that is none stays, as in PyTorch.
                let larger = |max: f32, value: f32| if max >= value || max.is_nan() { max } else { value };
                rows.for_each(|row| pooled.iter_mut().zip(row).for_each(|(max, value)| *max = larger(*max, *value)));
            }
            Self::Mean => {
                rows.for_each(|row| pooled.iter_mut().zip(row).for_each(|(sum, value)| *sum += value));
                #[expect(clippy::cast_precision_loss, reason = "a sequence has at most 2^17 tokens")]
                let count = count as f32;
                pooled.iter_mut().for_each(|sum| *sum /= count);
            }
        }
    }
}

/// Cuts an embedding to its first `dimensions` elements, for models that were trained for it
/// (Matryoshka representations, arXiv:2205.13147), then scales it to unit length if `normalize`.
pub fn finish_embedding(embedding: &mut Vec<f32>, dimensions: Option<usize>, normalize: bool) {
    embedding.truncate(dimensions.unwrap_or(usize::MAX));
    if normalize {
        let norm = embedding.iter().map(|value| value * value).sum::<f32>().sqrt().max(NORM_MIN);
        embedding.iter_mut().for_each(|value| *value /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pooling: Pooling) -> Vec<f32> {
        let mut pooled = vec![0.0; 2];
        pooling.pool(&[1.0, -8.0, 2.0, 4.0, 6.0, 1.0], &mut pooled);
        pooled
    }

    #[test]
    fn tokens_are_pooled_by_element() {
        assert_eq!(pool(Pooling::Mean), [3.0, -1.0]);
        assert_eq!(pool(Pooling::First), [1.0, -8.0]);
        assert_eq!(pool(Pooling::Last), [6.0, 1.0]);
        assert_eq!(pool(Pooling::Max), [6.0, 4.0]);
        for rows in [[f32::NAN, 0.0, 1.0, 0.0], [1.0, 0.0, f32::NAN, 0.0]] {
            let mut pooled = vec![0.0; 2];
            Pooling::Max.pool(&rows, &mut pooled);
            assert!(pooled[0].is_nan() && pooled[1] == 0.0, "{pooled:?}");
        }
        let mut one = vec![0.0; 2];
        Pooling::Last.pool(&[5.0, 7.0], &mut one);
        assert_eq!(one, [5.0, 7.0]);
    }

    #[test]
    fn an_embedding_is_cut_before_it_is_scaled() {
        let mut embedding = vec![3.0, 4.0, 100.0];
        finish_embedding(&mut embedding, Some(2), true);
        assert_eq!(embedding, [0.6, 0.8]);
        let mut zero = vec![0.0; 3];
        finish_embedding(&mut zero, None, true);
        assert_eq!(zero, [0.0; 3]);
        let mut raw = vec![3.0, 4.0];
        finish_embedding(&mut raw, Some(8), false);
        assert_eq!(raw, [3.0, 4.0]);
    }
}
