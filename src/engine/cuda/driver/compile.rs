//! Compilation of PTX by the driver, with its log, and the load of modules.

use std::ffi::{CString, c_uint, c_void};

use cudarc::driver::sys;
use cudarc::driver::sys::CUjit_option_enum as JitOption;

use super::handle::DriverContext;
use super::status::{check, ignore_failure};
use crate::cuda::fault::{DeviceError, INVALID_VALUE};
use crate::cuda::kernel_image::KernelImage;
use crate::cuda::kernel_load::KernelLinker;

/// Maximum size of a log: some dozens of lines.
const LOG_BYTES: usize = 8192;
const COMPILE: &str = "the compilation of a kernel";
const LOAD: &str = "the load of a kernel";

/// Options that make the driver write its errors into a buffer.
struct ErrorLog {
    buffer: Vec<u8>,
    options: [JitOption; 2],
    values: [*mut c_void; 2],
}

/// The compiler of the driver, in a context that is bound.
pub(super) struct DriverCompiler<'a> {
    /// Holds that there is a context.
    _context: &'a DriverContext,
}

/// Linker of the driver, which returns the machine code that it loads.
struct DriverLinker(sys::CUlinkState);

/// Compiles PTX to machine code.
fn compile(image: &KernelImage) -> Result<Vec<u8>, DeviceError> {
    let ptx = CString::new(image.ptx).map_err(|error| DeviceError::new(COMPILE, INVALID_VALUE, error.to_string()))?;
    let name = CString::new(image.name).unwrap_or_default();
    let mut log = ErrorLog::new();
    let linker = match DriverLinker::new(&mut log) {
        Ok(linker) => linker,
        Err(error) => return Err(log.describe(error, image)),
    };
    let bytes = ptx.as_bytes_with_nul().len();
    let (data, kind) = (ptx.as_ptr().cast_mut().cast(), sys::CUjitInputType_enum::CU_JIT_INPUT_PTX);
    let no_options = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the PTX is terminated by a zero byte and lives until the call returns; the driver
    // only reads it. There are no options.
    let added =
        unsafe { sys::cuLinkAddData_v2(linker.0, kind, data, bytes, name.as_ptr(), 0, no_options.0, no_options.1) };
    if let Err(error) = check(COMPILE, added.result()) {
        return Err(log.describe(error, image));
    }
    let (mut cubin, mut size) = (std::ptr::null_mut::<c_void>(), 0);
    // SAFETY: both pointers are valid for a write.
    let completed = unsafe { sys::cuLinkComplete(linker.0, &raw mut cubin, &raw mut size) };
    if let Err(error) = check(COMPILE, completed.result()) {
        return Err(log.describe(error, image));
    }
    if cubin.is_null() {
        return Err(DeviceError::new(COMPILE, INVALID_VALUE, format!("{}: no machine code", image.name)));
    }
    // SAFETY: the linker owns this many bytes until it is dropped, after the copy.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec())
}

/// Loads machine code.
fn load_cubin(image: &KernelImage, cubin: &[u8]) -> Result<sys::CUmodule, DeviceError> {
    let mut log = ErrorLog::new();
    let mut module = std::ptr::null_mut();
    let (count, options, values) = log.arguments();
    // SAFETY: the code is whole, because it has the hash with which it was written or comes from
    // the linker. The options are pairs of a name and a value, and the log outlives the call.
    let loaded = unsafe { sys::cuModuleLoadDataEx(&raw mut module, cubin.as_ptr().cast(), count, options, values) };
    check(LOAD, loaded.result()).map(|()| module).map_err(|error| log.describe(error, image))
}

// === impl DriverCompiler ===

impl<'a> DriverCompiler<'a> {
    pub(super) fn new(context: &'a DriverContext) -> Self {
        Self { _context: context }
    }
}

impl KernelLinker for DriverCompiler<'_> {
    type Module = sys::CUmodule;

    fn compile(&mut self, image: &KernelImage) -> Result<Vec<u8>, DeviceError> {
        compile(image)
    }

    fn load(&mut self, image: &KernelImage, cubin: &[u8]) -> Result<sys::CUmodule, DeviceError> {
        load_cubin(image, cubin)
    }
}

// === impl ErrorLog ===

impl ErrorLog {
    fn new() -> Self {
        let mut buffer = vec![0; LOG_BYTES];
        let start: *mut c_void = buffer.as_mut_ptr().cast();
        // The driver takes a number as the value of a pointer.
        let values = [start, std::ptr::without_provenance_mut(LOG_BYTES)];
        let options = [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        Self { buffer, options, values }
    }

    /// Returns the number of options, their names and their values.
    fn arguments(&mut self) -> (c_uint, *mut JitOption, *mut *mut c_void) {
        (2, self.options.as_mut_ptr(), self.values.as_mut_ptr())
    }

    /// Adds the name of the kernel and the log to an error.
    fn describe(&self, mut error: DeviceError, image: &KernelImage) -> DeviceError {
        let text: Vec<u8> = self.buffer.iter().copied().take_while(|byte| *byte != 0).collect();
        error.detail = format!("{}: {}", image.name, String::from_utf8_lossy(&text).trim());
        error
    }
}

// === impl DriverLinker ===

impl DriverLinker {
    /// The log has to outlive the linker.
    fn new(log: &mut ErrorLog) -> Result<Self, DeviceError> {
        let mut state = std::ptr::null_mut();
        let (count, options, values) = log.arguments();
        // SAFETY: the options are pairs of a name and a value. Their buffer is on the heap, and its
        // owner outlives the linker.
        let created = unsafe { sys::cuLinkCreate_v2(count, options, values, &raw mut state) };
        check(COMPILE, created.result()).map(|()| Self(state))
    }
}

impl Drop for DriverLinker {
    fn drop(&mut self) {
        // SAFETY: the linker is not used again.
        ignore_failure(unsafe { sys::cuLinkDestroy(self.0) }.result());
    }
}
