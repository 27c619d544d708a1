//! The search for the library of the driver, and for GPUs.

use std::ffi::c_int;

use cudarc::driver::sys::CUdevice_attribute as DeviceAttribute;
use cudarc::driver::{result, sys};

use super::status::check;
use crate::cuda::device::DeviceProperties;
use crate::cuda::driver_state::DriverState;
use crate::cuda::fault::DeviceError;

/// Maximum number of GPUs that are listed: twice those of the largest servers.
const DEVICES_MAX: usize = 32;

/// Returns the state of the driver and the properties of all GPUs.
pub(crate) fn probe_driver() -> DriverState {
    if !is_library_present() {
        return DriverState::Absent;
    }
    match list_devices() {
        Ok(devices) => DriverState::Ready(devices),
        Err(error) => DriverState::Broken(error),
    }
}

pub(super) fn is_library_present() -> bool {
    // SAFETY: the library of the driver has no constructors with requirements.
    unsafe { sys::is_culib_present() }
}

fn list_devices() -> Result<Vec<DeviceProperties>, DeviceError> {
    check("the start of the driver", result::init())?;
    let count = check("the list of devices", result::device::get_count())?;
    let count = usize::try_from(count).unwrap_or(0).min(DEVICES_MAX);
    (0..count).map(|ordinal| device_properties(get_device(ordinal)?)).collect()
}

pub(super) fn get_device(ordinal: usize) -> Result<sys::CUdevice, DeviceError> {
    check("the choice of a device", result::device::get(c_int::try_from(ordinal).unwrap_or(c_int::MAX)))
}

pub(super) fn device_properties(device: sys::CUdevice) -> Result<DeviceProperties, DeviceError> {
    const OPERATION: &str = "the query of a device";
    let attribute = |of: DeviceAttribute| {
        // SAFETY: the device is one that the driver has returned.
        let value = check(OPERATION, unsafe { result::device::get_attribute(device, of) })?;
        Ok::<_, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    // SAFETY: as above.
    let memory_bytes = check(OPERATION, unsafe { result::device::total_mem(device) })?;
    let mut version: c_int = 0;
    // SAFETY: the pointer is valid for a write.
    check(OPERATION, unsafe { sys::cuDriverGetVersion(&raw mut version) }.result())?;
    Ok(DeviceProperties {
        name: check(OPERATION, result::device::get_name(device))?,
        capability: (
            attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes,
        driver_version: u32::try_from(version).unwrap_or(0),
    })
}
