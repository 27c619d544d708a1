//! Handles of the driver that are freed when they are dropped.

use std::ffi::CString;

use cudarc::driver::{result, sys};

use super::areas::CopyAreas;
use super::staging::StagingBuffer;
use super::status::{check, ignore_failure};
use crate::cuda::device::DeviceAddress;
use crate::cuda::fault::{DeviceError, INVALID_VALUE};

/// The primary context of a device, its stream, and what was loaded and allocated in it.
pub(super) struct DriverContext {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Null until it is created.
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    allocations: Vec<DeviceAddress>,
    staging: Option<StagingBuffer>,
    areas: Option<CopyAreas>,
}

/// A graph that can be launched.
pub(super) struct DriverGraph(sys::CUgraphExec);

// === impl DriverContext ===

impl DriverContext {
    /// Retains the primary context of a device, binds it to this thread and creates a stream.
    pub(super) fn new(device: sys::CUdevice) -> Result<Self, DeviceError> {
        // SAFETY: the device is one that the driver has returned.
        let context = check("the creation of a context", unsafe { result::primary_ctx::retain(device) })?;
        let (modules, allocations) = (Vec::new(), Vec::new());
        let stream = std::ptr::null_mut();
        let mut this = Self { device, context, stream, modules, allocations, staging: None, areas: None };
        this.bind()?;
        let kind = result::stream::StreamKind::NonBlocking;
        this.stream = check("the creation of a stream", result::stream::create(kind))?;
        this.staging = Some(StagingBuffer::new()?);
        this.areas = Some(CopyAreas::new()?);
        Ok(this)
    }

    /// Makes the context the current one of this thread.
    pub(super) fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until it is dropped.
        check("the binding of a context", unsafe { result::ctx::set_current(self.context) })
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Returns the buffer for copies, and the stream in which they are executed.
    pub(super) fn staging(&mut self) -> Result<(&mut StagingBuffer, sys::CUstream), DeviceError> {
        let missing = || DeviceError::new("the use of host memory", INVALID_VALUE, String::new());
        Ok((self.staging.as_mut().ok_or_else(missing)?, self.stream))
    }

    /// Returns the buffers for copies beside the stream, and the stream.
    pub(super) fn areas(&mut self) -> Result<(&mut CopyAreas, sys::CUstream), DeviceError> {
        let missing = || DeviceError::new("the use of host memory", INVALID_VALUE, String::new());
        Ok((self.areas.as_mut().ok_or_else(missing)?, self.stream))
    }

    /// Returns `true` if all operations of the stream have ended, or one has failed.
    pub(super) fn is_idle(&self) -> bool {
        // SAFETY: the stream exists until the context is dropped.
        let status = unsafe { sys::cuStreamQuery(self.stream) };
        status != sys::CUresult::CUDA_ERROR_NOT_READY
    }

    /// Waits for all operations of the stream.
    fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream exists until the context is dropped.
        check("the execution of kernels", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Allocates memory, which is aligned to 256 bytes, and freed with the context.
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        // SAFETY: the memory is written before it is read, which is tested on the interpreter.
        let address = check("the allocation of memory", unsafe { result::malloc_sync(bytes) })?;
        self.allocations.push(DeviceAddress(address));
        Ok(DeviceAddress(address))
    }

    /// Keeps a module until the context is dropped, and returns one of its functions.
    pub(super) fn add_module(&mut self, module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, DeviceError> {
        const OPERATION: &str = "the load of a kernel";
        self.modules.push(module);
        let name = CString::new(name).map_err(|error| DeviceError::new(OPERATION, INVALID_VALUE, error.to_string()))?;
        // SAFETY: the module is loaded.
        check(OPERATION, unsafe { result::module::get_function(module, name) })
    }

    pub(super) fn begin_capture(&self) -> Result<(), DeviceError> {
        // Only calls of this thread that would break a capture are refused while it lasts.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists until the context is dropped.
        check("the capture of a graph", unsafe { result::stream::begin_capture(self.stream, mode) })
    }

    /// Ends a capture and prepares its graph for launches.
    pub(super) fn end_capture(&self) -> Result<DriverGraph, DeviceError> {
        const OPERATION: &str = "the capture of a graph";
        // SAFETY: the stream exists until the context is dropped.
        let graph = check(OPERATION, unsafe { result::stream::end_capture(self.stream) })?;
        if graph.is_null() {
            return Err(DeviceError::new(OPERATION, INVALID_VALUE, "the capture was invalidated".to_owned()));
        }
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is the one that was captured.
        let executable = check(OPERATION, unsafe { result::graph::instantiate(graph, flags) });
        // SAFETY: the executable graph is a copy, and the captured one is not used again.
        ignore_failure(unsafe { result::graph::destroy(graph) });
        Ok(DriverGraph(executable?))
    }

    pub(super) fn launch_graph(&self, graph: &DriverGraph) -> Result<(), DeviceError> {
        // SAFETY: the graph and the stream exist.
        check("the launch of a graph", unsafe { result::graph::launch(graph.0, self.stream) })
    }
}

impl Drop for DriverContext {
    fn drop(&mut self) {
        drop(self.bind());
        if !self.stream.is_null() {
            drop(self.synchronize());
        }
        // Its copies write memory that is freed below.
        self.areas = None;
        for module in self.modules.drain(..) {
            // SAFETY: no function of the module is used again.
            ignore_failure(unsafe { result::module::unload(module) });
        }
        for address in self.allocations.drain(..) {
            // SAFETY: the memory was allocated by `allocate`, and all operations have ended.
            ignore_failure(unsafe { result::free_sync(address.0) });
        }
        if !self.stream.is_null() {
            // SAFETY: the stream is not used again.
            ignore_failure(unsafe { result::stream::destroy(self.stream) });
        }
        self.staging = None;
        // SAFETY: the context of this device was retained.
        ignore_failure(unsafe { result::primary_ctx::release(self.device) });
    }
}

// === impl DriverGraph ===

impl Drop for DriverGraph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used again. One that is executed is freed when it has ended.
        ignore_failure(unsafe { result::graph::exec_destroy(self.0) });
    }
}
