//! Merge keys in canonical form: two calls may share a batch exactly if their keys are equal.

use http::HeaderMap;
use http::header::HeaderName;

/// A builder of merge keys. Every part is prefixed with its length, so two different lists of parts
/// never produce the same bytes.
#[derive(Debug, Default)]
pub(crate) struct MergeKeyBuilder(Vec<u8>);

/// Initial capacity: the head of a common call has a few headers of a few dozen bytes, each written
/// with two lengths.
const INITIAL_CAPACITY: usize = 512;

// === impl MergeKeyBuilder ===

impl MergeKeyBuilder {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(INITIAL_CAPACITY))
    }

    pub(crate) fn push_field(&mut self, bytes: &[u8]) {
        self.push_count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn push_count(&mut self, count: usize) {
        self.0.extend_from_slice(&u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
    }

    /// Appends all values of a header in their order, preceded by their number. An absent header is
    /// written as zero values.
    pub(crate) fn push_header(&mut self, headers: &HeaderMap, name: &HeaderName) {
        let values = headers.get_all(name);
        self.push_count(values.iter().count());
        for value in values {
            self.push_field(value.as_bytes());
        }
    }

    pub(crate) fn into_bytes(self) -> Box<[u8]> {
        self.0.into_boxed_slice()
    }
}
