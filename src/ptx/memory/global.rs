//! Global memory: allocations with checks of bounds, alignment, poison and races.

use super::conflicts::{AccessOrigin, BlockConflicts};
use super::poison::WrittenBytes;
use super::{MemoryAccess, check_access};
use crate::bits::to_index;
use crate::fault::{FaultKind, MemorySpace};

/// Bits of an address that are the offset within an allocation. The bits above are its number plus
/// one, so arithmetic on a pointer does not reach another allocation, and null is in none.
const OFFSET_BITS: u32 = 40;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Address of global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DevicePointer(u64);

/// One allocation.
#[derive(Debug)]
struct GlobalAllocation {
    data: Vec<u8>,
    /// Bytes that are no longer poison.
    written: WrittenBytes,
    conflicts: BlockConflicts,
}

/// All allocations of a device, in the order in which they were made; `None` for freed ones.
#[derive(Debug)]
pub(crate) struct GlobalMemory(Vec<Option<GlobalAllocation>>);

// === impl DevicePointer ===

impl DevicePointer {
    /// The null pointer, for parameters that a kernel allows to be absent.
    pub const NULL: Self = Self(0);

    /// Returns the pointer this many bytes further. It is checked when it is used.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns the address, as kernels see it.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0
    }
}

// === impl GlobalMemory ===

impl GlobalMemory {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Allocates memory of which every byte is poison.
    pub(crate) fn allocate(&mut self, bytes: usize) -> DevicePointer {
        let data = vec![0; bytes];
        let written = WrittenBytes::new(bytes);
        self.0.push(Some(GlobalAllocation { data, written, conflicts: BlockConflicts::default() }));
        DevicePointer((self.0.len() as u64) << OFFSET_BITS)
    }

    /// Frees an allocation. Its addresses are not used again, so later accesses are detected.
    pub(crate) fn free(&mut self, pointer: DevicePointer) -> Result<(), FaultKind> {
        let (index, offset) = split(pointer.0);
        let allocation = index.and_then(|index| self.0.get_mut(index)).filter(|_| offset == 0);
        match allocation.and_then(Option::take) {
            Some(_) => Ok(()),
            None => Err(outside(pointer.0, 0)),
        }
    }

    /// Copies from the host.
    pub(crate) fn upload(&mut self, pointer: DevicePointer, data: &[u8]) -> Result<(), FaultKind> {
        let (allocation, offset) = self.find(pointer.0, data.len())?;
        let target = allocation.data.get_mut(offset..).and_then(|rest| rest.get_mut(..data.len()));
        target.ok_or_else(|| outside(pointer.0, data.len()))?.copy_from_slice(data);
        allocation.written.mark(offset, data.len());
        Ok(())
    }

    /// Copies to the host.
    pub(crate) fn download(&mut self, pointer: DevicePointer, bytes: usize) -> Result<Vec<u8>, FaultKind> {
        let (allocation, offset) = self.find(pointer.0, bytes)?;
        let source = allocation.data.get(offset..).and_then(|rest| rest.get(..bytes));
        let source = source.ok_or_else(|| outside(pointer.0, bytes))?;
        if !allocation.written.covers(offset, bytes) {
            return Err(uninitialized(pointer.0, bytes));
        }
        Ok(source.to_vec())
    }

    /// Forgets the accesses of the blocks of the previous launch.
    pub(crate) fn begin_launch(&mut self) {
        for allocation in self.0.iter_mut().flatten() {
            allocation.conflicts.clear();
        }
    }

    /// Reads for a thread of a warp. `is_constant`: the read is through the cache for read-only
    /// data, so that the location must not be written in the same launch.
    pub(crate) fn read(
        &mut self,
        address: u64,
        bytes: usize,
        alignment: usize,
        (origin, is_constant): (AccessOrigin, bool),
    ) -> Result<&[u8], FaultKind> {
        let (allocation, offset) = self.find(address, bytes)?;
        let access = MemoryAccess { space: MemorySpace::Global, address, offset, bytes, alignment };
        let offset = check_access(access, allocation.data.len())?;
        if !allocation.written.covers(offset, bytes) {
            return Err(uninitialized(address, bytes));
        }
        let recorded = allocation.conflicts.record_read(offset, bytes, origin, is_constant);
        recorded.map_err(|fault| at_address(fault, address, offset))?;
        allocation.data.get(offset..offset + bytes).ok_or_else(|| outside(address, bytes))
    }

    /// Checks that an address is aligned and in an allocation, without an access to its memory.
    pub(crate) fn check_address(&mut self, address: u64, alignment: usize) -> Result<(), FaultKind> {
        let (allocation, offset) = self.find(address, 0)?;
        if offset >= allocation.data.len() {
            return Err(outside(address, 0));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(FaultKind::Misaligned { space: MemorySpace::Global, address, bytes: alignment });
        }
        Ok(())
    }

