//! Detection of races between the blocks of a launch.
//!
//! Blocks run in any order and at the same time, and there is no barrier between them. So a
//! location that one block writes must not be accessed by another block in the same launch.

use crate::fault::FaultKind;

/// Bytes of one location: those of the smallest elements that kernels store.
const LOCATION_BYTES: usize = 2;
/// Locations of one page. Pages are created when they are touched, so the memory of a launch is in
/// proportion to what it accesses and not to what is allocated.
const PAGE_LOCATIONS: usize = 2048;
/// Reader of a location that several blocks have read.
const SEVERAL: u32 = u32::MAX;

/// The blocks that accessed a location in this launch: the number of the block plus one, or zero.
#[derive(Debug, Clone, Copy, Default)]
struct LocationAccess {
    writer: u32,
    reader: u32,
}

type AccessPage = Box<[LocationAccess]>;

/// The accesses of the blocks of one launch to an allocation.
#[derive(Debug, Default)]
pub(super) struct BlockConflicts(Vec<Option<AccessPage>>);

// === impl BlockConflicts ===

impl BlockConflicts {
    /// Forgets the accesses of the previous launch.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Records a read of block number `block`, and fails if another block has written.
    pub(super) fn record_read(&mut self, start: usize, bytes: usize, block: u32) -> Result<(), FaultKind> {
        self.visit(start, bytes, |location, access| {
            if access.writer != 0 && access.writer != block + 1 {
                return Err(race(location, "a read", format!("a write of block {}", access.writer - 1)));
            }
            access.reader = if access.reader == 0 || access.reader == block + 1 { block + 1 } else { SEVERAL };
            Ok(())
        })
    }

    /// Records a write of block number `block`, and fails if another block has read or written.
    pub(super) fn record_write(&mut self, start: usize, bytes: usize, block: u32) -> Result<(), FaultKind> {
        self.visit(start, bytes, |location, access| {
            if access.writer != 0 && access.writer != block + 1 {
                return Err(race(location, "a write", format!("a write of block {}", access.writer - 1)));
            }
            if access.reader == SEVERAL {
                return Err(race(location, "a write", "reads of several blocks".to_owned()));
            }
            if access.reader != 0 && access.reader != block + 1 {
                return Err(race(location, "a write", format!("a read of block {}", access.reader - 1)));
            }
            access.writer = block + 1;
            Ok(())
        })
    }

    fn visit(
        &mut self,
        start: usize,
        bytes: usize,
        mut record: impl FnMut(usize, &mut LocationAccess) -> Result<(), FaultKind>,
    ) -> Result<(), FaultKind> {
        for location in start / LOCATION_BYTES..(start + bytes).div_ceil(LOCATION_BYTES) {
            let (page, at) = (location / PAGE_LOCATIONS, location % PAGE_LOCATIONS);
            if page >= self.0.len() {
                self.0.resize_with(page + 1, || None);
            }
            let Some(slot) = self.0.get_mut(page) else { continue };
            let accesses = slot.get_or_insert_with(|| vec![LocationAccess::default(); PAGE_LOCATIONS].into());
            if let Some(access) = accesses.get_mut(at) {
                record(location, access)?;
            }
        }
        Ok(())
    }
}

/// The address is relative to the allocation; the caller replaces it.
fn race(location: usize, access: &'static str, other: String) -> FaultKind {
    FaultKind::GlobalRace { address: (location * LOCATION_BYTES) as u64, access, other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_conflicts_with_accesses_of_other_blocks_only() {
        let mut conflicts = BlockConflicts::default();
        conflicts.record_write(0, 16, 3).unwrap();
        conflicts.record_read(0, 16, 3).unwrap();
        conflicts.record_write(16, 2, 4).unwrap();
        assert!(conflicts.record_read(14, 2, 4).is_err());
        assert!(conflicts.record_write(14, 4, 4).is_err());
        conflicts.clear();
        conflicts.record_read(14, 2, 4).unwrap();
        conflicts.record_read(14, 2, 5).unwrap();
        assert!(conflicts.record_write(14, 2, 4).is_err(), "block 5 has read");
    }
}
