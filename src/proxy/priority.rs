//! Of which priority class a call is, and what its tenant weighs: read from its headers.
//!
//! What a caller says of itself is taken as it stands: who may say it is for whoever lets calls in. It leaves out what a class is worth (`batching`).

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::batching::PriorityId;

/// The classes by name, in the order of the core's limits.
#[derive(Debug, Clone, Default)]
pub struct Priorities {
    /// The header that names the class; none: every call is of the first one.
    pub header: Option<HeaderName>,
    /// The first one is for whoever names none of them.
    pub classes: Vec<PriorityClass>,
}

/// A class as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its name.
    pub name: String,
    /// Its own SLO instead of the route's.
    pub slo: Option<Duration>,
}

/// What tenants weigh beside others.
#[derive(Debug, Clone, Default)]
pub struct TenantWeights {
    /// The header that names the tenant.
    pub header: Option<HeaderName>,
    /// By its value; whoever is not named weighs 1.
    pub weights: BTreeMap<String, u32>,
}

// === impl Priorities ===

impl Priorities {
    /// The class that a call names, or the first one.
    pub(super) fn of(&self, headers: &HeaderMap) -> PriorityId {
        let named = self.header.as_ref().and_then(|name| headers.get(name)).map(|value| value.as_bytes().trim_ascii());
        let place = named.and_then(|named| self.classes.iter().position(|class| class.name.as_bytes() == named));
        PriorityId(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0))
    }

    pub(super) fn class(&self, id: PriorityId) -> Option<&PriorityClass> {
        self.classes.get(usize::from(id.0))
    }
}

// === impl TenantWeights ===

impl TenantWeights {
    pub(super) fn of(&self, headers: &HeaderMap) -> u32 {
        if self.weights.is_empty() {
            return 1;
        }
        let named = self.header.as_ref().and_then(|name| headers.get(name)).and_then(|value| value.to_str().ok());
        named.and_then(|named| self.weights.get(named)).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_class_that_is_not_there_is_the_first_one() {
        let class = |name: &str| PriorityClass { name: name.to_owned(), slo: None };
        let header = Some(HeaderName::from_static("x-priority"));
        let known = Priorities { header, classes: vec![class("interactive"), class("bulk")] };
        let of = |pairs| known.of(&map(pairs)).0;
        assert_eq!((of(&[("x-priority", "bulk")]), of(&[("x-priority", " bulk ")])), (1, 1));
        assert_eq!((of(&[]), of(&[("x-priority", "Bulk")]), of(&[("x-priority", "no")])), (0, 0, 0));
        let silent = Priorities { header: None, ..known };
        assert_eq!(silent.of(&map(&[("x-priority", "bulk")])).0, 0);
    }

    #[test]
    fn whoever_is_not_named_weighs_one() {
        let header = Some(HeaderName::from_static("x-team"));
        let weights = TenantWeights { header, weights: BTreeMap::from([("a".to_owned(), 5)]) };
        let of = |pairs| weights.of(&map(pairs));
        assert_eq!((of(&[("x-team", "a")]), of(&[("x-team", "b")]), of(&[])), (5, 1, 1));
    }
}
