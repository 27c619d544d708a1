//! The 16-bit formats of weights and activations on a device.
//!
//! The weights of a model decide the format, so nothing is configured. Weights in F16 are exact in
//! half precision, with three more significant bits than in bfloat16. Others are executed in
//! bfloat16, which has the range of 32-bit floating point: in half precision, a weight beyond
//! 65,504 would be infinite. An activation beyond it is, which the check of results finds
//! (`batch_outputs`).

use half::{bf16, f16};

use crate::executor::NumberType;
use crate::model::Model;
use crate::weights::WeightType;

/// Bytes of a number in either format.
pub(crate) const STORAGE_BYTES: usize = 2;

/// Format of weights and activations on a device. Sums have 32 bits with either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageFormat {
    /// The upper 16 bits of 32-bit floating point: 8 significant bits.
    Bf16,
    /// IEEE half precision: 11 significant bits, and numbers up to 65,504.
    F16,
}

// === impl StorageFormat ===

impl StorageFormat {
    /// Both formats.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F16];

    /// Returns the format in which the weights of a model are executed.
    #[must_use]
    pub fn of_model(model: &Model) -> Self {
        if model.weights().are_all(WeightType::F16) { Self::F16 } else { Self::Bf16 }
    }

    /// Returns the label in the manifest and in the names of files of kernels.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Returns the type of the numbers, for reports.
    #[must_use]
    pub const fn number_type(self) -> NumberType {
        match self {
            Self::Bf16 => NumberType::Bfloat16,
            Self::F16 => NumberType::Float16,
        }
    }

    /// Largest relative error of a rounded number: half a unit in the last of 8 or 11 bits.
    pub(crate) const fn rounding_error(self) -> f64 {
        match self {
            Self::Bf16 => 1.0 / 256.0,
            Self::F16 => 1.0 / 2048.0,
        }
    }

    /// Rounds a number to its nearest one in this format, which is infinite beyond the range.
    pub(crate) fn encode(self, value: f32) -> [u8; STORAGE_BYTES] {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_le_bytes(),
            Self::F16 => f16::from_f32(value).to_le_bytes(),
        }
    }

    fn decode(self, bytes: [u8; STORAGE_BYTES]) -> f32 {
        match self {
            Self::Bf16 => bf16::from_le_bytes(bytes).to_f32(),
            Self::F16 => f16::from_le_bytes(bytes).to_f32(),
        }
    }

    /// Returns the numbers that are stored in these bytes.
    pub(crate) fn decode_all(self, bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| self.decode(*bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_within_the_error_of_the_format() {
        for storage in StorageFormat::ALL {
            let values: Vec<f32> = (0_u8..200).map(|step| 1.0 + f32::from(step) / 199.0).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| storage.encode(*value)).collect();
            let errors = storage.decode_all(&bytes).into_iter().zip(&values);
            let errors: Vec<f64> =
                errors.map(|(found, value)| f64::from((found - value).abs()) / f64::from(*value)).collect();
            assert!(errors.iter().all(|error| *error <= storage.rounding_error()), "{storage:?}");
            assert!(errors.iter().any(|error| *error > storage.rounding_error() / 4.0), "{storage:?}");
        }
    }

    #[test]
    fn numbers_beyond_the_range_are_infinite() {
        let round = |storage: StorageFormat, value| storage.decode_all(&storage.encode(value)).swap_remove(0);
        for value in [65_504.0_f32, -65_504.0] {
            assert_eq!(round(StorageFormat::F16, value).to_bits(), value.to_bits());
            assert!(round(StorageFormat::F16, 2.0 * value).is_infinite());
            assert!(round(StorageFormat::Bf16, 1e30 * value).is_finite());
        }
        for storage in StorageFormat::ALL {
            assert!(round(storage, f32::NAN).is_nan(), "a weight that cannot be read stays one that is found");
        }
    }
}
