//! A device that interprets the PTX of the kernels on the CPU.
//!
//! It stops at errors that a GPU would not report: accesses outside of a region, races between
//! blocks, and reads of memory that nothing has written (`groupage-ptx`). Each region is an
//! allocation of its own, so that bounds are those of a region. Staged copies are executed as late
//! as their order allows, when the stream waits for them.

mod library;

use std::collections::BTreeMap;

use groupage_ptx::{Device, DeviceFault, DevicePointer, KernelArgument, LaunchShape, Module};

pub use self::library::SimulatedLibrary;
use super::device::{
    DeviceAddress, DeviceOperation, DeviceProperties, GpuDevice, GraphId, KernelId, KernelLaunch, LaunchArgument,
    STAGED_BYTES_MAX, StagedBytes, StagingArea,
};
use super::fault::{DeviceError, INVALID_VALUE, LAUNCH_FAILED, OUT_OF_MEMORY};
use super::gemm_provider::GemmProvider;
use super::kernel_image::KernelImage;

/// Memory of the device: enough for a small encoder, and too little for a mistake to go unnoticed.
const MEMORY_BYTES: usize = 1 << 30;
const STAGE: &str = "the staged copy to the device";

/// A simulated device.
#[derive(Debug)]
pub struct SimulatedDevice {
    device: Device,
    properties: DeviceProperties,
    kernels: Vec<SimulatedKernel>,
    graphs: BTreeMap<u64, Vec<DeviceOperation>>,
    captured: u64,
    allocated: usize,
    launches: u64,
    replays: u64,
    /// The staged copy of each area that is not executed yet.
    staged: [Option<StagedCopy>; 2],
    library: Option<SimulatedLibrary>,
}

#[derive(Debug, Clone)]
struct StagedCopy {
    to: DeviceAddress,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct SimulatedKernel {
    module: Module,
    name: &'static str,
}

// === impl SimulatedDevice ===

impl SimulatedDevice {
    /// Creates a device that runs blocks and warps in the order of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let properties = DeviceProperties {
            name: "simulated device".to_owned(),
            capability: DeviceProperties::CAPABILITY_MIN,
            multiprocessors: 108,
            memory_bytes: MEMORY_BYTES,
            driver_version: DeviceProperties::DRIVER_MIN,
        };
        Self::with_properties(seed, properties)
    }

    /// Creates a device with other properties.
    #[must_use]
    pub fn with_properties(seed: u64, properties: DeviceProperties) -> Self {
        Self {
            device: Device::with_seed(seed),
            properties,
            kernels: Vec::new(),
            graphs: BTreeMap::new(),
            captured: 0,
            allocated: 0,
            launches: 0,
            replays: 0,
            staged: [None, None],
            library: None,
        }
    }

    /// Number of launches, with those of replayed graphs.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Number of replayed graphs.
    #[must_use]
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Number of graphs that are not released.
    #[must_use]
    pub fn graphs(&self) -> usize {
        self.graphs.len()
    }
}

