//! The state of the NVIDIA driver on this machine.

use super::device::DeviceProperties;
use super::fault::DeviceError;

/// State of the driver library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverState {
    /// The preference excludes it.
    NotUsed,
    /// This binary was built without the feature `cuda`.
    NotBuilt,
    /// The library is not installed.
    Absent,
    /// The library is installed, and does not work.
    Broken(DeviceError),
    /// The library works, and has these devices, by their numbers.
    Ready(Vec<DeviceProperties>),
}
