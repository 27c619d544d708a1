//! A device in the shape of the CUDA driver API: allocations, copies and launches.

use groupage_batching::rng::SplitMix64;

use crate::bits::LANES;
use crate::fault::{DeviceFault, FaultKind};
use crate::grid::GridLaunch;
use crate::memory::{DevicePointer, GlobalMemory};
use crate::parser::{Kernel, Module, ParameterKind};

/// Threads of a block, of compute capability 8.0 (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability").
const BLOCK_THREADS_MAX: u32 = 1024;
/// Dynamic and static shared memory of a block: 99 KiB, that of compute capability 8.6 and 8.9. The
/// PTX of 8.0 runs there too, and other capabilities from 8.0 on have more.
const SHARED_BYTES_MAX: usize = 99 * 1024;
/// Threads of a block in its third dimension, from the same table.
const BLOCK_DEPTH_MAX: u32 = 64;
/// Blocks of a grid in its second and third dimension, from the same table.
const GRID_HEIGHT_MAX: u32 = 65_535;
/// Blocks of a launch: more would take hours, and exceed the numbers that detect races.
const BLOCKS_MAX: u64 = 1 << 24;
/// Instructions of a launch: some minutes, and a hundred times the largest launch of the tests.
const INSTRUCTIONS_MAX: u64 = 1 << 30;

/// A device that executes kernels by interpretation.
#[derive(Debug)]
pub struct Device {
    memory: GlobalMemory,
    rng: SplitMix64,
    instruction_limit: u64,
}

/// The shape of a launch, as of `cuLaunchKernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KernelArgument {
    /// A pointer to global memory, or null.
    Pointer(DevicePointer),
    /// A signed 32-bit integer.
    I32(i32),
    /// An unsigned 32-bit integer.
    U32(u32),
    /// A single-precision number.
    F32(f32),
}

/// Figures of a launch that ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchReport {
    /// Instructions that the warps executed.
    pub instructions: u64,
    /// Blocks of the grid.
    pub blocks: u64,
}

// === impl Device ===

impl Default for Device {
    fn default() -> Self {
        Self::new()
    }
}

impl Device {
    /// Creates a device without allocations.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_seed(0)
    }

    /// Creates a device that runs blocks and warps in the order of a seed. Results of a correct
    /// kernel do not depend on it.
    #[must_use]
    pub const fn with_seed(seed: u64) -> Self {
        Self { memory: GlobalMemory::new(), rng: SplitMix64::new(seed), instruction_limit: INSTRUCTIONS_MAX }
    }

    /// Sets the maximum number of instructions of all warps of a launch. The default is 2^30.
    #[must_use]
    pub fn with_instruction_limit(self, instructions: u64) -> Self {
        Self { instruction_limit: instructions, ..self }
    }

    /// Allocates global memory, of which every byte is poison until it is written.
    pub fn allocate(&mut self, bytes: usize) -> DevicePointer {
        self.memory.allocate(bytes)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    ///
    /// The pointer is not the start of an allocation, or it was freed before.
    pub fn free(&mut self, pointer: DevicePointer) -> Result<(), DeviceFault> {
        self.memory.free(pointer).map_err(DeviceFault::from)
    }

    /// Copies from the host to the device.
    ///
    /// # Errors
    ///
    /// The target is not within an allocation.
    pub fn upload(&mut self, target: DevicePointer, data: &[u8]) -> Result<(), DeviceFault> {
        self.memory.upload(target, data).map_err(DeviceFault::from)
    }

    /// Copies from the device to the host.
    ///
    /// # Errors
    ///
    /// The source is not within an allocation, or a byte of it was not written.
    pub fn download(&mut self, source: DevicePointer, bytes: usize) -> Result<Vec<u8>, DeviceFault> {
        self.memory.download(source, bytes).map_err(DeviceFault::from)
    }

    /// Launches a kernel and runs it to its end.
    ///
    /// # Errors
    ///
    /// The launch does not match the kernel, or the kernel failed a check. Memory that it wrote
    /// before stays written.
    pub fn launch(
        &mut self,
        module: &Module,
        kernel: &str,
        shape: LaunchShape,
        arguments: &[KernelArgument],
    ) -> Result<LaunchReport, DeviceFault> {
        let refuse = |kind| DeviceFault { kernel: Some(kernel.to_owned()), location: None, kind };
        let Some(found) = module.kernel(kernel) else {
            let known = module.kernel_names().collect::<Vec<_>>().join(", ");
            return Err(refuse(FaultKind::UnknownKernel { known }));
        };
        let blocks = check_shape(found, shape).map_err(refuse)?;
        let parameters = encode(found, arguments).map_err(refuse)?;
        let launch = GridLaunch {
            kernel: found,
            blocks: shape.blocks,
            threads: shape.threads,
            shared_bytes: shape.shared_bytes,
            parameters: &parameters,
            instruction_limit: self.instruction_limit,
        };
        let instructions = launch.run(&mut self.memory, &mut self.rng)?;
        Ok(LaunchReport { instructions, blocks })
    }
}

