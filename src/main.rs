//! The one binary; every role is a subcommand of [`groupage::cli`].

use std::process::ExitCode;

/// glibc's allocator keeps the peak of a burst for ever; this one gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // So that `groupage … | head` ends quietly.
    sigpipe::reset();
    groupage::cli::run()
}
