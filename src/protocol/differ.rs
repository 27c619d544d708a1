//! Which parts of merge keys differ: what keeps calls apart, by name.
//!
//! Of each key it keeps a digest of each part, never a value: enough to say that `x-user` has seventeen values and everything else one. The running
//! proxy tells it of the keys that come, and `groupage explain` of those in an access log.
//!
//! What it leaves out: how a key is taken to pieces (`apart`), and which keys are looked at.

use std::collections::{HashSet, VecDeque};

use super::apart::PartKind;

/// Keys compared: as many as the core watches the arrivals of.
const KEYS_MAX: usize = 64;
/// Parts of a key that are told apart: a call has some ten. What is beyond is not compared.
pub const PARTS_MAX: usize = 32;
/// Longest key that is taken to pieces: it may hold whole fields of a body, and many of them.
pub const KEY_BYTES_MAX: usize = 16 << 10;
/// Parts that are told: more than anybody reads.
const TOLD_MAX: usize = 8;

/// The keys that came last.
#[derive(Debug, Default)]
pub struct Keys(VecDeque<Seen>);

/// A part of the merge keys that is not the same in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differs {
    /// What it is.
    pub kind: PartKind,
    /// The name of the header or field; empty for other kinds.
    pub name: String,
    /// How many values it has; to be absent is one.
    pub values: usize,
    /// How many keys would be left if it did not count.
    pub keys_without: usize,
}

/// A part of a key: what it is, its name, and a digest over both and the value.
pub type PartDigest = (PartKind, Box<str>, u64);

/// One key: digests only.
#[derive(Debug)]
struct Seen {
    whole: u64,
    parts: Vec<PartDigest>,
}

// === impl Keys ===

impl Keys {
    /// Whether a key with this digest is among them.
    #[must_use]
    pub fn has(&self, whole: u64) -> bool {
        self.0.iter().any(|seen| seen.whole == whole)
    }

    /// A key that is not among them; the oldest one goes where there are too many.
    pub fn push(&mut self, whole: u64, parts: impl IntoIterator<Item = PartDigest>) {
        if self.0.len() >= KEYS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Seen { whole, parts: parts.into_iter().take(PARTS_MAX).collect() });
    }

    /// How many there are, at most 64.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What differs, the part that alone keeps most of them apart first.
    #[must_use]
    pub fn differs(&self) -> Vec<Differs> {
        let mut parts: Vec<(PartKind, &str)> =
            self.0.iter().flat_map(|seen| seen.parts.iter().map(|(kind, name, _)| (*kind, &**name))).collect();
        parts.sort_unstable();
        parts.dedup();
        let mut found: Vec<Differs> = parts.into_iter().filter_map(|(kind, name)| self.differ(kind, name)).collect();
        found.sort_by(|a, b| (a.keys_without, b.values).cmp(&(b.keys_without, a.values)));
        found.truncate(TOLD_MAX);
        found
    }

    fn differ(&self, kind: PartKind, name: &str) -> Option<Differs> {
        let own = |seen: &Seen| {
            let own = seen.parts.iter().filter(|part| part.0 == kind && *part.1 == *name);
            // The digests hold what they are of, so their sum stands for the set.
            own.fold(0, |sum: u64, part| sum.wrapping_add(part.2))
        };
        let all = |seen: &Seen| seen.parts.iter().fold(0, |sum: u64, part| sum.wrapping_add(part.2));
        let values: HashSet<u64> = self.0.iter().map(own).collect();
        let without: HashSet<u64> = self.0.iter().map(|seen| all(seen).wrapping_sub(own(seen))).collect();
        (values.len() > 1).then(|| Differs {
            kind,
            name: name.to_owned(),
            values: values.len(),
            keys_without: without.len(),
        })
    }
}
