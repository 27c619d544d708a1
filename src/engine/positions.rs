//! Positions of tokens in the table of learned positions.

use crate::config::PositionScheme;

/// Returns the position of each token of packed sequences in its table. `lengths` has the number of
/// tokens of each sequence.
pub(crate) fn token_positions(
    scheme: &PositionScheme,
    ids: &[u32],
    lengths: impl Iterator<Item = usize>,
) -> Vec<usize> {
    match scheme {
        PositionScheme::Absolute | PositionScheme::Rotary(_) => lengths.flat_map(|tokens| 0..tokens).collect(),
        PositionScheme::AfterPadding { padding } => {
            let first = usize::try_from(*padding).unwrap_or(usize::MAX);
            let mut positions = Vec::with_capacity(ids.len());
            let mut rest = ids.iter();
            for tokens in lengths {
                let mut last = first;
                positions.extend(rest.by_ref().take(tokens).map(|id| {
                    last += usize::from(id != padding);
                    if id == padding { first } else { last }
                }));
            }
            positions
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_begin_anew_in_each_sequence() {
        let ids = [7, 1, 8, 9, 1];
        let of = |scheme| token_positions(&scheme, &ids, [3, 2].into_iter());
        assert_eq!(of(PositionScheme::Absolute), [0, 1, 2, 0, 1]);
        assert_eq!(of(PositionScheme::AfterPadding { padding: 1 }), [2, 1, 3, 2, 1]);
    }
}
