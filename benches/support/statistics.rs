//! Figures of repeated measurements.

/// Returns the median: the greater of the two middle values of an even number, and zero if there
/// are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