    /// Writes for a thread of a warp.
    pub(crate) fn write(&mut self, address: u64, data: &[u8], origin: AccessOrigin) -> Result<(), FaultKind> {
        let bytes = data.len();
        let (allocation, offset) = self.find(address, bytes)?;
        let access = MemoryAccess { space: MemorySpace::Global, address, offset, bytes, alignment: bytes };
        let offset = check_access(access, allocation.data.len())?;
        allocation.conflicts.record_write(offset, bytes, origin).map_err(|fault| at_address(fault, address, offset))?;
        allocation.written.mark(offset, bytes);
        let target = allocation.data.get_mut(offset..offset + bytes);
        target.ok_or_else(|| outside(address, bytes))?.copy_from_slice(data);
        Ok(())
    }

    /// Returns the allocation of an address, and the offset in it. `bytes` is only for the fault.
    fn find(&mut self, address: u64, bytes: usize) -> Result<(&mut GlobalAllocation, usize), FaultKind> {
        let (index, offset) = split(address);
        let allocation = index.and_then(|index| self.0.get_mut(index)).and_then(Option::as_mut);
        allocation.map(|allocation| (allocation, offset)).ok_or_else(|| outside(address, bytes))
    }
}

/// Returns the index of the allocation of an address, or `None` for null, and the offset in it.
fn split(address: u64) -> (Option<usize>, usize) {
    (to_index(address >> OFFSET_BITS).checked_sub(1), to_index(address & OFFSET_MASK))
}

fn outside(address: u64, bytes: usize) -> FaultKind {
    FaultKind::OutOfBounds { space: MemorySpace::Global, address, bytes, limit: "all allocations".to_owned() }
}

fn uninitialized(address: u64, bytes: usize) -> FaultKind {
    FaultKind::Uninitialized { space: MemorySpace::Global, address, bytes }
}

/// Makes the address of a conflict absolute.
fn at_address(fault: FaultKind, address: u64, offset: usize) -> FaultKind {
    match fault {
        FaultKind::GlobalRace { address: within, access, other } => {
            FaultKind::GlobalRace { address: address - offset as u64 + within, access, other }
        }
        FaultKind::ReadOnlyWrite { address: within } => {
            FaultKind::ReadOnlyWrite { address: address - offset as u64 + within }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_checked() {
        let mut memory = GlobalMemory::new();
        let pointer = memory.allocate(16);
        assert!(matches!(memory.download(pointer, 4), Err(FaultKind::Uninitialized { .. })));
        memory.upload(pointer.offset(4), &[1, 2, 3, 4]).unwrap();
        assert_eq!(memory.download(pointer.offset(5), 2).unwrap(), [2, 3]);
        assert!(matches!(memory.upload(pointer.offset(14), &[0; 3]), Err(FaultKind::OutOfBounds { .. })));
        assert!(matches!(memory.upload(DevicePointer::NULL, &[0]), Err(FaultKind::OutOfBounds { .. })));
        memory.free(pointer).unwrap();
        assert!(memory.download(pointer.offset(4), 1).is_err(), "the memory is free");
        assert!(memory.free(pointer).is_err(), "it is freed once");
    }

    #[test]
    fn accesses_of_threads_are_aligned_and_within_one_allocation() {
        let reader = |block| (AccessOrigin { block, warp: 0, epoch: 1 }, false);
        let mut memory = GlobalMemory::new();
        let (first, second) = (memory.allocate(16), memory.allocate(16));
        memory.upload(first, &[7; 16]).unwrap();
        assert_eq!(memory.read(first.address() + 4, 4, 4, reader(0)).unwrap(), [7; 4]);
        assert!(matches!(memory.read(first.address() + 2, 4, 4, reader(0)), Err(FaultKind::Misaligned { .. })));
        assert!(matches!(memory.read(first.address() + 16, 4, 4, reader(0)), Err(FaultKind::OutOfBounds { .. })));
        assert!(matches!(memory.read(second.address(), 4, 4, reader(0)), Err(FaultKind::Uninitialized { .. })));
        memory.write(second.address() + 8, &[1; 8], reader(0).0).unwrap();
        let race = memory.read(second.address() + 8, 4, 4, reader(1)).unwrap_err();
        assert!(matches!(race, FaultKind::GlobalRace { address, .. } if address == second.address() + 8), "{race}");
        memory.begin_launch();
        assert_eq!(memory.read(second.address() + 8, 4, 4, reader(1)).unwrap(), [1; 4]);
    }
}
