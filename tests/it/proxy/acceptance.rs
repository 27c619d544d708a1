//! Acceptance tests: behaviour that users of other batchers have requested.
//!
//! They run under the adaptive policy. These tests need a server with a cost curve, many clients,
//! or a process; other cases are tested in the other files of `proxy`. Tests that check times are
//! in `tests/timed`, where no other test competes for the cores.

mod callers;
mod overload;
mod process;
mod waiting;

use std::time::Duration;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
