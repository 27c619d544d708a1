//! A device with random data, and the comparison of its results.

use groupage_batching::rng::SplitMix64;
use groupage_ptx::{Device, DeviceFault, DevicePointer, KernelArgument, LaunchReport};

use crate::manifest::LoadedKernel;
use crate::storage::StorageFormat;

/// A tensor on the device, and its values on the host.
#[derive(Debug, Clone)]
pub(crate) struct DeviceTensor {
    pub(crate) pointer: DevicePointer,
    pub(crate) values: Vec<f64>,
}

/// A reason why a kernel does not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The interpreter stopped it.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
    /// Its results differ from the reference.
    #[error("{0}")]
    Mismatch(String),
}

/// A device and a source of random values.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) storage: StorageFormat,
    rng: SplitMix64,
}

// === impl Fixture ===

impl Fixture {
    /// Creates a device; the seed determines the data and the order of warps and blocks.
    pub(crate) fn new(storage: StorageFormat, seed: u64) -> Self {
        Self { device: Device::with_seed(seed), storage, rng: SplitMix64::new(seed) }
    }

    /// Uploads uniform random values in ±`scale`.
    pub(crate) fn random(&mut self, count: usize, scale: f64) -> DeviceTensor {
        let values: Vec<f64> = (0..count).map(|_| (self.rng.next_f64() * 2.0 - 1.0) * scale).collect();
        self.upload(&values)
    }

    /// Uploads values in the storage format. The values of the result are the rounded ones.
    pub(crate) fn upload(&mut self, values: &[f64]) -> DeviceTensor {
        let encoded: Vec<[u8; 2]> = values.iter().map(|value| self.storage.encode(*value)).collect();
        let values = encoded.iter().map(|bytes| self.storage.decode(*bytes)).collect();
        DeviceTensor { pointer: self.upload_bytes(encoded.as_flattened()), values }
    }

    pub(crate) fn upload_integers(&mut self, values: &[u32]) -> DevicePointer {
        let bytes: Vec<[u8; 4]> = values.iter().map(|value| value.to_le_bytes()).collect();
        self.upload_bytes(bytes.as_flattened())
    }

    fn upload_bytes(&mut self, bytes: &[u8]) -> DevicePointer {
        let pointer = self.device.allocate(bytes.len());
        self.device.upload(pointer, bytes).unwrap();
        pointer
    }

    /// Allocates an output in the storage format.
    pub(crate) fn output(&mut self, count: usize) -> DevicePointer {
        self.device.allocate(count * 2)
    }

    /// Reads an output in the storage format. Fails if a value was not written.
    pub(crate) fn read(&mut self, pointer: DevicePointer, count: usize) -> Result<Vec<f64>, DeviceFault> {
        let bytes = self.device.download(pointer, count * 2)?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|bytes| self.storage.decode(*bytes)).collect())
    }

    pub(crate) fn read_floats(&mut self, pointer: DevicePointer, count: usize) -> Result<Vec<f64>, DeviceFault> {
        let bytes = self.device.download(pointer, count * 4)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect())
    }

    pub(crate) fn launch(
        &mut self,
        kernel: &LoadedKernel,
        blocks: [usize; 3],
        arguments: &[KernelArgument],
    ) -> Result<LaunchReport, DeviceFault> {
        self.device.launch(&kernel.module, &kernel.entry.name, kernel.shape(blocks), arguments)
    }
}

/// Returns a size as an argument.
pub(crate) fn size(value: usize) -> KernelArgument {
    KernelArgument::U32(u32::try_from(value).unwrap())
}

/// Returns a pointer as an argument.
pub(crate) fn pointer(tensor: &DeviceTensor) -> KernelArgument {
    KernelArgument::Pointer(tensor.pointer)
}

/// Returns `‖actual - expected‖ / ‖expected‖`.
pub(crate) fn relative_error(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut actual.iter().zip(expected).map(|(actual, expected)| actual - expected));
    difference / norm(&mut expected.iter().copied())
}

/// Number of elements from which on the error in norm is close to its expectation.
const MANY: usize = 256;

/// Returns an error if results differ from a reference by more than the rounding of the result and
/// a few of the same size before it. The bound is in norm, and for each element, so that a single
/// wrong one is found.
pub(crate) fn compare(actual: &[f64], expected: &[f64], rounding: f64) -> Result<(), KernelError> {
    let error = relative_error(actual, expected);
    let count = u32::try_from(expected.len()).unwrap();
    let scale = (expected.iter().map(|value| value * value).sum::<f64>() / f64::from(count)).sqrt();
    let far = actual.iter().zip(expected).position(|(actual, expected)| {
        let difference = (actual - expected).abs();
        // Not a number is far from everything.
        difference.is_nan() || difference > 4.0 * rounding * scale + rounding * expected.abs()
    });
    // Errors that are uniform within ±rounding have a root mean square of rounding / √3.
    let bound = if expected.len() < MANY { rounding } else { 0.6 * rounding };
    let mismatch = match far {
        Some(at) => format!("element {at} is {}, expected {}", actual[at], expected[at]),
        None if error.is_nan() || error > bound => format!("relative error {error:.2e}, bound {bound:.2e}"),
        None => return Ok(()),
    };
    Err(KernelError::Mismatch(mismatch))
}
