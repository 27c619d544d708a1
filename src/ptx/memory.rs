//! Device memory: global and shared memory with bounds, poison and races; local memory of threads.

mod poison;
mod conflicts;
mod global;
mod local;
mod shared;

pub(crate) use conflicts::AccessOrigin;
pub use global::DevicePointer;
pub(crate) use global::GlobalMemory;
pub(crate) use local::LocalMemory;
pub(crate) use shared::SharedMemory;

use crate::fault::{FaultKind, MemorySpace};

/// An access to a memory.
#[derive(Debug, Clone, Copy)]
struct MemoryAccess {
    space: MemorySpace,
    /// Address in the space, for errors.
    address: u64,
    /// First byte, from the start of the memory.
    offset: usize,
    bytes: usize,
    alignment: usize,
}

/// Checks the bounds and the alignment of an access to a memory of `size` bytes, and returns its
/// first byte.
fn check_access(access: MemoryAccess, size: usize) -> Result<usize, FaultKind> {
    let MemoryAccess { space, address, offset, bytes, alignment } = access;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let limit = match space {
            MemorySpace::Global => format!("their allocation of {size} bytes"),
            MemorySpace::Shared | MemorySpace::Local => format!("{size} bytes"),
        };
        return Err(FaultKind::OutOfBounds { space, address, bytes, limit });
    }
    if !offset.is_multiple_of(alignment.max(1)) {
        return Err(FaultKind::Misaligned { space, address, bytes });
    }
    Ok(offset)
}
