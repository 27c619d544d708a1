//! Comparison of recent merge keys: finds the parts, by name, that prevent calls from sharing a
//! batch.
//!
//! For each key, only a digest of each part is kept, never a value. This is sufficient to report,
//! for example, that `x-user` has seventeen values while every other part has one. The running
//! proxy feeds it with the keys of arriving calls, and `groupage explain` with those of an access
//! log.
//!
//! Splitting a key into its parts is left to `key_parts`, and the choice of keys to the caller.

use std::collections::{HashSet, VecDeque};

use super::key_parts::PartKind;

/// Maximum number of keys compared, equal to the number of keys for which the batching core tracks
/// arrivals.
const KEYS_MAX: usize = 64;
/// Maximum number of parts of a key that are compared. A call has about ten; parts beyond the
/// maximum are ignored.
pub const PARTS_MAX: usize = 32;
/// Longest key that is split into parts, in bytes. A key may contain whole fields of a body.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// Maximum number of differing parts that are reported.
const REPORTED_MAX: usize = 8;

/// A bounded record of the most recent distinct merge keys.
#[derive(Debug, Default)]
pub struct RecentKeys(VecDeque<KeyDigests>);

/// A part of the merge keys that has more than one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferingPart {
    /// Kind of the part.
    pub kind: PartKind,
    /// Name of the header or field; empty for other kinds.
    pub name: String,
    /// Number of distinct values. Absence counts as a value.
    pub values: usize,
    /// Number of distinct keys that would remain if this part were ignored.
    pub keys_without: usize,
}

/// A part of a key: its kind, its name, and a digest over kind, name and value.
pub type PartDigest = (PartKind, Box<str>, u64);

/// A recorded key, as digests only.
#[derive(Debug)]
struct KeyDigests {
    whole: u64,
    parts: Vec<PartDigest>,
}

// === impl RecentKeys ===

impl RecentKeys {
    /// Returns `true` if a key with this digest is recorded.
    #[must_use]
    pub fn contains(&self, whole: u64) -> bool {
        self.0.iter().any(|known| known.whole == whole)
    }

    /// Records a key that is not yet present. The oldest key is evicted if the record is full.
    pub fn push(&mut self, whole: u64, parts: impl IntoIterator<Item = PartDigest>) {
        if self.0.len() >= KEYS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(KeyDigests { whole, parts: parts.into_iter().take(PARTS_MAX).collect() });
    }

    /// Returns the number of recorded keys, at most 64.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if no key is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the parts that differ, ordered so that the part that separates the most keys comes
    /// first.
    #[must_use]
    pub fn differing_parts(&self) -> Vec<DifferingPart> {
        let mut parts: Vec<(PartKind, &str)> =
            self.0.iter().flat_map(|known| known.parts.iter().map(|(kind, name, _)| (*kind, &**name))).collect();
        parts.sort_unstable();
        parts.dedup();
        let mut found: Vec<DifferingPart> =
            parts.into_iter().filter_map(|(kind, name)| self.compare_part(kind, name)).collect();
        found.sort_by(|a, b| (a.keys_without, b.values).cmp(&(b.keys_without, a.values)));
        found.truncate(REPORTED_MAX);
        found
    }

    fn compare_part(&self, kind: PartKind, name: &str) -> Option<DifferingPart> {
        let own = |key: &KeyDigests| {
            let own = key.parts.iter().filter(|part| part.0 == kind && *part.1 == *name);
            // Each digest covers kind and name as well as the value, so the wrapping sum identifies
            // the set.
            own.fold(0, |sum: u64, part| sum.wrapping_add(part.2))
        };
        let all = |key: &KeyDigests| key.parts.iter().fold(0, |sum: u64, part| sum.wrapping_add(part.2));
        let values: HashSet<u64> = self.0.iter().map(own).collect();
        let without: HashSet<u64> = self.0.iter().map(|key| all(key).wrapping_sub(own(key))).collect();
        (values.len() > 1).then(|| DifferingPart {
            kind,
            name: name.to_owned(),
            values: values.len(),
            keys_without: without.len(),
        })
    }
}
