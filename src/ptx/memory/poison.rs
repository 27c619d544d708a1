//! A bitmap of the bytes that were written.

/// Bits of one word of the bitmap.
const WORD_BITS: usize = 64;

/// One bit a byte: whether it was written. Bytes that were not are poison, and reading them is an
/// error.
#[derive(Debug, Default)]
pub(super) struct WrittenBytes(Vec<u64>);

// === impl WrittenBytes ===

impl WrittenBytes {
    /// Creates the map of a memory of which nothing was written.
    pub(super) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(WORD_BITS)])
    }

    /// Marks a range as written.
    pub(super) fn mark(&mut self, start: usize, bytes: usize) {
        for (word, mask) in words_of(start, bytes) {
            if let Some(bits) = self.0.get_mut(word) {
                *bits |= mask;
            }
        }
    }

    /// Marks a range as not written.
    pub(super) fn clear(&mut self, start: usize, bytes: usize) {
        for (word, mask) in words_of(start, bytes) {
            if let Some(bits) = self.0.get_mut(word) {
                *bits &= !mask;
            }
        }
    }

    /// Returns `true` if all bytes of a range were written.
    pub(super) fn covers(&self, start: usize, bytes: usize) -> bool {
        words_of(start, bytes).all(|(word, mask)| self.0.get(word).is_some_and(|bits| bits & mask == mask))
    }

    /// Returns `true` if a byte of a range was written.
    pub(super) fn intersects(&self, start: usize, bytes: usize) -> bool {
        words_of(start, bytes).any(|(word, mask)| self.0.get(word).is_some_and(|bits| bits & mask != 0))
    }
}

/// Splits a range into words of the bitmap and the bits of each.
fn words_of(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = start + bytes;
    (start / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |word| {
        let first = start.saturating_sub(word * WORD_BITS);
        let last = (end - word * WORD_BITS).min(WORD_BITS);
        (word, (u64::MAX >> (WORD_BITS - (last - first))) << first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_words_of_the_bitmap() {
        let mut map = WrittenBytes::new(200);
        map.mark(60, 70);
        assert!(map.covers(60, 70) && map.covers(64, 64) && map.covers(129, 1));
        assert!(!map.covers(59, 2) && !map.covers(129, 2) && !map.covers(0, 200));
        assert!(map.intersects(0, 61) && !map.intersects(0, 60));
        map.clear(100, 1);
        assert!(!map.covers(60, 70) && map.covers(60, 40) && map.covers(101, 29));
    }
}
