//! A global allocator that counts its allocations.

#![expect(
    unsafe_code,
    reason = "the standard library's interface for an allocator is unsafe; this one hands everything on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Forwards all calls to the system allocator and counts allocations and reallocations.
pub(crate) struct CountingAllocator;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the total number of allocations and reallocations of the process.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

// SAFETY: every call is handed on unchanged, so `System`'s own guarantees hold.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout, for nothing else is ever given out.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `dealloc`, and the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}
