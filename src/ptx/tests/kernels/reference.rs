//! The layers of an encoder in f64, written for clarity.

/// Returns `layer_norm(row) * gamma + beta`.
pub(crate) fn layer_norm(row: &[f64], gamma: &[f64], beta: &[f64], epsilon: f64) -> Vec<f64> {
    let count = f64::from(u32::try_from(row.len()).unwrap());
    let mean = row.iter().sum::<f64>() / count;
    let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + epsilon).sqrt();
    row.iter().zip(gamma).zip(beta).map(|((value, gamma), beta)| (value - mean) * scale * gamma + beta).collect()
}

pub(crate) fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Returns the rows of a table.
pub(crate) fn gather(table: &[f64], ids: &[u32], width: usize) -> Vec<f64> {
    let row = |id: &u32| table.chunks_exact(width).nth(usize::try_from(*id).unwrap()).unwrap();
    ids.iter().flat_map(row).copied().collect()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns `input[rows, depth] * weight[columns, depth]^T + bias`.
pub(crate) fn linear(input: &[f64], weight: &[f64], bias: &[f64], depth: usize) -> Vec<f64> {
    let rows = input.chunks_exact(depth);
    rows.flat_map(|row| weight.chunks_exact(depth).zip(bias).map(|(weight, bias)| dot(row, weight) + bias)).collect()
}

/// Error function: its Taylor series near zero, and the continued fraction of Laplace beyond
/// (Abramowitz and Stegun, 7.1.5 and 7.1.14).
pub(crate) fn erf(x: f64) -> f64 {
    let z = x.abs();
    if z < 2.5 {
        let mut term = z;
        let mut sum = z;
        for n in 1..60 {
            let n = f64::from(n);
            term *= -z * z / n;
            sum += term / (2.0 * n + 1.0);
        }
        return (2.0 / std::f64::consts::PI.sqrt() * sum).copysign(x);
    }
    let fraction = (1..60).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
    (1.0 - (-z * z).exp() / (std::f64::consts::PI.sqrt() * fraction)).copysign(x)
}

pub(crate) fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

pub(crate) fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

/// Self-attention of packed sequences. A row of `qkv` has queries, keys and values of all heads.
pub(crate) fn attention(qkv: &[f64], lengths: &[usize], heads: usize, head_width: usize) -> Vec<f64> {
    let width = heads * head_width;
    let mut out = vec![0.0; lengths.iter().sum::<usize>() * width];
    let mut start = 0;
    for length in lengths {
        for head in 0..heads {
            let part = |row: usize, part: usize| {
                let at = (start + row) * 3 * width + part * width + head * head_width;
                &qkv[at..at + head_width]
            };
            for row in 0..*length {
                let scale = 1.0 / f64::from(u32::try_from(head_width).unwrap()).sqrt();
                let scores: Vec<f64> = (0..*length).map(|key| dot(part(row, 0), part(key, 1)) * scale).collect();
                let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - maximum).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let at = (start + row) * width + head * head_width;
                for (key, weight) in weights.iter().enumerate() {
                    for (out, value) in out[at..at + head_width].iter_mut().zip(part(key, 2)) {
                        *out += weight / sum * value;
                    }
                }
            }
        }
        start += length;
    }
    out
}

/// Returns the first row of each sequence, and the number of rows.
pub(crate) fn offsets(lengths: &[usize]) -> Vec<u32> {
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += u32::try_from(*length).unwrap();
        end
    });
    std::iter::once(0).chain(ends).collect()
}

pub(crate) fn normalize(vector: &[f64]) -> Vec<f64> {
    let norm = dot(vector, vector).sqrt().max(1e-12);
    vector.iter().map(|value| value / norm).collect()
}

#[test]
fn the_error_function_has_its_published_values() {
    for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (-1.0, -0.842_700_792_9), (2.6, 0.999_763_965_6)] {
        assert!((erf(x) - expected).abs() < 1e-9, "{x}: {}", erf(x));
    }
}
