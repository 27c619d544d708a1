//! A simulated device that fails at launches of choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::{
    DeviceAddress, DeviceError, DeviceOperation, DeviceProperties, GpuDevice, GraphId, KernelId, KernelImage,
    KernelLaunch, StagedBytes, StagingArea,
};
use crate::{LaunchArgument, SimulatedDevice};

/// Code of the driver for a shortage of memory.
pub(super) const OUT_OF_MEMORY: u32 = 2;

/// Returns the code of an error for the arguments of a launch.
type LaunchScript = Box<dyn FnMut(&[LaunchArgument]) -> Option<u32> + Send>;

/// A device with a script of errors.
pub(super) struct ScriptedDevice {
    pub(super) inner: SimulatedDevice,
    pub(super) script: LaunchScript,
    /// Code of the error of captures.
    pub(super) capture_error: Option<u32>,
    /// Code of the error of staged copies.
    pub(super) stage_error: Option<u32>,
    /// `true` if memory is short for replays, and for launches while there is a graph.
    pub(super) fails_beside_graphs: Arc<AtomicBool>,
}

// === impl ScriptedDevice ===

impl ScriptedDevice {
    pub(super) fn new(script: impl FnMut(&[LaunchArgument]) -> Option<u32> + Send + 'static) -> Self {
        Self {
            inner: SimulatedDevice::new(1),
            script: Box::new(script),
            capture_error: None,
            stage_error: None,
            fails_beside_graphs: Arc::default(),
        }
    }

    /// Returns the error of a shortage of memory, if graphs cause one.
    fn shortage(&self) -> Option<u32> {
        let is_short = self.inner.graphs() > 0 && self.fails_beside_graphs.load(Ordering::Relaxed);
        is_short.then_some(OUT_OF_MEMORY)
    }
}

impl GpuDevice for ScriptedDevice {
    fn properties(&self) -> &DeviceProperties {
        self.inner.properties()
    }

    fn bind_thread(&mut self) -> Result<(), DeviceError> {
        self.inner.bind_thread()
    }

    fn free_bytes(&mut self) -> Result<usize, DeviceError> {
        self.inner.free_bytes()
    }

    fn allocate(&mut self, sizes: &[usize]) -> Result<Vec<DeviceAddress>, DeviceError> {
        self.inner.allocate(sizes)
    }

    fn upload(&mut self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.upload(to, bytes)
    }

    fn download(&mut self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.download(from, bytes)
    }

    fn stage(&mut self, area: StagingArea, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.stage_error {
            Some(code) => Err(DeviceError::new("the staged copy to the device", code, String::new())),
            None => self.inner.stage(area, to, bytes),
        }
    }

    fn copy_staged(&mut self, staged: StagedBytes, to: DeviceAddress) -> Result<(), DeviceError> {
        self.inner.copy_staged(staged, to)
    }

    fn is_idle(&mut self) -> bool {
        self.inner.is_idle()
    }

    fn load_kernel(&mut self, image: &KernelImage) -> Result<KernelId, DeviceError> {
        self.inner.load_kernel(image)
    }

    fn launch(&mut self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        match self.shortage().or_else(|| (self.script)(&launch.arguments)) {
            Some(code) => Err(DeviceError::new("the launch of a kernel", code, String::new())),
            None => self.inner.launch(launch),
        }
    }

    fn capture_graph(&mut self, operations: &[DeviceOperation]) -> Result<GraphId, DeviceError> {
        let refused = operations.iter().find_map(|operation| match operation {
            DeviceOperation::Launch(launch) => (self.script)(&launch.arguments),
            DeviceOperation::Multiply(_) => None,
        });
        match self.capture_error.or(refused) {
            Some(code) => Err(DeviceError::new("the capture of a graph", code, String::new())),
            None => self.inner.capture_graph(operations),
        }
    }

    fn replay_graph(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        match self.shortage() {
            Some(code) => Err(DeviceError::new("the launch of a graph", code, String::new())),
            None => self.inner.replay_graph(graph),
        }
    }

    fn release_graph(&mut self, graph: GraphId) {
        self.inner.release_graph(graph);
    }
}
