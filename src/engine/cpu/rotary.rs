//! Rotary position embeddings (Su et al., arXiv:2104.09864), in the form of GPT-NeoX: element `j`
//! is rotated with element `j + head_dim / 2`.

use crate::config::RotaryConfig;

/// Cosines and sines of the angles, by position, for global and for local attention.
#[derive(Debug)]
pub(super) struct RotaryTables {
    global: Vec<(f32, f32)>,
    local: Vec<(f32, f32)>,
    /// Number of angles of a position.
    half: usize,
}

// === impl RotaryTables ===

impl RotaryTables {
    /// Computes the tables for heads of an even number of elements. `None` if there is not enough
    /// memory.
    pub(super) fn new(config: &RotaryConfig, head_dim: usize, positions: usize) -> Option<Self> {
        let table = |theta: f64| angles(theta, head_dim, positions);
        Some(Self { global: table(config.global_theta)?, local: table(config.local_theta)?, half: head_dim / 2 })
    }

    pub(super) fn bytes(&self) -> usize {
        (self.global.len() + self.local.len()) * size_of::<(f32, f32)>()
    }

    /// Rotates the queries and keys of a token: `heads × head_dim` elements each.
    pub(super) fn rotate(&self, is_local: bool, position: usize, queries_and_keys: &mut [f32]) {
        let table = if is_local { &self.local } else { &self.global };
        let angles = table.chunks_exact(self.half).nth(position).unwrap_or_default();
        for head in queries_and_keys.chunks_exact_mut(2 * self.half) {
            let Some((low, high)) = head.split_at_mut_checked(self.half) else { continue };
            for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

/// Returns the cosines and sines. Frequencies and angles are rounded to f32, as in the
/// `transformers` library, because models were trained with these.
#[expect(clippy::cast_possible_truncation, reason = "rounded on purpose")]
#[expect(clippy::cast_precision_loss, reason = "positions are below 2^24, dimensions below 2^53")]
fn angles(theta: f64, head_dim: usize, positions: usize) -> Option<Vec<(f32, f32)>> {
    let frequency = |at: usize| (1.0 / theta.powf((2 * at) as f64 / head_dim as f64)) as f32;
    let frequencies: Vec<f32> = (0..head_dim / 2).map(frequency).collect();
    let angle = |position: usize, frequency: &f32| {
        let angle = f64::from(position as f32 * frequency);
        (angle.cos() as f32, angle.sin() as f32)
    };
    let mut table = Vec::new();
    table.try_reserve_exact(positions.checked_mul(frequencies.len())?).ok()?;
    for position in 0..positions {
        table.extend(frequencies.iter().map(|frequency| angle(position, frequency)));
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_of_a_query_and_a_key_depends_on_their_distance() {
        let config = RotaryConfig { global_theta: 100.0, local_theta: 10.0, window: 1, is_local: Vec::new() };
        let tables = RotaryTables::new(&config, 4, 10).unwrap();
        let product = |query_position, key_position| {
            let (mut query, mut key) = ([0.3, -1.0, 2.0, 0.5], [1.0, 0.25, -0.5, 2.0]);
            tables.rotate(false, query_position, &mut query);
            tables.rotate(false, key_position, &mut key);
            query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((product(2, 5) - product(6, 9)).abs() < 1e-6);
        assert!((product(2, 5) - product(2, 6)).abs() > 1e-3);
    }

    #[test]
    fn tables_without_memory_are_refused() {
        let config = RotaryConfig { global_theta: 100.0, local_theta: 10.0, window: 1, is_local: Vec::new() };
        for positions in [usize::MAX, usize::MAX / 16] {
            assert!(RotaryTables::new(&config, 4, positions).is_none(), "{positions}");
        }
    }

    #[test]
    fn the_first_element_turns_by_one_radian_a_position() {
        let config = RotaryConfig { global_theta: 100.0, local_theta: 10.0, window: 1, is_local: Vec::new() };
        let mut head = [1.0, 0.0, 0.0, 0.0];
        RotaryTables::new(&config, 4, 10).unwrap().rotate(true, 3, &mut head);
        assert!((head[0] - 3.0_f32.cos()).abs() < 1e-6 && (head[2] - 3.0_f32.sin()).abs() < 1e-6);
    }
}
