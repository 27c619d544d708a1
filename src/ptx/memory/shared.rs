//! Shared memory of a block: bounds, poison, incomplete asynchronous copies, and races of warps.
//!
//! Race detection is by epochs, as in vector-clock detectors that are specialised to barriers: a
//! new epoch begins after each barrier of the block. Two warps may access a location in one epoch
//! only if both read it.

use super::poison::WrittenBytes;
use super::{MemoryAccess, check_access};
use crate::bits::to_index;
use crate::fault::{FaultKind, MemorySpace};

/// Bytes of one location: those of the smallest elements that kernels store.
const LOCATION_BYTES: usize = 2;

/// The last accesses to a location. Epoch 0 is before every access.
#[derive(Debug, Clone, Copy, Default)]
struct LocationAccess {
    /// Epoch of the last write.
    write_epoch: u32,
    /// Warp of the last write.
    writer: u8,
    /// Epoch of the last read.
    read_epoch: u32,
    /// Warps that have read in `read_epoch`, one bit each: a block has at most 32.
    readers: u32,
}

/// The shared memory of one block.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    data: Vec<u8>,
    /// Bytes that are no longer poison.
    written: WrittenBytes,
    /// Targets of the asynchronous copies that have not been waited for.
    copying: WrittenBytes,
    /// The last accesses to each location.
    accesses: Vec<LocationAccess>,
    /// Number of the epoch: 1 plus the number of barriers that the block has passed.
    epoch: u32,
}

// === impl SharedMemory ===

impl SharedMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            data: vec![0; bytes],
            written: WrittenBytes::new(bytes),
            copying: WrittenBytes::new(bytes),
            accesses: vec![LocationAccess::default(); bytes.div_ceil(LOCATION_BYTES)],
            epoch: 1,
        }
    }

    /// Begins the epoch after a barrier.
    pub(crate) const fn pass_barrier(&mut self) {
        self.epoch += 1;
    }

    /// Reads for a thread of a warp.
    pub(crate) fn read(&mut self, address: u64, bytes: usize, warp: u8) -> Result<&[u8], FaultKind> {
        let start = self.locate(address, bytes)?;
        if self.copying.intersects(start, bytes) {
            return Err(FaultKind::IncompleteCopy { address, bytes });
        }
        if !self.written.covers(start, bytes) {
            return Err(FaultKind::Uninitialized { space: MemorySpace::Shared, address, bytes });
        }
        self.record_read(start, bytes, warp)?;
        self.data.get(start..start + bytes).ok_or_else(|| self.outside(address, bytes))
    }

    /// Writes for a thread of a warp.
    pub(crate) fn write(&mut self, address: u64, data: &[u8], warp: u8) -> Result<(), FaultKind> {
        let start = self.locate(address, data.len())?;
        self.check_pending(start, address, data.len())?;
        self.record_write(start, data.len(), warp)?;
        self.written.mark(start, data.len());
        let outside = self.outside(address, data.len());
        self.data.get_mut(start..start + data.len()).ok_or(outside)?.copy_from_slice(data);
        Ok(())
    }

    /// Begins an asynchronous copy. Until it ends, its target must not be accessed, not even by
    /// another copy. It may write at any time until then, so it counts as a write in this epoch.
    pub(crate) fn begin_copy(&mut self, address: u64, bytes: usize, warp: u8) -> Result<(), FaultKind> {
        let start = self.locate(address, bytes)?;
        self.check_pending(start, address, bytes)?;
        self.record_write(start, bytes, warp)?;
        self.copying.mark(start, bytes);
        Ok(())
    }

    /// Ends an asynchronous copy: its bytes become visible to the warp that waited, and to others
    /// after the next barrier.
    pub(crate) fn end_copy(&mut self, address: u64, data: &[u8], warp: u8) -> Result<(), FaultKind> {
        self.copying.clear(to_index(address), data.len());
        self.write(address, data, warp)
    }

    /// Returns the number of the epoch.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Refuses a write where an asynchronous copy is pending, because either of them may be the
    /// last one on a GPU.
    fn check_pending(&self, start: usize, address: u64, bytes: usize) -> Result<(), FaultKind> {
        if self.copying.intersects(start, bytes) {
            return Err(FaultKind::PendingCopy { address, bytes });
        }
        Ok(())
    }

    /// Checks the bounds and the alignment of an access. Returns its offset.
    fn locate(&self, address: u64, bytes: usize) -> Result<usize, FaultKind> {
        let (space, offset) = (MemorySpace::Shared, to_index(address));
        check_access(MemoryAccess { space, address, offset, bytes, alignment: bytes }, self.data.len())
    }

    /// Records a read, and fails if another warp has written in this epoch.
    fn record_read(&mut self, start: usize, bytes: usize, warp: u8) -> Result<(), FaultKind> {
        let epoch = self.epoch;
        for (at, access) in self.locations(start, bytes) {
            if access.write_epoch == epoch && access.writer != warp {
                return Err(race(at, "a read", format!("a write of warp {}", access.writer)));
            }
            if access.read_epoch != epoch {
                *access = LocationAccess { read_epoch: epoch, readers: 0, ..*access };
            }
            access.readers |= 1 << warp;
        }
        Ok(())
    }

    /// Records a write, and fails if another warp has written or read in this epoch.
    fn record_write(&mut self, start: usize, bytes: usize, warp: u8) -> Result<(), FaultKind> {
        let epoch = self.epoch;
        for (at, access) in self.locations(start, bytes) {
            if access.write_epoch == epoch && access.writer != warp {
                return Err(race(at, "a write", format!("a write of warp {}", access.writer)));
            }
            let others = if access.read_epoch == epoch { access.readers & !(1 << warp) } else { 0 };
            if others != 0 {
                return Err(race(at, "a write", format!("a read of warp {}", others.trailing_zeros())));
            }
            *access = LocationAccess { write_epoch: epoch, writer: warp, ..*access };
        }
        Ok(())
    }

    /// Iterates over the locations of an access.
    fn locations(&mut self, start: usize, bytes: usize) -> impl Iterator<Item = (usize, &mut LocationAccess)> {
        let locations = start / LOCATION_BYTES..(start + bytes).div_ceil(LOCATION_BYTES);
        let accesses = self.accesses.get_mut(locations.clone()).unwrap_or_default();
        locations.zip(accesses)
    }

    fn outside(&self, address: u64, bytes: usize) -> FaultKind {
        let limit = format!("{} bytes", self.data.len());
        FaultKind::OutOfBounds { space: MemorySpace::Shared, address, bytes, limit }
    }
}

