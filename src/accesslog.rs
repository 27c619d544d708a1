//! The access log: one JSON line for a sampled call, on standard output.
//!
//! Off by default. `simulate` replays it and `explain` reads it. It never holds a body, a header value or a path parameter: tenants and merge keys appear as
//! short digests, keyed anew by each process, the route as it is written in the policy. The headers and the fields of a body that a merge key is made of
//! are named, so that `explain` can say which one keeps calls apart.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::telemetry::LossyWriter;

/// One call, as written and as read back. Field names are the schema: those of README R22, and `parts` and `process` for `explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Record {
    /// Microseconds since 1970, when the head was read.
    pub time_us: u64,
    /// The route of the policy, or `default`; empty where none matched.
    pub route: String,
    /// The protocol label.
    pub protocol: String,
    /// Short digest of the tenant; empty for anonymous.
    pub tenant: String,
    /// Short digest of the merge key; empty for a call that went alone.
    pub key: String,
    /// What the key is made of: what a part is, the name of its header or field, a short digest of its value. None for a key of more than 16 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<(String, String, String)>,
    /// Which process wrote it: digests of two cannot be compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The priority class.
    pub class: String,
    /// Microseconds from arrival to the deadline, 0 for none.
    pub deadline_us: u64,
    /// Items in the call.
    pub items: u32,
    /// Their weight.
    pub weight: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// Microseconds from acceptance to dispatch.
    pub queue_us: u64,
    /// Microseconds from dispatch to the answer.
    pub exec_us: u64,
    /// Which execution.
    pub batch: u64,
    /// Items in it.
    pub batch_items: u32,
    /// Why it left.
    pub cause: String,
    /// How the call ended.
    pub outcome: String,
    /// Why it was not merged, or which failure.
    pub reason: String,
    /// The HTTP status given.
    pub status: u16,
}

/// Writes a sample of the calls.
#[derive(Debug, Clone)]
pub struct AccessLog {
    writer: LossyWriter,
    share_ppm: u32,
}

// === impl AccessLog ===

impl AccessLog {
    /// A log of this many calls in a million.
    #[must_use]
    pub const fn new(writer: LossyWriter, share_ppm: u32) -> Self {
        Self { writer, share_ppm }
    }

    /// Whether this call is to be written.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.share_ppm >= 1_000_000 || rand::random_range(0..1_000_000) < self.share_ppm
    }

    /// Writes one line, or drops it when the pipe is blocked.
    pub fn write(&self, record: &Record) {
        // A record of numbers and short strings always serialises.
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            self.writer.line(line);
        }
    }

    /// Waits until what was written is out, at most this long.
    pub fn flush(&self, limit: Duration) {
        self.writer.flush(limit);
    }
}

/// Eight hexadecimal digits of a digest: enough to tell lines apart, too few to look anything up.
#[must_use]
pub fn short_digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().take(4).fold(String::with_capacity(8), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
