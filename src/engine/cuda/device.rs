//! The interface of devices that run kernels: that of the CUDA driver, reduced to what an encoder
//! needs.
//!
//! A device has one stream. Operations are executed in their order, and launches may return before
//! they are executed, so that an operation may return the error of an earlier one. Staged copies
//! are the exception: they are executed beside the stream.

pub use super::device_address::DeviceAddress;
use super::fault::{DeviceError, INVALID_VALUE};
use super::gemm_provider::{GemmCall, GemmProvider};
use super::kernel_image::KernelImage;

/// A device that runs kernels.
pub trait GpuDevice: Send {
    /// Returns the properties of the device.
    fn properties(&self) -> &DeviceProperties;

    /// Makes the device usable by this thread. It is called before each batch, because an executor
    /// may move to another thread between batches.
    ///
    /// # Errors
    /// The context is damaged.
    fn bind_thread(&mut self) -> Result<(), DeviceError>;

    /// Returns the memory in bytes that can be allocated.
    ///
    /// # Errors
    /// The context is damaged.
    fn free_bytes(&mut self) -> Result<usize, DeviceError>;

    /// Allocates regions of these sizes in bytes, each aligned to [`REGION_ALIGNMENT`]. They are
    /// freed with the device.
    ///
    /// # Errors
    /// There is not enough memory.
    fn allocate(&mut self, sizes: &[usize]) -> Result<Vec<DeviceAddress>, DeviceError>;

    /// Copies bytes to the device. They can be reused when the call returns.
    ///
    /// # Errors
    /// The target is not within a region, or an earlier operation failed.
    fn upload(&mut self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for all operations and copies bytes from the device.
    ///
    /// # Errors
    /// The source is not within a region, or an earlier operation failed.
    fn download(&mut self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies at most [`STAGED_BYTES_MAX`] bytes to a region, beside the operations of the stream.
    /// The bytes can be reused when the call returns. Only [`Self::copy_staged`] reads the region,
    /// and each area has a region of its own.
    ///
    /// # Errors
    /// There are too many bytes, the target is not within a region, or an earlier operation failed.
    fn stage(&mut self, area: StagingArea, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies the staged bytes of an area to another region, in the order of the stream, which waits
    /// for the staged copy. Staging into the area waits for this copy in turn.
    ///
    /// # Errors
    /// Nothing is staged, an address is not within a region, or an earlier operation failed.
    fn copy_staged(&mut self, staged: StagedBytes, to: DeviceAddress) -> Result<(), DeviceError>;

    /// Returns `true` if all operations of the stream have ended, or one has failed. The error is
    /// that of a later operation.
    fn is_idle(&mut self) -> bool;

    /// Compiles and loads a kernel.
    ///
    /// # Errors
    /// The driver does not accept it. The error has the log of its compiler.
    fn load_kernel(&mut self, image: &KernelImage) -> Result<KernelId, DeviceError>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// The launch is refused, or an earlier operation failed.
    fn launch(&mut self, launch: &KernelLaunch) -> Result<(), DeviceError>;

    /// Returns the library of the device that multiplies matrices, if one is installed.
    fn gemm_provider(&mut self) -> Option<&mut dyn GemmProvider> {
        None
    }

    /// Launches a kernel or a product of the library.
    ///
    /// # Errors
    /// The launch is refused, or an earlier operation failed.
    fn perform(&mut self, operation: &DeviceOperation) -> Result<(), DeviceError> {
        match operation {
            DeviceOperation::Launch(launch) => self.launch(launch),
            DeviceOperation::Multiply(call) => match self.gemm_provider() {
                Some(provider) => provider.multiply(call),
                None => Err(DeviceError::new("the launch of a product", INVALID_VALUE, "no library".to_owned())),
            },
        }
    }

    /// Records operations as a graph, without executing them.
    ///
    /// # Errors
    /// The driver cannot record them, or there is not enough memory.
    fn capture_graph(&mut self, operations: &[DeviceOperation]) -> Result<GraphId, DeviceError>;

    /// Launches all kernels of a graph.
    ///
    /// # Errors
    /// The launch is refused, or an earlier operation failed.
    fn replay_graph(&mut self, graph: GraphId) -> Result<(), DeviceError>;

    /// Frees a graph. Nothing happens if it is free.
    fn release_graph(&mut self, graph: GraphId);
}

/// Alignment of regions in bytes: that of `cuMemAlloc`, and more than the widest access of a
/// kernel.
pub const REGION_ALIGNMENT: usize = 256;

/// Maximum size of a staged copy: the inputs of a batch of 16 384 tokens take about 210 KB. Larger
/// ones are copied when they are needed.
pub const STAGED_BYTES_MAX: usize = 1 << 20;

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Name of the product.
    pub name: String,
    /// Compute capability: major and minor number.
    pub capability: (u32, u32),
    /// Number of multiprocessors. A part of a divided GPU (MIG) has fewer than the product.
    pub multiprocessors: u32,
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// Version of CUDA that the driver supports, as 1000 times the major plus 10 times the minor
    /// number.
    pub driver_version: u32,
}

/// A buffer of staged copies. There are two, for the inputs of the batch that is executed and of the
/// next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagingArea {
    /// The first buffer.
    First,
    /// The second buffer.
    Second,
}

/// Bytes that were staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedBytes {
    /// The area.
    pub area: StagingArea,
    /// Region to which they were copied.
    pub from: DeviceAddress,
    /// Number of bytes.
    pub bytes: usize,
}

