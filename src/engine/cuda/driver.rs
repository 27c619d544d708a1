//! The NVIDIA driver, loaded at run time through `cudarc`.
//!
//! `cudarc` panics where the library is absent, so [`probe_driver`] and [`CudaDevice::open`] look
//! for it first. Functions of the driver are called directly, without the types of `cudarc` that
//! track events: there is one stream of kernels, whose operations are executed in their order, and
//! one of staged copies, which `areas` orders.

#![expect(unsafe_code, reason = "functions of the driver are foreign, and take addresses and handles")]

mod areas;
mod compile;
mod cublaslt;
mod handle;
mod probe;
mod staging;
mod status;

use std::cell::OnceCell;
use std::ffi::c_int;

use cudarc::driver::{result, sys};

use self::compile::DriverCompiler;
use self::cublaslt::CublasProvider;
use self::handle::{DriverContext, DriverGraph};
pub(crate) use self::probe::probe_driver;
use self::probe::{device_properties, get_device, is_library_present};
use self::status::check;
use super::cubin_cache::CubinCache;
use super::device::{
    DeviceAddress, DeviceOperation, DeviceProperties, GpuDevice, GraphId, KernelId, KernelLaunch, LaunchArgument,
    REGION_ALIGNMENT, StagedBytes, StagingArea,
};
use super::fault::{DeviceError, INVALID_VALUE, NO_DEVICE};
use super::gemm_provider::GemmProvider;
use super::kernel_image::KernelImage;
use super::kernel_load::{self, KernelModule};

/// Dynamic shared memory that a kernel may use without a request (CUDA C++ Programming Guide,
/// "Shared Memory" of compute capability 8.x).
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// A GPU.
///
/// It keeps what it has loaded and allocated until it is dropped.
pub struct CudaDevice {
    // Fields are dropped in their order, so graphs are freed before the context that they are part
    // of.
    graphs: Vec<(GraphId, DriverGraph)>,
    functions: Vec<sys::CUfunction>,
    /// Empty until it is searched for.
    library: OnceCell<Option<CublasProvider>>,
    context: DriverContext,
    captured: u64,
    properties: DeviceProperties,
    cache: Option<CubinCache>,
    /// Kernels that were not read from the cache.
    compiled: usize,
}

// SAFETY: handles of the driver may be used by any thread that has bound the context, which
// `bind_thread` does before each use, and `&mut self` leaves them to one thread at a time.
unsafe impl Send for CudaDevice {}

// === impl CudaDevice ===

impl CudaDevice {
    /// Opens the GPU of this number, and creates its context and a stream. Compiled kernels are
    /// kept in the cache if there is one.
    ///
    /// # Errors
    /// The driver library is absent, or there is no such device.
    pub fn open(ordinal: usize, cache: Option<CubinCache>) -> Result<Self, DeviceError> {
        if !is_library_present() {
            let detail = "the library libcuda.so.1 is not installed".to_owned();
            return Err(DeviceError::new("the start of the driver", NO_DEVICE, detail));
        }
        check("the start of the driver", result::init())?;
        let device = get_device(ordinal)?;
        let properties = device_properties(device)?;
        let context = DriverContext::new(device)?;
        Ok(Self {
            graphs: Vec::new(),
            functions: Vec::new(),
            library: OnceCell::new(),
            context,
            captured: 0,
            properties,
            cache,
            compiled: 0,
        })
    }

    /// Number of kernels that the driver has compiled, and that were not in the cache.
    #[must_use]
    pub fn compiled_kernels(&self) -> usize {
        self.compiled
    }
}

