//! The limit of the memory of an executor.

const MILLION: usize = 1_000_000;

/// Maximum memory of an executor on its device, for weights, working memory and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// A number of bytes.
    Bytes(usize),
    /// A share of the memory that is free when the executor is created, in millionths.
    FreeShare(u32),
}

// === impl MemoryLimit ===

impl MemoryLimit {
    /// Returns the limit in bytes, where `free` bytes are free. It is never above them.
    #[must_use]
    pub fn bytes(self, free: usize) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.min(free),
            Self::FreeShare(millionths) => {
                let millionths = usize::try_from(millionths).unwrap_or(MILLION).min(MILLION);
                free / MILLION * millionths
            }
        }
    }
}

impl Default for MemoryLimit {
    /// Returns 85 percent. The rest is for the modules, the graphs and the stacks of a driver.
    fn default() -> Self {
        Self::FreeShare(850_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_at_most_the_free_memory() {
        for (limit, bytes) in [
            (MemoryLimit::Bytes(3_000_000), 3_000_000),
            (MemoryLimit::Bytes(9_000_000), 8_000_000),
            (MemoryLimit::FreeShare(250_000), 2_000_000),
            (MemoryLimit::FreeShare(2_000_000), 8_000_000),
            (MemoryLimit::default(), 6_800_000),
        ] {
            assert_eq!(limit.bytes(8_000_000), bytes, "{limit:?}");
        }
    }
}