fn race(location: usize, access: &'static str, other: String) -> FaultKind {
    FaultKind::SharedRace { address: (location * LOCATION_BYTES) as u64, access, other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_separates_a_write_from_reads_of_other_warps() {
        let mut memory = SharedMemory::new(64);
        memory.write(0, &[1; 4], 0).unwrap();
        assert_eq!(memory.read(0, 4, 0).unwrap(), [1; 4]);
        assert!(matches!(memory.read(0, 4, 1), Err(FaultKind::SharedRace { .. })));
        memory.pass_barrier();
        memory.read(0, 4, 1).unwrap();
        memory.read(0, 4, 2).unwrap();
        let race = memory.write(2, &[1; 2], 1).unwrap_err();
        assert!(race.to_string().contains("a write without a barrier after a read of warp 2"), "{race}");
        memory.pass_barrier();
        memory.write(2, &[1; 2], 1).unwrap();
    }

    #[test]
    fn warps_write_neighbouring_halves() {
        let mut memory = SharedMemory::new(4);
        memory.write(0, &[1; 2], 0).unwrap();
        memory.write(2, &[1; 2], 1).unwrap();
    }

    #[test]
    fn a_copy_is_not_read_before_it_ends() {
        let mut memory = SharedMemory::new(32);
        memory.begin_copy(16, 16, 0).unwrap();
        memory.pass_barrier();
        assert!(matches!(memory.write(20, &[1; 4], 0), Err(FaultKind::PendingCopy { .. })));
        assert!(matches!(memory.write(20, &[1; 4], 1), Err(FaultKind::PendingCopy { .. })));
        assert!(matches!(memory.begin_copy(24, 8, 0), Err(FaultKind::PendingCopy { .. })));
        assert!(matches!(memory.read(16, 4, 0), Err(FaultKind::IncompleteCopy { .. })));
        memory.end_copy(16, &[5; 16], 0).unwrap();
        assert_eq!(memory.read(16, 16, 0).unwrap(), [5; 16]);
        assert!(matches!(memory.read(16, 4, 1), Err(FaultKind::SharedRace { .. })), "needs a barrier");
        assert!(matches!(memory.read(0, 4, 0), Err(FaultKind::Uninitialized { .. })));
        assert!(matches!(memory.read(40, 4, 0), Err(FaultKind::OutOfBounds { .. })));
        assert!(matches!(memory.read(18, 4, 0), Err(FaultKind::Misaligned { .. })));
    }
}
