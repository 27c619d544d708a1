//! Device memory: global memory with bounds, poison and races between blocks; shared memory with
//! races between warps; local memory of threads.

mod poison;
mod conflicts;
mod global;
mod local;
mod shared;

pub use global::DevicePointer;
pub(crate) use global::GlobalMemory;
pub(crate) use local::LocalMemory;
pub(crate) use shared::SharedMemory;

use crate::fault::{FaultKind, MemorySpace};

/// Checks the bounds and the alignment of an access, and returns its first byte as an index.
///
/// `offset` is relative to the start of a memory of `size` bytes; `address` is for the error.
fn check_access(
    space: MemorySpace,
    address: u64,
    offset: usize,
    bytes: usize,
    size: usize,
) -> Result<usize, FaultKind> {
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let limit = match space {
            MemorySpace::Global => format!("their allocation of {size} bytes"),
            MemorySpace::Shared | MemorySpace::Local => format!("{size} bytes"),
        };
        return Err(FaultKind::OutOfBounds { space, address, bytes, limit });
    }
    if !offset.is_multiple_of(bytes.max(1)) {
        return Err(FaultKind::Misaligned { space, address, bytes });
    }
    Ok(offset)
}
