//! Asynchronous copies to shared memory (`cp.async`) that were not waited for.
//!
//! A GPU may write the target of a copy at any time until its lane waits for the group of the copy.
//! Here the source is read when a copy begins, and the data is kept until that wait.

use crate::bits::{LANES, lanes_in};

/// Maximum size of the copy of one lane.
pub(crate) const COPY_BYTES_MAX: usize = 16;

/// A copy of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingCopy {
    pub(crate) lane: usize,
    /// Number of its group among those of the lane, from 0.
    group: usize,
    /// Address in shared memory.
    pub(crate) target: u64,
    data: [u8; COPY_BYTES_MAX],
    size: usize,
}

/// The copies of the lanes of a warp, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct CopyQueue {
    pending: Vec<PendingCopy>,
    /// Number of groups that each lane has committed.
    committed: [usize; LANES],
}

// === impl PendingCopy ===

impl PendingCopy {
    pub(crate) fn data(&self) -> &[u8] {
        self.data.get(..self.size).unwrap_or_default()
    }
}

// === impl CopyQueue ===

impl CopyQueue {
    /// Adds a copy to the group that its lane commits next.
    pub(crate) fn push(&mut self, lane: usize, target: u64, data: [u8; COPY_BYTES_MAX], size: usize) {
        let group = self.committed.get(lane).copied().unwrap_or(0);
        self.pending.push(PendingCopy { lane, group, target, data, size });
    }

    /// Closes the current group of each of these lanes.
    pub(crate) fn commit(&mut self, lanes: u32) {
        for lane in lanes_in(lanes) {
            if let Some(committed) = self.committed.get_mut(lane) {
                *committed += 1;
            }
        }
    }

    /// Takes the copies in all committed groups of these lanes, except the last `pending` groups of
    /// each lane.
    pub(crate) fn take_complete(&mut self, lanes: u32, pending: usize) -> Vec<PendingCopy> {
        let committed = self.committed;
        let complete = |copy: &PendingCopy| {
            let committed = committed.get(copy.lane).copied().unwrap_or(0);
            lanes >> copy.lane & 1 == 1 && copy.group + pending < committed
        };
        let taken = self.pending.iter().filter(|copy| complete(copy)).copied().collect();
        self.pending.retain(|copy| !complete(copy));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_completes_all_but_the_last_groups_of_its_lanes() {
        let mut queue = CopyQueue::default();
        for target in [0, 16, 32] {
            queue.push(1, target, [7; COPY_BYTES_MAX], 16);
            queue.commit(0b10);
        }
        queue.push(1, 48, [7; COPY_BYTES_MAX], 16);
        queue.push(2, 64, [7; COPY_BYTES_MAX], 16);
        let mut take = |lanes, pending| -> Vec<u64> {
            queue.take_complete(lanes, pending).iter().map(|copy| copy.target).collect()
        };
        assert_eq!(take(0b10, 2), [0]);
        assert_eq!(take(0b100, 0), [] as [u64; 0], "lane 2 has committed nothing");
        assert_eq!(take(0b110, 0), [16, 32]);
    }
}
