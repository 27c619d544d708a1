//! Status codes of the driver as errors.

use cudarc::driver::DriverError;

use crate::cuda::fault::DeviceError;

/// Turns the result of a function of the driver into one that names the operation.
pub(super) fn check<T>(operation: &'static str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
    result.map_err(|error| DeviceError::new(operation, error.0 as u32, String::new()))
}

/// Ignores the error of freeing a handle: after a sticky error every call fails, and the end of the
/// process frees all.
pub(super) fn ignore_failure(_: Result<(), DriverError>) {}
