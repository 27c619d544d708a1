//! Memory at the boundary of a cache line, so that no vector lies across two lines.

use std::fmt;

use crate::cpu::simd::LANES_MAX;

/// A buffer of f32 that begins at a multiple of 64 bytes.
#[derive(Default)]
pub(super) struct AlignedBuffer {
    memory: Vec<f32>,
    start: usize,
    length: usize,
}

// === impl AlignedBuffer ===

impl AlignedBuffer {
    /// Creates a buffer of zeros. `None` if the memory cannot be had.
    pub(super) fn new(length: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(length.checked_add(LANES_MAX)?).ok()?;
        memory.resize(length + LANES_MAX, 0.0_f32);
        // The offset of a vector of f32 is always known and below a line, except in const evaluation.
        let start = memory.as_ptr().align_offset(LANES_MAX * size_of::<f32>()).min(LANES_MAX);
        Some(Self { memory, start, length })
    }

    pub(super) fn as_slice(&self) -> &[f32] {
        self.memory.get(self.start..self.start + self.length).unwrap_or_default()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [f32] {
        self.memory.get_mut(self.start..self.start + self.length).unwrap_or_default()
    }

    /// Size of the memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.memory.len() * size_of::<f32>()
    }
}

impl fmt::Debug for AlignedBuffer {
    /// Prints the length only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_at_a_line_and_has_its_length() {
        for length in [0, 1, 15, 1000] {
            let mut buffer = AlignedBuffer::new(length).unwrap();
            assert_eq!(buffer.as_slice().as_ptr().addr() % 64, 0);
            assert_eq!((buffer.as_slice().len(), buffer.as_mut_slice().len()), (length, length));
        }
        assert!(AlignedBuffer::new(usize::MAX).is_none() && AlignedBuffer::new(usize::MAX / 8).is_none());
    }
}
