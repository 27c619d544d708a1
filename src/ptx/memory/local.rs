//! Local memory of the threads of a warp, for arrays that are not in registers.

use super::poison::WrittenBytes;
use super::{MemoryAccess, check_access};
use crate::bits::{LANES, to_index};
use crate::fault::{FaultKind, MemorySpace};

/// Local memory of the lanes of a warp, one after another.
#[derive(Debug)]
pub(crate) struct LocalMemory {
    bytes_per_lane: usize,
    data: Vec<u8>,
    written: WrittenBytes,
}

// === impl LocalMemory ===

impl LocalMemory {
    pub(crate) fn new(bytes_per_lane: usize) -> Self {
        let bytes = bytes_per_lane * LANES;
        Self { bytes_per_lane, data: vec![0; bytes], written: WrittenBytes::new(bytes) }
    }

    pub(crate) fn read(&self, lane: usize, address: u64, bytes: usize) -> Result<&[u8], FaultKind> {
        let start = self.locate(lane, address, bytes)?;
        if !self.written.covers(start, bytes) {
            return Err(FaultKind::Uninitialized { space: MemorySpace::Local, address, bytes });
        }
        self.data.get(start..start + bytes).ok_or_else(|| self.outside(address, bytes))
    }

    pub(crate) fn write(&mut self, lane: usize, address: u64, data: &[u8]) -> Result<(), FaultKind> {
        let start = self.locate(lane, address, data.len())?;
        self.written.mark(start, data.len());
        let outside = self.outside(address, data.len());
        self.data.get_mut(start..start + data.len()).ok_or(outside)?.copy_from_slice(data);
        Ok(())
    }

    fn locate(&self, lane: usize, address: u64, bytes: usize) -> Result<usize, FaultKind> {
        let (space, offset) = (MemorySpace::Local, to_index(address));
        let access = MemoryAccess { space, address, offset, bytes, alignment: bytes };
        Ok(lane * self.bytes_per_lane + check_access(access, self.bytes_per_lane)?)
    }

    fn outside(&self, address: u64, bytes: usize) -> FaultKind {
        let limit = format!("{} bytes", self.bytes_per_lane);
        FaultKind::OutOfBounds { space: MemorySpace::Local, address, bytes, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_their_own_bytes() {
        let mut memory = LocalMemory::new(8);
        memory.write(3, 4, &[9; 4]).unwrap();
        assert_eq!(memory.read(3, 4, 4).unwrap(), [9; 4]);
        assert!(matches!(memory.read(2, 4, 4), Err(FaultKind::Uninitialized { .. })));
        assert!(matches!(memory.read(3, 8, 4), Err(FaultKind::OutOfBounds { .. })));
        assert!(matches!(memory.write(3, 2, &[0; 4]), Err(FaultKind::Misaligned { .. })));
    }
}
