//! Canonical key bytes: two calls may share a batch exactly when theirs are equal.

use http::HeaderMap;
use http::header::HeaderName;

/// A key in the making. Every part has its length before it, so no two lists of parts make the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Key(Vec<u8>);

/// Room for the key of a common call: its head has a few headers of a few dozen bytes, each with two lengths.
const ROOM: usize = 512;

// === impl Key ===

impl Key {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(ROOM))
    }

    pub(crate) fn field(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.0.extend_from_slice(&u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
    }

    /// All values of a header, in their order. Absent is a value.
    pub(crate) fn values(&mut self, headers: &HeaderMap, name: &HeaderName) {
        let values = headers.get_all(name);
        self.count(values.iter().count());
        for value in values {
            self.field(value.as_bytes());
        }
    }

    pub(crate) fn into_bytes(self) -> Box<[u8]> {
        self.0.into_boxed_slice()
    }
}
