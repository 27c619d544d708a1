//! Comparison of every kernel on a device with the interpreter, on the same inputs.
//!
//! It shows what the interpreter cannot: that a driver compiles the PTX, and that the hardware
//! computes what it specifies.

use super::device::{DeviceAddress, GpuDevice, LaunchArgument};
use super::fault::DeviceError;
use super::loaded_kernel::LoadedKernel;
use super::simulated::SimulatedDevice;
use super::storage_format::{STORAGE_BYTES, StorageFormat};
use ParityOperand::{Float, Floats, FloatsOut, Integers, Null, Size, Values, ValuesOut};

/// Sizes of the operands: not multiples of the tiles, so that their edges are compared.
const ROWS: usize = 75;
const WIDTH: usize = 128;
const COLUMNS: usize = 136;
const DEPTH: usize = 96;
const HEADS: usize = 2;
const TABLE_ROWS: usize = 40;
const LABELS: usize = 7;
const EPSILON: f32 = 1e-12;
/// Two sequences: of one tile of the attention, and of two.
const LENGTHS: [u32; 2] = [5, 70];

/// Result of one kernel in one format.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelParity {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Format of its weights and activations.
    pub storage: StorageFormat,
    /// Relative error in norm, or the error of the device.
    pub error: Result<f64, DeviceError>,
}

/// A launch with its inputs.
struct ParityCase {
    kernel: &'static str,
    blocks: [usize; 3],
    operands: Vec<ParityOperand>,
}

/// An argument before it has an address.
enum ParityOperand {
    /// This number of values in the storage format, within ±1.
    Values(usize),
    /// This number of values in f32, within ±1.
    Floats(usize),
    Integers(Vec<u32>),
    Null,
    /// Results in the storage format.
    ValuesOut(usize),
    /// Results in f32.
    FloatsOut(usize),
    Size(usize),
    Float(f32),
}

// === impl KernelParity ===

impl KernelParity {
    /// Returns `true` if the relative error in norm is at most that of a rounded number: sums of
    /// tensor cores differ in their last bits, so some results are rounded to the next number.
    #[must_use]
    pub fn agrees(&self) -> bool {
        // Not a number is no agreement.
        self.error.as_ref().is_ok_and(|error| *error <= self.storage.rounding_error())
    }
}

/// Runs every kernel in every format on a device and on the interpreter, and compares the results.
/// The memory of the inputs stays allocated on the device.
pub fn compare_kernels(device: &mut impl GpuDevice) -> Vec<KernelParity> {
    let (cases, mut parities) = (all_cases(), Vec::new());
    for storage in StorageFormat::ALL {
        for case in &cases {
            let found = case.run(device, storage);
            let expected = || case.run(&mut SimulatedDevice::new(0), storage);
            let error = found.and_then(|found| Ok(relative_error(&found, &expected()?)));
            parities.push(KernelParity { kernel: case.kernel, storage, error });
        }
    }
    parities
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    let difference = norm(&mut pairs.map(|(found, expected)| f64::from(*found) - f64::from(*expected)));
    difference / norm(&mut expected.iter().map(|value| f64::from(*value)))
}

fn all_cases() -> Vec<ParityCase> {
    let mut cases = norm_cases();
    for (tile, names) in [
        (64, ["gemm_bias_64", "gemm_bias_residual_64", "gemm_bias_gelu_erf_64", "gemm_bias_gelu_tanh_64"]),
        (128, ["gemm_bias_128", "gemm_bias_residual_128", "gemm_bias_gelu_erf_128", "gemm_bias_gelu_tanh_128"]),
    ] {
        cases.extend(names.map(|name| product_case(name, tile)));
    }
    cases.extend([("attention_32", 32), ("attention_64", 64), ("attention_128", 128)].map(attention_case));
    cases.extend(["pool_mean", "pool_first", "pool_last"].map(pooling_case));
    cases.extend(head_cases());
    cases
}

/// Returns a list of row numbers below a limit.
fn indices(limit: usize) -> ParityOperand {
    Integers((0..ROWS).map(|at| u32::try_from(at * 7 % limit).unwrap_or(0)).collect())
}

