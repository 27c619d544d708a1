//! The memory of the process: how much its peers can make it hold, and what goes first when that is
//! reached.
//!
//! Three numbers bound it: bytes of calls (`proxy.process.bufferedBytesMax`: heads, bodies, answers
//! and streams), client connections, and 3/2 as many upstream connections. A process holds at most
//!
//! ```text
//! BASE + 5/4 × (bytes of calls + CONNECTION × client connections + UPSTREAM × upstream connections)
//! ```
//!
//! A limit on the memory of the control group lowers the numbers until nine tenths of it hold that
//! sum. Where a number is reached, what its client keeps unfinished makes room for the newcomer.

mod budget;
mod cgroup;
mod eviction;
mod guard;
mod pressure;

pub use budget::{BufferBudget, BuffersFull, Evicted, Held};
pub use cgroup::ControlGroup;
pub use eviction::{EvictionMember, EvictionSet};
pub use guard::{EvictionWatch, HoldPhase};
pub use pressure::{PressureLevel, watch_pressure};

/// Memory of a process without a connection, with its learned state.
const BASE: u64 = 24 << 20;
/// A client connection: its tasks, hyper's read buffer and its share of the allocator's pages.
const CONNECTION: u64 = 16 << 10;
/// An upstream connection, with what waits on it to be written.
const UPSTREAM: u64 = 24 << 10;
/// A stream of HTTP/2 beside its head and its bodies: its task, its future and `h2`'s state.
pub const STREAM: usize = 12 << 10;
/// Connections that are possible under any limit on memory.
const CONNECTIONS_MIN: u64 = 64;

/// Bytes of calls that a limit on memory allows.
#[must_use]
pub const fn buffered_bytes_within(limit: u64) -> u64 {
    let most = limit / 4;
    if most == 0 { 1 } else { most }
}

/// Client connections that a limit on memory allows beside `buffered_bytes` of calls.
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
    }
}
