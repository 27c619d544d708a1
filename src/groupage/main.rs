//! The `groupage` binary. Every role is a subcommand of [`groupage::cli`].

use std::process::ExitCode;

/// The global allocator. glibc's allocator keeps the peak of a burst forever, and mimalloc keeps
/// most of it, because connections are closed on other threads than the ones that opened them.
/// jemalloc returns this memory from a background thread, which sleeps while there is nothing to
/// return.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    groupage::cli::run()
}