fn offsets() -> ParityOperand {
    let [first, second] = LENGTHS;
    Integers(vec![0, first, first + second])
}

fn norm_cases() -> Vec<ParityCase> {
    let (blocks, tail) = ([ROWS.div_ceil(4), 1, 1], || [Size(ROWS), Size(WIDTH), Float(EPSILON)]);
    let table = || Values(TABLE_ROWS * WIDTH);
    let norm = || [Values(WIDTH), Values(WIDTH), ValuesOut(ROWS * WIDTH)];
    let ids = [indices(TABLE_ROWS), indices(TABLE_ROWS), indices(2)];
    let embedding = ids.into_iter().chain([table(), table(), table()]).chain(norm()).chain(tail()).collect();
    let rows = [Values(ROWS * WIDTH), Values(ROWS * WIDTH)];
    let residual = rows.into_iter().chain(norm()).chain(tail()).collect();
    vec![
        ParityCase { kernel: "embedding_layer_norm", blocks, operands: embedding },
        ParityCase { kernel: "residual_layer_norm", blocks, operands: residual },
    ]
}

fn product_case(kernel: &'static str, tile: usize) -> ParityCase {
    let results = ROWS * COLUMNS;
    let operands = vec![
        Values(ROWS * DEPTH),
        Values(COLUMNS * DEPTH),
        Values(COLUMNS),
        Values(results),
        ValuesOut(results),
        Size(ROWS),
        Size(COLUMNS),
        Size(DEPTH),
    ];
    ParityCase { kernel, blocks: [COLUMNS.div_ceil(tile), ROWS.div_ceil(tile), 1], operands }
}