impl GpuDevice for SimulatedDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn bind_thread(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<usize, DeviceError> {
        Ok(self.properties.memory_bytes.saturating_sub(self.allocated))
    }

    fn allocate(&mut self, sizes: &[usize]) -> Result<Vec<DeviceAddress>, DeviceError> {
        let total: usize = sizes.iter().sum();
        if total > self.free_bytes()? {
            let detail = format!("{total} bytes");
            return Err(DeviceError::new("the allocation of memory", OUT_OF_MEMORY, detail));
        }
        self.allocated += total;
        Ok(sizes.iter().map(|size| DeviceAddress(self.device.allocate(*size).address())).collect())
    }

    fn upload(&mut self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.upload(pointer(to), bytes).map_err(|fault| failure("the copy to the device", &fault))
    }

    fn download(&mut self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let read = self.device.download(pointer(from), bytes.len());
        bytes.copy_from_slice(&read.map_err(|fault| failure("the copy from the device", &fault))?);
        Ok(())
    }

    fn stage(&mut self, area: StagingArea, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.len() > STAGED_BYTES_MAX {
            let detail = format!("{} bytes, and at most {STAGED_BYTES_MAX} are staged", bytes.len());
            return Err(DeviceError::new(STAGE, INVALID_VALUE, detail));
        }
        *area.pick(self.staged.each_mut()) = Some(StagedCopy { to, bytes: bytes.to_vec() });
        Ok(())
    }

    fn copy_staged(&mut self, staged: StagedBytes, to: DeviceAddress) -> Result<(), DeviceError> {
        let StagedBytes { area, from, bytes } = staged;
        let Some(copy) = area.pick(self.staged.each_mut()).take() else {
            return Err(DeviceError::new(STAGE, INVALID_VALUE, "nothing is staged".to_owned()));
        };
        self.device.upload(pointer(copy.to), &copy.bytes).map_err(|fault| failure(STAGE, &fault))?;
        let read = self.device.download(pointer(from), bytes).map_err(|fault| failure(STAGE, &fault))?;
        self.device.upload(pointer(to), &read).map_err(|fault| failure(STAGE, &fault))
    }

    fn is_idle(&mut self) -> bool {
        true
    }

    fn load_kernel(&mut self, image: &KernelImage) -> Result<KernelId, DeviceError> {
        let module = Module::parse(image.ptx).map_err(|error| {
            DeviceError::new("the load of a kernel", INVALID_VALUE, format!("{}: {error}", image.name))
        })?;
        self.kernels.push(SimulatedKernel { module, name: image.name });
        Ok(KernelId(self.kernels.len() - 1))
    }

    fn launch(&mut self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        let Some(kernel) = self.kernels.get(launch.kernel.0) else {
            return Err(DeviceError::new("the launch of a kernel", INVALID_VALUE, "no such kernel".to_owned()));
        };
        let shared_bytes = usize::try_from(launch.shared_bytes).unwrap_or(usize::MAX);
        let shape = LaunchShape { blocks: launch.blocks, threads: [launch.threads, 1, 1], shared_bytes };
        let arguments: Vec<KernelArgument> = launch.arguments.iter().map(|argument| convert(*argument)).collect();
        let result = self.device.launch(&kernel.module, kernel.name, shape, &arguments);
        self.launches += 1;
        result.map(|_| ()).map_err(|fault| failure("the execution of a kernel", &fault))
    }

    fn gemm_provider(&mut self) -> Option<&mut dyn GemmProvider> {
        self.library.is_some().then_some(self as &mut dyn GemmProvider)
    }

    fn capture_graph(&mut self, operations: &[DeviceOperation]) -> Result<GraphId, DeviceError> {
        self.captured += 1;
        self.graphs.insert(self.captured, operations.to_vec());
        Ok(GraphId(self.captured))
    }

    fn replay_graph(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        let Some(operations) = self.graphs.get(&graph.0).cloned() else {
            return Err(DeviceError::new("the launch of a graph", INVALID_VALUE, "no such graph".to_owned()));
        };
        self.replays += 1;
        operations.iter().try_for_each(|operation| self.perform(operation))
    }

    fn release_graph(&mut self, graph: GraphId) {
        self.graphs.remove(&graph.0);
    }
}

fn pointer(address: DeviceAddress) -> DevicePointer {
    DevicePointer::NULL.offset(address.0)
}

fn convert(argument: LaunchArgument) -> KernelArgument {
    match argument {
        LaunchArgument::Address(address) => KernelArgument::Pointer(pointer(address)),
        LaunchArgument::Integer(value) => KernelArgument::U32(value),
        LaunchArgument::Float(value) => KernelArgument::F32(value),
    }
}

/// Returns the error of a fault. On a GPU, an access that the interpreter refuses damages the
/// context.
fn failure(operation: &'static str, fault: &DeviceFault) -> DeviceError {
    DeviceError::new(operation, LAUNCH_FAILED, fault.to_string())
}