// === impl KernelArgument ===

impl KernelArgument {
    const fn kind(self) -> ParameterKind {
        match self {
            Self::Pointer(_) => ParameterKind::Pointer,
            Self::I32(_) | Self::U32(_) => ParameterKind::Integer,
            Self::F32(_) => ParameterKind::Float,
        }
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Pointer(pointer) => pointer.address().to_le_bytes().to_vec(),
            Self::I32(value) => value.to_le_bytes().to_vec(),
            Self::U32(value) => value.to_le_bytes().to_vec(),
            Self::F32(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// Checks the shape of a launch, and returns the number of blocks.
fn check_shape(kernel: &Kernel, shape: LaunchShape) -> Result<u64, FaultKind> {
    let bad = |problem: String| Err(FaultKind::BadShape { problem });
    let count = |sizes: [u32; 3]| sizes.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
    let (blocks, threads) = (count(shape.blocks), count(shape.threads));
    if blocks == 0 || blocks > BLOCKS_MAX {
        return bad(format!("a grid of {blocks} blocks, where 1 to {BLOCKS_MAX} are allowed"));
    }
    let [_, height, depth] = shape.blocks;
    if height.max(depth) > GRID_HEIGHT_MAX {
        return bad(format!("a grid of {height} by {depth} rows of blocks, where {GRID_HEIGHT_MAX} are allowed"));
    }
    let [_, _, depth] = shape.threads;
    if depth > BLOCK_DEPTH_MAX {
        return bad(format!("a block of {depth} layers of threads, where {BLOCK_DEPTH_MAX} are allowed"));
    }
    let threads_max = u64::from(kernel.threads_max.unwrap_or(BLOCK_THREADS_MAX));
    if threads == 0 || threads > threads_max {
        return bad(format!("a block of {threads} threads, where 1 to {threads_max} are allowed"));
    }
    let shared = kernel.shared_bytes.saturating_add(shape.shared_bytes);
    if shared > SHARED_BYTES_MAX {
        return bad(format!("{shared} bytes of shared memory, where {SHARED_BYTES_MAX} are available"));
    }
    Ok(blocks)
}

/// Lays the arguments out as the parameters of a kernel.
fn encode(kernel: &Kernel, arguments: &[KernelArgument]) -> Result<Vec<u8>, FaultKind> {
    if kernel.parameters.len() != arguments.len() {
        let problem = format!("{} arguments for {} parameters", arguments.len(), kernel.parameters.len());
        return Err(FaultKind::BadArguments { problem });
    }
    let mut bytes = Vec::new();
    for (at, (parameter, argument)) in kernel.parameters.iter().zip(arguments).enumerate() {
        if parameter.kind != argument.kind() {
            let problem = format!("parameter {at} is {:?}, and its argument {argument:?}", parameter.kind);
            return Err(FaultKind::BadArguments { problem });
        }
        bytes.resize(parameter.offset, 0);
        bytes.extend(argument.bytes());
    }
    Ok(bytes)
}

// The readers of a location of shared memory are a mask of the warps of a block.
const _: () = assert!(BLOCK_THREADS_MAX as usize / LANES <= 32);

#[cfg(test)]
mod tests;
