//! The access log: one JSON line per sampled call, on standard output.
//!
//! It is off by default. `simulate` replays it and `explain` reads it. It never contains a body, a
//! header value or a path parameter: tenants and merge keys appear as short digests with a key per
//! process, and the route as it is configured. The headers and body fields that form a merge key
//! are named, so that `explain` can report the one that prevents merging.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::telemetry::LossyWriter;

/// A call as written to the log and read back. The field names are the schema of the log; `parts`
/// and `process` serve `explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct CallRecord {
    /// Microseconds since 1970 at which the head was read.
    pub time_us: u64,
    /// The route as configured, or `default`; empty if no route matched.
    pub route: String,
    /// The protocol label.
    pub protocol: String,
    /// Short digest of the tenant; empty for anonymous.
    pub tenant: String,
    /// Short digest of the merge key; empty for a call that is not mergeable.
    pub key: String,
    /// The parts of the merge key: kind, name of the header or field, and short digest of the
    /// value. Empty for a key of more than 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<(String, String, String)>,
    /// Digest that identifies the process: digests of different processes are not comparable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The priority class.
    pub class: String,
    /// Microseconds from arrival to the deadline, 0 for none.
    pub deadline_us: u64,
    /// Number of items in the call.
    pub items: u32,
    /// Weight of the items.
    pub weight: u64,
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Microseconds from acceptance to dispatch.
    pub queue_us: u64,
    /// Microseconds from dispatch to the response.
    pub exec_us: u64,
    /// Id of the execution.
    pub batch: u64,
    /// Number of items in the execution.
    pub batch_items: u32,
    /// Reason for the dispatch.
    pub cause: String,
    /// Outcome of the call.
    pub outcome: String,
    /// Reason for which the call was not merged, or of its failure.
    pub reason: String,
    /// HTTP status of the response.
    pub status: u16,
}

/// Writes a sample of the calls to the access log.
#[derive(Debug, Clone)]
pub struct AccessLog {
    writer: LossyWriter,
    share_ppm: u32,
}

// === impl AccessLog ===

impl AccessLog {
    /// Creates a log that samples `share_ppm` of a million calls.
    #[must_use]
    pub const fn new(writer: LossyWriter, share_ppm: u32) -> Self {
        Self { writer, share_ppm }
    }

    /// Returns `true` if this call is sampled.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.share_ppm >= 1_000_000 || rand::random_range(0..1_000_000) < self.share_ppm
    }

    /// Writes one line, or drops it if the pipe is blocked.
    pub fn write(&self, record: &CallRecord) {
        // A record of numbers and short strings always serialises.
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            self.writer.line(line);
        }
    }

    /// Waits until all lines are written, for at most `limit`.
    pub fn flush(&self, limit: Duration) {
        self.writer.flush(limit);
    }
}

/// Returns eight hexadecimal digits of a digest: enough to distinguish lines, too few to look up a
/// value.
#[must_use]
pub fn short_digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().take(4).fold(String::with_capacity(8), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
