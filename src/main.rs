//! The one binary; every role is a subcommand of [`groupage::cli`].

use std::process::ExitCode;

/// glibc's allocator keeps the peak of a burst for ever, and mimalloc most of it, since connections end on other threads than they began on; this one
/// gives it back from a thread of its own, which sleeps while there is nothing to give.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    groupage::cli::run()
}
