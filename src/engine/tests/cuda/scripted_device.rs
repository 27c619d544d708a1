//! A simulated device that fails at launches of choice.

use crate::cuda::{
    DeviceAddress, DeviceError, DeviceProperties, GpuDevice, GraphId, KernelId, KernelImage, KernelLaunch,
};
use crate::{LaunchArgument, SimulatedDevice};

/// Returns the code of an error for the arguments of a launch.
type LaunchScript = Box<dyn FnMut(&[LaunchArgument]) -> Option<u32> + Send>;

/// A device with a script of errors.
pub(super) struct ScriptedDevice {
    pub(super) inner: SimulatedDevice,
    pub(super) script: LaunchScript,
    /// Code of the error of captures.
    pub(super) capture_error: Option<u32>,
}

// === impl ScriptedDevice ===

impl ScriptedDevice {
    pub(super) fn new(script: impl FnMut(&[LaunchArgument]) -> Option<u32> + Send + 'static) -> Self {
        Self { inner: SimulatedDevice::new(1), script: Box::new(script), capture_error: None }
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

    fn load_kernel(&mut self, image: &KernelImage) -> Result<KernelId, DeviceError> {
        self.inner.load_kernel(image)
    }

    fn launch(&mut self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        match (self.script)(&launch.arguments) {
            Some(code) => Err(DeviceError::new("the launch of a kernel", code, String::new())),
            None => self.inner.launch(launch),
        }
    }

    fn capture_graph(&mut self, launches: &[KernelLaunch]) -> Result<GraphId, DeviceError> {
        match self.capture_error {
            Some(code) => Err(DeviceError::new("the capture of a graph", code, String::new())),
            None => self.inner.capture_graph(launches),
        }
    }

    fn replay_graph(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        self.inner.replay_graph(graph)
    }

    fn release_graph(&mut self, graph: GraphId) {
        self.inner.release_graph(graph);
    }
}
