//! The bound on buffered bytes: requests and answers together, for the whole process.
//!
//! What is held is a guard; dropping it gives the bytes back. What it leaves out: socket buffers and HTTP/2 windows, which have limits of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget, shared by everybody who buffers.
#[derive(Debug, Clone)]
pub struct BufferBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    held: AtomicUsize,
    max: usize,
}

/// Bytes taken from the budget.
#[derive(Debug)]
pub struct Held {
    budget: BufferBudget,
    bytes: usize,
}

/// The budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("buffers full")]
pub struct BuffersFull;

// === impl BufferBudget ===

impl BufferBudget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { inner: Arc::new(Inner { held: AtomicUsize::new(0), max }) }
    }

    /// A guard that holds nothing yet.
    #[must_use]
    pub fn empty(&self) -> Held {
        Held { budget: self.clone(), bytes: 0 }
    }

    /// Takes bytes that exist already, even over the limit: an answer that was made within the limit is not thrown away for its copy.
    #[must_use]
    pub fn force(&self, bytes: usize) -> Held {
        self.inner.held.fetch_add(bytes, Ordering::Relaxed);
        Held { budget: self.clone(), bytes }
    }

    /// Bytes held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.inner.held.load(Ordering::Relaxed)
    }

    /// The most that one answer may hold: half of it all.
    #[must_use]
    pub fn answer_max(&self) -> usize {
        self.inner.max / 2
    }
}

// === impl Held ===

impl Held {
    /// Takes more.
    ///
    /// # Errors
    /// [`BuffersFull`], and then nothing was taken.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BuffersFull> {
        let inner = &self.budget.inner;
        let taken = inner.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= inner.max)
        });
        if taken.is_err() {
            return Err(BuffersFull);
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.inner.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_never_passes_the_limit_and_comes_back() {
        let budget = BufferBudget::new(100);
        let mut a = budget.empty();
        let mut b = budget.empty();
        a.grow(60).unwrap();
        assert_eq!(b.grow(50), Err(BuffersFull));
        b.grow(40).unwrap();
        drop(a);
        b.grow(60).unwrap();
        drop(b);
        assert_eq!(budget.held(), 0);
    }
}
