//! The formats of weights and activations.

use half::{bf16, f16};

/// Storage format of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageFormat {
    BFloat16,
    Half,
}

/// Both formats.
pub(crate) const STORAGES: [StorageFormat; 2] = [StorageFormat::BFloat16, StorageFormat::Half];

// === impl StorageFormat ===

impl StorageFormat {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BFloat16 => "bf16",
            Self::Half => "f16",
        }
    }

    /// Largest relative rounding error of a value: half a unit in the last of 8 or 11 digits.
    pub(crate) const fn rounding(self) -> f64 {
        match self {
            Self::BFloat16 => 1.0 / 256.0,
            Self::Half => 1.0 / 2048.0,
        }
    }

    pub(crate) fn encode(self, value: f64) -> [u8; 2] {
        match self {
            Self::BFloat16 => bf16::from_f64(value).to_le_bytes(),
            Self::Half => f16::from_f64(value).to_le_bytes(),
        }
    }

    pub(crate) fn decode(self, bytes: [u8; 2]) -> f64 {
        match self {
            Self::BFloat16 => bf16::from_le_bytes(bytes).to_f64(),
            Self::Half => f16::from_le_bytes(bytes).to_f64(),
        }
    }
}
