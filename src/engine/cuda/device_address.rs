//! Addresses of device memory.

/// Address of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceAddress(pub u64);

// === impl DeviceAddress ===

impl DeviceAddress {
    /// The null address, for parameters that a kernel allows to be absent.
    pub const NULL: Self = Self(0);

    /// Returns the address this many bytes further.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes as u64))
    }
}
