//! Errors of a device, classified by their consequences.

use crate::executor::ExecuteError;

/// Error of an operation on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed: {name} ({code}){}{detail}", if detail.is_empty() { "" } else { ": " })]
pub struct DeviceError {
    /// The operation.
    pub operation: &'static str,
    /// Number of the error, that of `CUresult` of the driver.
    pub code: u32,
    /// Name of the error.
    pub name: &'static str,
    /// Log of the compiler, or place of the fault; may be empty.
    pub detail: String,
    /// Consequence for later operations.
    pub severity: FaultSeverity,
}

/// Consequence of an error for later operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSeverity {
    /// There was not enough memory. A smaller operation may succeed.
    Memory,
    /// This operation failed, and others are not affected.
    Operation,
    /// The context is damaged ("sticky" errors of the CUDA driver): every later operation fails, in
    /// this process.
    Context,
}

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: u32 = 801;
/// `CUDA_ERROR_NO_DEVICE`, also where the library of the driver is absent.
pub(crate) const NO_DEVICE: u32 = 100;
/// `CUDA_ERROR_LAUNCH_FAILED`: the reason is unknown to the driver.
pub(crate) const LAUNCH_FAILED: u32 = 719;

/// Errors by their numbers in the header `cuda.h` of CUDA 13.0, with their severity. The driver
/// documents each sticky error with "the process must be terminated and relaunched", or with "the
/// context cannot be used".
const ERRORS: [(u32, &str, FaultSeverity); 45] = [
    (INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", FaultSeverity::Operation),
    (OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", FaultSeverity::Memory),
    (3, "CUDA_ERROR_NOT_INITIALIZED", FaultSeverity::Operation),
    (4, "CUDA_ERROR_DEINITIALIZED", FaultSeverity::Context),
    (34, "CUDA_ERROR_STUB_LIBRARY", FaultSeverity::Operation),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", FaultSeverity::Operation),
    (NO_DEVICE, "CUDA_ERROR_NO_DEVICE", FaultSeverity::Operation),
    (101, "CUDA_ERROR_INVALID_DEVICE", FaultSeverity::Operation),
    (200, "CUDA_ERROR_INVALID_IMAGE", FaultSeverity::Operation),
    (201, "CUDA_ERROR_INVALID_CONTEXT", FaultSeverity::Context),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", FaultSeverity::Operation),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", FaultSeverity::Context),
    (218, "CUDA_ERROR_INVALID_PTX", FaultSeverity::Operation),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", FaultSeverity::Context),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", FaultSeverity::Operation),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", FaultSeverity::Operation),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", FaultSeverity::Operation),
    (226, "CUDA_ERROR_CONTAINED", FaultSeverity::Context),
    (300, "CUDA_ERROR_INVALID_SOURCE", FaultSeverity::Operation),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", FaultSeverity::Operation),
    (400, "CUDA_ERROR_INVALID_HANDLE", FaultSeverity::Operation),
    (401, "CUDA_ERROR_ILLEGAL_STATE", FaultSeverity::Operation),
    (500, "CUDA_ERROR_NOT_FOUND", FaultSeverity::Operation),
    (600, "CUDA_ERROR_NOT_READY", FaultSeverity::Operation),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", FaultSeverity::Context),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", FaultSeverity::Operation),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT", FaultSeverity::Context),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", FaultSeverity::Context),
    (710, "CUDA_ERROR_ASSERT", FaultSeverity::Context),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR", FaultSeverity::Context),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", FaultSeverity::Context),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS", FaultSeverity::Context),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", FaultSeverity::Context),
    (718, "CUDA_ERROR_INVALID_PC", FaultSeverity::Context),
    (LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", FaultSeverity::Context),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", FaultSeverity::Context),
    (800, "CUDA_ERROR_NOT_PERMITTED", FaultSeverity::Operation),
    (NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", FaultSeverity::Operation),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", FaultSeverity::Operation),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", FaultSeverity::Operation),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", FaultSeverity::Operation),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", FaultSeverity::Operation),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", FaultSeverity::Operation),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", FaultSeverity::Operation),
    (999, "CUDA_ERROR_UNKNOWN", FaultSeverity::Context),
];

// === impl DeviceError ===

impl DeviceError {
    /// Creates the error of a code of the driver. A code that is not listed damages the context,
    /// for it is one of a later driver, and nothing is known about its consequence.
    #[must_use]
    pub fn new(operation: &'static str, code: u32, detail: String) -> Self {
        let known = ERRORS.iter().find(|(known, ..)| *known == code);
        let (name, severity) = known.map_or(("unknown error", FaultSeverity::Context), |(_, name, of)| (*name, *of));
        Self { operation, code, name, detail, severity }
    }

    /// Returns `true` if every later operation fails too.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.severity == FaultSeverity::Context
    }
}

impl From<&DeviceError> for ExecuteError {
    fn from(error: &DeviceError) -> Self {
        let DeviceError { operation, name, code, .. } = *error;
        match error.severity {
            FaultSeverity::Context => Self::DeviceLoss { operation, name, code },
            FaultSeverity::Memory | FaultSeverity::Operation => Self::DeviceRefusal { operation, name, code },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_listed_once_in_ascending_order() {
        assert!(ERRORS.is_sorted_by(|(a, ..), (b, ..)| a < b));
    }

    #[test]
    fn sticky_errors_are_fatal_and_others_are_not() {
        let error = |code| DeviceError::new("the launch of a kernel", code, String::new());
        for code in [214, 700, 715, 716, 719, 999] {
            assert!(error(code).is_fatal() && ExecuteError::from(&error(code)).is_fatal(), "{code}");
        }
        for code in [1, 2, 222, 701, 900] {
            assert!(!error(code).is_fatal() && !ExecuteError::from(&error(code)).is_fatal(), "{code}");
        }
        assert_eq!(error(2).severity, FaultSeverity::Memory);
        assert!(error(123_456).is_fatal(), "nothing is known about it");
    }

    #[test]
    fn an_error_states_operation_name_code_and_detail() {
        let error = DeviceError::new("the load of a module", 222, "PTX 8.4 is too new".to_owned());
        let text = "the load of a module failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): PTX 8.4 is too new";
        assert_eq!(error.to_string(), text);
    }
}