impl std::fmt::Debug for CudaDevice {
    /// Prints the properties only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl GpuDevice for CudaDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn bind_thread(&mut self) -> Result<(), DeviceError> {
        self.context.bind()
    }

    fn free_bytes(&mut self) -> Result<usize, DeviceError> {
        let (free, _) = check("the query of free memory", result::mem_get_info())?;
        Ok(free)
    }

    fn allocate(&mut self, sizes: &[usize]) -> Result<Vec<DeviceAddress>, DeviceError> {
        let aligned = |size: &usize| size.next_multiple_of(REGION_ALIGNMENT);
        let mut next = self.context.allocate(sizes.iter().map(aligned).sum())?;
        let place = |size: &usize| {
            let address = next;
            next = next.offset(aligned(size));
            address
        };
        Ok(sizes.iter().map(place).collect())
    }

    fn upload(&mut self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        let (staging, stream) = self.context.staging()?;
        staging.upload(stream, to, bytes)
    }

    fn download(&mut self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (staging, stream) = self.context.staging()?;
        staging.download(stream, from, bytes)
    }

    fn stage(&mut self, area: StagingArea, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        let (areas, _) = self.context.areas()?;
        areas.stage(area, to, bytes)
    }

    fn copy_staged(&mut self, staged: StagedBytes, to: DeviceAddress) -> Result<(), DeviceError> {
        let (areas, stream) = self.context.areas()?;
        areas.copy(staged, to, stream)
    }

    fn is_idle(&mut self) -> bool {
        self.context.is_idle()
    }

    fn load_kernel(&mut self, image: &KernelImage) -> Result<KernelId, DeviceError> {
        let mut compiler = DriverCompiler::new(&self.context);
        let KernelModule { module, is_compiled } =
            kernel_load::load_kernel(&mut compiler, image, &self.properties, self.cache.as_ref())?;
        self.compiled += usize::from(is_compiled);
        let function = self.context.add_module(module, image.name)?;
        if image.shared_bytes > SHARED_BYTES_DEFAULT {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = c_int::try_from(image.shared_bytes).unwrap_or(c_int::MAX);
            // SAFETY: the function is part of a module that stays loaded.
            let set = unsafe { result::function::set_function_attribute(function, attribute, bytes) };
            check("the request of shared memory", set)?;
        }
        self.functions.push(function);
        Ok(KernelId(self.functions.len() - 1))
    }

    fn launch(&mut self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        const OPERATION: &str = "the launch of a kernel";
        let Some(function) = self.functions.get(launch.kernel.0) else {
            return Err(DeviceError::new(OPERATION, INVALID_VALUE, "no such kernel".to_owned()));
        };
        let mut arguments = launch.arguments.clone();
        let mut pointers: Vec<_> = arguments.iter_mut().map(LaunchArgument::as_mut_ptr).collect();
        let KernelLaunch { blocks: [x, y, z], threads, shared_bytes, .. } = *launch;
        // SAFETY: `LoadedKernel::launch` has checked the number and the types of the arguments. The
        // driver copies their values before it returns. Addresses are of regions that live as
        // long as the device, and that are at least as large as the kernels access, which is tested
        // on the interpreter.
        let launched = unsafe {
            result::launch_kernel(
                *function,
                (x, y, z),
                (threads, 1, 1),
                shared_bytes,
                self.context.stream(),
                &mut pointers,
            )
        };
        check(OPERATION, launched)
    }

    fn gemm_provider(&mut self) -> Option<&mut dyn GemmProvider> {
        self.library.get_or_init(|| CublasProvider::open(self.context.stream()));
        self.library.get_mut()?.as_mut().map(|library| library as &mut dyn GemmProvider)
    }

    fn capture_graph(&mut self, operations: &[DeviceOperation]) -> Result<GraphId, DeviceError> {
        self.context.begin_capture()?;
        let launched = operations.iter().try_for_each(|operation| self.perform(operation));
        // The capture is ended in any case: a stream that captures refuses every other operation.
        let graph = self.context.end_capture();
        launched?;
        self.captured += 1;
        self.graphs.push((GraphId(self.captured), graph?));
        Ok(GraphId(self.captured))
    }

    fn replay_graph(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        match self.graphs.iter().find(|(id, _)| *id == graph) {
            Some((_, graph)) => self.context.launch_graph(graph),
            None => Err(DeviceError::new("the launch of a graph", INVALID_VALUE, "no such graph".to_owned())),
        }
    }

    fn release_graph(&mut self, graph: GraphId) {
        self.graphs.retain(|(id, _)| *id != graph);
    }
}

// === impl LaunchArgument ===

impl LaunchArgument {
    /// Returns the address of the value, as `cuLaunchKernel` takes it.
    fn as_mut_ptr(&mut self) -> *mut std::ffi::c_void {
        match self {
            Self::Address(address) => (&raw mut address.0).cast(),
            Self::Integer(value) => (&raw mut *value).cast(),
            Self::Float(value) => (&raw mut *value).cast(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver_state::DriverState;

    /// That this test runs at all on such a machine shows that the binary is loaded without the
    /// library.
    #[test]
    fn a_machine_without_the_library_is_an_error_and_no_panic() {
        if is_library_present() {
            assert_ne!(probe_driver(), DriverState::Absent);
            return;
        }
        assert_eq!(probe_driver(), DriverState::Absent);
        let error = CudaDevice::open(0, None).unwrap_err();
        assert_eq!((error.code, error.is_fatal()), (NO_DEVICE, false));
        assert!(error.to_string().contains("libcuda.so.1 is not installed"), "{error}");
    }
}
