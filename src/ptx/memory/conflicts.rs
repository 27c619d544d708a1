//! Detection of races in global memory.
//!
//! On a GPU, blocks run in any order and at the same time, and there is no barrier between them. So
//! a location that one block writes must not be accessed by another block in the same launch.
//! Within a block, two warps may access a location that one of them writes if a barrier separates
//! the accesses, as in shared memory (see `shared`). A location that is read through the cache for
//! read-only data (a *constant* here) must not be written in the launch at all (PTX ISA 8.4,
//! "ld.global.nc").

use crate::fault::FaultKind;

/// Bytes of one location: those of the smallest elements that kernels store.
const LOCATION_BYTES: usize = 2;
/// Locations of one page. Pages are created when they are touched, so the memory of a launch is in
/// proportion to what it accesses and not to what is allocated.
const PAGE_LOCATIONS: usize = 2048;
/// Reader of a location that several blocks have read.
const SEVERAL: u32 = u32::MAX;

/// The warp and the epoch of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessOrigin {
    /// Number of the block in the grid.
    pub(crate) block: u32,
    pub(crate) warp: u8,
    /// Epoch of the block (see `shared`).
    pub(crate) epoch: u32,
}

/// The accesses to a location in this launch. A block is stored as its number plus one, and no
/// block as 0.
#[derive(Debug, Clone, Copy, Default)]
struct LocationAccess {
    /// The block that has written.
    writer: u32,
    /// The block that has read, or [`SEVERAL`].
    reader: u32,
    /// Epoch of the last write.
    write_epoch: u32,
    /// Epoch of the last read, if one block has read.
    read_epoch: u32,
    /// Warp of the last write.
    write_warp: u8,
    /// `true` if the location was read as a constant.
    is_constant: bool,
    /// Warps of the reader that have read in `read_epoch`, one bit each.
    read_warps: u32,
}

type AccessPage = Box<[LocationAccess]>;

/// The accesses of the blocks of one launch to an allocation, by page. A page without an access may
/// be absent.
#[derive(Debug, Default)]
pub(super) struct BlockConflicts(Vec<Option<AccessPage>>);

// === impl BlockConflicts ===

impl BlockConflicts {
    /// Forgets the accesses of the previous launch.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Records a read, and fails if another warp has written without a barrier, or if a constant
    /// was written.
    pub(super) fn record_read(
        &mut self,
        start: usize,
        bytes: usize,
        origin: AccessOrigin,
        is_constant: bool,
    ) -> Result<(), FaultKind> {
        self.visit(start, bytes, |location, access| {
            if let Some(other) = access.conflicting_write(origin) {
                return Err(race(location, "a read", other));
            }
            if is_constant && access.writer != 0 {
                return Err(FaultKind::ReadOnlyWrite { address: (location * LOCATION_BYTES) as u64 });
            }
            access.add_reader(origin);
            access.is_constant |= is_constant;
            Ok(())
        })
    }

    /// Records a write, and fails if another warp has read or written without a barrier, or if the
    /// location was read as a constant.
    pub(super) fn record_write(&mut self, start: usize, bytes: usize, origin: AccessOrigin) -> Result<(), FaultKind> {
        self.visit(start, bytes, |location, access| {
            if let Some(other) = access.conflicting_write(origin).or_else(|| access.conflicting_read(origin)) {
                return Err(race(location, "a write", other));
            }
            if access.is_constant {
                return Err(FaultKind::ReadOnlyWrite { address: (location * LOCATION_BYTES) as u64 });
            }
            access.writer = origin.block + 1;
            (access.write_epoch, access.write_warp) = (origin.epoch, origin.warp);
            Ok(())
        })
    }

    /// Calls `record` with each location of an access.
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

// === impl LocationAccess ===

impl LocationAccess {
    /// Describes a write that no barrier separates from an access.
    fn conflicting_write(&self, origin: AccessOrigin) -> Option<String> {
        match self.writer.checked_sub(1) {
            Some(block) if block != origin.block => Some(format!("a write of block {block}")),
            Some(_) if self.write_epoch == origin.epoch && self.write_warp != origin.warp => {
                Some(format!("a write of warp {} without a barrier", self.write_warp))
            }
            _ => None,
        }
    }