/// A loaded kernel of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelId(pub usize);

/// A graph of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(pub u64);

/// An operation of a forward pass.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceOperation {
    /// A launch of a kernel.
    Launch(KernelLaunch),
    /// A product of the library.
    Multiply(GemmCall),
}

/// A launch of a kernel. Its arguments match the parameters of the kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelLaunch {
    /// The kernel.
    pub kernel: KernelId,
    /// Blocks of the grid.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Arguments in the order of the parameters.
    pub arguments: Vec<LaunchArgument>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LaunchArgument {
    /// An address, or null.
    Address(DeviceAddress),
    /// A 32-bit integer.
    Integer(u32),
    /// A 32-bit floating-point number.
    Float(f32),
}

// === impl DeviceProperties ===

impl DeviceProperties {
    /// Least compute capability of the kernels: tensor cores for bfloat16, and asynchronous copies.
    pub const CAPABILITY_MIN: (u32, u32) = (8, 0);
    /// Least version of the driver: the kernels are PTX 8.4, which CUDA 12.4 introduced (PTX ISA,
    /// "Release Notes").
    pub const DRIVER_MIN: u32 = 12_040;

    /// Returns the reason why the kernels do not run on the device, if there is one.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let ((major, minor), (major_min, minor_min)) = (self.capability, Self::CAPABILITY_MIN);
        if self.capability < Self::CAPABILITY_MIN {
            let needed = "use a GPU of the generation Ampere or later";
            return Some(format!("compute capability {major}.{minor} is below {major_min}.{minor_min}: {needed}"));
        }
        let version = |number: u32| format!("{}.{}", number / 1000, number % 1000 / 10);
        (self.driver_version < Self::DRIVER_MIN).then(|| {
            let (found, least) = (version(self.driver_version), version(Self::DRIVER_MIN));
            format!("the driver supports CUDA {found}, and {least} is needed: install driver R550 or later")
        })
    }
}

// === impl StagingArea ===

impl StagingArea {
    /// Returns the one of two values that belongs to the area.
    #[must_use]
    pub fn pick<T>(self, [first, second]: [T; 2]) -> T {
        match self {
            Self::First => first,
            Self::Second => second,
        }
    }

    /// Returns the area of the next batch.
    #[must_use]
    pub fn next(self) -> Self {
        self.pick([Self::Second, Self::First])
    }
}

// === impl LaunchArgument ===

impl LaunchArgument {
    /// Returns a size as an argument. Sizes of a model and of a batch are below 2^32.
    #[must_use]
    pub fn size(value: usize) -> Self {
        Self::Integer(to_u32(value))
    }
}

/// Converts a size. One that is too large becomes a number that a check refuses.
pub(crate) fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_devices_and_drivers_are_named() {
        let device = |capability, driver_version| DeviceProperties {
            name: "a GPU".to_owned(),
            capability,
            multiprocessors: 1,
            memory_bytes: 1,
            driver_version,
        };
        assert_eq!(device((8, 0), 12_040).obstacle(), None);
        assert_eq!(device((9, 0), 13_000).obstacle(), None);
        assert!(device((7, 5), 13_000).obstacle().unwrap().starts_with("compute capability 7.5 is below 8.0"));
        assert!(device((8, 9), 12_020).obstacle().unwrap().contains("CUDA 12.2, and 12.4 is needed"));
    }
}