fn attention_case((kernel, width): (&'static str, u16)) -> ParityCase {
    let row = HEADS * usize::from(width);
    let tiles = Integers(vec![0, 0, 1, 0, 1, 64]);
    let scale = std::f32::consts::LOG2_E / f32::from(width).sqrt();
    let operands = vec![Values(ROWS * 3 * row), ValuesOut(ROWS * row), offsets(), tiles, Size(HEADS), Float(scale)];
    ParityCase { kernel, blocks: [3, HEADS, 1], operands }
}

fn pooling_case(kernel: &'static str) -> ParityCase {
    let (sequences, normalize) = (LENGTHS.len(), Size(1));
    let out = FloatsOut(sequences * WIDTH);
    let operands = vec![Values(ROWS * WIDTH), offsets(), out, Size(WIDTH), Size(WIDTH), normalize];
    ParityCase { kernel, blocks: [sequences, 1, 1], operands }
}

fn head_cases() -> Vec<ParityCase> {
    let (sequences, blocks) = (LENGTHS.len(), [LABELS.div_ceil(4), LENGTHS.len(), 1]);
    let tail = || [Values(LABELS * WIDTH), Values(LABELS), FloatsOut(sequences * LABELS), Size(LABELS), Size(WIDTH)];
    let dense = [Values(ROWS * WIDTH), offsets()].into_iter().chain(tail()).collect();
    let logits = [Floats(sequences * WIDTH), Null].into_iter().chain(tail()).collect();
    vec![
        ParityCase { kernel: "head_dense_tanh", blocks, operands: dense },
        ParityCase { kernel: "head_logits", blocks, operands: logits },
    ]
}

// === impl ParityCase ===

impl ParityCase {
    /// Returns the results on a device.
    fn run(&self, device: &mut impl GpuDevice, storage: StorageFormat) -> Result<Vec<f32>, DeviceError> {
        device.bind_thread()?;
        let kernel = LoadedKernel::load(device, self.kernel, storage)?;
        let sizes: Vec<usize> = self.operands.iter().map(ParityOperand::region_bytes).collect();
        let regions = device.allocate(&sizes)?;
        let mut arguments = Vec::new();
        for (number, (operand, region)) in self.operands.iter().zip(&regions).enumerate() {
            let bytes = operand.input_bytes(number, storage);
            if !bytes.is_empty() {
                device.upload(*region, &bytes)?;
            }
            arguments.push(operand.argument(*region));
        }
        device.launch(&kernel.launch(self.blocks, arguments)?)?;
        let out = self.operands.iter().zip(regions).find(|(operand, _)| operand.is_output());
        let Some((operand, region)) = out else { return Ok(Vec::new()) };
        let mut bytes = vec![0; operand.region_bytes()];
        device.download(region, &mut bytes)?;
        Ok(operand.decode(&bytes, storage))
    }
}

// === impl ParityOperand ===

impl ParityOperand {
    fn region_bytes(&self) -> usize {
        match self {
            Values(count) | ValuesOut(count) => count * STORAGE_BYTES,
            Floats(count) | FloatsOut(count) => count * size_of::<f32>(),
            Integers(values) => values.len() * size_of::<u32>(),
            Null | Size(_) | Float(_) => 0,
        }
    }

    fn is_output(&self) -> bool {
        matches!(self, ValuesOut(_) | FloatsOut(_))
    }

    /// Returns the contents of an input; nothing for an output or a number.
    fn input_bytes(&self, number: usize, storage: StorageFormat) -> Vec<u8> {
        match self {
            Values(count) => test_values(*count, number).flat_map(|value| storage.encode(value)).collect(),
            Floats(count) => test_values(*count, number).flat_map(f32::to_le_bytes).collect(),
            Integers(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Null | ValuesOut(_) | FloatsOut(_) | Size(_) | Float(_) => Vec::new(),
        }
    }

    fn argument(&self, region: DeviceAddress) -> LaunchArgument {
        match self {
            Null => LaunchArgument::Address(DeviceAddress::NULL),
            Size(value) => LaunchArgument::size(*value),
            Float(value) => LaunchArgument::Float(*value),
            Values(_) | Floats(_) | Integers(_) | ValuesOut(_) | FloatsOut(_) => LaunchArgument::Address(region),
        }
    }

    fn decode(&self, bytes: &[u8], storage: StorageFormat) -> Vec<f32> {
        match self {
            ValuesOut(_) => storage.decode_all(bytes),
            _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        }
    }
}

/// Returns values within ±1 that look random: multiplicative hashing (Knuth, "The Art of Computer
/// Programming", volume 3, section 6.4), with another start for each operand.
fn test_values(count: usize, number: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |at| {
        let key = u32::try_from(at).unwrap_or(0).wrapping_add(u32::try_from(number).unwrap_or(0) << 20);
        let [_, _, low, high] = key.wrapping_mul(2_654_435_761).to_le_bytes();
        f32::from(u16::from_le_bytes([low, high])) / 32_768.0 - 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::kernel_image::KernelImage;

    #[test]
    fn every_kernel_agrees_with_itself_in_another_order_of_blocks() {
        let found = compare_kernels(&mut SimulatedDevice::new(9));
        assert_eq!(found.len(), KernelImage::all().unwrap().len());
        for parity in found {
            assert_eq!(parity.error, Ok(0.0), "{} in {}", parity.kernel, parity.storage.label());
            assert!(parity.agrees());
        }
    }

    #[test]
    fn a_difference_is_found() {
        let case = attention_case(("attention_32", 32));
        let found = case.run(&mut SimulatedDevice::new(0), StorageFormat::Bf16).unwrap();
        assert!(
            found.iter().all(|value| value.is_finite()) && found.iter().any(|value| (value - found[0]).abs() > 0.01)
        );
        let parity = |error, storage| KernelParity { kernel: "attention_32", storage, error: Ok(error) };
        // The second difference is that of a rounding in bfloat16, and an error in half precision.
        for (factor, agreements) in [(1.01, [false, false]), (1.003, [true, false]), (f32::NAN, [false, false])] {
            let scaled: Vec<f32> = found.iter().map(|value| value * factor).collect();
            let error = relative_error(&scaled, &found);
            assert_eq!(StorageFormat::ALL.map(|storage| parity(error, storage).agrees()), agreements, "{factor}");
        }
    }
}
