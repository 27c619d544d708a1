//! Memory limits of the process: bounds on the memory that its peers can make it hold, and eviction
//! when a bound is reached.
//!
//! Three numbers bound it: the bytes of calls (`proxy.process.bufferedBytesMax`: heads, bodies,
//! responses and streams), the client connections, and the upstream connections, which are 3/2 as
//! many. A process holds at most
//!
//! ```text
//! BASE + 5/4 × (bytes of calls + CONNECTION × client connections
//!               + UPSTREAM × upstream connections)
//! ```
//!
//! The factor 5/4 covers evicted bytes that their owners have not released yet (`budget`). A memory
//! limit of the control group lowers the numbers until that sum fits into nine tenths of the limit.
//! At a bound, connections and bodies that their clients leave unfinished are evicted in favour of
//! new ones.

mod anonymous;
mod budget;
mod cgroup;
mod eviction;
mod guard;
mod machine;
mod pressure;

pub use anonymous::anonymous_bytes;
pub use budget::{BufferBudget, BufferGuard, BuffersFull, EvictedError};
pub use cgroup::ControlGroup;
pub use eviction::{EvictionMember, EvictionSet};
pub use guard::{EvictionWatch, HoldPhase};
pub use machine::MachineMemory;
pub use pressure::{PressureLevel, watch_pressure};

/// Memory of a process without connections, including its learned state.
const BASE: u64 = 24 << 20;
/// Memory of a client connection: its tasks, hyper's read buffer and its share of allocator pages.
const CONNECTION: u64 = 16 << 10;
/// Memory of an upstream connection: its state and hyper's read buffer, which grows to 64 KiB in an
/// eighth as many as there are client connections, and to 16 KiB in the others
/// (`proxy::upstream::permits`).
const UPSTREAM: u64 = 24 << 10;
/// Memory of an HTTP/2 stream in addition to its head and bodies: its task, its future and the
/// state of `h2`.
pub const STREAM: usize = 12 << 10;
/// Minimum number of connections under any memory limit.
const CONNECTIONS_MIN: u64 = 64;

/// Least memory of a process: the least number of connections, and calls of 1 MiB, the default of
/// `limits.itemBytesMax`.
pub const PROCESS_BYTES_MIN: u64 =
    (BASE + (CONNECTIONS_MIN * (CONNECTION + UPSTREAM + UPSTREAM / 2) + (1 << 20)) / 4 * 5) / 9 * 10;

/// Returns the bytes of calls that fit into a memory limit: a quarter of it, and at least 1.
#[must_use]
pub const fn buffered_bytes_within(limit: u64) -> u64 {
    let most = limit / 4;
    if most == 0 { 1 } else { most }
}

/// Returns the number of client connections that fit into a memory limit in addition to
/// `buffered_bytes` of calls.
#[must_use]
pub const fn connections_within(limit: u64, buffered_bytes: u64) -> u64 {
    let sum = (limit / 10 * 9).saturating_sub(BASE) / 5 * 4;
    let connections = sum.saturating_sub(buffered_bytes) / (CONNECTION + UPSTREAM + UPSTREAM / 2);
    if connections < CONNECTIONS_MIN { CONNECTIONS_MIN } else { connections }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_the_bounds_fits_the_limit() {
        for limit in [96_u64 << 20, 128 << 20, 256 << 20, 1 << 30] {
            let bytes = buffered_bytes_within(limit);
            let connections = connections_within(limit, bytes);
            let sum = BASE + (bytes + connections * (CONNECTION + UPSTREAM * 3 / 2)) * 5 / 4;
            assert!(sum <= limit / 10 * 9 + 1, "{limit}: {sum}");
        }
        assert_eq!(connections_within(128 << 20, 32 << 20), 806);
        let least = connections_within(PROCESS_BYTES_MIN, 1 << 20);
        assert!((CONNECTIONS_MIN..CONNECTIONS_MIN + 2).contains(&least), "{least}");
        let idle = PressureLevel::of(BASE, PROCESS_BYTES_MIN);
        assert_eq!(idle, PressureLevel::None, "a process without calls is under no pressure at the least limit");
    }
}