    /// Describes a read that no barrier separates from a write.
    fn conflicting_read(&self, origin: AccessOrigin) -> Option<String> {
        if self.reader == SEVERAL {
            return Some("reads of several blocks".to_owned());
        }
        let block = self.reader.checked_sub(1)?;
        if block != origin.block {
            return Some(format!("a read of block {block}"));
        }
        let others = self.read_warps & !(1 << origin.warp);
        let conflicts = self.read_epoch == origin.epoch && others != 0;
        conflicts.then(|| format!("a read of warp {} without a barrier", others.trailing_zeros()))
    }

    /// Adds a read. Once two blocks have read, warps and epochs no longer matter.
    fn add_reader(&mut self, origin: AccessOrigin) {
        if self.reader != 0 && self.reader != origin.block + 1 {
            self.reader = SEVERAL;
            return;
        }
        if self.reader == 0 || self.read_epoch != origin.epoch {
            (self.reader, self.read_epoch, self.read_warps) = (origin.block + 1, origin.epoch, 0);
        }
        self.read_warps |= 1 << origin.warp;
    }
}

/// Returns the fault of a race. Its address is relative to the allocation; the caller makes it
/// absolute.
fn race(location: usize, access: &'static str, other: String) -> FaultKind {
    FaultKind::GlobalRace { address: (location * LOCATION_BYTES) as u64, access, other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(block: u32, warp: u8, epoch: u32) -> AccessOrigin {
        AccessOrigin { block, warp, epoch }
    }

    #[test]
    fn a_write_conflicts_with_accesses_of_other_blocks() {
        let mut conflicts = BlockConflicts::default();
        conflicts.record_write(0, 16, at(3, 0, 1)).unwrap();
        conflicts.record_read(0, 16, at(3, 0, 1), false).unwrap();
        conflicts.record_write(16, 2, at(4, 0, 1)).unwrap();
        assert!(conflicts.record_read(14, 2, at(4, 0, 2), false).is_err());
        assert!(conflicts.record_write(14, 4, at(4, 0, 2)).is_err());
        conflicts.clear();
        conflicts.record_read(14, 2, at(4, 0, 1), false).unwrap();
        conflicts.record_read(14, 2, at(5, 0, 1), false).unwrap();
        assert!(conflicts.record_write(14, 2, at(4, 0, 2)).is_err(), "block 5 has read");
    }

    #[test]
    fn a_barrier_separates_the_warps_of_a_block() {
        let mut conflicts = BlockConflicts::default();
        conflicts.record_write(0, 4, at(0, 0, 1)).unwrap();
        let race = conflicts.record_read(0, 4, at(0, 1, 1), false).unwrap_err();
        assert!(race.to_string().contains("a read after a write of warp 0 without a barrier"), "{race}");
        assert!(conflicts.record_write(0, 4, at(0, 1, 1)).is_err());
        conflicts.record_read(0, 4, at(0, 1, 2), false).unwrap();
        conflicts.record_read(0, 4, at(0, 2, 2), false).unwrap();
        let race = conflicts.record_write(0, 4, at(0, 1, 2)).unwrap_err();
        assert!(race.to_string().contains("a write after a read of warp 2 without a barrier"), "{race}");
        conflicts.record_write(0, 4, at(0, 1, 3)).unwrap();
    }

    #[test]
    fn constants_are_not_written_in_their_launch() {
        let mut conflicts = BlockConflicts::default();
        conflicts.record_read(0, 16, at(0, 0, 1), true).unwrap();
        let written = |result| matches!(result, Err(FaultKind::ReadOnlyWrite { .. }));
        assert!(written(conflicts.record_write(4, 2, at(0, 0, 2))), "also after a barrier, by the same warp");
        conflicts.record_write(16, 2, at(0, 0, 1)).unwrap();
        conflicts.record_read(16, 2, at(0, 0, 1), false).unwrap();
        assert!(written(conflicts.record_read(16, 2, at(0, 0, 2), true)));
        conflicts.clear();
        conflicts.record_write(4, 2, at(0, 0, 1)).unwrap();
    }
}
